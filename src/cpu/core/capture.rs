//! Recording, of which there is nothing, and times.

use crate::cpu::CpuBackend;
use crate::error::Result;
use crate::ops::core::{CaptureOps, Graph, Profile};

impl CaptureOps for CpuBackend {
    fn capture_calls(&self, _: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let why = "work on the CPU backend is done before a call returns, so that none is queued that could be recorded; make the calls themselves";
        Err(self.unsupported("capture_calls", why))
    }

    fn profile_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile> {
        self.profile(calls)
    }
}
