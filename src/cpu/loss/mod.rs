//! Losses.

pub(super) mod batch;
pub(super) mod rows;
pub(super) mod sequence;
pub(super) mod stft;
mod vectorized;

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::tape::{Tape, Var};
use crate::cpu::{Kernels, gather, gather_f64, store_f64, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::loss::*;

/// One item, as its formula stands; the tape differentiates it.
fn item<'t>(kind: Loss, p: Var<'t>, t: f64) -> Var<'t> {
    let d = p - t;
    match kind {
        Loss::Mse => d.sq(),
        Loss::Square => p.sq(),
        Loss::Mae => d.abs(),
        Loss::SmoothL1 { beta } => {
            if d.v.abs() < beta {
                d.sq() / (2.0 * beta)
            } else {
                d.abs() - beta / 2.0
            }
        }
        Loss::Huber { delta } => {
            if d.v.abs() <= delta {
                d.sq() / 2.0
            } else {
                delta * (d.abs() - delta / 2.0)
            }
        }
        Loss::LogCosh => {
            let (a, b) = (d.v.abs(), (-2.0 * d.v.abs()).exp());
            d.unary(a + b.ln_1p() - std::f64::consts::LN_2, d.v.tanh())
        }
        Loss::Quantile { q } => match d.v == 0.0 {
            true => d.unary(0.0, 0.0),
            false => (-q * d).max((1.0 - q) * d),
        },
        Loss::Charbonnier { eps } => (d.sq() + eps * eps).sqrt(),
        Loss::MeanBias => -d,
        Loss::Hinge => (1.0 - t * p).relu(),
        Loss::SquaredHinge => (1.0 - t * p).relu().sq(),
        Loss::ModifiedHuber => {
            if t * p.v < -1.0 {
                -4.0 * (t * p)
            } else {
                (1.0 - t * p).relu().sq()
            }
        }
        Loss::Exponential => (-t * p).exp(),
        Loss::SoftMargin => (-t * p).softplus(),
        Loss::HingeEmbedding { margin } => {
            let mut l = p.unary(0.0, 0.0);
            if t != -1.0 {
                l = l + p;
            }
            if t != 1.0 {
                l = l + (margin - p).relu();
            }
            l
        }
        Loss::Wasserstein => -t * p,
        Loss::Poisson { eps, log_input, full } => {
            let l = if log_input { p.exp() - t * p } else { p - t * (p + eps).ln() };
            let stirling = t * t.ln() - t + 0.5 * (std::f64::consts::TAU * t).ln();
            if full && t > 1.0 { l + stirling } else { l }
        }
        Loss::Kl { log_input, log_target } => {
            let q = if log_input { p } else { p.ln() };
            match (log_target, t == 0.0) {
                (true, _) => t.exp() * (t - q),
                (false, true) => p.unary(0.0, 0.0),
                (false, false) => t * (t.ln() - q),
            }
        }
        Loss::BornMse => (p.sq() - t).sq(),
        Loss::Bce => {
            let (a, b) = (p.v.ln(), (-p.v).ln_1p());
            let floor = |x: f64| if x.is_nan() { x } else { x.max(-100.0) };
            let l = -(t * floor(a) + (1.0 - t) * floor(b));
            p.unary(l, (p.v - t) / (p.v * (1.0 - p.v)).max(1e-12))
        }
        Loss::BceLogits => p.softplus() - t * p,
        Loss::FocalLogits { alpha, gamma } => {
            let wrong = p.sigmoid() * (1.0 - t) + (-p).sigmoid() * t;
            focal_weight(alpha, t) * wrong.powf(gamma) * (p.softplus() - t * p)
        }
        Loss::Focal { alpha, gamma } => {
            let wrong = p * (1.0 - t) + (1.0 - p) * t;
            -focal_weight(alpha, t) * wrong.powf(gamma) * (1.0 - wrong).ln()
        }
    }
}

fn focal_weight(alpha: f64, t: f64) -> f64 {
    if alpha < 0.0 { 1.0 } else { alpha * t + (1.0 - alpha) * (1.0 - t) }
}

/// Derivative of one item.
fn item_grad(tape: &mut Tape, kind: Loss, p: f64, t: f64) -> Result<f64> {
    tape.clear();
    let p = tape.input(p);
    let l = item(kind, p, t);
    Ok(tape.gradient(l)?.of(p))
}

/// Value of one item.
fn value(kind: Loss, p: f64, t: f64) -> f64 {
    let tape = Tape::default();
    item(kind, tape.constant(p), t).v
}

/// What a mean divides by.
fn denominator(kind: Loss, weights: &[Option<f64>]) -> f64 {
    let all = weights.iter().flatten();
    if kind.counts_items() { all.count() as f64 } else { all.sum() }
}

/// Weight of every item: the optional weight where the optional mask is true, else `None`.
fn item_weights(
    op: &'static str,
    n: usize,
    weight: Option<View<'_>>,
    mask: Option<View<'_>>,
) -> Result<Vec<Option<f64>>> {
    let w = weight.map_or_else(|| filled(n, 1.0), |w| gather_f64(op, w))?;
    let m = mask.map_or_else(|| filled(n, 1), |m| gather::<u8>(op, m))?;
    w.into_iter().zip(m).map(|(w, m)| (m != 0).then_some(w)).try_vec()
}

