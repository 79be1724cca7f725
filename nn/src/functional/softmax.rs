//! Softmax, and its sparse relatives.

use trefoil::DType;
use trefoil::ops::scan::CumSum;
use trefoil::ops::softmax::Softmax;
use trefoil::ops::sort::SortIo;

use crate::core::autograd::{BackwardCtx, Saved, no_grad};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};

/// y (dy - sum(dy y)), the gradient of softmax.
fn softmax_gradient(dy: &Tensor, y: &Tensor, along: isize) -> Result<Tensor> {
    y.mul(&dy.sub(&dy.mul(y)?.sum_axes(&[along], true)?)?)
}

/// Distances to the largest element of each slice, in the accumulator's dtype and outside of the graph.
fn centred(x: &Tensor, at: isize) -> Result<Tensor> {
    let x = x.detach().to_dtype(x.dtype().accumulator())?;
    x.sub(&x.amax(&[at], true)?)
}

/// The number of nonzero elements of sparsemax in each slice of `z` and their sum, both with the axis kept as 1: the k largest z with
/// 1 + k z_k > z_1 + .. + z_k.
pub(crate) fn sparsemax_support(z: &Tensor, at: usize) -> Result<(Tensor, Tensor)> {
    let z = z.detach().contiguous()?;
    let (sorted, sums) = (z.like(z.shape())?, z.like(z.shape())?);
    let (zo, so, co) = (z.operand(), sorted.operand(), sums.operand());
    z.device().sort(at, true, SortIo::new(zo.view()?).y(so.view_mut()?))?;
    z.device().cumsum(CumSum::new(), at, so.view()?, co.grad(false)?)?;
    let n = z.shape()[at];
    let mut shape = vec![1; z.rank()];
    shape[at] = n;
    let ranks = Tensor::arange(z.device(), z.dtype(), 1.0, 1.0, n)?.reshape(&shape)?;
    let inside = sorted.mul_add(&ranks, &Tensor::ones(z.device(), z.dtype(), &[])?)?;
    let inside = inside.gt(&sums)?.to_dtype(z.dtype())?;
    let over = [at as isize];
    Ok((inside.sum_axes(&over, true)?, inside.mul(&sorted)?.sum_axes(&over, true)?))
}

/// Halvings that bring an interval of length 1 to the spacing of the dtype.
fn halvings(dtype: DType) -> usize {
    if dtype == DType::F64 { 54 } else { 27 }
}

