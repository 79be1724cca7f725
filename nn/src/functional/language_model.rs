//! Rotary positions, the choice of tokens, and the loss of a vocabulary without its logits in memory.

use trefoil::DType;
use trefoil::ops::attention::Rope;
use trefoil::ops::language_model::{
    LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd, LogitProcessors,
};
use trefoil::ops::loss::Reduction;
use trefoil::ops::random::Rng;

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::capture;
use crate::core::error::{Result, invalid};
use crate::core::index_check::{self, Range};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::operand::{operand, save, saved, view};

impl Tensor {
    /// Rotary position embedding (Su et al., 2021) of `[B, L, H, D]`, any strides with a step of 1 along the last axis. `positions` are i32
    /// `[L]` or `[B, L]`; without them token l has position `offset + l`. The result is contiguous. Errors: `Invalid` for rank, an odd
    /// rotary size, base not above 0.
    pub fn rope(&self, p: &Rope, positions: Option<&Tensor>) -> Result<Tensor> {
        if let Some(at) = positions {
            same_device("rope", self, at)?;
        }
        let x = match self.layout().strides().last() {
            Some(1) | None => self.clone(),
            Some(_) => self.contiguous()?,
        };
        let y = self.like(self.shape())?;
        let at = positions.map(Tensor::contiguous).transpose()?;
        let (xo, po, yo) = (x.operand(), operand(at.as_ref()), y.operand());
        self.device().rope(p, xo.view()?, view(&po)?, yo.view_mut()?)?;
        let p = *p;
        Ok(y.record("rope", &[&x], || {
            let at = save(at.as_ref());
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, at) = (cx.dy()?.contiguous()?, saved(cx, &at)?);
                Ok(dy.device().rope_bwd(&p, dy.operand().view()?, view(&at)?, dx.out()?)?)
            }
        }))
    }
}

impl Tensor {
    /// These logits `[rows, V]` after the penalty for the ids in `prev` (i32 `[rows, n]`, -1 for none), temperature, top-k, top-p and min-p; -inf
    /// where removed. No gradient. Errors: `Invalid` for shapes, dtypes and parameters out of range; an id out of range is reported by the
    /// next call that waits.
    pub fn process_logits(&self, p: &LogitProcessors, prev: Option<&Tensor>) -> Result<Tensor> {
        if let Some(t) = prev {
            same_device("logit_processors", self, t)?;
        }
        let (x, prev) = (self.detach().contiguous()?, prev.map(Tensor::contiguous).transpose()?);
        let y = x.like(x.shape())?;
        let (xo, po, yo) = (x.operand(), operand(prev.as_ref()), y.operand());
        self.device().logit_processors(p, xo.view()?, view(&po)?, yo.view_mut()?)?;
        Ok(y)
    }

    /// One token for each row of logits `[rows, V]`, i64 `[rows]`, drawn from what [`process_logits`](Self::process_logits) keeps; the first
    /// maximum for temperature 0. Errors: as there.
    pub fn sample_tokens(&self, p: &LogitProcessors, rng: Rng<'_>, prev: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "sample_tokens";
        let &[rows, _] = self.shape() else {
            return Err(invalid(OP, "logits", "shape [rows, V]", format!("{:?}", self.shape())));
        };
        if let Some(t) = prev {
            same_device(OP, self, t)?;
        }
        let (x, prev) = (self.detach().contiguous()?, prev.map(Tensor::contiguous).transpose()?);
        let ids = Tensor::empty(self.device(), DType::I64, &[rows])?;
        let cell = capture::cell(self.device(), &rng)?;
        let rng = capture::moved(rng, &cell)?;
        let (xo, po, io) = (x.operand(), operand(prev.as_ref()), ids.operand());
        self.device().sample_tokens(p, rng, xo.view()?, view(&po)?, io.view_mut()?)?;
        Ok(ids)
    }
}

/// A linear layer without activation and the cross entropy of its outputs, `F.cross_entropy(F.linear(h, w, b), target)`; the logits exist
/// only in chunks.
#[derive(Debug, Clone, Default)]
pub struct LinearCrossEntropyLoss {
    /// Reduction, ignored class, label smoothing, z-loss, softcap, rows per chunk.
    pub options: LinearCrossEntropy,
}

impl LinearCrossEntropyLoss {
    /// Loss of hidden states `[.., D]`, weights `[V, D]` and bias `[V]` against class ids `[..]` (i32, i64) or probabilities `[.., V]`: an
    /// f32 scalar (f64 for f64 data), or the shape of the rows without reduction. Errors: `Invalid` for shapes and options that do not fit.
    pub fn forward(&self, h: &Tensor, w: &Tensor, b: Option<&Tensor>, target: &Tensor) -> Result<Tensor> {
        const OP: &str = "linear_cross_entropy";
        same_device(OP, h, w)?;
        same_device(OP, h, target)?;
        let (Some((&d, lead)), Some(&classes)) = (h.shape().split_last(), w.shape().first()) else {
            let got = format!("shapes {:?} and {:?}", h.shape(), w.shape());
            return Err(invalid(OP, "h", "hidden states [.., D] and weights [V, D]", got));
        };
        if !target.dtype().is_float() {
            let ignore = Some(self.options.ignore_index);
            index_check::note(target, Range { op: OP, limit: classes, ignore, labels: true });
        }
        let rows: usize = lead.iter().product();
        let x = h.reshape(&[rows, d])?.contiguous()?;
        let (w, b) = (w.contiguous()?, b.map(Tensor::contiguous).transpose()?);
        let target = match target.dtype().is_float() {
            true => target.reshape(&[rows, classes])?,
            false => target.reshape(&[rows])?,
        };
        let target = target.detach().contiguous()?;
        let options = self.options;
        let items = options.reduction == Reduction::None;
        let loss = match items {
            true => h.like(&[rows])?,
            false => Tensor::empty(h.device(), h.dtype().accumulator(), &[])?,
        };
        let (xo, wo, bo) = (x.operand(), w.operand(), operand(b.as_ref()));
        let (to, lo) = (target.operand(), loss.operand());
        let io = LinearCrossEntropyFwd::new(xo.view()?, wo.view()?, to.view()?, lo.view_mut()?).b(view(&bo)?);
        h.device().fused_linear_cross_entropy(&options, io)?;
        let mut inputs = vec![&x, &w];
        inputs.extend(b.as_ref());
        let loss = loss.record(OP, &inputs, || {
            let (x, w, b, target) = (Saved::new(&x), Saved::new(&w), save(b.as_ref()), Saved::new(&target));
            move |cx: &mut BackwardCtx<'_>| {
                let (dh, dw, db) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let gy = cx.dy()?.contiguous()?;
                let (x, w, t) = (x.get(cx)?.operand(), w.get(cx)?.operand(), target.get(cx)?.operand());
                let (b, g) = (saved(cx, &b)?, gy.operand());
                let io = LinearCrossEntropyBwd::new(g.view()?, x.view()?, w.view()?, t.view()?)
                    .b(view(&b)?)
                    .dh(out(&dh)?)
                    .dw(out(&dw)?)
                    .db(out(&db)?);
                Ok(gy.device().fused_linear_cross_entropy_bwd(&options, io)?)
            }
        });
        if items { loss.reshape(lead) } else { Ok(loss) }
    }
}
