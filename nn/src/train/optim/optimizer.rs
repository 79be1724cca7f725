//! Optimizers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use trefoil::ops::optimizer::{AdaptiveRule, ClipAdaptive, ClipNorm, LossScale, OptimRule, Prox, Step};
use trefoil::{DType, ViewMut};

use super::arena::Arena;
use super::arena::packed::Packing;
use super::recorded::Clock;
use super::scaler::Scaler;
use super::step::Clipped;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Tensor, same_handle};
use crate::module::{Layer, LayerExt, Param, check_unique};

/// Parameters that share a rule and a factor of the learning rate.
#[derive(Debug, Clone)]
pub struct Group {
    /// Parameters with their names.
    pub params: Vec<(String, Param)>,
    /// Update rule; all groups of an optimizer use the same kind.
    pub rule: OptimRule,
    /// Factor of the learning rate.
    pub lr_factor: f64,
}

pub(super) struct Member {
    pub(super) rule: OptimRule,
    pub(super) lr_factor: f64,
    pub(super) arena: Arena,
}

/// Updates parameters from their gradients.
///
/// At construction the parameters move into one contiguous buffer per group, device and dtype, next to buffers for gradients and
/// optimizer state; tensors that refer to them follow. A step, a clearing of the gradients or a clipping is then one launch on every
/// backend. A parameter that got no gradient since the gradients were cleared takes no part in a step, as in PyTorch: it
/// is not decayed, and its state and its own count of steps stay. The same holds for one that is [frozen](Param::set_requires_grad).
pub struct Optimizer {
    pub(super) members: Vec<Member>,
    pub(super) clock: Arc<Clock>,
    pub(super) maximize: bool,
    pub(super) scaler: Option<Scaler>,
    pub(super) ema: Option<f64>,
    /// Seed of the random rounding of packed moments.
    pub(super) rounding: Option<u64>,
    /// Numbers between the launches of a clipped step; made by the first.
    pub(super) clipped: Option<Clipped>,
    /// Where the last backwards without loss scaling started: weights, and tensors that hold them.
    start: Mutex<Vec<(f64, Tensor)>>,
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<_> = self.members.iter().map(|m| m.rule).collect();
        f.debug_struct("Optimizer")
            .field("lr", &self.lr())
            .field("step", &self.steps())
            .field("rules", &rules)
            .finish()
    }
}

/// Starts of backwards that are kept: weights differ between whole steps and those at the end of the data.
const STARTS: usize = 8;

fn check_lr(lr: f64) -> Result<()> {
    if lr.is_finite() && lr >= 0.0 {
        return Ok(());
    }
    Err(invalid("Optimizer", "lr", "a finite learning rate of at least 0", format!("{lr}")))
}

pub(super) fn check_max_norm(op: &'static str, max_norm: f64) -> Result<()> {
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(invalid(op, "max_norm", "a value above 0", format!("{max_norm}")));
    }
    Ok(())
}

