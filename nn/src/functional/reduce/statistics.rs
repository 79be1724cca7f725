//! Statistics made of reductions.

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// Sums along axes in which NaN counts as 0. Source `torch.nansum`.
    pub fn nansum(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return self.sum_axes(over, keep);
        }
        self.masked_fill(&self.detach().is_nan()?, 0.0)?.sum_axes(over, keep)
    }

    /// Means along axes of the elements that are not NaN; NaN where there are none. Floats. Source `torch.nanmean`.
    pub fn nanmean(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        let numbers = self.detach().is_nan()?.logical_not()?.sum_axes(over, keep)?;
        self.nansum(over, keep)?.div(&numbers.to_dtype(self.dtype())?)
    }

    /// Numbers (i64) of elements that are not 0 along axes; NaN counts. Source `torch.count_nonzero`.
    pub fn count_nonzero(&self, over: &[isize]) -> Result<Tensor> {
        self.detach().ne_scalar(0.0)?.sum_axes(over, false)
    }

    /// Standard deviations and means along axes, with `correction` subtracted from the count. Source `torch.std_mean`.
    pub fn std_mean(&self, over: &[isize], correction: f64, keep: bool) -> Result<(Tensor, Tensor)> {
        Ok((self.std(over, correction, keep)?, self.mean_axes(over, keep)?))
    }

    /// Variances and means along axes: [`mean_var`](Tensor::mean_var) in PyTorch's order. Source `torch.var_mean`.
    pub fn var_mean(&self, over: &[isize], correction: f64, keep: bool) -> Result<(Tensor, Tensor)> {
        let (mean, var) = self.mean_var(over, correction, keep)?;
        Ok((var, mean))
    }

    /// The sum of the diagonal of a matrix; integers give i64. Source `torch.trace`. Errors: another rank.
    pub fn trace(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            return Err(invalid("trace", "self", "a matrix", format!("shape {:?}", self.shape())));
        }
        self.diagonal(0, 0, 1)?.sum()
    }

    /// The p-norm of the difference of two tensors, which broadcast: a scalar. Source `torch.dist`.
    pub fn dist(&self, b: &Tensor, p: f64) -> Result<Tensor> {
        self.sub(b)?.norm(p)
    }

    /// The parts `x[.., i, ..]` of an axis scaled down to a p-norm of at most `maxnorm`. Source `torch.renorm`. Errors: a negative bound, p not
    /// above 0, a scalar.
    pub fn renorm(&self, p: f64, along: isize, maxnorm: f64) -> Result<Tensor> {
        const OP: &str = "renorm";
        let at = axis(OP, along, self.rank())?;
        if p.is_nan() || p <= 0.0 {
            return Err(invalid(OP, "p", "a number above 0", format!("{p}")));
        }
        if maxnorm.is_nan() || maxnorm < 0.0 {
            return Err(invalid(OP, "maxnorm", "a number of at least 0", format!("{maxnorm}")));
        }
        let others: Vec<isize> = (0..self.rank()).filter(|&a| a != at).map(|a| a as isize).collect();
        let norm = self.norm_axes(p, &others, true)?;
        let scale = norm.add_scalar(1e-7)?.rdiv_scalar(maxnorm)?;
        self.mul(&scale.where_(&norm.detach().gt_scalar(maxnorm)?, &norm.detach().ones_like()?)?)
    }

    /// The covariances of variables in rows `[variables, observations]`: `[variables, variables]`, a scalar for one variable or a vector. The
    /// sum of the weights less `correction` divides (0 where that is negative). `fweights` (integers) count observations, `aweights` (floats)
    /// weigh them, `[observations]` each. Source `torch.cov`. Errors: more than two axes, weights of another length.
    pub fn cov(
        &self,
        correction: f64,
        fweights: Option<&Tensor>,
        aweights: Option<&Tensor>,
    ) -> Result<Tensor> {
        const OP: &str = "cov";
        let x = match self.rank() {
            0 | 1 => self.reshape(&[1, self.numel()])?,
            2 => self.clone(),
            _ => return Err(invalid(OP, "self", "at most two axes", format!("shape {:?}", self.shape()))),
        };
        let n = x.shape()[1];
        let mut weights: Option<Tensor> = None;
        for (arg, w) in [("fweights", fweights), ("aweights", aweights)] {
            let Some(w) = w else { continue };
            same_device(OP, self, w)?;
            if w.shape() != [n] {
                let expected = format!("a vector of {n} weights, one per observation");
                return Err(invalid(OP, arg, expected, format!("shape {:?}", w.shape())));
            }
            let w = w.to_dtype(x.dtype())?;
            weights = Some(match weights {
                Some(before) => before.mul(&w)?,
                None => w,
            });
        }
        let weighted = |t: &Tensor| weights.as_ref().map_or_else(|| Ok(t.clone()), |w| t.mul(w));
        let total = match &weights {
            Some(w) => w.sum()?,
            None => Tensor::full(x.device(), x.dtype(), &[], n as f64)?,
        };
        let norm = match (&weights, aweights) {
            (Some(w), Some(a)) => {
                let lost = w.mul(&a.to_dtype(x.dtype())?)?.sum()?.div(&total)?;
                total.sub(&lost.mul_scalar(correction)?)?
            }
            _ => total.sub_scalar(correction)?,
        };
        let x = x.sub(&weighted(&x)?.sum_axes(&[1], true)?.div(&total)?)?;
        let c = x.matmul(&weighted(&x)?.t()?)?.div(&norm.clamp(Some(0.0), None)?)?;
        if c.numel() == 1 { c.reshape(&[]) } else { Ok(c) }
    }

    /// Pearson's correlation coefficients of variables in rows, in [-1, 1]; 1 for one variable. Source `torch.corrcoef`. Errors: more than two
    /// axes.
    pub fn corrcoef(&self) -> Result<Tensor> {
        let c = self.cov(1.0, None, None)?;
        if c.rank() == 0 {
            return c.div(&c);
        }
        let std = c.diagonal(0, 0, 1)?.sqrt()?;
        c.div(&std.unsqueeze(1)?)?.div(&std.unsqueeze(0)?)?.clamp(Some(-1.0), Some(1.0))
    }
}
