//! Recording and replay of calls, and their times.

use crate::engine::Engine;
use crate::error::Result;
use crate::ops::core::{CaptureOps, Graph, Profile};

impl CaptureOps for Engine {
    fn capture_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        self.check_poison()?;
        let recorded = self.start_recording()?;
        calls()?;
        self.instantiate(recorded.finish()?)
    }

    fn profile_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile> {
        self.profile(calls)
    }
}
