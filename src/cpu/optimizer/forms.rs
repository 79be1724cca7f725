//! Optimizer steps in other forms.

use crate::buffer::{View, ViewMut};
use crate::cpu::optimizer::{bias, update};
use crate::cpu::random::Words;
use crate::cpu::scratch::*;
use crate::cpu::{CpuBackend, gather, gather_f64, store, store_f64};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::ops::random::Rng;

/// Rate, step count and factor of the gradients of a step that happens.
struct Now {
    lr: f64,
    t: f64,
    unscale: f64,
}

impl CpuBackend {
    /// `None` where a gradient was found not to be finite.
    fn now(&self, op: &'static str, step: &Step<'_>) -> Result<Option<Now>> {
        if let Some(f) = step.found_inf
            && gather::<f32>(op, f)?[0] != 0.0
        {
            return Ok(None);
        }
        let (lr, t) = (self.scalar(op, &step.lr)?, self.scalar(op, &step.step)?);
        let factor = step.inv_scale.map_or(Ok(1.0), |v| Ok(gather_f64(op, v)?[0]))?;
        Ok(Some(Now { lr, t, unscale: if step.maximize { -factor } else { factor } }))
    }
}

fn store_all(op: &'static str, w: &[f64], to: &ViewMut<'_>, copy: Option<&ViewMut<'_>>) -> Result<()> {
    store_f64(op, to, w)?;
    copy.map_or(Ok(()), |c| store_f64(op, c, w))
}

/// Values of a parameter while its step is computed.
struct Values {
    w: Vec<f64>,
    g: Vec<f64>,
    s: [Vec<f64>; STATES],
}

/// Sum over the elements of all tensors.
fn total(all: &[Values], term: impl Fn(&Values, usize) -> f64) -> f64 {
    all.iter().map(|x| (0..x.w.len()).map(|i| term(x, i)).sum::<f64>()).sum()
}

