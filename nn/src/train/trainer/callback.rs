//! Callbacks of the training loop.

use std::fmt;

use super::EpochStats;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// A finished optimizer step. The tensors are on the device; reading them waits for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct StepEnd<'a> {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Loss of the step's last batch.
    pub loss: &'a Tensor,
    /// Output for the step's last batch.
    pub output: &'a Tensor,
}

/// Called by the trainer as training runs. An error ends it.
pub trait Callback {
    /// An epoch (from 1) begins.
    fn epoch_begin(&mut self, _epoch: u64) -> Result<()> {
        Ok(())
    }
    /// A step is done.
    fn step_end(&mut self, _step: &StepEnd<'_>) -> Result<()> {
        Ok(())
    }
    /// An epoch is done and saved; false ends training.
    fn epoch_end(&mut self, _stats: &EpochStats) -> Result<bool> {
        Ok(true)
    }
}

/// The callbacks of a trainer, in the order in which they were added.
#[derive(Default)]
pub(super) struct Callbacks<'a>(pub(super) Vec<Box<dyn Callback + 'a>>);

impl fmt::Debug for Callbacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} callbacks", self.0.len())
    }
}

impl Callbacks<'_> {
    pub(super) fn epoch_begin(&mut self, epoch: u64) -> Result<()> {
        self.0.iter_mut().try_for_each(|c| c.epoch_begin(epoch))
    }

    pub(super) fn step_end(&mut self, step: &StepEnd<'_>) -> Result<()> {
        self.0.iter_mut().try_for_each(|c| c.step_end(step))
    }

    pub(super) fn epoch_end(&mut self, stats: &EpochStats) -> Result<bool> {
        self.0.iter_mut().try_fold(true, |all, c| Ok(c.epoch_end(stats)? && all))
    }
}
