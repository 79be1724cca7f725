//! Cross entropy of class ids in f32, a row of logits at a time.

use super::{class_ids, class_weights};
use crate::buffer::View;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, collected};
use crate::cpu::vector::math::exp;
use crate::cpu::vector::{self, fill, row, row_parts, simd_widest};
use crate::cpu::{Kernels, gather_f64, store_f64};
use crate::error::Result;
use crate::ops::loss::*;

/// Why a call has no variant in f32.
pub(super) fn without(xs: &XentShape) -> Option<&'static str> {
    match (xs.probs, xs.s) {
        (true, _) => Some("the cross entropy of probabilities is computed in f64"),
        (false, 1) => None,
        (false, _) => Some("the cross entropy of classes that are not the last axis is computed in f64"),
    }
}

/// The target of each row, `None` for one that does not count, and what the classes weigh.
struct Targets {
    of_row: Vec<Option<usize>>,
    weights: Vec<f64>,
    smoothing: f64,
}

impl Kernels {
    fn targets(
        &self,
        op: &'static str,
        p: &CrossEntropy,
        c: usize,
        target: View<'_>,
        weight: Option<View<'_>>,
    ) -> Result<Targets> {
        let ids = class_ids(op, target)?.unwrap_or_default();
        let class = |id: &i64| usize::try_from(*id).ok().filter(|t| *t < c);
        if ids.iter().any(|id| *id != p.ignore_index && class(id).is_none()) {
            self.flag_index_error(op);
        }
        let of_row = ids.iter().map(|id| class(id).filter(|_| *id != p.ignore_index)).try_vec()?;
        Ok(Targets { of_row, weights: class_weights(op, weight, c)?, smoothing: p.label_smoothing })
    }

    pub(super) fn cross_entropy_in_f32(
        &self,
        p: &CrossEntropy,
        xs: &XentShape,
        io: CrossEntropyFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "cross_entropy";
        let (t, c) = (self.targets(OP, p, xs.c, io.target, io.weight)?, xs.c);
        let weights: Vec<f32> = t.weights.iter().map(|w| *w as f32).try_vec()?;
        let x = vector::values(OP, io.x, &[])?;
        let one = |i: usize| {
            let x = &x[i * c..(i + 1) * c];
            let lse = log_sum_exp(x);
            let Some(k) = t.of_row[i] else { return [0.0, lse] };
            if lse == f64::INFINITY {
                return [f64::NAN, lse];
            }
            let mut loss = (1.0 - t.smoothing) * t.weights[k] * (lse - f64::from(x[k]));
            if t.smoothing > 0.0 {
                let l = lse as f32;
                let all = simd_widest!(row::sum_of(&weights, x, |w, x| w * (l - x)));
                loss += t.smoothing / c as f64 * all;
            }
            [loss, lse]
        };
        let both: Vec<[f64; 2]> = collected(xs.n, (CHUNK / c).max(1), &one)?;
        drop(x);
        let den: f64 = t.of_row.iter().flatten().map(|k| t.weights[*k]).sum();
        let items: Vec<f64> = TryVec::try_vec(both.iter().map(|b| b[0]))?;
        if let Some(lse) = &io.lse {
            store_f64(OP, lse, &TryVec::try_vec(both.iter().map(|b| b[1]))?)?;
        }
        if let Some(d) = &io.den {
            store_f64(OP, d, &[den])?;
        }
        super::store_items(OP, p.reduction, &io.loss, &items, den)
    }

    pub(super) fn cross_entropy_bwd_in_f32(
        &self,
        p: &CrossEntropy,
        xs: &XentShape,
        io: CrossEntropyBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "cross_entropy_bwd";
        let (t, c) = (self.targets(OP, p, xs.c, io.target, io.weight)?, xs.c);
        let (gy, lse) = (gather_f64(OP, io.gy)?, gather_f64(OP, io.lse)?);
        let den = match (p.reduction, io.den) {
            (Reduction::Mean, Some(d)) => gather_f64(OP, d)?[0],
            _ => 1.0,
        };
        let share = t.smoothing / c as f64;
        let spread: Vec<f32> = t.weights.iter().map(|w| (share * w) as f32).try_vec()?;
        let of_all: f64 = if t.smoothing > 0.0 { share * t.weights.iter().sum::<f64>() } else { 0.0 };
        let x = vector::values(OP, io.x, &[io.dx.out.block().id()])?;
        fill(OP, &io.dx, |dx| {
            row_parts(dx, c, |first, dx| {
                for (i, dx) in dx.chunks_exact_mut(c).enumerate() {
                    let i = first / c + i;
                    let Some(k) = t.of_row[i] else {
                        dx.fill(0.0);
                        continue;
                    };
                    let own = (1.0 - t.smoothing) * t.weights[k];
                    let (total, lse) = ((own + of_all) as f32, lse[i] as f32);
                    let g = (if p.reduction == Reduction::None { gy[i] } else { gy[0] } / den) as f32;
                    simd_widest!({
                        let x = &x[i * c..(i + 1) * c];
                        dx.iter_mut().zip(x).for_each(|(d, x)| *d = exp(x - lse) * total);
                        dx[k] -= own as f32;
                        if t.smoothing > 0.0 {
                            dx.iter_mut().zip(&spread).for_each(|(d, w)| *d -= w);
                        }
                        dx.iter_mut().for_each(|d| *d *= g);
                    });
                }
            });
            Ok(())
        })
    }
}

/// ln of the sum of e^x: NaN where an element is, infinite where the largest is.
fn log_sum_exp(x: &[f32]) -> f64 {
    simd_widest!({
        let top = row::max(x);
        let base = if top.is_finite() { top } else { 0.0 };
        f64::from(base) + row::sum_of(x, x, |x, _| exp(x - base)).ln()
    })
}
