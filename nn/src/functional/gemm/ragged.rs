//! Products of groups of rows, each with a matrix of its own. Nothing waits for the device, which alone knows how many rows a group has.

use trefoil::ops::activation::{Activation, ActivationBiasBwd};
use trefoil::ops::gemm::{Gemm, GemmRagged, GemmRaggedBwd};
use trefoil::ops::scan::SegmentReduce;

use super::fuses;
use crate::core::autograd::{BackwardCtx, Saved, compose, grad_enabled, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device, same_dtype};
use crate::functional::activation::through;
use crate::functional::operand::whole;

impl Tensor {
    /// One matrix per group of rows (the experts of a mixture): the rows `offsets[g] .. offsets[g + 1]` of this tensor `[total, K]` times
    /// `b[g]`, b `[G, K, N]` or with `trans_b` `[G, N, K]`: `[total, N]`, floats. `offsets` is i32 `[G + 1]` and rises; rows that it does not
    /// cover become 0, an offset beyond the rows is reported by the next call that waits. Source `F.grouped_mm`. Errors: `Invalid` for shapes
    /// and dtypes that do not fit.
    pub fn gemm_ragged(&self, b: &Tensor, offsets: &Tensor, trans_b: bool) -> Result<Tensor> {
        product("gemm_ragged", self, b, None, offsets, trans_b, Activation::Identity)
    }

    /// A linear layer per group of rows: act(x W_g^T + b_g) for the rows x of group g of this tensor `[total, K]`, weight `[G, N, K]`, bias
    /// `[G, N]`: `[total, N]`, floats; offsets, and rows of no group, as in [`gemm_ragged`](Tensor::gemm_ragged). Bias and activation are
    /// applied by the product's kernel. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn linear_ragged(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        offsets: &Tensor,
        act: Activation,
    ) -> Result<Tensor> {
        const OP: &str = "linear_ragged";
        if fuses(act) {
            return product(OP, self, weight, bias, offsets, true, act);
        }
        product(OP, self, weight, bias, offsets, true, Activation::Identity)?.activation(act)
    }

    /// The sum over the rows of each group of the outer products of this tensor's rows `[total, K]` with those of `other` `[total, N]`, that
    /// is x_g^T y_g: `[G, K, N]`, floats, 0 for a group without rows. `offsets` as in [`gemm_ragged`](Tensor::gemm_ragged). Source
    /// `F.grouped_mm` of two matrices. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn gemm_ragged_sum(&self, other: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        const OP: &str = "gemm_ragged_sum";
        same_device(OP, self, other)?;
        same_device(OP, self, offsets)?;
        same_dtype(OP, self, other)?;
        let (&[rows, k], &[others, n], &[ends]) = (self.shape(), other.shape(), offsets.shape()) else {
            let got = format!("shapes {:?}, {:?} and {:?}", self.shape(), other.shape(), offsets.shape());
            return Err(invalid(OP, "other", "two matrices and a vector of offsets", got));
        };
        if rows != others {
            return Err(invalid(OP, "other", format!("{rows} rows"), format!("{others}")));
        }
        let (x, other) = (self.contiguous()?, other.contiguous()?);
        let offsets = offsets.detach().contiguous()?;
        let sums = x.like(&[ends.saturating_sub(1), k, n])?;
        let p = Gemm::new();
        let [zo, xo, oo] = [&other, &x, &offsets].map(Tensor::operand);
        let out = sums.operand();
        let io = GemmRaggedBwd::new(zo.view()?, xo.view()?, oo.view()?, out.grad(false)?);
        x.device().gemm_ragged_bwd(&p, io)?;
        Ok(sums.record(OP, &[&x, &other], || {
            let [x, other, offsets] = [&x, &other, &offsets].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, offsets) = (cx.dy()?.contiguous()?, offsets.get(cx)?.clone());
                if cx.needs(0) {
                    let other = at(&other, cx, 1)?;
                    cx.give(0, other.gemm_ragged(&dy, &offsets, true)?)?;
                }
                if cx.needs(1) {
                    let x = at(&x, cx, 0)?;
                    cx.give(1, x.gemm_ragged(&dy, &offsets, false)?)?;
                }
                Ok(())
            }
        }))
    }
}

/// A saved input, at its place in the graph where gradients have gradients.
fn at(saved: &Saved, cx: &BackwardCtx<'_>, index: usize) -> Result<Tensor> {
    if cx.create_graph() { saved.input(cx, index) } else { saved.get(cx).cloned() }
}

