//! Mixture of experts: routing, and the permutation of tokens by expert.

use trefoil::DType;
use trefoil::ops::moe::{MoePermuteBwd, MoeRouter, MoeRouterIo, MoeUnpermute, MoeUnpermuteBwd};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Which experts each of T tokens goes to, made by [`Tensor::moe_router`]. Assignment t * k + j is choice j of token t.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MoeRouting {
    /// Scores of the chosen experts, `[T, k]`, the logits' dtype; gradients flow back to the logits.
    pub weights: Tensor,
    /// The chosen experts, i32 `[T, k]`, by falling score; of equal ones the lower number first.
    pub ids: Tensor,
    /// Assignments of each expert, i32 `[E]`.
    pub counts: Tensor,
    /// Where each expert's assignments begin, i32 `[E + 1]`: what [`Tensor::gemm_ragged`] takes.
    pub offsets: Tensor,
    /// The assignments by expert, i32 `[T * k]`.
    pub perm: Tensor,
    /// Where each assignment stands in `perm`, i32 `[T * k]`.
    pub inverse: Tensor,
}

impl MoeRouting {
    /// Number of tokens.
    fn tokens(&self) -> usize {
        self.ids.shape().first().copied().unwrap_or(0)
    }
}

impl Tensor {
    /// The `k` best of E experts for each token, from router logits `[T, E]`, floats, and the order of the assignments by expert. Nothing
    /// waits for the device. The gradient is that of the chosen scores with the choice held fixed. Source Shazeer et al. (2017), Fedus et
    /// al. (2021). Errors: `Invalid` for another rank, `k` outside of 1 to E.
    pub fn moe_router(&self, p: &MoeRouter, k: usize) -> Result<MoeRouting> {
        const OP: &str = "moe_router";
        let &[tokens, experts] = self.shape() else {
            return Err(invalid(OP, "logits", "shape [T, E]", format!("{:?}", self.shape())));
        };
        if k == 0 || k > experts {
            return Err(invalid(OP, "k", format!("1 to {experts}, the experts"), format!("{k}")));
        }
        let Some(all) = tokens.checked_mul(k).filter(|&n| n <= i32::MAX as usize) else {
            return Err(invalid(OP, "logits", "below 2^31 assignments", format!("{tokens} tokens of {k}")));
        };
        let x = self.contiguous()?;
        let list = |shape: &[usize]| Tensor::empty(self.device(), DType::I32, shape);
        let (weights, ids) = (x.like(&[tokens, k])?, list(&[tokens, k])?);
        let (counts, offsets) = (list(&[experts])?, list(&[experts + 1])?);
        let (perm, inverse) = (list(&[all])?, list(&[all])?);
        let (xo, wo) = (x.operand(), weights.operand());
        let [io, co, oo, po, no] = [&ids, &counts, &offsets, &perm, &inverse].map(Tensor::operand);
        let io = MoeRouterIo::new(
            xo.view()?,
            wo.view_mut()?,
            io.view_mut()?,
            co.view_mut()?,
            oo.view_mut()?,
            po.view_mut()?,
        )
        .inverse(no.view_mut()?);
        self.device().moe_router(p, io)?;
        let p = *p;
        let weights = weights.record(OP, &[&x], || {
            let (x, ids) = (Saved::new(&x), Saved::new(&ids));
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (x, ids, dyo) = (x.get(cx)?.operand(), ids.get(cx)?.operand(), dy.operand());
                Ok(dy.device().moe_router_bwd(&p, dyo.view()?, x.view()?, ids.view()?, dx.out()?)?)
            }
        });
        Ok(MoeRouting { weights, ids, counts, offsets, perm, inverse })
    }

    /// The rows of the tokens `[T, D]` in the order of the experts: `[T * k, D]`, floats. Errors: `Invalid` for another rank or number of
    /// tokens.
    pub fn moe_permute(&self, routing: &MoeRouting) -> Result<Tensor> {
        const OP: &str = "moe_permute";
        same_device(OP, self, &routing.perm)?;
        let tokens = routing.tokens();
        let &[rows, width] = self.shape() else {
            return Err(invalid(OP, "x", format!("shape [{tokens}, D]"), format!("{:?}", self.shape())));
        };
        if rows != tokens {
            return Err(invalid(OP, "x", format!("{tokens} tokens"), format!("{rows}")));
        }
        let x = self.contiguous()?;
        let y = x.like(&[routing.perm.numel(), width])?;
        let (xo, po, yo) = (x.operand(), routing.perm.operand(), y.operand());
        y.device().moe_permute(xo.view()?, po.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[&x], || {
            let [perm, inverse] = [&routing.perm, &routing.inverse].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (dyo, perm, inverse) =
                    (dy.operand(), perm.get(cx)?.operand(), inverse.get(cx)?.operand());
                let io = MoePermuteBwd::new(dyo.view()?, perm.view()?, dx.out()?).inverse(inverse.view()?);
                Ok(dy.device().moe_permute_bwd(io)?)
            }
        }))
    }

    /// The rows of the experts `[T * k, D]` back in the order of the tokens, those of one token added up with the weights of its choices:
    /// `[T, D]`, floats. Gradients flow to the rows and to the weights. Errors: `Invalid` for another rank or number of rows.
    pub fn moe_unpermute(&self, routing: &MoeRouting) -> Result<Tensor> {
        const OP: &str = "moe_unpermute";
        same_device(OP, self, &routing.perm)?;
        let rows = routing.perm.numel();
        if self.rank() != 2 || self.shape()[0] != rows {
            return Err(invalid(OP, "x", format!("shape [{rows}, D]"), format!("{:?}", self.shape())));
        }
        let (x, weights) = (self.contiguous()?, routing.weights.contiguous()?);
        let y = x.like(&[routing.tokens(), self.shape()[1]])?;
        let [xo, po, no, wo, yo] = [&x, &routing.perm, &routing.inverse, &weights, &y].map(Tensor::operand);
        let io = MoeUnpermute::new(xo.view()?, po.view()?, wo.view()?, yo.view_mut()?);
        y.device().moe_unpermute(io.inverse(no.view()?))?;
        Ok(y.record(OP, &[&x, &weights], || {
            let [x, weights, perm] = [&x, &weights, &routing.perm].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, w, perm) =
                    (x.get(cx)?.operand(), weights.get(cx)?.operand(), perm.get(cx)?.operand());
                let dyo = dy.operand();
                let mut io = MoeUnpermuteBwd::new(dyo.view()?, x.view()?, perm.view()?, w.view()?);
                (io.dx, io.dweights) = (out(&dx)?, out(&dw)?);
                Ok(dy.device().moe_unpermute_bwd(io.whole(true))?)
            }
        }))
    }
}
