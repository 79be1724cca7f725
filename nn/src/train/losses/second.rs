//! Losses as compositions of operations on tensors, for passes that create a graph.

use trefoil::DType;
use trefoil::ops::loss::{CrossEntropy, Loss, Reduction, RowLoss};

use super::kernel::{Kernel, Operands, Others};
use crate::core::autograd::{BackwardCtx, Saved, compose};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::functional::derivatives::activation::softplus;
use crate::functional::derivatives::elementwise::indicator;

/// Whether [`item`] knows a loss.
pub(super) fn has_form(kind: Loss) -> bool {
    !matches!(kind, Loss::Focal { .. } | Loss::FocalLogits { .. })
}

/// The loss of each element, as its formula stands.
pub(super) fn item(kind: Loss, p: &Tensor, t: &Tensor) -> Result<Tensor> {
    let d = p.sub(t)?;
    let margin = || t.mul(p)?.rsub_scalar(1.0);
    let plus = |x: &Tensor| x.mul(&indicator(&x.detach().gt_scalar(0.0)?, x)?);
    match kind {
        Loss::Mse => d.square(),
        Loss::Square => p.square(),
        Loss::Mae => d.abs(),
        Loss::SmoothL1 { beta } => {
            let parabola = d.square()?.mul_scalar(if beta > 0.0 { 0.5 / beta } else { 0.0 })?;
            parabola.where_(&d.detach().abs()?.lt_scalar(beta)?, &d.abs()?.sub_scalar(beta / 2.0)?)
        }
        Loss::Huber { delta } => {
            let line = d.abs()?.sub_scalar(delta / 2.0)?.mul_scalar(delta)?;
            d.square()?.mul_scalar(0.5)?.where_(&d.detach().abs()?.le_scalar(delta)?, &line)
        }
        // ln cosh d = ln(e^d + e^-d) - ln 2
        Loss::LogCosh => d.logaddexp(&d.neg()?)?.sub_scalar(std::f64::consts::LN_2),
        Loss::Quantile { q } => {
            let above = d.detach().gt_scalar(0.0)?;
            d.mul_scalar(1.0 - q)?.where_(&above, &d.mul_scalar(-q)?)
        }
        Loss::Charbonnier { eps } => d.square()?.add_scalar(eps * eps)?.sqrt(),
        Loss::MeanBias => d.neg(),
        Loss::Hinge => plus(&margin()?),
        Loss::SquaredHinge => plus(&margin()?)?.square(),
        Loss::ModifiedHuber => {
            let far = t.mul(&p.detach())?.lt_scalar(-1.0)?;
            t.mul(p)?.mul_scalar(-4.0)?.where_(&far, &plus(&margin()?)?.square()?)
        }
        Loss::Exponential => t.mul(p)?.neg()?.exp(),
        Loss::SoftMargin => softplus(&t.mul(p)?.neg()?, 1.0, f64::INFINITY),
        Loss::HingeEmbedding { margin } => {
            let (positive, negative) = (t.ne_scalar(-1.0)?, t.ne_scalar(1.0)?);
            let near = plus(&p.rsub_scalar(margin)?)?.mul(&indicator(&negative, p)?)?;
            p.mul(&indicator(&positive, p)?)?.add(&near)
        }
        Loss::Wasserstein => t.mul(p)?.neg(),
        // Stirling's term is a constant.
        Loss::Poisson { log_input: true, .. } => p.exp()?.sub(&t.mul(p)?),
        Loss::Poisson { eps, .. } => p.sub(&t.mul(&p.add_scalar(eps)?.ln()?)?),
        Loss::Kl { log_input, log_target } => {
            let log_p = if log_input { p.clone() } else { p.ln()? };
            // The target's own entropy is a constant.
            let t = if log_target { t.exp()? } else { t.clone() };
            t.mul(&log_p)?.neg()
        }
        Loss::BornMse => p.square()?.sub(t)?.square(),
        Loss::Bce => {
            // Where the logarithm is below -100 the loss is flat.
            let log = |x: &Tensor| x.ln()?.clamp(Some(-100.0), None);
            let q = p.rsub_scalar(1.0)?;
            t.mul(&log(p)?)?.add(&t.rsub_scalar(1.0)?.mul(&log(&q)?)?)?.neg()
        }
        Loss::BceLogits => softplus(p, 1.0, f64::INFINITY)?.sub(&t.mul(p)?),
        _ => Ok(d),
    }
}

/// Items with weights and a mask, combined; the mean divides by the count of the mask, by the sum of weights where `by_weight` says so, or
/// by the number of items.
fn reduced(
    items: Tensor,
    reduction: Reduction,
    weight: Option<&Tensor>,
    mask: Option<&Tensor>,
    by_weight: bool,
) -> Result<Tensor> {
    let acc = items.dtype().accumulator();
    let mut w = weight.map(|w| w.to_dtype(items.dtype())).transpose()?;
    if let Some(m) = mask {
        let m = indicator(&m.ne_scalar(0.0)?, &items)?;
        w = Some(w.map_or_else(|| Ok(m.clone()), |w| w.mul(&m))?);
    }
    let weighted = w.as_ref().map_or_else(|| Ok(items.clone()), |w| items.mul(w))?;
    if reduction == Reduction::None {
        return Ok(weighted);
    }
    let sum = weighted.to_dtype(acc)?.sum()?;
    if reduction == Reduction::Sum {
        return Ok(sum);
    }
    let count = match (&w, mask) {
        (Some(w), _) if by_weight => w.expand(items.shape())?.to_dtype(acc)?.sum()?,
        (_, Some(m)) => m.ne_scalar(0.0)?.to_dtype(acc)?.sum()?,
        _ => return sum.mul_scalar(1.0 / items.numel() as f64),
    };
    sum.div(&count)
}

