//! Optimizer steps and gradient clipping.

mod adaptive;
mod packed;
mod sparse;
mod step;
mod vectorized;

use rayon::prelude::*;

use self::step::{Factors, in_place};
use crate::buffer::{View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Values, change};
use crate::cpu::{HostElement, Kernels, gather, gather_f64, store, store_f64, with_dtype};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::optimizer::*;

/// Learning rate, step count and factor of the gradients, for a step that is not skipped.
struct Now {
    lr: f64,
    t: f64,
    unscale: f64,
}

impl Kernels {
    pub(in crate::cpu) fn scalar(&self, op: &'static str, s: &Scalar<'_>) -> Result<f64> {
        match s {
            Scalar::Host(x) => Ok(*x),
            Scalar::Device(v) => Ok(gather_f64(op, *v)?[0]),
        }
    }

    /// The numbers of a step of parameters of dtype `w`, the rate as their accumulator holds it, whether it lies in device memory or not; `None` for a
    /// step that is skipped because a gradient is not finite.
    fn now(&self, op: &'static str, step: &Step<'_>, w: Option<DType>) -> Result<Option<Now>> {
        if let Some(f) = step.found_inf
            && gather::<f32>(op, f)?[0] != 0.0
        {
            return Ok(None);
        }
        let (mut lr, mut t) = (self.scalar(op, &step.lr)?, self.scalar(op, &step.step)?);
        if let Some(n) = step.numbers {
            let n = gather_f64(op, n)?;
            lr = n[0];
            t = if matches!(step.step, Scalar::Device(_)) { t } else { n[1] };
        }
        if w.is_some_and(|w| w.accumulator() != DType::F64) {
            lr = f64::from(lr as f32);
        }
        let factor = step.inv_scale.map_or(Ok(1.0), |v| Ok(gather_f64(op, v)?[0]))?;
        Ok(Some(Now { lr, t, unscale: if step.maximize { -factor } else { factor } }))
    }
}

/// Stores the values of a parameter, and of its 16-bit copy.
fn store_all(op: &'static str, w: &[f64], to: &ViewMut<'_>, copy: Option<&ViewMut<'_>>) -> Result<()> {
    store_f64(op, to, w)?;
    copy.map_or(Ok(()), |c| store_f64(op, c, w))
}

impl OptimizerOps for Kernels {
    fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()> {
        const OP: &str = "optimizer_step";
        check_step(rule, step, params)?;
        let _timed = self.count("optimizer_step");
        let Some(Now { lr, t, unscale }) = self.now(OP, step, params.first().map(|p| p.w.dtype()))? else {
            return Ok(());
        };
        let layer_wise = matches!(rule, OptimRule::Lars { .. } | OptimRule::Lamb { .. });
        for p in params.iter_mut() {
            let by = Factors { lr, t, unscale, ratio_and_bias: (1.0, bias(rule, t)) };
            let why_not = if !vectorized::serves(rule) {
                Some("this rule is computed in f64")
            } else {
                (p.w.dtype() != DType::F32).then_some("parameters of 16 bits are updated in f64")
            };
            let in_f32 = self.in_f32(OP, p.w.dtype(), why_not)?;
            if !layer_wise && in_place(OP, rule, p, by, in_f32)? {
                continue;
            }
            let mut w = gather_f64(OP, p.w.as_view())?;
            let mut g = gather_f64(OP, p.g)?;
            g.iter_mut().for_each(|g| *g *= unscale);
            let mut state = [const { Vec::new() }; STATES];
            for (i, (s, view)) in state.iter_mut().zip(&p.state).enumerate() {
                *s = match view.as_ref().filter(|_| i < rule.states().len()) {
                    Some(v) => gather_f64(OP, v.as_view())?,
                    None => filled(w.len(), 0.0)?,
                };
            }
            let (q, bias) = (trust_ratio(rule, &w, &g, &state, t), bias(rule, t));
            let [a, b, c, d] = &mut state;
            let states = a.par_iter_mut().zip(b).zip(c).zip(d).with_min_len(CHUNK);
            w.par_iter_mut().zip(&g).zip(states).for_each(|((w, &g), (((a, b), c), d))| {
                let mut s = [*a, *b, *c, *d];
                *w = update(rule, *w, g, &mut s, lr, t, (q, bias));
                [*a, *b, *c, *d] = s;
            });
            store_f64(OP, &p.w, &w)?;
            for (s, view) in state.iter().zip(&p.state).take(rule.states().len()) {
                if let Some(v) = view {
                    store_f64(OP, v, s)?;
                }
            }
            if let Some(c) = &p.copy {
                store_f64(OP, c, &w)?;
            }
        }
        Ok(())
    }

    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> {
        const OP: &str = "clip_grad_norm";
        check_clip_norm(p, grads, &total)?;
        let _timed = self.count("clip_grad_norm");
        let norm = total_norm(OP, p, &grads.iter().map(ViewMut::as_view).try_vec()?)?;
        store_f64(OP, &total, &[norm])?;
        let c = p.max_norm / (norm + 1e-6);
        if c >= 1.0 {
            return Ok(());
        }
        grads.iter().try_for_each(|g| change_each(OP, g, |x| x * c))
    }

