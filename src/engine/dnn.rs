//! Convolutions, attention and Fourier transforms of a vendor library: the calls, and whether their results can be trusted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use super::capture::{QueuedAttention, QueuedConv};
use super::plan::Reason;
use super::{Engine, lock};
use crate::backend::BackendExt;
use crate::buffer::{Buffer, View};
use crate::cpu::{HostElement, with_dtype};
use crate::device::DeviceId;
use crate::driver::{
    ConvPass, RawMem, VendorAttention, VendorAttentionProblem, VendorConv, VendorConvProblem,
    VendorFftProblem,
};
use crate::dtype::DType;
use crate::error::Result;

/// What was found out about a library's results, per pass and arithmetic.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    convolutions: [AtomicU8; 12],
    attention: [AtomicU8; 4],
    fourier: [AtomicU8; 8],
}

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
        &self.convolutions[4 * pass + arithmetic]
    }

    fn of_attention(&self, p: &VendorAttentionProblem) -> &AtomicU8 {
        &self.attention[2 * usize::from(p.gradients.is_some()) + usize::from(p.dtype == DType::Bf16)]
    }

    pub(crate) fn of_fourier(&self, p: &VendorFftProblem) -> &AtomicU8 {
        &self.fourier[2 * p.kind as usize + usize::from(p.dtype == DType::F64)]
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
        let what = || format!("{:?} convolutions in {}", p.pass, p.dtype);
        self.dnn_trusts(self.inner.device.dnn.of(p), lib.name(), &what, vet)
    }

    /// As [`Engine::dnn_takes`], for attention.
    pub(crate) fn dnn_takes_attention(
        &self,
        lib: &dyn VendorAttention,
        p: &VendorAttentionProblem,
        vet: impl FnOnce() -> Result<bool>,
    ) -> std::result::Result<(), Reason> {
        lib.applicable(p)?;
        let which = if p.gradients.is_some() { "gradients of attention" } else { "attention" };
        let what = || format!("{which} in {}", p.dtype);
        self.dnn_trusts(self.inner.device.dnn.of_attention(p), lib.name(), &what, vet)
    }

    /// What is known of the library's results.
    pub(crate) fn dnn_trust(&self) -> &Trust {
        &self.inner.device.dnn
    }

    /// Whether results are right, which `vet` finds out where it is not known.
    pub(crate) fn dnn_trusts(
        &self,
        state: &AtomicU8,
        name: &str,
        what: &dyn Fn() -> String,
        vet: impl FnOnce() -> Result<bool>,
    ) -> std::result::Result<(), Reason> {
        let mut known = state.load(Ordering::Acquire);
        if known == 0 {
            let _run = self.suspend();
            let good = vet().unwrap_or_else(|e| {
                log::warn!("{name}: the check of {} failed: {e}", what());
                false
            });
            if !good {
                log::warn!("{name} is not used for {}", what());
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
        let workspace = self.dnn_workspace(lib.workspace(p))?;
        let mem = tensors.map(address);
        let written = match p.pass {
            ConvPass::Forward => 2,
            ConvPass::Input => 0,
            ConvPass::Weight => 1,
        };
        if self.records() {
            self.dnn_settle(lib, p, tensors, written)?;
        }
        let workspace = at(&workspace);
        self.dnn_queue(
            lib.name(),
            &[mem[written].0],
            || self.record_conv(QueuedConv { problem: *p, tensors: mem, workspace }),
            // SAFETY: the operands were checked to have the problem's sizes, the output to lie apart from the inputs; the workspace has the size that
            // the library asked for; the stream is the driver's.
            || unsafe { lib.run(self.inner.stream, p, mem, workspace) },
        )
    }

    /// Queues attention of the library's: q, k, v, o, the logarithms and, if the problem has gradients, those of o, q, k and v.
    pub(crate) fn dnn_call_attention(
        &self,
        lib: &dyn VendorAttention,
        p: &VendorAttentionProblem,
        scale: f32,
        tensors: &[View<'_>],
    ) -> Result<()> {
        let workspace = self.dnn_workspace(lib.workspace(p))?;
        let workspace = at(&workspace);
        let mem: Vec<_> = tensors.iter().map(address).collect();
        let written = if p.gradients.is_some() { &mem[6..] } else { &mem[3..] };
        let written: Vec<RawMem> = written.iter().map(|m| m.0).collect();
        self.dnn_queue(
            lib.name(),
            &written,
            || self.record_attention(QueuedAttention { problem: *p, scale, tensors: mem.clone(), workspace }),
            // SAFETY: as for convolutions.
            || unsafe { lib.run(self.inner.stream, p, scale, &mem, workspace) },
        )
    }

    /// Random numbers in [-1, 1), for the check of a library.
    pub(crate) fn noise(&self, dtype: DType, n: usize, seed: u32) -> Result<Buffer> {
        let mut word = seed;
        let mut next = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(word >> 8) / f64::from(1 << 23) - 1.0
        };
        let values: Vec<f64> = (0..n).map(|_| next()).collect();
        with_dtype!(dtype, T => self.upload(&values.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>()))
    }

    pub(crate) fn dnn_workspace(&self, bytes: usize) -> Result<Option<Buffer>> {
        (bytes > 0).then(|| self.scratch(DType::U8, bytes)).transpose()
    }

    /// Marks what is written; records the call, or counts and queues it.
    pub(crate) fn dnn_queue(
        &self,
        name: &str,
        written: &[RawMem],
        record: impl FnOnce() -> Option<Result<()>>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.check_poison()?;
        let device = &self.inner.device;
        self.wrote(written.iter().copied());
        if let Some(recorded) = record() {
            return recorded;
        }
        device.counts.launches.fetch_add(1, Ordering::Relaxed);
        self.timed(name, run).map_err(|e| self.refused(e))?;
        if device.sync_each {
            // SAFETY: the stream is the driver's and lives as long as the pool.
            unsafe { device.driver.synchronize(self.inner.stream) }.map_err(|e| self.poison(e))?;
        }
        Ok(())
    }
}

/// Memory and offset of an operand. Operands were checked to be this device's, so there is memory.
pub(crate) fn address(v: &View<'_>) -> (RawMem, u64) {
    let offset = (v.layout().offset() * v.dtype().size()) as u64;
    (v.block().raw().unwrap_or(RawMem(0)), offset)
}

/// Memory, offset and size of a workspace.
pub(crate) fn at(workspace: &Option<Buffer>) -> Option<(RawMem, u64, usize)> {
    workspace.as_ref().and_then(|w| Some((w.view().block().raw()?, 0, w.len() * w.dtype().size())))
}
