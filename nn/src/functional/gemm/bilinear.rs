//! Bilinear forms of rows, summed by groups.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{BilinearRagged, BilinearRaggedBwd, Precision};

use crate::core::autograd::{BackwardCtx, Saved, compose, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device, same_dtype};

const OP: &str = "bilinear_ragged";

impl Tensor {
    /// The sums over groups of rows of bilinear forms: x_r^T W_o y_r for the rows of this tensor `[total, M]`, those of `other` `[total, N]` and
    /// `weight` `[O, M, N]`, summed over the rows r of each group: `[G, O]`, floats, 0 for a group without rows. `offsets` as in
    /// [`gemm_ragged`](Tensor::gemm_ragged). Memory grows with `G * M * N`. Source `F.bilinear` and a sum over the rows of each group; per edge of
    /// a graph these are the messages of edge-conditioned convolution. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn bilinear_ragged(&self, other: &Tensor, weight: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        for t in [other, weight, offsets] {
            same_device(OP, self, t)?;
        }
        same_dtype(OP, self, other)?;
        same_dtype(OP, self, weight)?;
        let (&[_, m], &[_, n], &[outputs, ..], &[ends]) =
            (self.shape(), other.shape(), weight.shape(), offsets.shape())
        else {
            let got = [self, other, weight, offsets].map(Tensor::shape);
            let want = "two matrices, a weight of rank 3 and a vector of offsets";
            return Err(invalid(OP, "other", want, format!("shapes {got:?}")));
        };
        let groups = ends.saturating_sub(1);
        let (x, other, weight) = (self.contiguous()?, other.contiguous()?, weight.contiguous()?);
        let offsets = offsets.detach().contiguous()?;
        let (sums, y) = (x.like(&[groups, m, n])?, x.like(&[groups, outputs])?);
        let [xo, oo, wo, fo, so, yo] = [&x, &other, &weight, &offsets, &sums, &y].map(Tensor::operand);
        let (xv, ov, fv, wv) = (xo.view()?, oo.view()?, fo.view()?, wo.view()?);
        let io = BilinearRagged::new(xv, ov, fv, wv, so.view_mut()?, yo.view_mut()?);
        x.device().bilinear_ragged(io)?;
        Ok(y.record(OP, &[&x, &other, &weight], || {
            let saved = [&x, &other, &weight, &offsets, &sums].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| backward(cx, &saved)
        }))
    }
}

/// The same of operations whose gradients have gradients.
fn composed(x: &Tensor, other: &Tensor, weight: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let sums = x.gemm_ragged_sum(other, offsets)?.flatten(1, 2)?;
    sums.linear(&weight.flatten(1, 2)?, None, Activation::Identity, Precision::Ieee)
}

/// saved: x, other, weight, offsets, sums.
fn backward(cx: &mut BackwardCtx<'_>, saved: &[Saved; 5]) -> Result<()> {
    let offsets = saved[3].get(cx)?.clone();
    if cx.create_graph() {
        let inputs = [(0, saved[0].input(cx, 0)?), (1, saved[1].input(cx, 1)?), (2, saved[2].input(cx, 2)?)];
        return compose(cx, &inputs, |t| Ok(vec![composed(&t[0], &t[1], &t[2], &offsets)?]));
    }
    let dy = cx.dy()?.contiguous()?;
    let (da, db, dw) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
    let [x, other, weight, sums] = [0, 1, 2, 4].map(|i| saved[i].get(cx));
    let [dyo, xo, oo, fo, wo, so] = [&dy, x?, other?, &offsets, weight?, sums?].map(Tensor::operand);
    let mut io =
        BilinearRaggedBwd::new(dyo.view()?, xo.view()?, oo.view()?, fo.view()?, wo.view()?, so.view()?);
    (io.da, io.db, io.dw) = (out(&da)?, out(&db)?, out(&dw)?);
    Ok(dy.device().bilinear_ragged_bwd(io)?)
}
