//! One call of a loss kernel of any family, recorded with its gradient.

use trefoil::ops::loss::{
    BatchLoss, BatchLossBwd, BatchLossFwd, Loss, LossBwd, LossFwd, Reduction, RowLoss, RowLossBwd,
    RowLossFwd, SeqLoss, SeqLossBwd, SeqLossFwd, StftLossBwd, StftLossFwd, StftResolution,
};
use trefoil::{GradMut, View, ViewMut};

use super::second;
use crate::core::autograd::{BackwardCtx, GradTarget, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::index_check::{self, Range};
use crate::core::tensor::{Device, Operand, Tensor, same_device};
use crate::functional::operand::whole;

/// Which kernel computes a loss.
#[derive(Debug, Clone)]
pub(super) enum Kernel {
    /// x: prediction, target, weight; with: mask.
    Element(Loss, Reduction),
    /// x: the row loss's operands; with: ids, mask.
    Row(RowLoss, Reduction),
    /// x: the batch loss's operands; with: ids.
    Batch(BatchLoss),
    /// x: scores; with: targets, input lengths, target lengths.
    Sequence(SeqLoss, Reduction),
    /// x: prediction, target.
    Stft(Vec<StftResolution>),
}

/// Floating operands, which may have gradients.
pub(super) type Operands<T> = [Option<T>; 4];
/// Integer operands and masks.
pub(super) type Others<T> = [Option<T>; 3];

type Views<'a> = (Operands<View<'a>>, Others<View<'a>>);

fn need<'a>(op: &'static str, arg: &'static str, v: Option<View<'a>>) -> Result<View<'a>> {
    v.ok_or_else(|| invalid(op, arg, "an operand", "nothing"))
}

impl Kernel {
    /// Shape of the items, where the loss is not reduced.
    fn items(&self, op: &'static str, x: &Operands<Tensor>) -> Result<Option<Vec<usize>>> {
        let shape = |i: usize| x[i].as_ref().map(|t| t.shape().to_vec()).unwrap_or_default();
        let first = shape(0);
        let lead = |n: usize| first[..n.min(first.len())].to_vec();
        Ok(match self {
            Kernel::Element(_, Reduction::None) => Some(first),
            Kernel::Row(kind, Reduction::None) => Some(match kind {
                RowLoss::Dice { per_channel: true, .. } => lead(2),
                RowLoss::Dice { .. }
                | RowLoss::Tversky { .. }
                | RowLoss::Quantum
                | RowLoss::Depth { .. }
                | RowLoss::Nce => lead(1),
                RowLoss::Ordinal if x[0].is_none() => shape(1),
                RowLoss::Nll { .. } => {
                    let axis = first.len().min(2).saturating_sub(1);
                    first.iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, &n)| n).collect()
                }
                RowLoss::GaussianNll { .. }
                | RowLoss::MarginRanking { .. }
                | RowLoss::Dpo { .. }
                | RowLoss::Ipo { .. }
                | RowLoss::Kto { .. }
                | RowLoss::SimPo { .. }
                | RowLoss::Orpo
                | RowLoss::BcePosWeight
                | RowLoss::Quantiles
                | RowLoss::Adversarial { .. } => first,
                RowLoss::Rmse | RowLoss::ElasticNet { .. } => {
                    return Err(invalid(op, "reduction", "mean or sum: the loss is a scalar", "none"));
                }
                _ => lead(first.len().saturating_sub(1)),
            }),
            Kernel::Sequence(kind, Reduction::None) => {
                let batch = match kind {
                    SeqLoss::Ctc { batch_first: false, .. } => first.get(1),
                    _ => first.first(),
                };
                Some(batch.into_iter().copied().collect())
            }
            _ => None,
        })
    }

    /// Number of classes that ids of each row are below, and an id that may stand beside them.
    fn classes(&self, x: &Tensor) -> Option<(usize, Option<i64>)> {
        let last = *x.shape().last()?;
        match self {
            Kernel::Row(RowLoss::Nll { ignore_index, .. }, _) => {
                Some((*x.shape().get(1).unwrap_or(&last), Some(*ignore_index)))
            }
            Kernel::Row(
                RowLoss::MulticlassFocal { .. } | RowLoss::ArcFace { .. } | RowLoss::MultiMargin { .. },
                _,
            )
            | Kernel::Batch(BatchLoss::MoeBalance | BatchLoss::Lovasz) => Some((last, None)),
            _ => None,
        }
    }

    fn forward(&self, op: &'static str, d: &Device, (x, with): Views<'_>, loss: ViewMut<'_>) -> Result<()> {
        let p = need(op, "x", x[0]);
        match self {
            Kernel::Element(kind, reduction) => {
                let io = LossFwd::new(p?, need(op, "t", x[1])?, loss).weight(x[2]).mask(with[0]);
                d.loss(*kind, *reduction, io)?;
            }
            Kernel::Row(kind, reduction) => {
                d.row_loss(*kind, *reduction, RowLossFwd::new(x, loss).ids(with[0]).mask(with[1]))?;
            }
            Kernel::Batch(kind) => {
                d.batch_loss(*kind, BatchLossFwd::new([x[0], x[1], x[2]], loss).ids(with[0]))?;
            }
            Kernel::Sequence(kind, reduction) => {
                let io = SeqLossFwd::new(
                    p?,
                    need(op, "targets", with[0])?,
                    need(op, "input_lengths", with[1])?,
                    need(op, "target_lengths", with[2])?,
                    loss,
                );
                d.seq_loss(*kind, *reduction, io)?;
            }
            Kernel::Stft(list) => {
                d.stft_loss(list, StftLossFwd::new(p?, need(op, "t", x[1])?, loss))?;
            }
        }
        Ok(())
    }

    fn backward(
        &self,
        op: &'static str,
        d: &Device,
        gy: View<'_>,
        (x, with): Views<'_>,
        dx: Operands<GradMut<'_>>,
    ) -> Result<()> {
        let p = need(op, "x", x[0]);
        let [dp, dt, dw, last] = dx;
        match self {
            Kernel::Element(kind, reduction) => {
                let t = need(op, "t", x[1])?;
                let io = LossBwd::new(gy, p?, t).weight(x[2]).mask(with[0]).dp(dp).dt(dt);
                d.loss_bwd(*kind, *reduction, io)?;
            }
            Kernel::Row(kind, reduction) => {
                let io = RowLossBwd::new(gy, x).ids(with[0]).mask(with[1]).dx([dp, dt, dw, last]);
                d.row_loss_bwd(*kind, *reduction, io)?;
            }
            Kernel::Batch(kind) => {
                let io = BatchLossBwd::new(gy, [x[0], x[1], x[2]]).ids(with[0]).dx([dp, dt, dw]);
                d.batch_loss_bwd(*kind, io)?;
            }
            Kernel::Sequence(kind, reduction) => {
                let Some(dx) = dp else { return Ok(()) };
                let io = SeqLossBwd::new(
                    gy,
                    p?,
                    need(op, "targets", with[0])?,
                    need(op, "input_lengths", with[1])?,
                    need(op, "target_lengths", with[2])?,
                    dx,
                );
                d.seq_loss_bwd(*kind, *reduction, io)?;
            }
            Kernel::Stft(list) => {
                let Some(dp) = dp else { return Ok(()) };
                d.stft_loss_bwd(list, StftLossBwd::new(gy, p?, need(op, "t", x[1])?, dp))?;
            }
        }
        Ok(())
    }
}