/// Gives the gradients of a loss in a pass that creates a graph.
pub(super) fn loss(
    cx: &mut BackwardCtx<'_>,
    kernel: &Kernel,
    x: &Operands<Saved>,
    with: &Others<Saved>,
) -> Result<()> {
    let mut at = vec![];
    for s in x.iter().flatten() {
        at.push((at.len(), s.input(cx, at.len())?));
    }
    // Places of the operands among the present ones.
    let present: Vec<usize> = (0..4).filter(|&i| x[i].is_some()).collect();
    let pick = |t: &[Tensor], i: usize| present.iter().position(|&p| p == i).map(|i| t[i].clone());
    let others: Vec<Option<Tensor>> =
        with.iter().map(|s| s.as_ref().map(|s| s.constant(cx)).transpose()).collect::<Result<_>>()?;
    match kernel {
        Kernel::Element(kind, reduction) if has_form(*kind) => {
            let plain = matches!(kind, Loss::Bce | Loss::BceLogits);
            compose(cx, &at, |t| {
                let (weight, mask) = (pick(t, 2), others[0].as_ref());
                let target = pick(t, 1).map_or_else(|| t[0].detach().zeros_like(), Ok)?;
                let items = item(*kind, &t[0], &target)?;
                Ok(vec![reduced(items, *reduction, weight.as_ref(), mask, !plain)?])
            })
        }
        Kernel::Row(RowLoss::Nll { floor: None, ignore_index }, reduction) => {
            let Some(ids) = &others[0] else { return cx.first_order_only() };
            compose(cx, &at, |t| {
                let mut options = CrossEntropy::default();
                (options.reduction, options.ignore_index) = (*reduction, *ignore_index);
                Ok(vec![nll(&t[0], ids, pick(t, 1).as_ref(), &options)?])
            })
        }
        Kernel::Row(RowLoss::Kl { log_input, log_target }, reduction) => compose(cx, &at, |t| {
            let target = pick(t, 1).map_or_else(|| t[0].detach().zeros_like(), Ok)?;
            let kind = Loss::Kl { log_input: *log_input, log_target: *log_target };
            let items = item(kind, &t[0], &target)?.sum_axes(&[-1], false)?;
            Ok(vec![reduced(items, *reduction, None, None, false)?])
        }),
        _ => cx.first_order_only(),
    }
}

/// Log-probabilities with the classes on axis 1 (or the only one), of class ids; with smoothing.
fn nll(log_p: &Tensor, ids: &Tensor, weight: Option<&Tensor>, p: &CrossEntropy) -> Result<Tensor> {
    let axis = log_p.rank().min(2) as isize - 1;
    let counts = ids.ne_scalar(p.ignore_index as f64)?;
    let zero = Tensor::zeros(ids.device(), ids.dtype(), &[])?;
    let safe = ids.where_(&counts, &zero)?.to_dtype(DType::I64)?;
    let kept = indicator(&counts, log_p)?;
    let picked = log_p.gather(axis, &safe.unsqueeze(axis)?)?.squeeze(axis)?.neg()?;
    let w = match weight {
        Some(w) => w.index_select(0, &safe.reshape(&[safe.numel()])?)?.reshape(safe.shape())?.mul(&kept)?,
        None => kept.clone(),
    };
    let mut items = picked.mul(&w)?;
    if p.label_smoothing > 0.0 {
        let classes = log_p.shape()[axis as usize];
        let all = match weight {
            Some(w) => {
                let mut shape = vec![1; log_p.rank()];
                shape[axis as usize] = classes;
                log_p.mul(&w.reshape(&shape)?)?
            }
            None => log_p.clone(),
        };
        let spread =
            all.sum_axes(&[axis], false)?.mul(&kept)?.mul_scalar(-p.label_smoothing / classes as f64)?;
        items = items.mul_scalar(1.0 - p.label_smoothing)?.add(&spread)?;
    }
    let acc = items.dtype().accumulator();
    match p.reduction {
        Reduction::None => Ok(items),
        Reduction::Sum => items.to_dtype(acc)?.sum(),
        _ => items.to_dtype(acc)?.sum()?.div(&w.to_dtype(acc)?.sum()?),
    }
}

/// Cross entropy of logits against ids or probabilities.
pub(super) fn cross_entropy(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    p: &CrossEntropy,
) -> Result<Tensor> {
    let axis = x.rank().min(2) as isize - 1;
    let log_p = x.log_softmax(axis)?;
    if !target.dtype().is_float() {
        return nll(&log_p, target, weight, p);
    }
    let classes = x.shape()[axis as usize];
    let e = p.label_smoothing;
    let mut t = target.mul_scalar(1.0 - e)?.add_scalar(e / classes as f64)?;
    if let Some(w) = weight {
        let mut shape = vec![1; x.rank()];
        shape[axis as usize] = classes;
        t = t.mul(&w.reshape(&shape)?)?;
    }
    let items = log_p.mul(&t)?.sum_axes(&[axis], false)?.neg()?;
    reduced(items, p.reduction, None, None, false)
}