/// What PyTorch's constructors refuse; the backend checks the rest when it steps.
fn check_rule(rule: &OptimRule) -> Result<()> {
    let unit = |arg: &'static str, x: f64| match (0.0..1.0).contains(&x) {
        true => Ok(()),
        false => Err(invalid("Optimizer", arg, "a value in [0, 1)", format!("{x}"))),
    };
    let positive = |arg: &'static str, x: f64| match x >= 0.0 && x.is_finite() {
        true => Ok(()),
        false => Err(invalid("Optimizer", arg, "a finite value of at least 0", format!("{x}"))),
    };
    use OptimRule::*;
    match *rule {
        Sgd { wd } => positive("wd", wd),
        Momentum { mu, wd, .. } | Lars { mu, wd, .. } => unit("mu", mu).and(positive("wd", wd)),
        Adam { b1, b2, eps, wd }
        | AdamW { b1, b2, eps, wd }
        | AdaMax { b1, b2, eps, wd }
        | AmsGrad { b1, b2, eps, wd, .. }
        | Nadam { b1, b2, eps, wd, .. }
        | RAdam { b1, b2, eps, wd, .. }
        | Lamb { b1, b2, eps, wd, .. } => {
            unit("b1", b1).and(unit("b2", b2)).and(positive("eps", eps)).and(positive("wd", wd))
        }
        RmsProp { a, eps, wd, mu, .. } => {
            unit("a", a).and(positive("eps", eps)).and(positive("wd", wd)).and(positive("mu", mu))
        }
        Adagrad { lr_decay, eps, wd } => {
            positive("lr_decay", lr_decay).and(positive("eps", eps)).and(positive("wd", wd))
        }
        Adadelta { rho, eps, wd } => unit("rho", rho).and(positive("eps", eps)).and(positive("wd", wd)),
        Lion { b1, b2, wd } => unit("b1", b1).and(unit("b2", b2)).and(positive("wd", wd)),
        Ftrl { beta, l1, l2, .. } => positive("beta", beta).and(positive("l1", l1)).and(positive("l2", l2)),
        Adan { b1, b2, b3, eps, wd } => {
            let decays = unit("b1", b1).and(unit("b2", b2)).and(unit("b3", b3));
            decays.and(positive("eps", eps)).and(positive("wd", wd))
        }
        Sophia { b1, gamma, eps, wd } => {
            unit("b1", b1).and(positive("gamma", gamma)).and(positive("eps", eps)).and(positive("wd", wd))
        }
        SophiaCurvature { .. } => {
            Err(invalid("Optimizer", "rule", "a rule that changes parameters", "SophiaCurvature"))
        }
        Proximal(Prox::ElasticNet { l1, l2 }) => positive("l1", l1).and(positive("l2", l2)),
        Proximal(Prox::Box { lo, hi }) if lo.is_nan() || hi.is_nan() || lo > hi => {
            Err(invalid("Optimizer", "box", "lo <= hi", format!("[{lo}, {hi}]")))
        }
        _ => Ok(()),
    }
}

impl Optimizer {
    /// An optimizer of all parameters of a model but those that are frozen now. Errors: constants out of range; a model without parameters; a
    /// parameter of another living optimizer; [`NnError::DuplicateName`].
    pub fn new(model: &dyn Layer, rule: OptimRule, lr: f64) -> Result<Self> {
        Optimizer::with_groups(vec![Group { params: model.named_parameters(), rule, lr_factor: 1.0 }], lr)
    }

    /// An optimizer of parameter groups. Errors: as [`new`](Optimizer::new); [`NnError::DuplicateName`].
    pub fn with_groups(groups: Vec<Group>, lr: f64) -> Result<Self> {
        check_lr(lr)?;
        check_unique(groups.iter().flat_map(|g| &g.params).map(|(name, _)| name))?;
        let mut members: Vec<Member> = vec![];
        for Group { mut params, rule, lr_factor } in groups {
            check_rule(&rule)?;
            // Frozen parameters get no memory.
            params.retain(|(_, p)| p.requires_grad() || !p.get().dtype().is_float());
            while let Some((_, first)) = params.first() {
                let first = first.get();
                let fits = |t: Tensor| t.dtype() == first.dtype() && same_handle(t.device(), first.device());
                let (alike, rest) = params.into_iter().partition(|(_, p)| fits(p.get()));
                params = rest;
                if let Some(mut arena) = Arena::new(alike, rule.states().len())? {
                    if let OptimRule::Adaptive(rule) = rule {
                        arena.keep_memory(rule.memory().len())?;
                    }
                    members.push(Member { rule, lr_factor, arena });
                }
            }
        }
        if members.is_empty() {
            return Err(invalid(
                "Optimizer",
                "params",
                "at least one parameter",
                "none (all are frozen, or a lazy layer before its first forward?)",
            ));
        }
        Ok(Optimizer {
            members,
            clock: Clock::new(lr),
            maximize: false,
            scaler: None,
            ema: None,
            rounding: None,
            clipped: None,
            start: Mutex::default(),
        })
    }