/// A step of an adaptive rule on everything at once, as the rules are written down; `k` is the memory.
fn adapt(rule: &AdaptiveRule, Now { lr, t, .. }: Now, k: &mut [f64], all: &mut [Values]) {
    let first = t == 1.0;
    // Where the estimate of d goes.
    let grown = |d: f64, best: f64, growth: f64| {
        let best = if best > growth * d { growth * d } else { best };
        if best > d { best } else { d }
    };
    match *rule {
        AdaptiveRule::HypergradientSgd { rate } => {
            let slope = total(all, |x, i| x.g[i] * x.s[0][i]);
            k[0] = if first { lr } else { k[0] + rate * slope };
            for x in all {
                for i in 0..x.w.len() {
                    x.w[i] -= k[0] * x.g[i];
                }
                x.s[0].copy_from_slice(&x.g);
            }
        }
        AdaptiveRule::ScheduleFreeSgd { b, .. } | AdaptiveRule::ScheduleFreeAdamW { b, .. } => {
            k[0] = if first { 0.0 } else { k[0] } + lr * lr;
            let c = if k[0] > 0.0 { lr * lr / k[0] } else { 0.0 };
            for x in all {
                for i in 0..x.w.len() {
                    let (y, g) = (x.w[i], x.g[i]);
                    let z = if first { y } else { x.s[0][i] };
                    let mean = (y - (1.0 - b) * z) / b;
                    let direction = match *rule {
                        AdaptiveRule::ScheduleFreeAdamW { b2, eps, wd, .. } => {
                            let v = &mut x.s[1][i];
                            *v = b2 * *v + (1.0 - b2) * g * g;
                            g / ((*v / (1.0 - b2.powf(t))).sqrt() + eps) + wd * y
                        }
                        AdaptiveRule::ScheduleFreeSgd { wd, .. } => g + wd * y,
                        _ => 0.0,
                    };
                    let z = z - lr * direction;
                    let mean = (1.0 - c) * mean + c * z;
                    (x.s[0][i], x.w[i]) = (z, (1.0 - b) * z + b * mean);
                }
            }
        }
        AdaptiveRule::DAdaptSgd { d0, mu, wd, growth } => {
            for x in all.iter_mut() {
                (0..x.w.len()).for_each(|i| x.g[i] += wd * x.w[i]);
                if first {
                    x.s[0].fill(0.0);
                    x.s[1].copy_from_slice(&x.w);
                }
            }
            if first {
                (k[0], k[1], k[2]) = (d0, 0.0, total(all, |x, i| x.g[i] * x.g[i]).sqrt());
            }
            let e = if k[2] > 0.0 { lr * k[0] / k[2] } else { 0.0 };
            if k[2] > 0.0 {
                k[1] += e * total(all, |x, i| x.g[i] * x.s[0][i]);
            }
            for x in all.iter_mut() {
                for i in 0..x.w.len() {
                    x.s[0][i] += e * x.g[i];
                    x.w[i] = mu * x.w[i] + (1.0 - mu) * (x.s[1][i] - x.s[0][i]);
                }
            }
            let size = total(all, |x, i| x.s[0][i].powi(2)).sqrt();
            if size > 0.0 {
                k[0] = grown(k[0], 2.0 * k[1] / size, growth);
            }
        }
        AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0, growth } => {
            if first {
                (k[0], k[1]) = (d0, 0.0);
            }
            let (q, e) = (b2.sqrt(), lr * k[0]);
            let along = total(all, |x, i| {
                if x.s[2][i] == 0.0 { 0.0 } else { x.g[i] * x.s[2][i] / (x.s[1][i].sqrt() + eps) }
            });
            for x in all.iter_mut() {
                for i in 0..x.w.len() {
                    let g = x.g[i];
                    x.s[0][i] = b1 * x.s[0][i] + (1.0 - b1) * e * g;
                    x.s[1][i] = b2 * x.s[1][i] + (1.0 - b2) * g * g;
                    x.s[2][i] = q * x.s[2][i] + (1.0 - q) * e * g;
                    x.w[i] = x.w[i] * (1.0 - e * wd) - x.s[0][i] / (x.s[1][i].sqrt() + eps);
                }
            }
            k[1] = q * k[1] + (1.0 - q) * e * along;
            let size = total(all, |x, i| x.s[2][i].abs());
            if size > 0.0 {
                k[0] = grown(k[0], k[1] / ((1.0 - q) * size), growth);
            }
        }
        AdaptiveRule::Prodigy { b1, b2, eps, wd, d0, coef, growth } => {
            if first {
                (k[0], k[1]) = (d0, 0.0);
                all.iter_mut().for_each(|x| x.s[3].copy_from_slice(&x.w));
            }
            let (q, d) = (b2.sqrt(), k[0]);
            let along = total(all, |x, i| x.g[i] * (x.s[3][i] - x.w[i]));
            for x in all.iter_mut() {
                for i in 0..x.w.len() {
                    let g = d * x.g[i];
                    x.s[0][i] = b1 * x.s[0][i] + (1.0 - b1) * g;
                    x.s[1][i] = b2 * x.s[1][i] + (1.0 - b2) * g * g;
                    x.s[2][i] = q * x.s[2][i] + (1.0 - q) * lr * d * g;
                    let step = x.s[0][i] / (x.s[1][i].sqrt() + d * eps);
                    x.w[i] = x.w[i] * (1.0 - lr * d * wd) - lr * d * step;
                }
            }
            k[1] = q * k[1] + (1.0 - q) * lr * d * d * along;
            let size = total(all, |x, i| x.s[2][i].abs());
            if size > 0.0 {
                k[0] = grown(d, coef * k[1] / size, growth);
            }
        }
    }
}

