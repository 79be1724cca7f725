//! Optimizers that estimate their own step size.

use crate::buffer::ViewMut;
use crate::cpu::optimizer::{Now, store_all};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64};
use crate::error::Result;
use crate::ops::optimizer::*;

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

impl AdaptiveOptimizerOps for Kernels {
    fn adaptive_step(
        &self,
        rule: &AdaptiveRule,
        step: &Step<'_>,
        memory: ViewMut<'_>,
        params: &mut [ParamSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "adaptive_step";
        check_adaptive(rule, step, &memory, params)?;
        let _timed = self.count("adaptive_step");
        let Some(now) = self.now(OP, step, params.first().map(|p| p.w.dtype()))? else { return Ok(()) };
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
