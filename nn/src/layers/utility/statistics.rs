//! Means and logarithms of variances along axes.

use trefoil::ops::reduce::Reduce;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axes};
use crate::module::Layer;

/// The axes that are reduced have elements and are distinct.
fn check(op: &'static str, x: &Tensor, dims: &[isize]) -> Result<()> {
    let mut at = axes(op, dims, x.rank())?;
    let n = at.len();
    at.sort_unstable();
    at.dedup();
    if at.len() != n {
        return Err(invalid(op, "dim", "distinct axes", format!("{dims:?}")));
    }
    if at.iter().any(|&a| x.shape()[a] == 0) {
        return Err(invalid(op, "x", "axes with at least one element", format!("shape {:?}", x.shape())));
    }
    Ok(())
}

/// Mean along axes, `torch.mean`.
#[derive(Debug, Clone)]
pub struct Mean {
    dims: Vec<isize>,
    keep: bool,
}

impl Mean {
    /// Along these axes, negative from the end, which disappear.
    pub fn new(dims: &[isize]) -> Self {
        Mean { dims: dims.to_vec(), keep: false }
    }

    /// The axes stay with size 1.
    pub fn keepdim(mut self) -> Self {
        self.keep = true;
        self
    }
}

impl Layer for Mean {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check("Mean", x, &self.dims)?;
        x.mean_axes(&self.dims, self.keep)
    }
}

/// ln(variance + eps) along axes, of the variance divided by the count, found in two passes.
#[derive(Debug, Clone)]
pub struct LogVariance {
    dims: Vec<isize>,
    keep: bool,
    eps: f64,
}

impl LogVariance {
    /// Along these axes, negative from the end, which disappear; eps 1e-8.
    pub fn new(dims: &[isize]) -> Self {
        LogVariance { dims: dims.to_vec(), keep: false, eps: 1e-8 }
    }

    /// The axes stay with size 1.
    pub fn keepdim(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        if !(eps > 0.0 && eps.is_finite()) {
            return Err(invalid("LogVariance", "eps", "a finite number above 0", format!("{eps}")));
        }
        self.eps = eps;
        Ok(self)
    }
}

impl Layer for LogVariance {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check("LogVariance", x, &self.dims)?;
        x.reduce(Reduce::LogVar { correction: 0.0, eps: self.eps }, &self.dims, self.keep)
    }
}
