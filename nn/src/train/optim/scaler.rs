//! Dynamic loss scaling, kept on the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::optimizer::{LossScale, LossScaleState};

use super::arena::Arena;
use crate::core::capture::{self, Hook};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

/// Scale, what the last gradients held, and the count of steps that were not skipped.
pub(crate) struct Scaler {
    p: LossScale,
    pub(crate) scale: Tensor,
    /// 1 / scale.
    pub(crate) inverse: Tensor,
    /// Not 0 if a gradient is not finite.
    pub(crate) found: Tensor,
    /// Number of the next step, from 1.
    pub(crate) step: Tensor,
    pub(crate) good: Tensor,
    /// Whether the present gradients were divided by the scale already.
    unscaled: Arc<AtomicBool>,
}

/// A recording in which gradients were divided.
struct Divided(Arc<AtomicBool>);

impl Hook for Divided {
    fn before(&self, _: bool) -> Result<()> {
        Ok(())
    }

    fn after(&self) {}

    fn undo(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Scaler {
    pub(crate) fn factors(&self) -> LossScale {
        self.p
    }

    pub(crate) fn new(device: &Device, p: LossScale, initial: f64, steps: u64) -> Result<Self> {
        if !(initial > 0.0 && (initial as f32).is_finite()) {
            return Err(invalid("loss_scaling", "initial", "a finite scale above 0", format!("{initial}")));
        }
        let bad = |arg, expected: &str, x: f64| Err(invalid("loss_scaling", arg, expected, format!("{x}")));
        if !(p.growth >= 1.0 && p.growth.is_finite()) {
            return bad("growth", "a finite factor of at least 1", p.growth);
        }
        if !(p.backoff > 0.0 && p.backoff <= 1.0) {
            return bad("backoff", "a factor in (0, 1]", p.backoff);
        }
        if p.interval == 0 {
            return bad("interval", "at least 1 step", 0.0);
        }
        Ok(Scaler {
            p,
            scale: Tensor::full(device, DType::F32, &[1], initial)?,
            inverse: Tensor::full(device, DType::F32, &[1], 1.0 / initial)?,
            found: Tensor::zeros(device, DType::F32, &[1])?,
            step: Tensor::full(device, DType::I64, &[1], (steps + 1) as f64)?,
            good: Tensor::zeros(device, DType::I64, &[1])?,
            unscaled: Arc::default(),
        })
    }

    /// Moves the state to another device.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<()> {
        for t in [&mut self.scale, &mut self.inverse, &mut self.found, &mut self.step, &mut self.good] {
            *t = t.to_device(device)?;
        }
        Ok(())
    }

    /// Whether the present gradients were divided by the scale already.
    pub(crate) fn is_unscaled(&self) -> bool {
        self.unscaled.load(Ordering::Relaxed)
    }

    /// Lets `bad` (not 0) count as a gradient that is not finite.
    pub(crate) fn note(&self, bad: &Tensor) -> Result<()> {
        let (f, b) = (self.found.operand(), bad.operand());
        Ok(self.found.device().binary(Binary::Maximum, f.view()?, b.view()?, f.view_mut()?)?)
    }

    fn look(&self, arenas: &[&Arena], divide: bool) -> Result<()> {
        let (scale, found) = (self.scale.operand(), self.found.operand());
        for a in arenas {
            let by = if divide { Some(scale.view()?) } else { None };
            a.device().unscale_grads(by, &mut [a.grads_mut()], found.view_mut()?)?;
        }
        Ok(())
    }

    /// Divides the gradients by the scale, once per step.
    pub(crate) fn unscale(&self, arenas: &[&Arena]) -> Result<()> {
        if self.unscaled.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if capture::records() {
            // The flag is the host's: a step in the same recording has to take it back.
            capture::pair(1);
            capture::hook(Arc::new(Divided(self.unscaled.clone())));
        }
        self.look(arenas, true)
    }

    /// Looks for gradients that are not finite; `bad` (not 0) counts as one. Returns whether the gradients are divided by the scale.
    pub(crate) fn examine(&self, arenas: &[&Arena], bad: Option<&Tensor>) -> Result<bool> {
        if capture::records() && self.unscaled.load(Ordering::Relaxed) {
            if !capture::paired() {
                capture::refuse("Optimizer::step", "the gradients were clipped before the recording")?;
            }
            capture::pair(-1);
        }
        let unscaled = self.unscaled.swap(false, Ordering::Relaxed);
        if !unscaled {
            self.look(arenas, false)?;
        }
        if let Some(bad) = bad {
            self.note(bad)?;
        }
        Ok(unscaled)
    }

    /// New gradients are scaled again.
    pub(crate) fn forget(&self) {
        self.unscaled.store(false, Ordering::Relaxed);
    }

    /// Adapts the scale to what was found.
    pub(crate) fn update(&self) -> Result<()> {
        let (scale, good, found) = (self.scale.operand(), self.good.operand(), self.found.operand());
        let (inverse, step) = (self.inverse.operand(), self.step.operand());
        let io = LossScaleState::new(scale.view_mut()?, good.view_mut()?, found.view_mut()?)
            .inv_scale(inverse.view_mut()?)
            .step(step.view_mut()?);
        Ok(self.scale.device().update_loss_scale(&self.p, io)?)
    }

    /// What must return with a checkpoint.
    pub(crate) fn state(&self) -> Vec<(String, Tensor)> {
        [("scale", &self.scale), ("inverse", &self.inverse), ("step", &self.step), ("good", &self.good)]
            .map(|(name, t)| (format!("scaler.{name}"), t.clone()))
            .to_vec()
    }
}