    fn grad_factor(&self, p: &ClipNorm, grads: &[View<'_>], io: GradFactor<'_>) -> Result<()> {
        const OP: &str = "grad_factor";
        check_factor(p, grads, &io)?;
        let _timed = self.count("grad_factor");
        let mut norm = total_norm(OP, p, grads)?;
        let mut by = 1.0;
        if let Some(s) = io.scaling {
            let bad = |found: f64, x: f64| if x.is_finite() { found } else { 1.0 };
            let earlier = gather_f64(OP, s.state.found_inf.as_view())?[0];
            let skipped = over(OP, grads, bad, f64::max)? > 0.0 || earlier != 0.0;
            if let (Some(inverse), Some(step)) = (&s.state.inv_scale, &s.state.step) {
                by = gather_f64(OP, inverse.as_view())?[0];
                store(OP, &s.count, &gather::<i64>(OP, step.as_view())?)?;
            }
            store(OP, &s.skip, &[f32::from(u8::from(skipped))])?;
            next_scale(OP, &s.p, &s.state, skipped)?;
        }
        norm *= by;
        io.total.map_or(Ok(()), |v| store_f64(OP, &v, &[norm]))?;
        let c = p.max_norm / (norm + 1e-6);
        // NaN stays.
        store_f64(OP, &io.factor, &[if c > 1.0 { by } else { c * by }])
    }

    fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()> {
        const OP: &str = "clip_grad_value";
        check_clip_value(c, grads)?;
        let _timed = self.count("clip_grad_value");
        let clamp = |x: f64| if x.is_nan() { x } else { x.clamp(-c, c) };
        grads.iter().try_for_each(|g| change_each(OP, g, clamp))
    }

    fn clip_grad_adaptive(
        &self,
        p: &ClipAdaptive,
        weights: &[View<'_>],
        grads: &mut [ViewMut<'_>],
    ) -> Result<()> {
        const OP: &str = "clip_grad_adaptive";
        check_clip_adaptive(p, weights, grads)?;
        let _timed = self.count("clip_grad_adaptive");
        for (w, g) in weights.iter().zip(grads.iter()) {
            let [_, len] = output_units(w.shape());
            let (w, mut values) = (gather_f64(OP, *w)?, gather_f64(OP, g.as_view())?);
            for (w, g) in w.chunks(len.max(1)).zip(values.chunks_mut(len.max(1))) {
                let small = norm(w.iter().copied());
                let most = p.k * if small < p.least { p.least } else { small };
                let size = norm(g.iter().copied());
                let fits = size <= most;
                if !fits {
                    g.iter_mut().for_each(|g| *g *= most / size);
                }
            }
            store_f64(OP, g, &values)?;
        }
        Ok(())
    }

    fn unscale_grads(
        &self,
        scale: Option<View<'_>>,
        grads: &mut [ViewMut<'_>],
        found_inf: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "unscale_grads";
        check_unscale(scale.as_ref(), grads, &found_inf)?;
        let _timed = self.count("unscale_grads");
        let scale = scale.map_or(Ok(None), |v| Ok(Some(gather_f64(OP, v)?[0])))?;
        for g in grads.iter() {
            let bad = |found: f64, x: f64| if x.is_finite() { found } else { 1.0 };
            if fold(OP, g.as_view(), bad, f64::max)? > 0.0 {
                store_f64(OP, &found_inf, &[1.0])?;
            }
            if let Some(s) = scale {
                change_each(OP, g, |x| x / s)?;
            }
        }
        Ok(())
    }

    fn update_loss_scale(&self, p: &LossScale, io: LossScaleState<'_>) -> Result<()> {
        const OP: &str = "update_loss_scale";
        check_loss_scale(p, &io)?;
        let _timed = self.count("update_loss_scale");
        let skipped = gather::<f32>(OP, io.found_inf.as_view())?[0] != 0.0;
        next_scale(OP, p, &io, skipped)
    }
}

/// Adapts a loss scale to a step that was skipped or not.
fn next_scale(op: &'static str, p: &LossScale, io: &LossScaleState<'_>, skipped: bool) -> Result<()> {
    let mut scale = gather::<f32>(op, io.scale.as_view())?[0];
    let mut good = gather::<i64>(op, io.good.as_view())?[0];
    good += 1;
    if skipped {
        scale = (scale * p.backoff as f32).max(p.least as f32);
        good = 0;
    } else if good >= i64::from(p.interval) {
        let grown = scale * p.growth as f32;
        scale = if grown.is_finite() { grown } else { scale };
        good = 0;
    }
    store(op, &io.scale, &[scale])?;
    store(op, &io.good, &[good])?;
    store(op, &io.found_inf, &[0.0f32])?;
    if let Some(v) = &io.inv_scale {
        store(op, v, &[1.0 / scale])?;
    }
    if let Some(v) = io.step.as_ref().filter(|_| !skipped) {
        let t = gather::<i64>(op, v.as_view())?[0];
        store(op, v, &[t + 1])?;
    }
    Ok(())
}

/// The norm of all gradients.
fn total_norm(op: &'static str, p: &ClipNorm, grads: &[View<'_>]) -> Result<f64> {
    let power = |sum: f64, x: f64| sum + if p.p == 2.0 { x * x } else { x.abs().powf(p.p) };
    if p.p.is_infinite() {
        return over(op, grads, |m, x| larger(m, x.abs()), larger);
    }
    Ok(over(op, grads, power, |a, b| a + b)?.powf(1.0 / p.p))
}

/// The larger number; NaN is larger than all.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// `step` over a view's elements from 0, in eight interleaved chains of each part of it: a single chain would wait for each step. `join` makes
/// one number of those of chains and parts, in their order whatever the number of threads.
fn fold(
    op: &'static str,
    v: View<'_>,
    step: impl Fn(f64, f64) -> f64 + Sync,
    join: impl Fn(f64, f64) -> f64 + Copy + Sync,
) -> Result<f64> {
    with_dtype!(v.dtype(), T => {
        let x = Values::<T>::new(op, v, &[])?;
        let parts = of_parts::<T>(&x, &|x| {
            let mut chains = [0.0; 8];
            for x in x.chunks(8) {
                chains.iter_mut().zip(x).for_each(|(c, &x)| *c = step(*c, HostElement::to_f64(x)));
            }
            chains.into_iter().fold(0.0, join)
        });
        Ok(parts?.into_iter().fold(0.0, join))
    })
}

/// A number of each part of a slice. A reference, so that this is not compiled for every function.
fn of_parts<T: HostElement>(x: &[T], f: &(dyn Fn(&[T]) -> f64 + Sync)) -> Result<Vec<f64>> {
    x.par_chunks(CHUNK).map(f).try_vec()
}

/// [`fold`] over all elements of a list of tensors.
fn over(
    op: &'static str,
    tensors: &[View<'_>],
    step: impl Fn(f64, f64) -> f64 + Copy + Sync,
    join: impl Fn(f64, f64) -> f64 + Copy + Sync,
) -> Result<f64> {
    let each = tensors.iter().map(|t| fold(op, *t, step, join)).try_vec_ok()?;
    Ok(each.into_iter().fold(0.0, join))
}

/// Replaces every element x of a view by f(x).
fn change_each(op: &'static str, v: &ViewMut<'_>, f: impl Fn(f64) -> f64 + Sync) -> Result<()> {
    with_dtype!(v.dtype(), T => change::<T>(op, v, |_, x| {
        x.iter_mut().for_each(|x| *x = HostElement::from_f64(f(HostElement::to_f64(*x))));
    }))
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// The factor of the learning rate that layer-wise rules give a tensor.
fn trust_ratio(rule: &OptimRule, w: &[f64], g: &[f64], state: &[Vec<f64>; STATES], t: f64) -> f64 {
    let size = |v: &[f64]| norm(v.iter().copied());
    match *rule {
        OptimRule::Lars { wd, eta, eps, adapt: true, .. } => {
            let (a, b) = (size(w), size(g));
            if a == 0.0 || b == 0.0 { 1.0 } else { eta * a / (b + wd * a + eps) }
        }
        OptimRule::Lamb { max_norm, adapt: true, .. } => {
            let a = size(w);
            let b = norm(
                (0..w.len()).map(|i| lamb(rule, w[i], g[i], &mut [state[0][i], state[1][i], 0.0, 0.0], t)),
            );
            if a == 0.0 || b == 0.0 { 1.0 } else { a.min(max_norm) / b }
        }
        _ => 1.0,
    }
}

/// LAMB's direction; 0 for other rules.
fn lamb(rule: &OptimRule, w: f64, g: f64, s: &mut [f64; STATES], t: f64) -> f64 {
    let OptimRule::Lamb { b1, b2, eps, wd, bias_correction, adapt, .. } = *rule else { return 0.0 };
    // Without correction the moments stand for themselves, as after infinitely many steps.
    let t = if bias_correction { t } else { f64::INFINITY };
    adam(s, g, [1.0 - b1.powf(t), 1.0 - b2.powf(t)], b1, b2, eps) + if adapt { wd * w } else { 0.0 }
}

/// sign with sign(0) = sign(NaN) = 0.
fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// One element: changes its states and returns the new parameter. Inlined, so that loops over elements of one rule are of that rule alone. `q` is the tensor's trust ratio, `bias` what [`bias`] gives.
#[inline]
pub(in crate::cpu) fn update(
    rule: &OptimRule,
    w: f64,
    g: f64,
    s: &mut [f64; STATES],
    lr: f64,
    t: f64,
    (q, bias): (f64, [f64; 2]),
) -> f64 {
    match *rule {
        OptimRule::Sgd { wd } => w - lr * (g + wd * w),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            let g = g + wd * w;
            s[0] = if t == 1.0 { g } else { mu * s[0] + (1.0 - damp) * g };
            w - lr * if nesterov { g + mu * s[0] } else { s[0] }
        }
        OptimRule::Adam { b1, b2, eps, wd } => w - lr * adam(s, g + wd * w, bias, b1, b2, eps),
        OptimRule::AdamW { b1, b2, eps, wd } => w * (1.0 - lr * wd) - lr * adam(s, g, bias, b1, b2, eps),
        OptimRule::AmsGrad { b1, b2, eps, wd, decoupled } => {
            let (w, g) = decay(w, g, lr, wd, decoupled);
            moments(s, g, b1, b2);
            s[2] = if s[1] > s[2] || s[1].is_nan() { s[1] } else { s[2] };
            w - lr * s[0] / (1.0 - b1.powf(t)) / ((s[2] / (1.0 - b2.powf(t))).sqrt() + eps)
        }
        OptimRule::Nadam { b1, b2, eps, wd, psi, decoupled } => {
            let (w, g) = decay(w, g, lr, wd, decoupled);
            moments(s, g, b1, b2);
            let (a, b) = nadam_factors(b1, psi, t);
            w - lr * (a * g + b * s[0]) / ((s[1] / (1.0 - b2.powf(t))).sqrt() + eps)
        }
        OptimRule::RAdam { b1, b2, eps, wd, decoupled } => {
            let (w, g) = decay(w, g, lr, wd, decoupled);
            moments(s, g, b1, b2);
            let m = s[0] / (1.0 - b1.powf(t));
            match radam_factor(b2, t) {
                Some(f) => w - lr * m * f * (1.0 - b2.powf(t)).sqrt() / (s[1].sqrt() + eps),
                None => w - lr * m,
            }
        }
        OptimRule::Asgd { lambd, alpha, t0, wd } => {
            let eta = lr / (1.0 + lambd * lr * (t - 1.0)).powf(alpha);
            let mu = 1.0 / (t - 1.0 - t0).max(1.0);
            let w = w * (1.0 - lambd * eta) - eta * (g + wd * w);
            s[0] = if mu == 1.0 { w } else { s[0] + (w - s[0]) * mu };
            w
        }
        OptimRule::Rprop { up, down, least, most } => {
            if t == 1.0 {
                s[1] = lr;
            }
            let (factor, g) = match g * s[0] {
                x if x > 0.0 => (up, g),
                x if x < 0.0 => (down, 0.0),
                x if x.is_nan() => (x, g),
                _ => (1.0, g),
            };
            s[1] = (s[1] * factor).clamp(least, most);
            s[0] = g;
            w - if g == 0.0 { g } else { g.signum() } * s[1]
        }
        OptimRule::AdaMax { b1, b2, eps, wd } => {
            let g = g + wd * w;
            s[0] = b1 * s[0] + (1.0 - b1) * g;
            let (old, new) = (b2 * s[1], g.abs() + eps);
            s[1] = if old > new || old.is_nan() { old } else { new };
            w - lr / (1.0 - b1.powf(t)) * s[0] / s[1]
        }
        OptimRule::RmsProp { a, eps, wd, mu, centered } => {
            let g = g + wd * w;
            s[0] = a * s[0] + (1.0 - a) * g * g;
            let mut variance = s[0];
            if centered {
                s[1] = a * s[1] + (1.0 - a) * g;
                variance -= s[1] * s[1];
                if variance < 0.0 {
                    variance = 0.0;
                }
            }
            let d = g / (variance.sqrt() + eps);
            if mu > 0.0 {
                let b = &mut s[1 + usize::from(centered)];
                *b = mu * *b + d;
                return w - lr * *b;
            }
            w - lr * d
        }
        OptimRule::Adagrad { lr_decay, eps, wd } => {
            let g = g + wd * w;
            s[0] += g * g;
            w - lr / (1.0 + (t - 1.0) * lr_decay) * g / (s[0].sqrt() + eps)
        }
        OptimRule::Adadelta { rho, eps, wd } => {
            let g = g + wd * w;
            s[0] = rho * s[0] + (1.0 - rho) * g * g;
            let d = (s[1] + eps).sqrt() / (s[0] + eps).sqrt() * g;
            s[1] = rho * s[1] + (1.0 - rho) * d * d;
            w - lr * d
        }
        OptimRule::Lion { b1, b2, wd } => {
            let c = b1 * s[0] + (1.0 - b1) * g;
            s[0] = b2 * s[0] + (1.0 - b2) * g;
            w * (1.0 - lr * wd) - lr * sign(c)
        }
        OptimRule::Ftrl { beta, l1, l2, from_w } => {
            let old = s[1].sqrt();
            if from_w && t == 1.0 {
                s[0] = -w * ((beta + old) / lr + l2) - sign(w) * l1;
            }
            s[1] += g * g;
            s[0] += g - (s[1].sqrt() - old) / lr * w;
            if s[0].abs() <= l1 {
                return 0.0;
            }
            -(s[0] - sign(s[0]) * l1) / ((beta + s[1].sqrt()) / lr + l2)
        }
        OptimRule::Lars { mu, wd, nesterov, adapt, .. } => {
            let d = lr * q * (g + if adapt { wd * w } else { 0.0 });
            s[0] = mu * s[0] + d;
            w - if nesterov { mu * s[0] + d } else { s[0] }
        }
        OptimRule::Lamb { .. } => w - lr * q * lamb(rule, w, g, s, t),
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 }) => {
            let v = w - lr * g;
            if v.is_nan() { v } else { sign(v) * (v.abs() - lr * l1).max(0.0) / (1.0 + lr * l2) }
        }
        OptimRule::Proximal(Prox::Box { lo, hi }) => (w - lr * g).clamp(lo, hi),
        OptimRule::Adan { b1, b2, b3, eps, wd } => {
            let d = if t == 1.0 { 0.0 } else { g - s[3] };
            let mean = |old: f64, new: f64, b: f64| b * old + (1.0 - b) * new;
            *s = [mean(s[0], g, b1), mean(s[1], d, b2), mean(s[2], (g + b2 * d).powi(2), b3), g];
            let [m, v, n] = [(s[0], b1), (s[1], b2), (s[2], b3)].map(|(x, b)| x / (1.0 - b.powf(t)));
            (w - lr * (m + b2 * v) / (n.sqrt() + eps)) / (1.0 + lr * wd)
        }
        OptimRule::Sophia { b1, gamma, eps, wd } => {
            s[0] = b1 * s[0] + (1.0 - b1) * g;
            let h = gamma * s[1];
            let q = s[0] / if h < eps { eps } else { h };
            w * (1.0 - lr * wd) - lr * q.clamp(-1.0, 1.0)
        }
        OptimRule::SophiaCurvature { b2, batch } => {
            s[1] = b2 * s[1] + (1.0 - b2) * batch * g * g;
            w
        }
        // `check_step` refuses them.
        OptimRule::Adaptive(_) => w,
    }
}

/// Weight decay on the weights (decoupled) or as a part of the gradient.
fn decay(w: f64, g: f64, lr: f64, wd: f64, decoupled: bool) -> (f64, f64) {
    if decoupled { (w * (1.0 - lr * wd), g) } else { (w, g + wd * w) }
}

fn moments(s: &mut [f64; STATES], g: f64, b1: f64, b2: f64) {
    s[0] = b1 * s[0] + (1.0 - b1) * g;
    s[1] = b2 * s[1] + (1.0 - b2) * g * g;
}

/// What the moments of Adam and AdamW are divided by: the same for all elements.
pub(in crate::cpu) fn bias(rule: &OptimRule, t: f64) -> [f64; 2] {
    match *rule {
        OptimRule::Adam { b1, b2, .. } | OptimRule::AdamW { b1, b2, .. } => {
            [1.0 - b1.powf(t), 1.0 - b2.powf(t)]
        }
        _ => [1.0; 2],
    }
}

/// Updates the moments and returns the step direction.
fn adam(s: &mut [f64; STATES], g: f64, [c1, c2]: [f64; 2], b1: f64, b2: f64, eps: f64) -> f64 {
    moments(s, g, b1, b2);
    s[0] / c1 / ((s[1] / c2).sqrt() + eps)
}
