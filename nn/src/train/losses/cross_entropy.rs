//! Cross entropy of logits.

use trefoil::ops::loss::{CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Reduction};

use super::second;
use crate::core::autograd::{BackwardCtx, Saved, compose};
use crate::core::error::Result;
use crate::core::index_check::{self, Range};
use crate::core::tensor::{Operand, Tensor, same_device};
use crate::functional::operand::whole;

/// Cross entropy of logits, `torch.nn.functional.cross_entropy`.
#[derive(Debug, Clone, Default)]
pub struct CrossEntropyLoss {
    /// Reduction, ignored class, label smoothing.
    pub options: CrossEntropy,
    /// Weight per class `[C]`.
    pub weight: Option<Tensor>,
}

fn optional(t: &Option<Tensor>) -> Option<Operand> {
    t.as_ref().map(Tensor::operand)
}

impl CrossEntropyLoss {
    /// Loss of logits `[N, C, S..]` against class ids `[N, S..]` (i32, i64) or probabilities of the logits' shape. The result is an f32
    /// scalar (f64 for f64 data), or `[N, S..]` without reduction. No gradient goes to the target.
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        same_device("cross_entropy", x, target)?;
        let options = self.options;
        let items: Vec<usize> =
            x.shape().iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, &n)| n).collect();
        let acc = x.dtype().accumulator();
        let loss = match options.reduction {
            Reduction::None => x.like(&items)?,
            _ => Tensor::empty(x.device(), acc, &[])?,
        };
        if let (false, Some(&limit)) = (target.dtype().is_float(), x.shape().get(1)) {
            let ignore = Some(options.ignore_index);
            index_check::note(target, Range { op: "cross_entropy", limit, ignore, labels: true });
        }
        let (logits, target) = (x.contiguous()?, target.contiguous()?);
        let weight = whole(self.weight.as_ref())?.map(|w| w.detach());
        let lse = Tensor::empty(x.device(), acc, &items)?;
        let den = match options.reduction {
            Reduction::Mean => Some(Tensor::empty(x.device(), acc, &[])?),
            _ => None,
        };
        let (xo, to, lo, so) = (logits.operand(), target.operand(), loss.operand(), lse.operand());
        let (wo, no) = (optional(&weight), optional(&den));
        let io = CrossEntropyFwd::new(xo.view()?, to.view()?, lo.view_mut()?)
            .weight(wo.as_ref().map(|w| w.view()).transpose()?)
            .lse(so.view_mut()?)
            .den(no.as_ref().map(|d| d.view_mut()).transpose()?);
        x.device().cross_entropy(&options, io)?;
        Ok(loss.record("cross_entropy", &[x], || {
            let (x, target, lse) = (Saved::new(&logits), Saved::new(&target), Saved::new(&lse));
            let (weight, den) = (weight.as_ref().map(Saved::new), den.as_ref().map(Saved::new));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (x, t) = (x.input(cx, 0)?, target.constant(cx)?);
                    let weight = weight.as_ref().map(|w| w.constant(cx)).transpose()?;
                    return compose(cx, &[(0, x)], |x| {
                        Ok(vec![second::cross_entropy(&x[0], &t, weight.as_ref(), &options)?])
                    });
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let gy = cx.dy()?.contiguous()?;
                let (x, t, s) = (x.get(cx)?.operand(), target.get(cx)?.operand(), lse.get(cx)?.operand());
                let weight = weight.as_ref().map(|w| w.get(cx)).transpose()?.map(Tensor::operand);
                let den = den.as_ref().map(|d| d.get(cx)).transpose()?.map(Tensor::operand);
                let gyo = gy.operand();
                let io = CrossEntropyBwd::new(gyo.view()?, x.view()?, t.view()?, s.view()?, dx.out()?)
                    .weight(weight.as_ref().map(|w| w.view()).transpose()?)
                    .den(den.as_ref().map(|d| d.view()).transpose()?);
                Ok(gy.device().cross_entropy_bwd(&options, io)?)
            }
        }))
    }
}
