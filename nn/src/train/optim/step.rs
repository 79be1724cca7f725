//! The step of an optimizer.

use std::sync::Arc;

use trefoil::ops::elementwise::Binary;
use trefoil::ops::optimizer::{ClipNorm, GradFactor, LossScaleState, OptimRule, Scalar, Scaling, Step};
use trefoil::ops::random::Rng;
use trefoil::{DType, View};

use super::arena::active::Active;
use super::optimizer::{Optimizer, check_max_norm};
use super::recorded::{Forecast, Numbers, RecordedStep, average_share};
use crate::core::capture;
use crate::core::error::Result;
use crate::core::tensor::{Device, Tensor};

/// What the launches of a clipped step leave for each other, one element each.
pub(super) struct Clipped {
    factor: Tensor,
    skip: Tensor,
    count: Tensor,
}

impl Clipped {
    fn new(device: &Device) -> Result<Self> {
        let one = |dtype| Tensor::zeros(device, dtype, &[1]);
        Ok(Clipped { factor: one(DType::F32)?, skip: one(DType::F32)?, count: one(DType::I64)? })
    }
}

/// What a step reads from device memory.
#[derive(Default)]
struct Shared {
    /// Not 0 if it is to change nothing.
    found: Option<Tensor>,
    /// Factor of the gradients.
    factor: Option<Tensor>,
    /// Its number, from 1.
    count: Option<Tensor>,
    /// Norm of the gradients, and whether the loss scale has adapted.
    norm: Option<Tensor>,
}

impl Optimizer {
    /// One update of all parameters. Errors: a parameter was replaced after construction; nothing is changed then.
    pub fn step(&mut self) -> Result<()> {
        self.step_unless(None)
    }

    /// [`clip_grad_norm`](Optimizer::clip_grad_norm) and [`step`](Optimizer::step) in fewer launches: two for the norm, in which a loss scale adapts too,
    /// then the update, which scales the gradients as it reads them. They stay as they are in memory, and those in 16 bits lose no digits in between.
    /// Returns the norm before clipping, an f32 scalar on the device. Parameters in f64, or of several dtypes, take the two calls. Errors: of both.
    pub fn step_clipped(&mut self, max_norm: f64, p: f64) -> Result<Tensor> {
        self.step_clipped_unless(max_norm, p, None)
    }