    /// Moves the parameters that this optimizer holds to another device, with their gradients, its state, masters, averages and loss scale.
    /// [`LayerExt::to_device`] then moves what is left of the model: buffers and frozen parameters. Errors: a dtype that the device does not
    /// have, and a parameter that was replaced, before anything is moved; the device's own errors.
    pub fn to_device(&mut self, device: &Device) -> Result<()> {
        for m in &self.members {
            m.arena.check()?;
            let dtype = m.arena.dtype();
            if !device.caps().supports(dtype) {
                let got = format!("{}, which has no {dtype}", device.id());
                return Err(invalid("Optimizer", "device", "a device with the parameters' dtypes", got));
            }
        }
        for m in self.members.iter_mut().filter(|m| !same_handle(m.arena.device(), device)) {
            m.arena.move_to(device)?;
        }
        self.clipped = None;
        match &mut self.scaler {
            Some(s) => s.move_to(device),
            None => Ok(()),
        }
    }

    /// Ascends instead of descending.
    pub fn maximize(mut self, on: bool) -> Self {
        self.maximize = on;
        self
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.clock.lr()
    }

    /// Sets the learning rate of the following steps. Errors: negative or not finite.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        check_lr(lr)?;
        self.clock.set_lr(lr);
        Ok(())
    }

    /// Number of steps done.
    pub fn steps(&self) -> u64 {
        self.clock.steps()
    }

    /// Rules with their constants, factors of the learning rate and what else decides how parameters change, as text.
    pub(crate) fn describe(&self) -> String {
        let members: Vec<String> =
            self.members.iter().map(|m| format!("{:?} times {}", m.rule, m.lr_factor)).collect();
        let mut text = members.join(", ");
        if self.maximize {
            text += ", maximize";
        }
        if let Some(decay) = self.ema {
            text += &format!(", moving average {decay}");
        }
        if let Some(s) = &self.scaler {
            text += &format!(", {:?}", s.factors());
        }
        if let Some(seed) = self.rounding {
            text += &format!(", rounding seed {seed}");
        }
        text
    }

    /// Clears all gradients: one fill per arena.
    pub fn zero_grad(&self) -> Result<()> {
        if let Some(s) = &self.scaler {
            s.forget();
        }
        self.members.iter().try_for_each(|m| m.arena.zero_grad())
    }

    /// Keeps f32 masters of f16 and bf16 parameters: steps update the masters and write the parameters from them in the same pass. After
    /// parameters were set from outside call [`refresh_masters`](Optimizer::refresh_masters).
    pub fn master_weights(mut self) -> Result<Self> {
        self.members.iter_mut().try_for_each(|m| m.arena.keep_masters())?;
        Ok(self)
    }

    /// Stores the moments of Adam or AdamW in 8-bit codes, a byte each and a scale per 256 elements (after Dettmers et al., 2022); tensors of
    /// less than 4096 elements keep f32. `seed` rounds second moments at random, without it to nearest. Call it before the first step.
    /// Errors: another rule; f64 parameters; steps that were done.
    pub fn moments_in_8_bits(self, seed: Option<u64>) -> Result<Self> {
        self.pack(Packing::Codes, seed)
    }

    /// Stores the moments of Adam or AdamW in bf16. `seed` rounds second moments at random: to nearest, increments of less than half a unit
    /// in the last place get lost. Call it before the first step. Errors: another rule; f64 parameters; steps that were done.
    pub fn moments_in_bf16(self, seed: Option<u64>) -> Result<Self> {
        self.pack(Packing::Bf16, seed)
    }

    fn pack(mut self, form: Packing, seed: Option<u64>) -> Result<Self> {
        if self.steps() > 0 {
            return Err(invalid("Optimizer", "moments", "no step before", format!("{}", self.steps())));
        }
        for m in &self.members {
            if !matches!(m.rule, OptimRule::Adam { .. } | OptimRule::AdamW { .. }) {
                return Err(invalid("Optimizer", "rule", "Adam or AdamW", format!("{:?}", m.rule)));
            }
            if m.arena.grads_mut().dtype() == DType::F64 {
                return Err(invalid("Optimizer", "params", "f32, f16 or bf16", "f64"));
            }
        }
        self.members.iter_mut().try_for_each(|m| m.arena.pack(form))?;
        self.rounding = seed;
        Ok(self)
    }

    /// Exchanges the parameters of schedule-free rules (where gradients are taken) and the point that they are evaluated at, on the device; a
    /// second call exchanges them back, and has to come before the next step. Other rules: nothing happens.
    pub fn swap_schedule_free(&self) -> Result<()> {
        self.members.iter().try_for_each(|m| match m.rule {
            OptimRule::Adaptive(
                AdaptiveRule::ScheduleFreeSgd { b, .. } | AdaptiveRule::ScheduleFreeAdamW { b, .. },
            ) if self.steps() > 0 => m.arena.swap_evaluation(b, self.steps()),
            _ => Ok(()),
        })
    }

    /// Renews the curvature of Sophia from the present gradients, those of the mean loss of `batch` samples against labels drawn from the
    /// model: h = b2*h + (1-b2)*batch*g^2. Parameters and step count stay. Every 10 steps or so; clear the gradients afterwards.
    pub fn renew_curvature(&self, b2: f64, batch: f64) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.check())?;
        let inverse = self.scaler.as_ref().map(|s| s.inverse.operand());
        for m in self.members.iter().filter(|m| matches!(m.rule, OptimRule::Sophia { .. })) {
            let mut step = Step::host(self.lr() * m.lr_factor, self.steps().max(1));
            step.inv_scale = inverse.as_ref().map(|o| o.view()).transpose()?;
            let rule = OptimRule::SophiaCurvature { b2, batch };
            m.arena.device().optimizer_step(&rule, &step, &mut m.arena.slots(&m.arena.active()?, false)?)?;
        }
        Ok(())
    }

    /// Takes the masters from the parameters, after those were loaded or overwritten.
    pub fn refresh_masters(&self) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.refresh_masters())
    }

    /// Scales losses by a factor that starts at `initial` (PyTorch: 65536) and adapts on the device, so that gradients in f16 do not vanish:
    /// [`backward`](Optimizer::backward) scales, steps unscale, and a step whose gradients are not finite changes nothing.
    /// Oracle `torch.amp.GradScaler`. Errors: factors out of range; parameters on several devices.
    pub fn loss_scaling(mut self, p: LossScale, initial: f64) -> Result<Self> {
        self.one_device("loss_scaling")?;
        self.scaler = Some(Scaler::new(self.first_device("loss_scaling")?, p, initial, self.steps())?);
        Ok(self)
    }

    /// Keeps an exponential moving average of the parameters, updated after every step: ema = d*ema + (1-d)*w with d = min(decay,
    /// (1+t)/(10+t)), so that early weights are forgotten. One launch per arena. Steps that
    /// loss scaling skips count too, with the weights that they left. Oracle `torch.optim.swa_utils.get_ema_multi_avg_fn` for large t.
    /// Errors: a decay outside of [0, 1].
    pub fn ema(mut self, decay: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(invalid("Optimizer", "decay", "a value in [0, 1]", format!("{decay}")));
        }
        self.members.iter_mut().try_for_each(|m| m.arena.keep_average())?;
        self.ema = Some(decay);
        Ok(self)
    }

    /// Exchanges the parameters and their moving average, on the device; a second call exchanges them back. Without an average nothing happens.
    pub fn swap_ema(&self) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.swap_average())
    }

    /// Whether an average is kept.
    pub fn has_ema(&self) -> bool {
        self.ema.is_some()
    }

    /// The present loss scale, one f32 on the device.
    pub fn loss_scale(&self) -> Option<&Tensor> {
        self.scaler.as_ref().map(|s| &s.scale)
    }

    /// Gradients of a loss (one element), times the loss scale where one is kept.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.backward_weighted(loss, 1.0)
    }

    /// Gradients of `weight` times a loss: 1/k for each of k micro-batches whose gradients accumulate.
    pub fn backward_weighted(&self, loss: &Tensor, weight: f64) -> Result<()> {
        let seed = match &self.scaler {
            _ if loss.numel() != 1 => return Err(NnError::NotScalar { shape: loss.shape().to_vec() }),
            None => self.start(loss, weight)?,
            Some(s) => s.scale.mul_scalar(weight)?.to_dtype(loss.dtype())?.reshape(loss.shape())?,
        };
        loss.backward_with(&seed)
    }

    /// The weight as a gradient of this loss; every step of a run starts from the same one.
    fn start(&self, loss: &Tensor, weight: f64) -> Result<Tensor> {
        let mut kept = self.start.lock().unwrap_or_else(|p| p.into_inner());
        // A user who keeps the loss's gradient may write into it.
        let fits = |t: &Tensor| {
            t.version() == 0
                && same_handle(t.device(), loss.device())
                && t.dtype() == loss.dtype()
                && t.shape() == loss.shape()
        };
        if let Some((_, t)) = kept.iter().find(|(w, t)| *w == weight && fits(t)) {
            return Ok(t.clone());
        }
        let t = Tensor::full(loss.device(), loss.dtype(), loss.shape(), weight)?;
        kept.truncate(STARTS - 1);
        kept.insert(0, (weight, t.clone()));
        Ok(t)
    }

    /// Sets `found` (one f32) to 1 if a gradient is not finite.
    pub(crate) fn examine_grads(&self, found: &Tensor) -> Result<()> {
        let found = found.operand();
        self.members.iter().try_for_each(|m| {
            Ok(m.arena.device().unscale_grads(None, &mut [m.arena.grads_mut()], found.view_mut()?)?)
        })
    }

    /// One without parameters, for runs in which another kind of optimizer has them.
    pub(crate) fn idle(lr: f64) -> Self {
        Optimizer {
            members: vec![],
            clock: Clock::new(lr),
            maximize: false,
            scaler: None,
            ema: None,
            rounding: None,
            clipped: None,
            start: Mutex::default(),
        }
    }

    pub(super) fn first_device(&self, op: &'static str) -> Result<&Device> {
        match self.members.first() {
            Some(m) => Ok(m.arena.device()),
            None => Err(invalid(op, "optimizer", "parameters of its own", "none: a closure method has them")),
        }
    }

    pub(super) fn one_device(&self, op: &'static str) -> Result<()> {
        let first = self.first_device(op)?;
        match self.members.iter().map(|m| m.arena.device()).find(|d| !same_handle(d, first)) {
            Some(other) => Err(NnError::mixed(op, first.id(), other.id())),
            None => Ok(()),
        }
    }

    /// Divides scaled gradients by the loss scale before they are clipped.
    fn unscale(&self) -> Result<()> {
        match &self.scaler {
            Some(s) => s.unscale(&self.members.iter().map(|m| &m.arena).collect::<Vec<_>>()),
            None => Ok(()),
        }
    }

    /// Scales all gradients so that their norm of degree `p` is at most `max_norm`; returns the norm before, an f32 scalar on the device.
    /// Oracle `torch.nn.utils.clip_grad_norm_`. Errors: a bound that is not positive; parameters on several devices.
    pub fn clip_grad_norm(&self, max_norm: f64, p: f64) -> Result<Tensor> {
        check_max_norm("clip_grad_norm", max_norm)?;
        self.one_device("clip_grad_norm")?;
        self.unscale()?;
        let device = self.first_device("clip_grad_norm")?;
        let mut grads: BTreeMap<&str, Vec<ViewMut<'_>>> = BTreeMap::new();
        for m in &self.members {
            let g = m.arena.grads_mut();
            grads.entry(g.dtype().name()).or_default().push(g);
        }
        // A call takes gradients of one dtype: several are measured apart and scaled together.
        let clip = ClipNorm::new(if grads.len() == 1 { max_norm } else { f64::INFINITY }).degree(p);
        let mut norms = vec![];
        for list in grads.values_mut() {
            let norm = Tensor::empty(device, DType::F32, &[])?;
            device.clip_grad_norm(&clip, list, norm.operand().view_mut()?)?;
            norms.push(norm);
        }
        if let [norm] = norms.as_slice() {
            return Ok(norm.clone());
        }
        let total = Tensor::stack(0, &norms.iter().collect::<Vec<_>>())?.norm(p)?;
        let divisor = total.add_scalar(1e-6)?.mul_scalar(1.0 / max_norm)?.clamp(Some(1.0), None)?;
        let (divisor, ignored) =
            (divisor.reshape(&[1])?.operand(), Tensor::zeros(device, DType::F32, &[1])?.operand());
        for list in grads.values_mut() {
            device.unscale_grads(Some(divisor.view()?), list, ignored.view_mut()?)?;
        }
        Ok(total)
    }

    /// Limits every gradient to [-c, c]. Oracle `torch.nn.utils.clip_grad_value_`. Errors: a bound that is not positive.
    pub fn clip_grad_value(&self, c: f64) -> Result<()> {
        if c.is_nan() || c <= 0.0 {
            return Err(invalid("clip_grad_value", "c", "a value above 0", format!("{c}")));
        }
        self.unscale()?;
        for m in &self.members {
            m.arena.device().clip_grad_value(c, &mut [m.arena.grads_mut()])?;
        }
        Ok(())
    }

    /// Adaptive clipping: scales the gradient of every output unit (a row along the first axis; a vector is one unit) so that its norm is at
    /// most `p.k` times that of the unit's weights, or of `p.least` where those are smaller. Source Brock et al. (2021), timm's
    /// `adaptive_clip_grad`. Errors: a negative number or NaN in `p`.
    pub fn clip_grad_adaptive(&self, p: &ClipAdaptive) -> Result<()> {
        self.unscale()?;
        for m in &self.members {
            let pairs = m.arena.filled()?;
            let operands: Vec<_> = pairs.iter().map(|[w, g]| (w.operand(), g.operand())).collect();
            let weights = operands.iter().map(|(w, _)| w.view()).collect::<Result<Vec<_>>>()?;
            let mut grads = operands.iter().map(|(_, g)| g.view_mut()).collect::<Result<Vec<_>>>()?;
            m.arena.device().clip_grad_adaptive(p, &weights, &mut grads)?;
        }
        Ok(())
    }

    /// State tensors under `state.parameter` (`m.0.weight`; `master.` and `ema.` for masters and averages; `scales.` of codes; `memory.`
    /// with the first parameter for the numbers of adaptive rules; `scaler.` for the loss scale); they
    /// share memory with the optimizer.
    pub fn state_tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut out = vec![];
        for m in &self.members {
            out.extend(m.arena.packed_tensors()?);
            for (i, state) in m.rule.states().iter().enumerate() {
                let tensors = m.arena.state_tensors(i)?;
                out.extend(tensors.into_iter().map(|(name, t)| (format!("{state}.{name}"), t)));
            }
            out.extend(m.arena.copies()?);
        }
        if let Some(s) = &self.scaler {
            out.extend(s.state());
        }
        Ok(out)
    }

    /// Steps that parameters took no part in, by `missed.` and their names; a checkpoint keeps them.
    pub(crate) fn missed_steps(&self) -> impl Iterator<Item = (String, u64)> {
        self.members.iter().flat_map(|m| m.arena.missed()).map(|(name, n)| (format!("missed.{name}"), n))
    }

    /// Sets what [`missed_steps`](Optimizer::missed_steps) gave.
    pub(crate) fn set_missed_steps(&mut self, kept: &BTreeMap<String, u64>) {
        let missed = |name: &str| kept.get(&format!("missed.{name}")).copied().unwrap_or(0);
        self.members.iter_mut().for_each(|m| m.arena.set_missed(missed));
    }

    /// Sets the number of steps done, after its state tensors were restored.
    pub fn set_steps(&mut self, steps: u64) {
        self.clock.set_steps(steps);
    }
}
