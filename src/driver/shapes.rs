//! A driver that computes nothing: for the argument checks of what stands above drivers, without a device.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Arg, CompileUnit, Driver, LaunchConfig, RawEvent, RawFunction, RawMem, RawModule, RawStream};
use crate::device::{BackendKind, Caps, DeviceId};
use crate::error::Result;

/// Handles without anything behind them. Memory reads as zeros.
#[derive(Debug)]
pub(crate) struct ShapeDriver {
    caps: Caps,
    next: AtomicU64,
}

impl ShapeDriver {
    pub(crate) fn new() -> Self {
        let id = DeviceId::new(BackendKind::Custom, 0);
        let mut caps = Caps::new(id, "shapes only, nothing is computed", "shapes");
        caps.f64 = true;
        ShapeDriver { caps, next: AtomicU64::new(1) }
    }

    fn handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Driver for ShapeDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        "opencl"
    }

    fn compiler_id(&self) -> String {
        "none".into()
    }

    fn alloc(&self, _: usize) -> Result<RawMem> {
        Ok(RawMem(self.handle()))
    }

    unsafe fn free(&self, _: RawMem) {}

    fn new_stream(&self) -> Result<RawStream> {
        Ok(RawStream(self.handle()))
    }

    unsafe fn destroy_stream(&self, _: RawStream) {}

    unsafe fn copy_in(&self, _: RawStream, _: RawMem, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_out(&self, _: RawStream, _: RawMem, _: u64, dst: &mut [u8]) -> Result<()> {
        dst.fill(0);
        Ok(())
    }

    unsafe fn copy(&self, _: RawStream, _: (RawMem, u64), _: (RawMem, u64), _: usize) -> Result<()> {
        Ok(())
    }

    fn compile(&self, _: &CompileUnit<'_>) -> Result<Vec<u8>> {
        Ok(vec![])
    }

    unsafe fn load(&self, _: &[u8]) -> Result<RawModule> {
        Ok(RawModule(self.handle()))
    }

    unsafe fn function(&self, _: RawModule, _: &str) -> Result<RawFunction> {
        Ok(RawFunction(self.handle()))
    }

    unsafe fn launch(&self, _: RawStream, _: RawFunction, _: &LaunchConfig, _: &[Arg<'_>]) -> Result<()> {
        Ok(())
    }

    unsafe fn synchronize(&self, _: RawStream) -> Result<()> {
        Ok(())
    }

    unsafe fn record(&self, _: RawStream) -> Result<RawEvent> {
        Ok(RawEvent(self.handle()))
    }

    unsafe fn wait(&self, _: RawStream, _: RawEvent) -> Result<()> {
        Ok(())
    }

    unsafe fn event_synchronize(&self, _: RawEvent) -> Result<()> {
        Ok(())
    }

    unsafe fn elapsed_ns(&self, _: RawEvent, _: RawEvent) -> Result<u64> {
        Ok(0)
    }

    unsafe fn destroy_event(&self, _: RawEvent) {}

    fn runs_kernels(&self) -> bool {
        false
    }
}