/// act(x b_g + bias_g) by groups of rows, with its gradients.
fn product(
    op: &'static str,
    x: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    offsets: &Tensor,
    trans_b: bool,
    act: Activation,
) -> Result<Tensor> {
    for t in [Some(b), Some(offsets), bias].into_iter().flatten() {
        same_device(op, x, t)?;
    }
    if x.rank() != 2 || b.rank() != 3 {
        let got = format!("shapes {:?} and {:?}", x.shape(), b.shape());
        return Err(invalid(op, "b", "x of rank 2 and b of rank 3", got));
    }
    let (x, b, offsets, bias) =
        (x.contiguous()?, b.contiguous()?, offsets.detach().contiguous()?, whole(bias)?);
    let mut inputs = vec![&x, &b];
    inputs.extend(bias.as_ref());
    let tracked = grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    let p = Gemm::new().trans(false, trans_b).act(act);
    let needs_z = tracked && act != Activation::Identity && !act.reads_output();
    let z = if needs_z { Some(result(&x, &b, trans_b)?) } else { None };
    let y = plain(&x, &b, bias.as_ref(), &offsets, p, z.as_ref())?;
    let output = y.clone();
    Ok(y.record(op, &inputs, || {
        let [x, b, offsets] = [&x, &b, &offsets].map(Saved::new);
        let bias = bias.as_ref().map(Saved::new);
        let saved = (act != Activation::Identity).then(|| Saved::new(z.as_ref().unwrap_or(&output)));
        move |cx: &mut BackwardCtx<'_>| {
            let offsets = offsets.get(cx)?.clone();
            let mut dz = cx.dy()?.contiguous()?;
            let mut bias_is_done = false;
            if let Some(saved) = &saved {
                if cx.create_graph() {
                    let mut inputs = vec![(0, x.input(cx, 0)?), (1, b.input(cx, 1)?)];
                    if let Some(bias) = &bias {
                        inputs.push((2, bias.input(cx, 2)?));
                    }
                    return compose(cx, &inputs, |t| {
                        let z = product(op, &t[0], &t[1], t.get(2), &offsets, trans_b, Activation::Identity)?;
                        Ok(vec![z.activation(act)?])
                    });
                }
                let saved = saved.get(cx)?.clone();
                if cx.needs(2)
                    && let Some(dbias) = cx.target(2)?
                {
                    let dy = dz;
                    dz = dy.like(dy.shape())?;
                    let [dyo, so, zo, oo] = [&dy, &saved, &dz, &offsets].map(Tensor::operand);
                    let (saved, out) = (act.saved(so.view()?), zo.view_mut()?);
                    let io =
                        ActivationBiasBwd::new(dyo.view()?, saved, out, dbias.out()?).offsets(oo.view()?);
                    dy.device().activation_bias_bwd(act, io)?;
                    bias_is_done = true;
                } else {
                    dz = through(act, &dz, &saved)?;
                }
            }
            if cx.needs(0) {
                let b = at(&b, cx, 1)?;
                cx.give(0, dz.gemm_ragged(&b, &offsets, !trans_b)?)?;
            }
            if cx.needs(1) && cx.create_graph() {
                let x = x.input(cx, 0)?;
                let sum =
                    if trans_b { dz.gemm_ragged_sum(&x, &offsets) } else { x.gemm_ragged_sum(&dz, &offsets) };
                cx.give(1, sum?)?;
            } else if let Some(db) = cx.target(1)? {
                let dbias = if cx.needs(2) && !bias_is_done { cx.target(2)? } else { None };
                let [zo, xo, oo] = [&dz, x.get(cx)?, &offsets].map(Tensor::operand);
                let mut io = GemmRaggedBwd::new(zo.view()?, xo.view()?, oo.view()?, db.out()?);
                io.dbias = out(&dbias)?;
                dz.device().gemm_ragged_bwd(&Gemm::new().trans(false, trans_b), io)?;
                return Ok(());
            }
            if cx.needs(2) && !bias_is_done {
                cx.give(2, dz.segment_reduce(SegmentReduce::Sum, &offsets)?)?;
            }
            Ok(())
        }
    }))
}

/// Memory for a product's result.
fn result(x: &Tensor, b: &Tensor, trans_b: bool) -> Result<Tensor> {
    x.like(&[x.shape()[0], b.shape()[if trans_b { 1 } else { 2 }]])
}

/// A product outside of the graph; `z` takes the value before the activation.
fn plain(
    x: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    offsets: &Tensor,
    p: Gemm,
    z: Option<&Tensor>,
) -> Result<Tensor> {
    let y = result(x, b, p.trans_b)?;
    let [xo, bo, oo, yo] = [x, b, offsets, &y].map(Tensor::operand);
    let (bias, z) = (bias.map(Tensor::operand), z.map(Tensor::operand));
    let mut io = GemmRagged::new(xo.view()?, bo.view()?, oo.view()?, yo.view_mut()?);
    io.bias = bias.as_ref().map(|b| b.view()).transpose()?;
    io.z = z.as_ref().map(|z| z.view_mut()).transpose()?;
    y.device().gemm_ragged(&p, io)?;
    Ok(y)
}
