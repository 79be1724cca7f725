//! What singular values tell of matrices: norms, condition, rank, pseudoinverses.

use super::sides;
use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// Norms of matrices; `ord` of `torch.linalg.matrix_norm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MatrixNorm {
    /// The root of the sum of squares; "fro".
    #[default]
    Frobenius,
    /// The sum of the singular values; "nuc".
    Nuclear,
    /// The largest singular value; 2.
    Spectral,
    /// The least singular value; -2.
    LeastSingular,
    /// The largest sum of magnitudes of a column; 1.
    One,
    /// The least sum of magnitudes of a column; -1.
    LeastColumn,
    /// The largest sum of magnitudes of a row; inf.
    Infinity,
    /// The least sum of magnitudes of a row; -inf.
    LeastRow,
}

/// Singular values above this count: the larger of `atol` and `rtol` times the largest. Unless one of them is given, `rtol` is the larger side times
/// the dtype's epsilon.
fn threshold(a: &Tensor, s: &Tensor, atol: Option<f64>, rtol: Option<f64>) -> Result<Tensor> {
    let (_, [rows, cols]) = sides("svd", "a", a)?;
    let epsilon = if a.dtype() == trefoil::DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let default = if atol.is_some_and(|t| t > 0.0) { 0.0 } else { rows.max(cols) as f64 * epsilon };
    let relative = s.amax(&[-1], true)?.mul_scalar(rtol.unwrap_or(default))?;
    relative.clamp(Some(atol.unwrap_or(0.0)), None)
}

/// Matrices with a singular value.
fn not_empty(op: &'static str, a: &Tensor) -> Result<[usize; 2]> {
    let (_, sides) = sides(op, "a", a)?;
    if sides.contains(&0) {
        return Err(invalid(op, "a", "matrices with elements", format!("shape {:?}", a.shape())));
    }
    Ok(sides)
}

impl Tensor {
    /// Norms `[..]` (with `keep` `[.., 1, 1]`) of the matrices `[.., m, n]` of this tensor; those of singular values in f32 or f64. Does not wait;
    /// NaN where a matrix is not finite. Source `torch.linalg.matrix_norm`. Errors: `Invalid` for matrices without elements, dtypes.
    pub fn matrix_norm(&self, ord: MatrixNorm, keep: bool) -> Result<Tensor> {
        not_empty("matrix_norm", self)?;
        let sums = |over: isize| self.abs()?.sum_axes(&[over], true);
        let values = || self.svdvals_ex()?.0.unsqueeze(-1);
        let y = match ord {
            MatrixNorm::Frobenius => self.norm_axes(2.0, &[-2, -1], true)?,
            MatrixNorm::Nuclear => values()?.sum_axes(&[-2], true)?,
            MatrixNorm::Spectral => values()?.amax(&[-2], true)?,
            MatrixNorm::LeastSingular => values()?.amin(&[-2], true)?,
            MatrixNorm::One => sums(-2)?.amax(&[-1], true)?,
            MatrixNorm::LeastColumn => sums(-2)?.amin(&[-1], true)?,
            MatrixNorm::Infinity => sums(-1)?.amax(&[-2], true)?,
            MatrixNorm::LeastRow => sums(-1)?.amin(&[-2], true)?,
        };
        if keep { Ok(y) } else { y.squeeze(-1)?.squeeze(-1) }
    }

