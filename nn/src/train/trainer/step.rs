//! One optimizer step, of one or several batches.

use std::rc::Rc;

use super::{Clip, LastNorm, StepEnd, Trainer};
use crate::core::error::{NnError, Result, invalid};
use crate::core::hooks;
use crate::core::span::span;
use crate::core::tensor::Tensor;
use crate::module::{LayerExt, auxiliary};
use crate::train::capture::Done;

impl Trainer<'_> {
    /// One optimizer step on a batch: forward, loss, backward, clipping, update. Returns loss and output, both on the device; transfers
    /// nothing (in anomaly mode one flag per interval).
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        span!("step", step = self.optimizer.steps() + 1);
        self.begin_step()?;
        let (mut loss, mut out) = self.accumulate(x, y, 1.0)?;
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
        let mut last = None;
        for (i, (x, y)) in batches.iter().enumerate() {
            if i == 0 {
                self.begin_step()?;
            }
            let (loss, out) = self.accumulate(x, y, weight)?;
            let part = loss.mul_scalar(weight)?;
            mean = Some(match mean {
                Some(m) => m.add(&part)?,
                None => part,
            });
            last = Some((loss, out));
        }
        if let Some((loss, out)) = last {
            self.end_step(&loss, &out)?;
        }
        Ok(mean)
    }

    pub(super) fn begin_step(&mut self) -> Result<()> {
        let mut lr = self.options.schedule.lr(self.base_lr, self.optimizer.steps());
        if let Some(p) = &self.options.plateau {
            lr = p.lr(lr);
        }
        self.optimizer.set_lr(lr)?;
        self.optimizer.zero_grad()
    }

    /// Adds `weight` times the gradients of a batch. Returns loss and output, which the next batch may overwrite.
    pub(super) fn accumulate(&mut self, x: &Tensor, y: &Tensor, weight: f64) -> Result<(Tensor, Tensor)> {
        if let Some((mut optimizer, stop)) = self.closure.take() {
            let done = self.minimize(&mut optimizer, &stop, x, y);
            self.closure = Some((optimizer, stop));
            return done;
        }
        let done = self.captured(x, y, weight)?;
        self.replayed = done.replayed;
        match <[Tensor; 2]>::try_from(done.outputs) {
            Ok([loss, out]) => Ok((loss, out)),
            Err(list) => {
                Err(invalid("Trainer", "outputs", "loss and output", format!("{} tensors", list.len())))
            }
        }
    }

    /// The passes of a batch as plain calls: loss and output.
    pub(super) fn passes(&self, x: &Tensor, y: &Tensor, weight: f64) -> Result<Done> {
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
        Ok(Done::plainly(vec![loss.detach(), out.detach()]))
    }

    /// Clips and updates. The callbacks see the last batch's loss and output.
    pub(super) fn end_step(&mut self, loss: &Tensor, output: &Tensor) -> Result<()> {
        span!("optimizer");
        match self.options.clip {
            Some(Clip::Norm(n)) => self.norm = LastNorm::Device(self.optimizer.clip_grad_norm(n, 2.0)?),
            Some(Clip::Value(c)) => self.optimizer.clip_grad_value(c)?,
            None => {}
        }
        self.optimizer.step_unless(self.watch.as_ref().map(|w| w.bad()))?;
        let step = self.optimizer.steps();
        if let Some(w) = &self.watch {
            w.end_step(step);
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
