//! Steps of training of networks that nobody designed.

use std::sync::Arc;

use trefoil::ops::core::CoreOps;
use trefoil::{CpuBackend, Engine};
use trefoil_nn::{Device, Result};

use super::Verdict;

/// Most memory that a network may take to be trained here, in bytes.
const MEMORY: usize = 64 << 20;
/// Most operations.
const OPERATIONS: u64 = 20_000;

/// Runs `steps` on a device that computes nothing, and then, where what was asked for is not too much for a test, on the CPU. Every network
/// goes through the former, however large it says it is, because checks must not take longer for larger numbers.
pub(crate) fn everywhere(steps: impl Fn(&Device) -> Result<()>) -> Verdict {
    let shapes: Device = Arc::new(Engine::shapes());
    if steps(&shapes).is_err() {
        return Verdict::Rejected;
    }
    if shapes.memory().peak > MEMORY || shapes.counters().launches > OPERATIONS {
        return Verdict::Accepted;
    }
    let cpu: Device = Arc::new(CpuBackend::new());
    // Values, which the first device does not have, may still be refused.
    Verdict::of(steps(&cpu))
}
