//! Systems with Cholesky factors.

use trefoil::ops::linalg::Triangular;

use super::sides;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

impl Tensor {
    /// X with A X = B for these right sides B `[.., n, k]` and the [Cholesky factors](Tensor::cholesky) `[.., n, n]` of A; leading axes
    /// broadcast; f32 or f64. Source `torch.cholesky_solve`. Errors: those of [`solve_triangular`](Tensor::solve_triangular).
    pub fn cholesky_solve(&self, factor: &Tensor, upper: bool) -> Result<Tensor> {
        let mut p = if upper { Triangular::upper() } else { Triangular::lower() };
        p.trans = upper;
        let half = factor.solve_triangular(self, p)?;
        p.trans = !upper;
        factor.solve_triangular(&half, p)
    }

    /// The inverses of the matrices of which these `[.., n, n]` are the [Cholesky factors](Tensor::cholesky). Source `torch.cholesky_inverse`.
    /// Errors: factors that are not square, dtypes other than f32 and f64.
    pub fn cholesky_inverse(&self, upper: bool) -> Result<Tensor> {
        const OP: &str = "cholesky_inverse";
        let (_, [rows, cols]) = sides(OP, "self", self)?;
        if rows != cols {
            return Err(invalid(OP, "self", "square matrices", format!("shape {:?}", self.shape())));
        }
        Tensor::eye(self.device(), self.dtype(), rows)?.cholesky_solve(self, upper)
    }
}