impl Tensor {
    /// Softmax along the last axis of scale * x + mask; the additive mask (0 and -inf, or any number, without gradient) broadcasts.
    pub fn masked_softmax(&self, scale: f64, mask: Option<&Tensor>) -> Result<Tensor> {
        if let Some(m) = mask {
            same_device("masked_softmax", self, m)?;
        }
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        let (xo, mo, yo) = (x.operand(), mask.map(Tensor::operand), y.operand());
        let m = mo.as_ref().map(|m| m.view()).transpose()?;
        self.device().masked_softmax(scale, xo.view()?, m, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("masked_softmax", &[self], || {
            let y = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let y = y.output(cx, 0)?;
                    let dx = softmax_gradient(&cx.dy()?, &y, -1)?.mul_scalar(scale)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, y) = (cx.dy()?.contiguous()?, y.get(cx)?.operand());
                Ok(dy.device().masked_softmax_bwd(scale, dy.operand().view()?, y.view()?, dx.out()?)?)
            }
        }))
    }

    fn softmax_kind(&self, kind: Softmax, at: isize) -> Result<Tensor> {
        let at = axis("softmax", at, self.rank())?;
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        self.device().softmax(kind, at, x.operand().view()?, y.operand().view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("softmax", &[self], || {
            let y = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, y, along) = (cx.dy()?, y.output(cx, 0)?, at as isize);
                    let dx = match kind {
                        Softmax::Softmax => softmax_gradient(&dy, &y, along)?,
                        Softmax::LogSoftmax => dy.sub(&y.exp()?.mul(&dy.sum_axes(&[along], true)?)?)?,
                        _ => return cx.first_order_only(),
                    };
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, y) = (cx.dy()?.contiguous()?, y.get(cx)?);
                Ok(dy.device().softmax_bwd(kind, at, dy.operand().view()?, y.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// e^x / sum e^x along an axis.
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        self.softmax_kind(Softmax::Softmax, axis)
    }

    /// x - ln sum e^x along an axis.
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        self.softmax_kind(Softmax::LogSoftmax, axis)
    }

    /// The point of the probability simplex nearest to each slice along an axis, with exact zeros (Martins and Astudillo, 2016): entmax
    /// with alpha 2. One sort. Errors: `Invalid` for integers, an axis out of range or of size 0.
    pub fn sparsemax(&self, along: isize) -> Result<Tensor> {
        self.entmax_with("sparsemax", 2.0, along, |z, at| {
            let (k, sum) = sparsemax_support(z, at)?;
            z.sub(&sum.add_scalar(-1.0)?.div(&k)?)?.relu()
        })
    }

    /// alpha-entmax along an axis (Peters, Niculae and Martins, 2019): `max((alpha - 1) x - tau, 0)^(1 / (alpha - 1))` with tau such that
    /// the sum is 1. alpha 1 is softmax, alpha 2 is [`sparsemax`](Tensor::sparsemax). Elsewhere tau is found by halving, as often as the
    /// dtype can tell, on the device. Errors: `Invalid` for alpha below 1, an axis out of range or of size 0.
    pub fn entmax(&self, alpha: f64, along: isize) -> Result<Tensor> {
        const OP: &str = "entmax";
        if !(alpha >= 1.0 && alpha.is_finite()) {
            return Err(invalid(OP, "alpha", "a finite number of at least 1", format!("{alpha}")));
        }
        if alpha == 1.0 {
            return self.softmax(along);
        }
        if alpha == 2.0 {
            return self.sparsemax(along);
        }
        self.entmax_with(OP, alpha, along, |z, at| {
            let over = [at as isize];
            let z = z.mul_scalar(alpha - 1.0)?;
            let power = |tau: &Tensor| z.sub(tau)?.relu()?.pow_scalar(1.0 / (alpha - 1.0));
            // The largest z is 0: with tau = -1 it alone reaches the sum 1, with tau = 0 nothing is left.
            let mut lo = z.amax(&over, true)?.add_scalar(-1.0)?;
            let one = Tensor::ones(z.device(), z.dtype(), &[])?;
            let mut step = 1.0;
            for _ in 0..halvings(z.dtype()) {
                step /= 2.0;
                let mid = lo.add_scalar(step)?;
                let enough = power(&mid)?.sum_axes(&over, true)?.ge(&one)?;
                lo = mid.where_(&enough, &lo)?;
            }
            let p = power(&lo)?;
            p.div(&p.sum_axes(&over, true)?)
        })
    }

    /// Records an entmax. With s = y^(2 - alpha) where y > 0 and 0 elsewhere: dx = s (dy - sum(s dy) / sum(s)).
    fn entmax_with(
        &self,
        op: &'static str,
        alpha: f64,
        along: isize,
        forward: impl FnOnce(&Tensor, usize) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let at = axis(op, along, self.rank())?;
        if !self.dtype().is_float() {
            return Err(invalid(op, "x", "floats", self.dtype().name()));
        }
        if self.shape()[at] == 0 {
            return Err(invalid(op, "x", "at least 1 element along the axis", "0"));
        }
        let dtype = self.dtype();
        let wide = no_grad(|| forward(&centred(self, at as isize)?, at))?;
        let y = wide.to_dtype(dtype)?;
        Ok(y.record(op, &[self], || {
            let y = Saved::new(&wide);
            move |cx: &mut BackwardCtx<'_>| {
                let y = y.get(cx)?;
                let zero = Tensor::zeros(y.device(), y.dtype(), &[])?;
                let inside = y.gt(&zero)?;
                let s = match alpha {
                    2.0 => inside.to_dtype(y.dtype())?,
                    _ => y.pow_scalar(2.0 - alpha)?.where_(&inside, &zero)?,
                };
                let dy = cx.dy()?.to_dtype(y.dtype())?;
                let over = [at as isize];
                let mean = s.mul(&dy)?.sum_axes(&over, true)?.div(&s.sum_axes(&over, true)?)?;
                let dx = s.mul(&dy.sub(&mean)?)?.to_dtype(dtype)?;
                cx.give(0, dx)
            }
        }))
    }
}