/// The moments that a slot stores.
fn decode(op: &'static str, p: &PackedSlot<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
    let Some(scales) = &p.scales else {
        return Ok((gather_f64(op, p.m.as_view())?, gather_f64(op, p.v.as_view())?));
    };
    let scales = gather_f64(op, scales.as_view())?;
    let (a, b) = scales.split_at(scales.len() / 2);
    let bytes = |v: View<'_>| gather::<u8>(op, v);
    let m = bytes(p.m.as_view())?;
    let m = m.iter().enumerate().map(|(i, &c)| f64::from(c as i8) / 127.0 * a[i / PACKED_BLOCK]).try_vec()?;
    let v = bytes(p.v.as_view())?;
    let v =
        v.iter().enumerate().map(|(i, &c)| (f64::from(c) / 255.0 * b[i / PACKED_BLOCK]).powi(2)).try_vec()?;
    Ok((m, v))
}

/// Stores moments in the slot's form.
fn encode(
    op: &'static str,
    p: &PackedSlot<'_>,
    m: &[f64],
    v: &[f64],
    mut draw: Option<&mut Words>,
) -> Result<()> {
    let Some(scales) = &p.scales else {
        store_f64(op, &p.m, m)?;
        let Some(draw) = draw else { return store_f64(op, &p.v, v) };
        let rounded = v.iter().enumerate().map(|(i, &x)| {
            let bits = (x as f32).to_bits();
            if !(x as f32).is_finite() {
                return x;
            }
            let up = (draw.word(i) >> 16) < (bits & 0xffff);
            f64::from(f32::from_bits(((bits >> 16) + u32::from(up)) << 16))
        });
        return store_f64(op, &p.v, &rounded.try_vec()?);
    };
    let roots: Vec<f64> = v.iter().map(|x| x.sqrt()).try_vec()?;
    let largest = |values: &[f64]| -> Result<Vec<f64>> {
        let most =
            |b: &[f64]| b.iter().fold(0.0f64, |m, x| if x.abs() > m || x.is_nan() { x.abs() } else { m });
        values.chunks(PACKED_BLOCK).map(most).try_vec()
    };
    let (mut a, b) = (largest(m)?, largest(&roots)?);
    // A scale that is 0 or not finite leaves no codes.
    let share = |x: f64, most: f64| if most > 0.0 && most.is_finite() { x / most } else { 0.0 };
    let cm: Vec<u8> = (0..m.len())
        .map(|i| (share(m[i], a[i / PACKED_BLOCK]) * 127.0).round_ties_even() as i8 as u8)
        .try_vec()?;
    let mut cv = filled(v.len(), 0u8)?;
    for (i, c) in cv.iter_mut().enumerate() {
        let x = share(roots[i], b[i / PACKED_BLOCK]) * 255.0;
        let code = match &mut draw {
            Some(d) => x.floor() + f64::from(u8::from(d.unit(DType::F32, i) < x - x.floor())),
            None => x.round_ties_even(),
        };
        *c = if x > 0.0 { code.clamp(1.0, 255.0) as u8 } else { 0 };
    }
    store(op, &p.m, &cm)?;
    store(op, &p.v, &cv)?;
    a.try_extend(b)?;
    store_f64(op, scales, &a)
}

