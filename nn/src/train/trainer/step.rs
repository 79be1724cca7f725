//! One optimizer step, of one or several batches.

use std::rc::Rc;

use super::{Clip, LastNorm, StepEnd, TRAIN, Trainer};
use crate::core::error::{NnError, Result, invalid};
use crate::core::hooks;
use crate::core::span::span;
use crate::core::tensor::Tensor;
use crate::core::timeline;
use crate::module::{LayerExt, auxiliary};
use crate::train::data::Source;
use crate::train::metrics::Totals;
use crate::train::optim::Forecast;

/// A batch's part in a step.
#[derive(Clone, Copy)]
pub(super) struct Batch<'b> {
    /// Items.
    pub(super) items: usize,
    /// Factor of its gradients.
    pub(super) weight: f64,
    /// Whether the step begins with it.
    pub(super) first: bool,
    /// Whether the step ends with it.
    pub(super) last: bool,
    /// Where it comes from.
    pub(super) data: Option<&'b dyn Source>,
    /// What its loss is added to.
    pub(super) totals: Option<&'b Totals>,
}

impl Trainer<'_> {
    /// One optimizer step on a batch: forward, loss, backward, clipping, update. Returns loss and output, both on the device; transfers
    /// nothing (in anomaly mode one flag per interval; of a recorded step the learning rates of the next 64, once in as many).
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        span!("step", step = self.optimizer.steps() + 1);
        let b = Batch { items: 0, weight: 1.0, first: true, last: true, data: None, totals: None };
        let (mut loss, mut out) = self.accumulate(x, y, &b)?;
        if self.replayed {
            // The next replay writes what is the graph's.
            (loss, out) = (loss.copy()?, out.copy()?);
            self.replayed = false;
        }
        self.end_step(&loss, &out)?;
        Ok((loss, out))
    }

    /// One optimizer step on several micro-batches (features, targets) of one size: the gradients are those of one batch of all items, in the
    /// memory of one. Returns the mean of the losses.
    pub fn step_accumulated(&mut self, batches: &[(Tensor, Tensor)]) -> Result<Option<Tensor>> {
        let weight = 1.0 / batches.len().max(1) as f64;
        let mut mean: Option<Tensor> = None;
        let mut end = None;
        for (i, (x, y)) in batches.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == batches.len());
            let b = Batch { items: 0, weight, first, last, data: None, totals: None };
            let (loss, out) = self.accumulate(x, y, &b)?;
            let part = loss.mul_scalar(weight)?;
            mean = Some(match mean {
                Some(m) => m.add(&part)?,
                None => part,
            });
            end = Some((loss, out));
        }
        if let Some((loss, out)) = end {
            self.end_step(&loss, &out)?;
        }
        Ok(mean)
    }

    /// An input in the memory format that the options ask for.
    pub(super) fn in_format(&self, x: &Tensor) -> Result<Tensor> {
        match (3..=5).contains(&x.rank()) {
            true => x.to_memory_format(self.options.memory_format),
            false => Ok(x.clone()),
        }
    }

    /// Tells the optimizer which learning rates are to come.
    pub(super) fn foresee(&self) {
        let (schedule, plateau) = (self.options.schedule.clone(), self.options.plateau.clone());
        self.optimizer.set_forecast(Forecast { schedule, base: self.base_lr, plateau });
    }

    fn set_rate(&mut self) -> Result<()> {
        let mut lr = self.options.schedule.lr(self.base_lr, self.optimizer.steps());
        if let Some(p) = &self.options.plateau {
            lr = p.lr(lr);
        }
        self.optimizer.set_lr(lr)
    }

    /// A batch of a step: clears the gradients before the first, adds `weight` times its own, clips and updates after the last. Returns loss and output,
    /// which the next batch may overwrite.
    pub(super) fn accumulate(&mut self, x: &Tensor, y: &Tensor, b: &Batch<'_>) -> Result<(Tensor, Tensor)> {
        if b.first {
            self.set_rate()?;
        }
        let x = &self.in_format(x)?;
        if let Some((mut optimizer, stop)) = self.closure.take() {
            let done = self.minimize(&mut optimizer, &stop, x, y);
            self.closure = Some((optimizer, stop));
            let (loss, out) = done?;
            self.note(&loss, &out, y, b)?;
            if b.last {
                self.update()?;
            }
            return Ok((loss, out));
        }
        let apart = self.update_apart.is_some();
        if apart && b.first {
            self.clear()?;
        }
        let done = self.captured(x, y, b)?;
        self.replayed = done.replayed;
        if apart && b.last {
            self.update()?;
        }
        match <[Tensor; 2]>::try_from(done.outputs) {
            Ok([loss, out]) => Ok((loss, out)),
            Err(list) => {
                Err(invalid("Trainer", "outputs", "loss and output", format!("{} tensors", list.len())))
            }
        }
    }

    /// A batch of a step as plain calls, or what is recorded of them: loss and output.
    pub(super) fn batch(&mut self, x: &Tensor, y: &Tensor, b: &Batch<'_>) -> Result<Vec<Tensor>> {
        let apart = self.update_apart.is_some();
        if b.first && !apart {
            self.clear()?;
        }
        let (loss, out) = self.passes(x, y, b.weight)?;
        self.note(&loss, &out, y, b)?;
        if b.last && !apart {
            self.update()?;
        }
        Ok(vec![loss, out])
    }

    /// Checks a batch's output, and adds its loss to the totals.
    fn note(&self, loss: &Tensor, out: &Tensor, y: &Tensor, b: &Batch<'_>) -> Result<()> {
        if let Some(data) = b.data {
            self.check_classes(out, data, TRAIN)?;
        }
        b.totals.map_or(Ok(()), |t| t.accumulate(loss, b.items, self.classified(out, y)))
    }

    /// The passes of a batch: loss and output.
    fn passes(&self, x: &Tensor, y: &Tensor, weight: f64) -> Result<(Tensor, Tensor)> {
        let forward = || -> Result<(Tensor, Tensor)> {
            span!("forward");
            let (out, terms) = auxiliary::collect(|| self.model.forward(x))?;
            Ok((auxiliary::added_to(self.loss(&out, y)?, &terms)?, out))
        };
        let (loss, out) = match &self.watch {
            Some(w) => {
                w.begin()?;
                hooks::observe(Rc::new(w.clone()), forward)?
            }
            None => forward()?,
        };
        self.optimizer.backward_weighted(&loss, weight)?;
        if self.learns_locally {
            self.model.learn()?;
        }
        if let Some(w) = &self.watch {
            w.judge(&loss, &self.optimizer)?;
        }
        Ok((loss.detach(), out.detach()))
    }

    fn clear(&self) -> Result<()> {
        timeline::optimizer("zero_grad", || self.optimizer.zero_grad())
    }

    /// Clips and updates.
    pub(super) fn update(&mut self) -> Result<()> {
        span!("optimizer");
        timeline::optimizer("update", || self.clip_and_step())
    }

    fn clip_and_step(&mut self) -> Result<()> {
        let bad = self.watch.as_ref().map(|w| w.bad());
        match self.options.clip {
            Some(Clip::Norm(n)) => {
                let norm = self.optimizer.step_clipped_unless(n, 2.0, bad)?;
                return self.last_norm.as_ref().map_or(Ok(()), |last| last.assign(&norm));
            }
            Some(Clip::Value(c)) => self.optimizer.clip_grad_value(c)?,
            None => {}
        }
        self.optimizer.step_unless(bad)
    }

    /// After the update. The callbacks see the last batch's loss and output.
    pub(super) fn end_step(&mut self, loss: &Tensor, output: &Tensor) -> Result<()> {
        let step = self.optimizer.steps();
        if let Some(w) = &self.watch {
            w.end_step(step);
        }
        if let Some(norm) = &self.last_norm {
            self.norm = LastNorm::Device(norm.clone());
        }
        let (epoch, lr) = (self.epoch + 1, self.optimizer.lr());
        if self.replayed && !self.callbacks.0.is_empty() {
            // A callback may keep them beyond the next replay.
            let (loss, output) = (&loss.copy()?, &output.copy()?);
            return self.stepped(step, StepEnd { epoch, step, lr, loss, output });
        }
        self.stepped(step, StepEnd { epoch, step, lr, loss, output })
    }

    fn stepped(&mut self, step: u64, end: StepEnd<'_>) -> Result<()> {
        self.callbacks.step_end(&end)?;
        match self.options.anomaly {
            Some(interval) if step.is_multiple_of(interval) => self.check_anomalies(),
            _ => Ok(()),
        }
    }

    /// Reads from the device whether a step was bad, and ends training there.
    pub(super) fn check_anomalies(&mut self) -> Result<()> {
        let Some(w) = &self.watch else { return Ok(()) };
        let found = w.read();
        if let Err(NnError::Anomaly { step, .. }) = &found {
            // The steps since then changed nothing.
            self.optimizer.set_steps(step - 1);
        }
        found
    }
}
