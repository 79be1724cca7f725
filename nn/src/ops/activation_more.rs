//! Activations with parameters, and of vectors.

use trefoil::ops::{CumSum, Reduce, SortIo};

use crate::autograd::{BackwardCtx, Saved, no_grad, out};
use crate::error::{Result, invalid};
use crate::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// x where it is above 0, else a slope times x: one slope `[1]`, or one per channel `[C]` of axis 1. Oracle
    /// `torch.nn.functional.prelu`. Errors: `Invalid` for another number of slopes.
    pub fn prelu(&self, slope: &Tensor) -> Result<Tensor> {
        same_device("prelu", self, slope)?;
        let (x, a) = (self.contiguous()?, slope.contiguous()?);
        let y = self.like(self.shape())?;
        self.device().prelu(x.operand().view()?, a.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("prelu", &[&x, &a], || {
            let (x, a) = (Saved::new(&x), Saved::new(&a));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, da) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, a, dyo) = (x.get(cx)?.operand(), a.get(cx)?.operand(), dy.operand());
                Ok(dy.device().prelu_bwd(dyo.view()?, x.view()?, a.view()?, out(&dx)?, out(&da)?)?)
            }
        }))
    }

    /// The nearest point of the probability simplex along an axis (Martins and Astudillo, 2016): max(x - t, 0) with t such that the sum is
    /// 1. Most results are exactly 0. Errors: `Invalid` for integers.
    pub fn sparsemax(&self, along: isize) -> Result<Tensor> {
        let at = axis("sparsemax", along, self.rank())?;
        if !self.dtype().is_float() {
            return Err(invalid("sparsemax", "x", "floats", self.dtype().name()));
        }
        if self.shape()[at] == 0 {
            let got = format!("shape {:?}", self.shape());
            return Err(invalid("sparsemax", "x", "an axis with at least one element", got));
        }
        let y = no_grad(|| self.detach().simplex(at))?;
        let plain = y.clone();
        Ok(y.record("sparsemax", &[self], || {
            let y = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                // Elements of the support share what leaves the sum as it is.
                let (dy, y) = (cx.dy()?, y.get(cx)?);
                let support = y.sign()?;
                let dy = dy.mul(&support)?;
                let along = [at as isize];
                let mean = dy.sum_axes(&along, true)?.div(&support.sum_axes(&along, true)?)?;
                cx.give(0, dy.sub(&mean.mul(&support)?)?)
            }
        }))
    }

    fn simplex(&self, at: usize) -> Result<Tensor> {
        let (wide, along) = (self.dtype().accumulator(), [at as isize]);
        let x = self.to_dtype(wide)?.contiguous()?;
        let x = x.sub(&x.amax(&along, true)?)?;
        let (z, sums) = (x.like(x.shape())?, x.like(x.shape())?);
        let (xo, zo, so) = (x.operand(), z.operand(), sums.operand());
        x.device().sort(at, true, SortIo { x: xo.view()?, y: Some(zo.view_mut()?), index: None })?;
        x.device().cumsum(CumSum::new(), at, zo.view()?, so.grad(false)?)?;
        // The support is the longest prefix in which 1 + k z_k exceeds the sum.
        let mut shape = vec![1; x.rank()];
        shape[at] = x.shape()[at];
        let k = Tensor::arange(x.device(), wide, 1.0, 1.0, x.shape()[at])?.reshape(&shape)?;
        let inside = k.mul(&z)?.add_scalar(1.0)?.gt(&sums)?.to_dtype(wide)?;
        let sum = inside.mul(&z)?.sum_axes(&along, true)?;
        let t = sum.add_scalar(-1.0)?.div(&inside.sum_axes(&along, true)?)?;
        x.sub(&t)?.relu()?.to_dtype(self.dtype())
    }

    /// s |s| / (1 + |s|^2) of the vectors s along an axis, whose length becomes at most 1 (Sabour et al., 2017); 0 with gradient 0 for s = 0.
    pub fn squash(&self, along: isize) -> Result<Tensor> {
        let at = [axis("squash", along, self.rank())? as isize];
        let norm = self.reduce(Reduce::Norm { p: 2.0 }, &at, true)?;
        self.mul(&norm.div(&norm.square()?.add_scalar(1.0)?)?)
    }
}
