//! Profiles of steps.

use super::Trainer;
use super::step::Batch;
use crate::core::error::{Result, invalid};
use crate::module::LayerExt;
use crate::report::profile::{self, StepProfile};
use crate::train::data::Source;

/// Steps before the profile, in which kernels are compiled and memory is taken.
const WARM: usize = 2;

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
        let batches = data.epoch(None, self.options.batch_size)?.take(self.options.accumulate);
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let items: usize = batches.iter().map(|b| b.len).sum();
        if items == 0 {
            return Err(invalid(OP, "data", "at least 1 item", "none"));
        }
        self.model.train();
        let device = self.device.clone();
        let mut step = || -> Result<()> {
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
        };
        profile::profile(&device, WARM, &mut step)?;
        profile::profile(&device, steps, &mut step)
    }
}