    /// A step that changes no parameter where `bad` (one f32) is not 0.
    pub(crate) fn step_unless(&mut self, bad: Option<&Tensor>) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.check())?;
        let shared = self.examined(bad)?;
        self.apply(&shared)
    }

    /// A clipped step that changes no parameter where `bad` (one f32) is not 0.
    pub(crate) fn step_clipped_unless(
        &mut self,
        max_norm: f64,
        p: f64,
        bad: Option<&Tensor>,
    ) -> Result<Tensor> {
        const OP: &str = "step_clipped";
        check_max_norm(OP, max_norm)?;
        self.one_device(OP)?;
        let dtype = self.members.first().map(|m| m.arena.dtype());
        let alike = self.members.iter().all(|m| Some(m.arena.dtype()) == dtype) && dtype != Some(DType::F64);
        if !alike || self.scaler.as_ref().is_some_and(|s| s.is_unscaled()) {
            let norm = self.clip_grad_norm(max_norm, p)?;
            self.step_unless(bad)?;
            return Ok(norm);
        }
        self.members.iter().try_for_each(|m| m.arena.check())?;
        let norm = Tensor::empty(self.first_device(OP)?, DType::F32, &[])?;
        let shared = self.measured(&ClipNorm::new(max_norm).degree(p), bad, &norm)?;
        self.apply(&shared)?;
        Ok(norm)
    }

    /// Why a step cannot be part of a recording.
    pub(crate) fn unrecordable(&self) -> Option<&'static str> {
        self.rounding.map(|_| "positions of the optimizer's random rounding are the host's")
    }

    /// Tells which learning rates are to come, so that recorded steps find them on the device.
    pub(crate) fn set_forecast(&self, forecast: Forecast) {
        self.clock.set_forecast(forecast);
    }

    /// Looks for gradients that are not finite, where losses are scaled.
    fn examined(&self, bad: Option<&Tensor>) -> Result<Shared> {
        let Some(s) = &self.scaler else { return Ok(Shared { found: bad.cloned(), ..Shared::default() }) };
        let unscaled = s.examine(&self.members.iter().map(|m| &m.arena).collect::<Vec<_>>(), bad)?;
        let factor = (!unscaled).then(|| s.inverse.clone());
        Ok(Shared { found: Some(s.found.clone()), factor, count: Some(s.step.clone()), norm: None })
    }

    /// Measures the gradients of a step that is clipped.
    fn measured(&mut self, clip: &ClipNorm, bad: Option<&Tensor>, norm: &Tensor) -> Result<Shared> {
        if self.clipped.is_none() {
            capture::refuse("Optimizer::step", "it was never made as a plain call before")?;
            self.clipped = Some(Clipped::new(norm.device())?);
        }
        let Some(c) = &self.clipped else { return Ok(Shared::default()) };
        let grads: Vec<_> = self.members.iter().map(|m| m.arena.grads_mut()).collect();
        let grads: Vec<View<'_>> = grads.iter().map(|g| g.as_view()).collect();
        let (total, factor) = (norm.operand(), c.factor.operand());
        let io = GradFactor::new(factor.view_mut()?).total(total.view_mut()?);
        let mut shared = Shared {
            found: bad.cloned(),
            factor: Some(c.factor.clone()),
            count: None,
            norm: Some(norm.clone()),
        };
        let Some(s) = &self.scaler else {
            norm.device().grad_factor(clip, &grads, io)?;
            return Ok(shared);
        };
        if let Some(bad) = bad {
            s.note(bad)?;
        }
        let [scale, good, found] = [&s.scale, &s.good, &s.found].map(Tensor::operand);
        let [inverse, step, skip, count] = [&s.inverse, &s.step, &c.skip, &c.count].map(Tensor::operand);
        let state = LossScaleState::new(scale.view_mut()?, good.view_mut()?, found.view_mut()?)
            .inv_scale(inverse.view_mut()?)
            .step(step.view_mut()?);
        let scaling = Scaling::new(s.factors(), state, skip.view_mut()?, count.view_mut()?);
        norm.device().grad_factor(clip, &grads, io.scaling(scaling))?;
        (shared.found, shared.count) = (Some(c.skip.clone()), Some(c.count.clone()));
        Ok(shared)
    }

    /// The averages after a step.
    fn average(&self) -> Result<()> {
        let Some(decay) = self.ema else { return Ok(()) };
        if capture::records() {
            return self.members.iter().try_for_each(|m| m.arena.update_average_recorded());
        }
        let share = average_share(decay, self.steps());
        self.members.iter().try_for_each(|m| m.arena.update_average(share))
    }

    /// The update and the averages. They can be part of a recording: rate and count are then numbers in device memory, of which there are some for steps
    /// ahead.
    fn apply(&mut self, shared: &Shared) -> Result<()> {
        let recorded = capture::records();
        if let Some(why) = self.unrecordable() {
            capture::refuse("Optimizer::step", why)?;
        }
        let t = self.steps() + 1;
        let memory = if recorded { self.take_numbers()? } else { vec![] };
        let [found, factor, count] =
            [&shared.found, &shared.factor, &shared.count].map(|t| t.as_ref().map(Tensor::operand));
        let (mut calls, mut absent) = (vec![], vec![]);
        for i in 0..self.members.len() {
            if !recorded {
                self.members[i].arena.keep_numbers()?;
            }
            let m = &self.members[i];
            let mut step = Step::host(self.lr() * m.lr_factor, t);
            step.maximize = self.maximize;
            step.found_inf = found.as_ref().map(|o| o.view()).transpose()?;
            step.inv_scale = factor.as_ref().map(|o| o.view()).transpose()?;
            // Skipped steps do not count, and only the device knows which were.
            if let Some(c) = &count {
                step.step = Scalar::Device(c.view()?);
            }
            let active = m.arena.active()?;
            self.step_member(i, &active, step, shared.count.as_ref(), &mut calls)?;
            if recorded {
                let [_, others] = m.arena.missed_of(&active);
                absent.extend(others);
            }
            self.members[i].arena.stepped(&active);
        }
        if let (Some(s), None) = (&self.scaler, &shared.norm) {
            s.update()?;
        }
        self.clock.set_steps(t);
        self.average()?;
        if recorded {
            let (clock, average) = (self.clock.clone(), self.ema);
            capture::hook(Arc::new(RecordedStep { clock, calls, memory, average, absent }));
        }
        Ok(())
    }

    /// Takes the numbers of the step that is recorded from those ahead, one launch for each arena. Returns where those lie.
    fn take_numbers(&self) -> Result<Vec<Tensor>> {
        let row = self.clock.first_row();
        for m in &self.members {
            let Some(cell) = capture::count(m.arena.device(), row)? else {
                capture::refuse("Optimizer::step", "its parameters are not on the device that records")?;
                continue;
            };
            m.arena.numbers()?.take(&cell)?;
        }
        self.clock.next_row();
        self.members.iter().map(|m| Ok(m.arena.numbers()?.ahead())).collect()
    }

    /// The step of a member's parameters that got gradients. What a recorded one reads from device memory is added to `calls`.
    fn step_member(
        &self,
        i: usize,
        active: &[Active],
        step: Step<'_>,
        count: Option<&Tensor>,
        calls: &mut Vec<Numbers>,
    ) -> Result<()> {
        let (m, a, t) = (&self.members[i], &self.members[i].arena, self.steps() + 1);
        let numbers = |k: usize, missed, group: &[Active]| -> Result<Option<Numbers>> {
            if !capture::records() {
                return Ok(None);
            }
            let ([params, _], now) = (a.missed_of(group), a.numbers()?.call(k)?);
            Ok(Some(Numbers { rule: m.rule, lr_factor: m.lr_factor, place: (i, k), now, missed, params }))
        };
        if let (OptimRule::Adaptive(rule), Some(memory), false) = (&m.rule, a.memory_mut(), active.is_empty())
        {
            // Their numbers are those of all parameters, and so is the count of steps.
            let own = numbers(0, 0, &[])?;
            let operand = own.as_ref().map(|n| n.now.operand());
            let step = step.numbers(operand.as_ref().map(|o| o.view()).transpose()?);
            a.device().adaptive_step(rule, &step, memory, &mut a.slots(active, false)?)?;
            calls.extend(own);
            return Ok(());
        }
        let per_tensor = matches!(m.rule, OptimRule::Lars { .. } | OptimRule::Lamb { .. });
        for (k, group) in active.iter().enumerate() {
            let alone = std::slice::from_ref(group);
            let count = match count {
                Some(c) if group.missed > 0 => Some(count_without(c, group.missed)?.operand()),
                _ => None,
            };
            let own = numbers(k, group.missed, alone)?;
            let operand = own.as_ref().map(|n| n.now.operand());
            let mut step = step.numbers(operand.as_ref().map(|o| o.view()).transpose()?);
            match &count {
                Some(o) => step.step = Scalar::Device(o.view()?),
                None if group.missed > 0 => step.step = Scalar::Host((t - group.missed.min(t - 1)) as f64),
                None => {}
            }
            // Streams and blocks of their own for every step, member and group.
            let stream = (i as u64) << 32 | (k as u64) << 16;
            let rng = self.rounding.map(|seed| Rng::new(seed).at(stream, t << 40));
            if !a.step_packed(group, &m.rule, &step, rng)? {
                a.device().optimizer_step(&m.rule, &step, &mut a.slots(alone, per_tensor)?)?;
            }
            calls.extend(own);
        }
        Ok(())
    }
}

/// The number of the next step of a parameter that missed some, from 1.
fn count_without(count: &Tensor, missed: u64) -> Result<Tensor> {
    let own = count.sub(&count.full_like(missed as f64)?)?;
    // Steps that were skipped for their gradients count as missed, but not in `count`.
    own.binary(Binary::Maximum, &own.full_like(1.0)?)
}
