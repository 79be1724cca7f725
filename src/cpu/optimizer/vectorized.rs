//! Steps of the common rules in f32: what f32 parameters with f32 states are updated with.
//!
//! Loops copy their numbers first: a number that a closure refers to could be what the loop writes, for all that the compiler knows, and would be read
//! again for every element.

use crate::cpu::optimizer::step::Factors;
use crate::cpu::vector::{simd, simd_widest};
use crate::ops::optimizer::{OptimRule, STATES};

/// Whether [`update`] has the rule.
pub(super) fn serves(rule: &OptimRule) -> bool {
    use OptimRule::*;
    matches!(rule, Sgd { .. } | Momentum { .. } | Adam { .. } | AdamW { .. })
}

/// Updates a part of a parameter and its states from its gradient. A rule that is not [served](serves) changes nothing.
pub(super) fn update(rule: &OptimRule, by: &Factors, w: &mut [f32], g: &[f32], states: [&mut [f32]; STATES]) {
    let [m, v, ..] = states;
    let (lr, scale) = (by.lr as f32, by.unscale as f32);
    match *rule {
        OptimRule::Sgd { wd } => {
            let wd = wd as f32;
            simd!({
                let [lr, scale, wd] = [lr, scale, wd];
                w.iter_mut().zip(g).for_each(|(w, g)| *w -= lr * (scale * g + wd * *w));
            });
        }
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            let [mu, fresh, wd] = [mu, 1.0 - damp, wd].map(|x| x as f32);
            let first = by.t == 1.0;
            simd!({
                let [mu, fresh, wd, scale, lr] = [mu, fresh, wd, scale, lr];
                let (first, nesterov) = (first, nesterov);
                for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
                    let g = scale * g + wd * *w;
                    *m = if first { g } else { mu * *m + fresh * g };
                    *w -= lr * if nesterov { g + mu * *m } else { *m };
                }
            });
        }
        OptimRule::Adam { b1, b2, eps, wd } => {
            let wd = wd as f32;
            adam([w, m, v], g, by, [b1, b2, eps], move |w, g| (w, scale * g + wd * w));
        }
        OptimRule::AdamW { b1, b2, eps, wd } => {
            let shrink = (1.0 - by.lr * wd) as f32;
            adam([w, m, v], g, by, [b1, b2, eps], move |w, g| (shrink * w, scale * g));
        }
        _ => {}
    }
}

/// Adam's step of parameters w with moments m, v; `decay` gives w and the gradient after weight decay and scaling.
fn adam(
    [w, m, v]: [&mut [f32]; 3],
    g: &[f32],
    by: &Factors,
    [b1, b2, eps]: [f64; 3],
    decay: impl Fn(f32, f32) -> (f32, f32) + Copy,
) {
    let [c1, c2] = by.ratio_and_bias.1;
    let (rate, root) = ((by.lr / c1) as f32, (1.0 / c2.sqrt()) as f32);
    let [old1, new1, old2, new2, eps] = [b1, 1.0 - b1, b2, 1.0 - b2, eps].map(|x| x as f32);
    simd_widest!({
        let [old1, new1, old2, new2, eps, rate, root] = [old1, new1, old2, new2, eps, rate, root];
        let decayed_by = decay;
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let (decayed, g) = decayed_by(*w, *g);
            *m = old1 * *m + new1 * g;
            *v = old2 * *v + new2 * g * g;
            *w = decayed - rate * *m / (v.sqrt() * root + eps);
        }
    });
}
