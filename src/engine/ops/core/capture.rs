//! Recording and replay of calls.

use crate::engine::Engine;
use crate::error::Result;
use crate::ops::core::{CaptureOps, Graph};

impl CaptureOps for Engine {
    fn capture_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        self.check_poison()?;
        let recorded = self.start_recording()?;
        calls()?;
        self.instantiate(recorded.finish()?)
    }
}
