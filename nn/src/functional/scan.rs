//! Running products and extremes, differences and integrals along an axis.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};

/// Distances between samples of a function.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Spacing<'a> {
    /// All distances are equal.
    Step(f64),
    /// Positions of the samples: a vector, or a tensor that broadcasts with the samples.
    At(&'a Tensor),
}

impl From<f64> for Spacing<'_> {
    fn from(step: f64) -> Self {
        Spacing::Step(step)
    }
}

impl<'a> From<&'a Tensor> for Spacing<'a> {
    fn from(at: &'a Tensor) -> Self {
        Spacing::At(at)
    }
}

/// Positions (i64) along an axis, in the shape of a tensor.
fn positions(x: &Tensor, at: usize) -> Result<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[at] = x.shape()[at];
    let index = Tensor::arange(x.device(), DType::I64, 0.0, 1.0, x.shape()[at])?;
    index.reshape(&shape)?.expand(x.shape())?.contiguous()
}

impl Tensor {
    /// All elements of an axis but the last, and all but the first.
    fn neighbours(&self, at: usize) -> Result<[Tensor; 2]> {
        let (along, n) = (at as isize, self.shape()[at]);
        let pairs = n.saturating_sub(1);
        Ok([self.narrow(along, 0, pairs)?, self.narrow(along, n - pairs, pairs)?])
    }

    /// Each element combined with all before it, by ceil(log2 n) calls of an associative `combine(earlier, later)` (Hillis and Steele, 1986).
    fn running(&self, at: usize, combine: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let (along, n) = (at as isize, self.shape()[at]);
        let (mut y, mut reach) = (self.clone(), 1);
        while reach < n {
            let tail = combine(&y.narrow(along, 0, n - reach)?, &y.narrow(along, reach, n - reach)?)?;
            y = Tensor::concat(along, &[&y.narrow(along, 0, reach)?, &tail])?;
            reach *= 2;
        }
        Ok(y)
    }

    /// ln of the sums of e^x of all elements of an axis up to each one, without overflow. Source `torch.logcumsumexp`.
    pub fn logcumsumexp(&self, along: isize) -> Result<Tensor> {
        self.running(axis("logcumsumexp", along, self.rank())?, Tensor::logaddexp)
    }

    /// Products of all elements of an axis up to each one; integers give i64. The gradient is exact for zeros too. Source `torch.cumprod`.
    pub fn cumprod(&self, along: isize) -> Result<Tensor> {
        let at = axis("cumprod", along, self.rank())?;
        let x = if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::I64)? };
        x.running(at, Tensor::mul)
    }

    /// The largest element of an axis up to each one, and where it is (i64): the last of equals; NaN counts as the largest. The gradient goes
    /// to those places. Source `torch.cummax`.
    pub fn cummax(&self, along: isize) -> Result<(Tensor, Tensor)> {
        self.running_extreme(axis("cummax", along, self.rank())?, Tensor::ge)
    }

    /// The smallest element of an axis up to each one, and where it is (i64): the last of equals; NaN counts as the smallest. The gradient goes
    /// to those places. Source `torch.cummin`.
    pub fn cummin(&self, along: isize) -> Result<(Tensor, Tensor)> {
        self.running_extreme(axis("cummin", along, self.rank())?, Tensor::le)
    }

    fn running_extreme(
        &self,
        at: usize,
        wins: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let along = at as isize;
        let x = self.detach();
        let later = |earlier: &Tensor, later: &Tensor| {
            let [a, b] = [earlier, later].map(|place| x.gather(along, &place.contiguous()?));
            let (a, b) = (a?, b?);
            let replaced = wins(&b, &a)?.logical_or(&b.ne(&b)?)?;
            later.where_(&replaced, earlier)
        };
        let places = positions(self, at)?.running(at, later)?;
        Ok((self.gather(along, &places)?, places))
    }

    /// Differences of neighbours along an axis, taken `n` times, after `prepend` and `append` have been joined to it. Source `torch.diff`.
    /// Errors: parts whose other sizes differ.
    pub fn diff(
        &self,
        n: usize,
        along: isize,
        prepend: Option<&Tensor>,
        append: Option<&Tensor>,
    ) -> Result<Tensor> {
        let at = axis("diff", along, self.rank())?;
        let parts: Vec<&Tensor> = [prepend, Some(self), append].into_iter().flatten().collect();
        let mut y = if parts.len() == 1 { self.clone() } else { Tensor::concat(along, &parts)? };
        for _ in 0..n.min(y.shape()[at]) {
            let [before, behind] = y.neighbours(at)?;
            y = behind.sub(&before)?;
        }
        Ok(y)
    }

    /// The areas between neighbouring samples along an axis, by the trapezoidal rule.
    fn trapezoids(&self, op: &'static str, spacing: Spacing<'_>, at: usize) -> Result<Tensor> {
        let [before, behind] = self.neighbours(at)?;
        let sums = before.add(&behind)?;
        let x = match spacing {
            Spacing::Step(dx) => return sums.mul_scalar(dx / 2.0),
            Spacing::At(x) => x,
        };
        same_device(op, self, x)?;
        if x.rank() != 1 {
            let own = (x.rank() + at).checked_sub(self.rank());
            let Some(own) = own.filter(|&a| x.shape()[a] == self.shape()[at]) else {
                let expected = format!("a vector, or {} positions on axis {at}", self.shape()[at]);
                return Err(invalid(op, "spacing", expected, format!("shape {:?}", x.shape())));
            };
            return sums.mul(&x.diff(1, own as isize, None, None)?)?.mul_scalar(0.5);
        }
        if x.numel() != self.shape()[at] {
            let expected = format!("{} positions, as axis {at} has", self.shape()[at]);
            return Err(invalid(op, "spacing", expected, format!("{}", x.numel())));
        }
        let mut shape = vec![1; self.rank()];
        shape[at] = sums.shape()[at];
        sums.mul(&x.diff(1, 0, None, None)?.reshape(&shape)?)?.mul_scalar(0.5)
    }

    /// Integrals along an axis by the trapezoidal rule, of samples at equal distances (`1.0`) or at given positions (`&x`): the shape without
    /// the axis. Source `torch.trapezoid`. Errors: positions that do not fit.
    #[doc(alias = "trapz")]
    pub fn trapezoid<'a>(&self, spacing: impl Into<Spacing<'a>>, along: isize) -> Result<Tensor> {
        let at = axis("trapezoid", along, self.rank())?;
        self.trapezoids("trapezoid", spacing.into(), at)?.sum_axes(&[at as isize], false)
    }

    /// As [`trapezoid`](Tensor::trapezoid), up to each sample but the first. Source `torch.cumulative_trapezoid`.
    pub fn cumulative_trapezoid<'a>(&self, spacing: impl Into<Spacing<'a>>, along: isize) -> Result<Tensor> {
        let at = axis("cumulative_trapezoid", along, self.rank())?;
        self.trapezoids("cumulative_trapezoid", spacing.into(), at)?.cumsum(at as isize)
    }
}
