//! Convolutions of a vendor library: the call, and whether its results can be trusted.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Engine;
use super::plan::Reason;
use crate::buffer::View;
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

impl Engine {
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
        device.counts.launches.fetch_add(1, Ordering::Relaxed);
        let written = match p.pass {
            ConvPass::Forward => 2,
            ConvPass::Input => 0,
            ConvPass::Weight => 1,
        };
        self.wrote([mem[written].0]);
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