fn operands<const N: usize>(t: &[Option<Tensor>; N]) -> [Option<Operand>; N] {
    std::array::from_fn(|i| t[i].as_ref().map(Tensor::operand))
}

fn views<const N: usize>(o: &[Option<Operand>; N]) -> Result<[Option<View<'_>>; N]> {
    let mut all = [None; N];
    for (v, o) in all.iter_mut().zip(o) {
        *v = o.as_ref().map(Operand::view).transpose()?;
    }
    Ok(all)
}

fn dense<const N: usize>(t: [Option<&Tensor>; N]) -> Result<[Option<Tensor>; N]> {
    let mut all = [const { None }; N];
    for (d, t) in all.iter_mut().zip(t) {
        *d = whole(t)?;
    }
    Ok(all)
}

/// Saved operands as they are at the backward.
fn restore<const N: usize>(saved: &[Option<Saved>; N], cx: &BackwardCtx<'_>) -> Result<[Option<Tensor>; N]> {
    let mut all = [const { None }; N];
    for (t, s) in all.iter_mut().zip(saved) {
        *t = s.as_ref().map(|s| s.get(cx).cloned()).transpose()?;
    }
    Ok(all)
}

/// The loss, recorded. Constants among `x` come detached, so that no gradient is asked of the kernel for them.
pub(super) fn run(
    op: &'static str,
    kernel: Kernel,
    x: Operands<&Tensor>,
    with: Others<&Tensor>,
) -> Result<Tensor> {
    let Some(&first) = x.iter().flatten().next() else {
        return Err(invalid(op, "x", "an operand", "nothing"));
    };
    for t in x.iter().chain(&with).flatten() {
        same_device(op, first, t)?;
    }
    if let (Some(ids), Some((limit, ignore))) = (with[0], kernel.classes(first)) {
        index_check::note(ids, Range { op, limit, ignore, labels: true });
    }
    let (x, with) = (dense(x)?, dense(with)?);
    let d = first.device();
    let loss = match kernel.items(op, &x)? {
        Some(shape) => first.like(&shape)?,
        None => Tensor::empty(d, first.dtype().accumulator(), &[])?,
    };
    let (xo, wo) = (operands(&x), operands(&with));
    kernel.forward(op, d, (views(&xo)?, views(&wo)?), loss.operand().view_mut()?)?;

    // Absent operands have no place among the node's inputs.
    let inputs: Vec<&Tensor> = x.iter().flatten().collect();
    Ok(loss.record(op, &inputs, || {
        let x: Operands<Saved> = std::array::from_fn(|i| x[i].as_ref().map(Saved::new));
        let with: Others<Saved> = std::array::from_fn(|i| with[i].as_ref().map(Saved::new));
        move |cx: &mut BackwardCtx<'_>| {
            if cx.create_graph() {
                return second::loss(cx, &kernel, &x, &with);
            }
            let mut targets: Operands<GradTarget> = [const { None }; 4];
            let mut at = 0;
            for (target, x) in targets.iter_mut().zip(&x) {
                if x.is_some() {
                    *target = cx.target(at)?;
                    at += 1;
                }
            }
            let gy = cx.dy()?.contiguous()?;
            let (x, with) = (restore(&x, cx)?, restore(&with, cx)?);
            let (xo, wo, gyo) = (operands(&x), operands(&with), gy.operand());
            let [a, b, c, e] = &targets;
            let dx = [out(a)?, out(b)?, out(c)?, out(e)?];
            kernel.backward(op, gy.device(), gyo.view()?, (views(&xo)?, views(&wo)?), dx)
        }
    }))
}

/// A row loss; see [`RowLoss`] for the order of its operands.
pub(super) fn row<const N: usize>(
    op: &'static str,
    kind: RowLoss,
    reduction: Reduction,
    x: [Option<&Tensor>; N],
    ids: Option<&Tensor>,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let all = std::array::from_fn(|i| x.get(i).copied().flatten());
    run(op, Kernel::Row(kind, reduction), all, [ids, mask, None])
}
