//! Steps that are part of a recording: what they take from the host lies in device memory, and is written before every replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trefoil::ops::optimizer::{OptimRule, STEP_NUMBERS};
use trefoil::{DType, GpuError};

use crate::core::capture::Hook;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// Learning rate and number of steps done, which recorded steps share with their optimizer.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Bits of the rate.
    lr: AtomicU64,
    steps: AtomicU64,
}

impl Clock {
    pub(crate) fn new(lr: f64) -> Arc<Self> {
        Arc::new(Clock { lr: lr.to_bits().into(), steps: 0.into() })
    }

    pub(crate) fn lr(&self) -> f64 {
        f64::from_bits(self.lr.load(Ordering::Relaxed))
    }

    pub(crate) fn set_lr(&self, lr: f64) {
        self.lr.store(lr.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn set_steps(&self, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
    }
}

/// Steps that a parameter missed.
pub(crate) type Missed = Arc<AtomicU64>;

/// The numbers of one call of a step.
pub(crate) struct Numbers {
    pub(crate) rule: OptimRule,
    pub(crate) lr_factor: f64,
    /// [`STEP_NUMBERS`] in device memory.
    pub(crate) memory: Tensor,
    /// Steps that its parameters had missed when it was recorded.
    pub(crate) missed: u64,
    pub(crate) params: Vec<Missed>,
}

/// A step of an optimizer within a recording.
pub(crate) struct RecordedStep {
    pub(crate) clock: Arc<Clock>,
    pub(crate) calls: Vec<Numbers>,
    /// Parameters that took no part in it.
    pub(crate) absent: Vec<Missed>,
}

impl Hook for RecordedStep {
    fn before(&self, first: bool) -> Result<()> {
        let t = self.clock.steps() + u64::from(!first);
        for n in &self.calls {
            if n.params.iter().any(|m| m.load(Ordering::Relaxed) != n.missed) {
                let why = "parameters have missed other numbers of steps since the recording; record anew";
                return Err(GpuError::Capture { op: "Optimizer::step", why }.into());
            }
            let t = t - n.missed.min(t.saturating_sub(1));
            let numbers = n.rule.step_numbers(self.clock.lr() * n.lr_factor, t);
            n.memory.write_bytes(&bytes(n.memory.dtype(), &numbers))?;
        }
        Ok(())
    }

    fn after(&self) {
        self.clock.set_steps(self.clock.steps() + 1);
        for m in &self.absent {
            m.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn undo(&self) {
        self.clock.set_steps(self.clock.steps().saturating_sub(1));
        for m in &self.absent {
            m.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Numbers as they lie in memory of a state's type, rounded as arguments of kernels are.
fn bytes(dtype: DType, numbers: &[f64; STEP_NUMBERS]) -> Vec<u8> {
    match dtype {
        DType::F64 => bytemuck::cast_slice(numbers).to_vec(),
        _ => bytemuck::cast_slice(&numbers.map(|x| x as f32)).to_vec(),
    }
}
