//! A list of calls that is replayed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::Call;
use super::{Recording, plan};
use crate::buffer::Access;
use crate::cpu::{CpuBackend, Kernels};
use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::core::{BackendGraph, GraphInfo, Touch, edges};

/// A recording; all can be replayed in both ways.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Replay;

/// Names of the variants.
pub(in crate::cpu) const VARIANTS: [&str; 2] = ["compact", "plain"];

impl Problem for Replay {
    /// Whether calls are left out and memory is shared.
    type Plan = bool;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: VARIANTS[0], source: "src/cpu/core/capture/plan.rs" },
        Variant { name: VARIANTS[1], source: "src/cpu/core/capture" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> std::result::Result<bool, Reason> {
        Ok(variant == 0)
    }
}

/// A graph of the CPU backend.
pub(super) struct CpuGraph {
    cpu: CpuBackend,
    /// With the variants that were pinned when it was recorded.
    kernels: Kernels,
    calls: Vec<Box<dyn Call>>,
    info: GraphInfo,
    /// Held while the calls are made: those of two replays must not mix.
    running: Mutex<()>,
}

impl CpuGraph {
    /// Of what `cpu` has recorded.
    pub(super) fn new(cpu: &CpuBackend, mut recording: Recording) -> Result<Self> {
        let kernels = &cpu.kernels;
        let mut calls = std::mem::take(&mut recording.calls);
        let made = std::mem::take(&mut recording.made);
        // The copies go back to the pool.
        drop(recording);
        let mut info = GraphInfo { recorded: calls.len(), ..GraphInfo::default() };
        let compact = kernels.choices.plan("capture_calls", &kernels.shared.caps, &Replay)?;
        let gone = if compact { plan::gone(&mut calls, &made) } else { FxHashSet::default() };
        info.unread = if compact { plan::leave_out_unread(&mut calls, &gone) } else { 0 };
        info.edges = edges(calls.iter_mut().map(|c| touches(&mut **c)));
        plan::share_memory(&mut calls, &gone);
        info.calls = calls.iter().map(|c| c.name().to_string()).collect();
        info.copies = info.calls.iter().filter(|name| *name == "copy").count();
        info.launches = calls.len() - info.copies;
        let mut own = FxHashMap::default();
        calls.iter_mut().for_each(|c| {
            c.each(&mut |v| {
                if made.contains(&v.block.id()) {
                    own.insert(v.block.id(), v.block.bytes());
                }
            });
        });
        info.bytes = own.values().sum();
        info.queued_by_host = Some("the CPU backend makes each call anew".into());
        let kernels = Kernels { choices: Arc::new(kernels.choices.fork()), ..kernels.clone() };
        Ok(CpuGraph { cpu: cpu.clone(), kernels, calls, info, running: Mutex::default() })
    }
}

/// What a call reads and writes.
fn touches(call: &mut dyn Call) -> Vec<Touch<u64>> {
    let mut all = vec![];
    call.each(&mut |v| {
        let view = v.view();
        let (span, size) = (view.layout().span(), view.dtype().size());
        let bytes = (span.start * size) as u64..(span.end * size) as u64;
        let (read, write) = (v.access != Access::Overwrite, v.access != Access::Read);
        all.push(Touch { memory: v.block.id(), bytes, read, write });
    });
    all
}

impl BackendGraph for CpuGraph {
    fn replay(&self) -> Result<()> {
        self.cpu.not_recorded("replay", "a graph is not part of another")?;
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.calls.iter().try_for_each(|call| call.run(&self.kernels))
    }

    fn info(&self) -> &GraphInfo {
        &self.info
    }
}

impl fmt::Debug for CpuGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?} on {:?})", self.info, self.cpu)
    }
}
