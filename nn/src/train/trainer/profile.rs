//! Profiles of steps, and what is recorded of one.

use trefoil::ops::core::GraphInfo;

use super::Trainer;
use super::step::Batch;
use crate::core::error::{Result, invalid};
use crate::module::LayerExt;
use crate::report::profile::{self, StepProfile};
use crate::train::data::{Batch as Batched, Source};

/// Steps before the profile, in which kernels are compiled and memory is taken.
const WARM: usize = 2;
/// Steps after which one is recorded, or none will be: with the update, and, where that does not go, without.
const MOST_STEPS: usize = 12;

impl Trainer<'_> {
    /// Trains on the first batch of `data` (or as many as a step accumulates), two steps and then `steps` more whose times are taken: of every kernel by
    /// events of the device, of what the host does by its clock. The steps are plain calls, not replays, and change the parameters as others do. Callbacks
    /// do not see them. Waits for the device. Source `torch.profiler.profile`.
    ///
    /// Errors: those of the steps; `Invalid` for 0 steps, and for data without items.
    pub fn profile(&mut self, data: &dyn Source, steps: usize) -> Result<StepProfile> {
        const OP: &str = "profile";
        if steps == 0 {
            return Err(invalid(OP, "steps", "at least 1 step", "0"));
        }
        let batches = self.first_batches(OP, data)?;
        self.model.train();
        let device = self.device.clone();
        let mut step = || self.step_of(&batches, data);
        profile::profile(&device, WARM, &mut step)?;
        profile::profile(&device, steps, &mut step)
    }

    /// Trains on the first batch of `data` (or as many as a step accumulates) until its step is recorded, and gives what was recorded of its last batch:
    /// [`GraphInfo::dot`](trefoil::ops::core::GraphInfo::dot) draws it. `None` where steps stay plain calls; [`Trainer::capture_status`] says why.
    ///
    /// Errors: those of the steps; `Invalid` for data without items.
    pub fn record(&mut self, data: &dyn Source) -> Result<Option<GraphInfo>> {
        let batches = self.first_batches("record", data)?;
        self.model.train();
        for _ in 0..MOST_STEPS {
            self.step_of(&batches, data)?;
            let status = self.capture_status();
            if status.graphs > 0 {
                return Ok(status.last);
            }
        }
        Ok(None)
    }

    /// The batches of the first step.
    fn first_batches(&self, op: &'static str, data: &dyn Source) -> Result<Vec<Batched>> {
        let batches = data.epoch(None, self.options.batch_size)?.take(self.options.accumulate);
        let batches = batches.collect::<Result<Vec<_>>>()?;
        match batches.iter().any(|b| b.len > 0) {
            true => Ok(batches),
            false => Err(invalid(op, "data", "at least 1 item", "none")),
        }
    }

    /// A step on these batches.
    fn step_of(&mut self, batches: &[Batched], data: &dyn Source) -> Result<()> {
        let items: usize = batches.iter().map(|b| b.len).sum();
        for (i, b) in batches.iter().enumerate() {
            let part = Batch {
                items: b.len,
                weight: b.len as f64 / items as f64,
                first: i == 0,
                last: i + 1 == batches.len(),
                data: Some(data),
                totals: None,
            };
            self.accumulate(&b.x, &b.y, &part)?;
        }
        if let Some(w) = &self.watch {
            w.end_step(self.optimizer.steps());
        }
        Ok(())
    }
}
