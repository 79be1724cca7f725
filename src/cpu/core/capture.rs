//! Recording: there is nothing to record.

use crate::cpu::CpuBackend;
use crate::error::Result;
use crate::ops::core::{CaptureOps, Graph};

impl CaptureOps for CpuBackend {
    fn capture_calls(&self, _: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let why = "work on the CPU backend is done before a call returns, so that none is queued that could be recorded; make the calls themselves";
        Err(self.unsupported("capture_calls", why))
    }
}
