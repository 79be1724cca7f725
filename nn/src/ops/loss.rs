//! Losses: device scalars with gradients.

use trefoil::ops::{CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Loss, LossBwd, LossFwd, Reduction};

use crate::autograd::{BackwardCtx, Saved, out};
use crate::error::Result;
use crate::tensor::{Operand, Tensor, same_device};

/// Mean squared error, `torch.nn.functional.mse_loss`.
#[derive(Debug, Clone, Default)]
pub struct MseLoss {
    /// How items are combined.
    pub reduction: Reduction,
    /// Weight per item, the prediction's shape and dtype.
    pub weight: Option<Tensor>,
    /// Items that count (u8), the prediction's shape.
    pub mask: Option<Tensor>,
}

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

impl MseLoss {
    /// Loss of predictions against targets of one shape: an f32 scalar (f64 for f64 data), or one value per item without reduction.
    pub fn forward(&self, p: &Tensor, t: &Tensor) -> Result<Tensor> {
        same_device("mse_loss", p, t)?;
        let (kind, reduction) = (Loss::Mse, self.reduction);
        let loss = match reduction {
            Reduction::None => p.like(p.shape())?,
            _ => Tensor::empty(p.device(), p.dtype().accumulator(), &[])?,
        };
        let (po, to, lo) = (p.operand(), t.operand(), loss.operand());
        let (wo, mo) = (optional(&self.weight), optional(&self.mask));
        let weight = wo.as_ref().map(|w| w.view()).transpose()?;
        let mask = mo.as_ref().map(|m| m.view()).transpose()?;
        let io = LossFwd { p: po.view()?, t: to.view()?, weight, mask, loss: lo.view_mut()? };
        p.device().loss(kind, reduction, io)?;
        Ok(loss.record("mse_loss", &[p, t], || {
            let (p, t) = (Saved::new(p), Saved::new(t));
            let (weight, mask) = (self.weight.as_ref().map(Saved::new), self.mask.as_ref().map(Saved::new));
            move |cx: &mut BackwardCtx<'_>| {
                let (dp, dt) = (cx.target(0)?, cx.target(1)?);
                let gy = cx.dy()?.contiguous()?;
                let (p, t) = (p.get(cx)?.operand(), t.get(cx)?.operand());
                let weight = weight.as_ref().map(|w| w.get(cx)).transpose()?.map(Tensor::operand);
                let mask = mask.as_ref().map(|m| m.get(cx)).transpose()?.map(Tensor::operand);
                let gyo = gy.operand();
                let io = LossBwd {
                    gy: gyo.view()?,
                    p: p.view()?,
                    t: t.view()?,
                    weight: weight.as_ref().map(|w| w.view()).transpose()?,
                    mask: mask.as_ref().map(|m| m.view()).transpose()?,
                    dp: out(&dp)?,
                    dt: out(&dt)?,
                };
                Ok(gy.device().loss_bwd(kind, reduction, io)?)
            }
        }))
    }
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
        let (logits, target) = (x.contiguous()?, target.contiguous()?);
        let lse = Tensor::empty(x.device(), acc, &items)?;
        let den = match options.reduction {
            Reduction::Mean => Some(Tensor::empty(x.device(), acc, &[])?),
            _ => None,
        };
        let (xo, to, lo, so) = (logits.operand(), target.operand(), loss.operand(), lse.operand());
        let (wo, no) = (optional(&self.weight), optional(&den));
        let io = CrossEntropyFwd {
            x: xo.view()?,
            target: to.view()?,
            weight: wo.as_ref().map(|w| w.view()).transpose()?,
            loss: lo.view_mut()?,
            lse: Some(so.view_mut()?),
            den: no.as_ref().map(|d| d.view_mut()).transpose()?,
        };
        x.device().cross_entropy(&options, io)?;
        Ok(loss.record("cross_entropy", &[x], || {
            let (x, target, lse) = (Saved::new(&logits), Saved::new(&target), Saved::new(&lse));
            let (weight, den) = (self.weight.as_ref().map(Saved::new), den.as_ref().map(Saved::new));
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let gy = cx.dy()?.contiguous()?;
                let (x, t, s) = (x.get(cx)?.operand(), target.get(cx)?.operand(), lse.get(cx)?.operand());
                let weight = weight.as_ref().map(|w| w.get(cx)).transpose()?.map(Tensor::operand);
                let den = den.as_ref().map(|d| d.get(cx)).transpose()?.map(Tensor::operand);
                let gyo = gy.operand();
                let io = CrossEntropyBwd {
                    gy: gyo.view()?,
                    x: x.view()?,
                    target: t.view()?,
                    weight: weight.as_ref().map(|w| w.view()).transpose()?,
                    lse: s.view()?,
                    den: den.as_ref().map(|d| d.view()).transpose()?,
                    dx: dx.out()?,
                };
                Ok(gy.device().cross_entropy_bwd(&options, io)?)
            }
        }))
    }
}
