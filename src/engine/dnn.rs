//! Convolutions of a vendor library: the call, and whether its results can be trusted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use super::capture::QueuedConv;
use super::plan::Reason;
use super::{Engine, lock};
use crate::buffer::View;
use crate::device::DeviceId;
use crate::driver::{ConvPass, RawMem, VendorConv, VendorConvProblem};
use crate::dtype::DType;
use crate::error::Result;

/// What was found out about a library's results, per pass and arithmetic.
#[derive(Debug, Default)]
pub(crate) struct Trust([AtomicU8; 12]);

const GOOD: u8 = 1;
const BAD: u8 = 2;

impl Trust {
    fn of(&self, p: &VendorConvProblem) -> &AtomicU8 {
        let arithmetic = match (p.dtype, p.tf32) {
            (DType::F32, false) => 0,
            (DType::F32, true) => 1,
            (DType::F16, _) => 2,
            _ => 3,
        };
        let pass = match p.pass {
            ConvPass::Forward => 0,
            ConvPass::Input => 1,
            ConvPass::Weight => 2,
        };
        &self.0[4 * pass + arithmetic]
    }
}

/// Runs of each side of a race that count.
const RUNS: usize = 3;

/// Whether the library won a race, for the life of the process.
static RACES: Mutex<Option<HashMap<(DeviceId, VendorConvProblem), bool>>> = Mutex::new(None);

impl Engine {
    /// Why the kernels of this library serve a problem, if they were once faster.
    pub(crate) fn dnn_lost(&self, p: &VendorConvProblem) -> Option<&'static str> {
        let won = lock(&RACES).get_or_insert_default().get(&(self.device_caps().id, *p)).copied();
        (won == Some(false)).then_some("the kernels of this library were faster when both were timed")
    }

    /// Whether the library is to serve a problem that it takes. In f32 without tensor cores either side may be faster: on the first call of a large
    /// problem both are timed. Both write the same output, which is nobody's yet.
    pub(crate) fn dnn_race(
        &self,
        lib: &dyn VendorConv,
        p: &VendorConvProblem,
        [theirs, ours]: [&dyn Fn() -> Result<()>; 2],
    ) -> Result<bool> {
        let key = (self.device_caps().id, *p);
        if p.dtype != DType::F32 || p.tf32 {
            return Ok(true);
        }
        if let Some(&won) = lock(&RACES).get_or_insert_default().get(&key) {
            return Ok(won);
        }
        // A race is run once, also while its calls would be recorded.
        let _run = self.suspend();
        // SAFETY: the stream is the driver's and lives as long as the pool.
        if !unsafe { lib.may_time(self.inner.stream, p) } {
            return Ok(true);
        }
        // What this library refuses it does not win.
        let won = self.dnn_time(theirs)? <= self.dnn_time(ours).unwrap_or(u64::MAX);
        Ok(*lock(&RACES).get_or_insert_default().entry(key).or_insert(won))
    }

    /// Nanoseconds of some runs, after one that is not timed.
    fn dnn_time(&self, run: &dyn Fn() -> Result<()>) -> Result<u64> {
        run()?;
        let (driver, stream) = (&self.inner.device.driver, self.inner.stream);
        // SAFETY: the stream is the driver's and lives as long as the pool; the events are the driver's, and destroyed once.
        unsafe {
            let from = driver.record(stream).map_err(|e| self.refused(e))?;
            let done = (0..RUNS).try_for_each(|_| run());
            let to = driver.record(stream);
            let ns = to.and_then(|to| {
                let ns = driver.event_synchronize(to).and_then(|()| driver.elapsed_ns(from, to));
                driver.destroy_event(to);
                ns
            });
            driver.destroy_event(from);
            done?;
            ns.map_err(|e| self.refused(e))
        }
    }

    /// Whether the library takes a problem and computes such problems rightly: `vet` compares results of a small one on the first call.
    pub(crate) fn dnn_takes(
        &self,
        lib: &dyn VendorConv,
        p: &VendorConvProblem,
        vet: impl FnOnce() -> Result<bool>,
    ) -> std::result::Result<(), Reason> {
        lib.applicable(p)?;
        let state = self.inner.device.dnn.of(p);
        let mut known = state.load(Ordering::Acquire);
        if known == 0 {
            let _run = self.suspend();
            let good = vet().unwrap_or_else(|e| {
                log::warn!("{}: the check of {} convolutions failed: {e}", lib.name(), p.dtype);
                false
            });
            if !good {
                log::warn!("{} is not used for {:?} in {}", lib.name(), p.pass, p.dtype);
            }
            known = if good { GOOD } else { BAD };
            state.store(known, Ordering::Release);
        }
        match known {
            GOOD => Ok(()),
            _ => Err("the library's results differed from the portable kernel's".into()),
        }
    }

    /// Runs a problem once that is about to be recorded, into memory that nobody reads: on its first call the library may time its kernels, which it
    /// cannot do in a graph.
    fn dnn_settle(
        &self,
        lib: &dyn VendorConv,
        p: &VendorConvProblem,
        tensors: [&View<'_>; 3],
        written: usize,
    ) -> Result<()> {
        let _run = self.suspend();
        // SAFETY: the stream is the driver's and lives as long as the pool.
        if !unsafe { lib.may_time(self.inner.stream, p) } {
            return Ok(());
        }
        let room = self.scratch(p.dtype, tensors[written].numel())?;
        let (view, mut tensors) = (room.view(), tensors);
        tensors[written] = &view;
        self.dnn_call(lib, p, tensors)
    }

    /// Queues a problem of the library's: x, w and y, of which the problem says which one is written.
    pub(crate) fn dnn_call(
        &self,
        lib: &dyn VendorConv,
        p: &VendorConvProblem,
        tensors: [&View<'_>; 3],
    ) -> Result<()> {
        self.check_poison()?;
        let bytes = lib.workspace(p);
        let workspace = (bytes > 0).then(|| self.scratch(DType::U8, bytes)).transpose()?;
        let workspace = workspace.as_ref().and_then(|w| Some((w.view().block().raw()?, 0, bytes)));
        // Operands were checked to be this device's, so there is memory.
        let at = |v: &View<'_>| {
            let offset = (v.layout().offset() * v.dtype().size()) as u64;
            (v.block().raw().unwrap_or(RawMem(0)), offset)
        };
        let mem = tensors.map(at);
        let device = &self.inner.device;
        let written = match p.pass {
            ConvPass::Forward => 2,
            ConvPass::Input => 0,
            ConvPass::Weight => 1,
        };
        if self.records() {
            self.dnn_settle(lib, p, tensors, written)?;
        }
        self.wrote([mem[written].0]);
        if let Some(recorded) = self.record_conv(QueuedConv { problem: *p, tensors: mem, workspace }) {
            return recorded;
        }
        device.counts.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the operands were checked to have the problem's sizes, the output to lie apart from the inputs; the workspace has the size that the
        // library asked for; the stream is the driver's.
        let done = unsafe { lib.run(self.inner.stream, p, mem, workspace) };
        done.map_err(|e| self.refused(e))?;
        if device.sync_each {
            // SAFETY: the stream is the driver's and lives as long as the pool.
            unsafe { device.driver.synchronize(self.inner.stream) }.map_err(|e| self.poison(e))?;
        }
        Ok(())
    }
}