impl AdaptiveOptimizerOps for CpuBackend {
    fn adaptive_step(
        &self,
        rule: &AdaptiveRule,
        step: &Step<'_>,
        memory: ViewMut<'_>,
        params: &mut [ParamSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "adaptive_step";
        check_adaptive(rule, step, &memory, params)?;
        self.count();
        let Some(now) = self.now(OP, step)? else { return Ok(()) };
        if params.is_empty() {
            return Ok(());
        }
        let count = rule.states().len();
        let mut all = Vec::new();
        for p in params.iter() {
            let mut s = [const { Vec::new() }; STATES];
            for (s, v) in s.iter_mut().zip(&p.state).take(count) {
                *s = v.as_ref().map_or_else(|| filled(p.w.numel(), 0.0), |v| gather_f64(OP, v.as_view()))?;
            }
            let g = gather_f64(OP, p.g)?.into_iter().map(|g| g * now.unscale).try_vec()?;
            all.try_push(Values { w: gather_f64(OP, p.w.as_view())?, g, s })?;
        }
        let mut numbers = gather_f64(OP, memory.as_view())?;
        adapt(rule, now, &mut numbers, &mut all);
        for (p, x) in params.iter().zip(&all) {
            store_all(OP, &x.w, &p.w, p.copy.as_ref())?;
            for (v, s) in p.state.iter().zip(&x.s).take(count) {
                v.as_ref().map_or(Ok(()), |v| store_f64(OP, v, s))?;
            }
        }
        store_f64(OP, &memory, &numbers)
    }
}

impl SparseOptimizerOps for CpuBackend {
    fn optimizer_step_rows(&self, rule: &OptimRule, step: &Step<'_>, param: RowSlot<'_>) -> Result<()> {
        const OP: &str = "optimizer_step_rows";
        let [n, width] = check_rows(rule, step, &param)?;
        self.count();
        let ids = self.lookup(OP, param.ids, n)?;
        let Some(now) = self.now(OP, step)? else { return Ok(()) };
        let factors = (1.0, bias(rule, now.t));
        let rows = gather_f64(OP, param.rows)?;
        // The rows of one id side by side, in the order in which they came.
        let mut order =
            ids.iter().enumerate().filter_map(|(k, id)| Some((id.as_ref().copied()?, k))).try_vec()?;
        order.sort_unstable();
        let count = rule.states().len();
        let states: Vec<_> = param.state.iter().flatten().take(count).try_vec()?;
        let mut w = gather_f64(OP, param.w.as_view())?;
        let mut copy = param.copy.as_ref().map(|c| gather_f64(OP, c.as_view())).transpose()?;
        let mut s: Vec<Vec<f64>> = states.iter().map(|v| gather_f64(OP, v.as_view())).try_vec_ok()?;
        let mut sum = filled(width, 0.0)?;
        for list in order.chunk_by(|a, b| a.0 == b.0) {
            sum.fill(0.0);
            for (_, k) in list {
                sum.iter_mut().zip(&rows[k * width..]).for_each(|(s, g)| *s += g);
            }
            for (i, g) in (list[0].0 * width..).zip(&sum) {
                let mut one = [0, 1, 2, 3].map(|k: usize| s.get(k).map_or(0.0, |s| s[i]));
                w[i] = update(rule, w[i], g * now.unscale, &mut one, now.lr, now.t, factors);
                s.iter_mut().zip(one).for_each(|(s, new)| s[i] = new);
                if let Some(c) = &mut copy {
                    c[i] = w[i];
                }
            }
        }
        store_f64(OP, &param.w, &w)?;
        if let (Some(to), Some(values)) = (&param.copy, &copy) {
            store_f64(OP, to, values)?;
        }
        states.iter().zip(&s).try_for_each(|(v, s)| store_f64(OP, v, s))
    }
}

impl PackedOptimizerOps for CpuBackend {
    fn optimizer_step_packed(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        rng: Option<&Rng<'_>>,
        params: &mut [PackedSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "optimizer_step_packed";
        check_packed(rule, step, rng, params)?;
        self.count();
        let Some(now) = self.now(OP, step)? else { return Ok(()) };
        let factors = (1.0, bias(rule, now.t));
        for (j, p) in params.iter().filter(|p| p.w.numel() > 0).enumerate() {
            let words = rng.map(|r| Words::new(OP, &r.at(r.stream.wrapping_add(j as u64), r.offset)));
            let mut draw = words.transpose()?;
            let mut w = gather_f64(OP, p.w.as_view())?;
            let g = gather_f64(OP, p.g)?;
            let (mut m, mut v) = decode(OP, p)?;
            for i in 0..w.len() {
                let mut s = [m[i], v[i], 0.0, 0.0];
                w[i] = update(rule, w[i], g[i] * now.unscale, &mut s, now.lr, now.t, factors);
                [m[i], v[i], ..] = s;
            }
            store_all(OP, &w, &p.w, p.copy.as_ref())?;
            encode(OP, p, &m, &v, draw.as_mut())?;
        }
        Ok(())
    }
}