    /// Condition numbers `[..]` of the matrices `[.., m, n]` of this tensor, f32 or f64: of [`Spectral`](MatrixNorm::Spectral) norms the largest
    /// singular value over the least, of [`LeastSingular`](MatrixNorm::LeastSingular) its reciprocal; of other norms that of a square matrix times
    /// that of its inverse, infinite where it is singular. Does not wait. Source `torch.linalg.cond`. Errors: `Invalid` for matrices without
    /// elements, for those that are not square where inverses are needed, and for dtypes.
    pub fn cond(&self, ord: MatrixNorm) -> Result<Tensor> {
        not_empty("cond", self)?;
        if let MatrixNorm::Spectral | MatrixNorm::LeastSingular = ord {
            let (s, _) = self.svdvals_ex()?;
            let (most, least) = (s.select(-1, 0)?, s.select(-1, -1)?);
            return if ord == MatrixNorm::Spectral { most.div(&least) } else { least.div(&most) };
        }
        let (inverse, info) = self.inv_ex()?;
        let y = self.matrix_norm(ord, false)?.mul(&inverse.matrix_norm(ord, false)?)?;
        y.where_(&info.eq_scalar(0.0)?, &Tensor::full(y.device(), y.dtype(), &[], f64::INFINITY)?)
    }

    /// Number of singular values, i64 `[..]`, of each matrix `[.., m, n]` of this tensor, f32 or f64, that are above `atol` and above `rtol` times
    /// the largest; with neither, `rtol` is the larger side times the dtype's epsilon. Does not wait; 0 for a matrix that is not finite. Source
    /// `torch.linalg.matrix_rank`. Errors: `Invalid` for matrices without elements, dtypes.
    pub fn matrix_rank(&self, atol: Option<f64>, rtol: Option<f64>) -> Result<Tensor> {
        not_empty("matrix_rank", self)?;
        let (s, _) = self.detach().svdvals_ex()?;
        s.gt(&threshold(self, &s, atol, rtol)?)?.sum_axes(&[-1], false)
    }

    /// Moore-Penrose inverses `[.., n, m]` of the matrices `[.., m, n]` of this tensor, f32 or f64: V diag(1 / s) U^T over the singular values that
    /// [`matrix_rank`](Tensor::matrix_rank) counts. `a.pinv(None, None)?.matmul(&b)` is the shortest of the solutions of least squares, whatever
    /// the rank. Does not wait; NaN for a matrix that is not finite. The gradient is that at constant rank (G. Golub, V. Pereyra, "The
    /// differentiation of pseudo-inverses and nonlinear least squares problems whose variables separate", 1973). Source `torch.linalg.pinv`.
    /// Errors: `Invalid` for matrices without elements, dtypes.
    pub fn pinv(&self, atol: Option<f64>, rtol: Option<f64>) -> Result<Tensor> {
        const OP: &str = "pinv";
        not_empty(OP, self)?;
        let (u, s, vh, _) = self.detach().svd_ex()?;
        let none = s.le(&threshold(self, &s, atol, rtol)?)?;
        let inverse = s.mul_scalar(0.0)?.where_(&none, &s.recip()?)?;
        let y = vh.transpose(-2, -1)?.mul(&inverse.unsqueeze(-2)?)?.matmul(&u.transpose(-2, -1)?)?;
        let plain = y.clone();
        Ok(y.record(OP, &[self], || {
            let (a, y) = (Saved::new(self), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, a, y) = (cx.dy()?, a.input(cx, 0)?, y.output(cx, 0)?);
                cx.give(0, pinv_gradient(&dy, &a, &y)?)
            }
        }))
    }
}

/// -(P dP^T P)^T + (1 - A P) dP^T P P^T + P^T P dP^T (1 - P A).
fn pinv_gradient(dp: &Tensor, a: &Tensor, p: &Tensor) -> Result<Tensor> {
    let (pt, g) = (p.transpose(-2, -1)?, dp.transpose(-2, -1)?);
    let (gp, pg) = (g.matmul(p)?, p.matmul(&g)?);
    // dP^T P P^T and P^T P dP^T.
    let (left, right) = (gp.matmul(&pt)?, pt.matmul(&pg)?);
    let left = left.sub(&a.matmul(&p.matmul(&left)?)?)?;
    let right = right.sub(&right.matmul(p)?.matmul(a)?)?;
    left.add(&right)?.sub(&pg.matmul(p)?.transpose(-2, -1)?)
}