/// Stores items, their sum, or that divided by `den`.
fn store_items(
    op: &'static str,
    reduction: Reduction,
    loss: &ViewMut<'_>,
    items: &[f64],
    den: f64,
) -> Result<()> {
    let sum: f64 = items.iter().sum();
    match reduction {
        Reduction::None => store_f64(op, loss, items),
        Reduction::Sum => store_f64(op, loss, &[sum]),
        Reduction::Mean => store_f64(op, loss, &[sum / den]),
    }
}

/// Class ids, or `None` for probabilities.
pub(in crate::cpu) fn class_ids(op: &'static str, target: View<'_>) -> Result<Option<Vec<i64>>> {
    Ok(match target.dtype() {
        DType::I32 => Some(gather::<i32>(op, target)?.into_iter().map(i64::from).try_vec()?),
        DType::I64 => Some(gather::<i64>(op, target)?),
        _ => None,
    })
}

/// One position of a cross entropy.
struct Position<'a> {
    x: Vec<f64>,
    w: &'a [f64],
    /// Smoothed target distribution, or nothing for a position that does not count.
    q: Option<Vec<f64>>,
    /// Weight in the denominator.
    den: f64,
}

impl Position<'_> {
    fn lse(&self) -> f64 {
        let m = self.x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if m.is_infinite() || self.x.iter().any(|x| x.is_nan()) {
            return if self.x.iter().any(|x| x.is_nan()) { f64::NAN } else { m };
        }
        m + self.x.iter().map(|x| (x - m).exp()).sum::<f64>().ln()
    }

    /// -sum_c w_c q_c logp_c; classes without a share do not count.
    fn loss(&self) -> f64 {
        let lse = self.lse();
        let Some(q) = &self.q else { return 0.0 };
        if lse == f64::INFINITY {
            return f64::NAN;
        }
        let terms = self.x.iter().zip(self.w).zip(q).filter(|(_, q)| **q != 0.0);
        terms.map(|((x, w), q)| w * q * (lse - x)).sum()
    }

    /// P sum(w q) - w q.
    fn grad(&self, lse: f64) -> Result<Vec<f64>> {
        let Some(q) = &self.q else { return filled(self.x.len(), 0.0) };
        let total: f64 = self.w.iter().zip(q).map(|(w, q)| w * q).sum();
        self.x.iter().zip(self.w).zip(q).map(|((x, w), q)| (x - lse).exp() * total - w * q).try_vec()
    }
}

/// All positions in order. `bad` is called where an id is out of range.
fn positions<'w>(
    op: &'static str,
    p: &CrossEntropy,
    xs: &XentShape,
    x: View<'_>,
    target: View<'_>,
    w: &'w [f64],
    mut bad: impl FnMut(),
) -> Result<Vec<Position<'w>>> {
    let ids = class_ids(op, target)?;
    let x = gather_f64(op, x)?;
    let probs = if xs.probs { gather_f64(op, target)? } else { Vec::new() };
    let XentShape { n, c, s, .. } = *xs;
    let e = p.label_smoothing;
    let mut out = with_capacity(n * s)?;
    for i in 0..n * s {
        let at = |k: usize| (i / s * c + k) * s + i % s;
        let (q, den) = match &ids {
            None => (Some((0..c).map(|k| (1.0 - e) * probs[at(k)] + e / c as f64).try_vec()?), 1.0),
            Some(ids) if ids[i] == p.ignore_index => (None, 0.0),
            Some(ids) => match usize::try_from(ids[i]).ok().filter(|&t| t < c) {
                None => {
                    bad();
                    (None, 0.0)
                }
                Some(t) => {
                    let mut q = filled(c, e / c as f64)?;
                    q[t] += 1.0 - e;
                    (Some(q), w[t])
                }
            },
        };
        out.try_push(Position { x: (0..c).map(|k| x[at(k)]).try_vec()?, w, q, den })?;
    }
    Ok(out)
}

fn class_weights(op: &'static str, weight: Option<View<'_>>, c: usize) -> Result<Vec<f64>> {
    weight.map_or_else(|| filled(c, 1.0), |w| gather_f64(op, w))
}

impl LossOps for Kernels {
    fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()> {
        const OP: &str = "loss";
        check_loss(kind, reduction, &io)?;
        let _timed = self.count("loss");
        let (p, t) = (gather_f64(OP, io.p)?, gather_f64(OP, io.t)?);
        let w = item_weights(OP, p.len(), io.weight, io.mask)?;
        let items: Vec<f64> = p
            .iter()
            .zip(&t)
            .zip(&w)
            .map(|((&p, &t), w)| w.map_or(0.0, |w| w * value(kind, p, t)))
            .try_vec()?;
        store_items(OP, reduction, &io.loss, &items, denominator(kind, &w))
    }

    fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()> {
        const OP: &str = "loss_bwd";
        check_loss_bwd(kind, reduction, &io)?;
        let _timed = self.count("loss_bwd");
        let (p, t, gy) = (gather_f64(OP, io.p)?, gather_f64(OP, io.t)?, gather_f64(OP, io.gy)?);
        let w = item_weights(OP, p.len(), io.weight, io.mask)?;
        let den = if reduction == Reduction::Mean { denominator(kind, &w) } else { 1.0 };
        let mut tape = Tape::default();
        let g = |i: usize| if reduction == Reduction::None { gy[i] } else { gy[0] };
        let dp: Vec<f64> = (0..p.len())
            .map(|i| {
                let Some(w) = w[i] else { return Ok(0.0) };
                Ok(g(i) * w * item_grad(&mut tape, kind, p[i], t[i])? / den)
            })
            .try_vec_ok()?;
        if let Some(out) = &io.dp {
            store_grad(OP, out, &dp)?;
        }
        if let Some(out) = &io.dt {
            store_grad(OP, out, &dp.iter().map(|d| -d).try_vec()?)?;
        }
        Ok(())
    }

    fn loss_list(&self, kind: Loss, terms: &[LossTerm<'_>], loss: ViewMut<'_>) -> Result<()> {
        const OP: &str = "loss_list";
        check_loss_list(kind, terms, &loss)?;
        let _timed = self.count("loss_list");
        let mut total = 0.0;
        for x in terms {
            let (p, t) = (gather_f64(OP, x.p)?, gather_f64(OP, x.t.unwrap_or(x.p))?);
            total +=
                x.weight * p.iter().zip(&t).map(|(&p, &t)| value(kind, p, t)).sum::<f64>() / p.len() as f64;
        }
        store_f64(OP, &loss, &[total])
    }

    fn loss_list_bwd(
        &self,
        kind: Loss,
        gy: View<'_>,
        terms: &[LossTerm<'_>],
        dp: &mut [GradMut<'_>],
    ) -> Result<()> {
        const OP: &str = "loss_list_bwd";
        check_loss_list_bwd(kind, &gy, terms, dp)?;
        let _timed = self.count("loss_list_bwd");
        let g = gather_f64(OP, gy)?[0];
        let mut tape = Tape::default();
        for (x, d) in terms.iter().zip(dp) {
            let (p, t) = (gather_f64(OP, x.p)?, gather_f64(OP, x.t.unwrap_or(x.p))?);
            let f = g * x.weight / p.len() as f64;
            let one = |(&p, &t): (&f64, &f64)| Ok(f * item_grad(&mut tape, kind, p, t)?);
            let v: Vec<f64> = p.iter().zip(&t).map(one).try_vec_ok()?;
            store_grad(OP, d, &v)?;
        }
        Ok(())
    }

    fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy";
        let xs = check_cross_entropy(p, &io)?;
        let _timed = self.count("cross_entropy");
        if self.in_f32(OP, io.x.dtype(), vectorized::without(&xs))? {
            return self.cross_entropy_in_f32(p, &xs, io);
        }
        let w = class_weights(OP, io.weight, xs.c)?;
        let all = positions(OP, p, &xs, io.x, io.target, &w, || self.flag_index_error(OP))?;
        let items: Vec<f64> = all.iter().map(Position::loss).try_vec()?;
        let den: f64 = all.iter().map(|q| q.den).sum();
        if let Some(lse) = &io.lse {
            store_f64(OP, lse, &all.iter().map(Position::lse).try_vec()?)?;
        }
        if let Some(d) = &io.den {
            store_f64(OP, d, &[den])?;
        }
        store_items(OP, p.reduction, &io.loss, &items, den)
    }

    fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()> {
        const OP: &str = "cross_entropy_bwd";
        let xs = check_cross_entropy_bwd(p, &io)?;
        let _timed = self.count("cross_entropy_bwd");
        if self.in_f32(OP, io.x.dtype(), vectorized::without(&xs))? {
            return self.cross_entropy_bwd_in_f32(p, &xs, io);
        }
        let w = class_weights(OP, io.weight, xs.c)?;
        let all = positions(OP, p, &xs, io.x, io.target, &w, || self.flag_index_error(OP))?;
        let (gy, lse) = (gather_f64(OP, io.gy)?, gather_f64(OP, io.lse)?);
        let den = match (p.reduction, io.den) {
            (Reduction::Mean, Some(d)) => gather_f64(OP, d)?[0],
            _ => 1.0,
        };
        let mut dx = filled(xs.n * xs.c * xs.s, 0.0)?;
        for (i, position) in all.iter().enumerate() {
            let g = if p.reduction == Reduction::None { gy[i] } else { gy[0] } / den;
            for (k, d) in position.grad(lse[i])?.into_iter().enumerate() {
                dx[(i / xs.s * xs.c + k) * xs.s + i % xs.s] = if position.q.is_some() { g * d } else { 0.0 };
            }
        }
        store_grad(OP, &io.dx, &dx)
    }
}
