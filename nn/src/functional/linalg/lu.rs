//! LU factors, general systems, inverses and determinants.

use trefoil::DType;
use trefoil::ops::linalg::{LuDet, LuFactor};

use super::{check_info, sides, with_one_batch};
use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// What the entry of a singular matrix is.
const PIVOT: &str = "the pivot of this number is 0: the matrix is singular";

/// P A = L U of a batch of matrices, without gradients.
#[derive(Debug, Clone)]
pub struct LuFactors {
    /// U on and above the diagonal, L below it, whose diagonal is 1: `[.., m, n]`.
    pub lu: Tensor,
    /// Row with which row i was exchanged, from 1: i32 `[.., min(m, n)]`.
    pub pivots: Tensor,
    /// 0, or the number (from 1) of the first pivot that is 0: i32 `[..]`.
    pub info: Tensor,
}

impl LuFactors {
    /// X with A X = B, or with `trans` A^T X = B, for B `[.., n, k]` with the leading axes of A. No gradient. Source `torch.linalg.lu_solve`.
    /// Errors: `Invalid` for factors that are not square, shapes and dtypes that do not fit.
    pub fn solve(&self, b: &Tensor, trans: bool) -> Result<Tensor> {
        same_device("lu_solve", &self.lu, b)?;
        let b = b.detach().contiguous()?;
        let x = b.like(b.shape())?;
        let (lu, pivots, bo, xo) = (self.lu.operand(), self.pivots.operand(), b.operand(), x.operand());
        x.device().lu_solve(trans, lu.view()?, pivots.view()?, bo.view()?, xo.view_mut()?)?;
        Ok(x)
    }
}

/// A factor per matrix `[..]` times matrices `[.., n, n]`.
fn times_each(factor: &Tensor, matrices: &Tensor) -> Result<Tensor> {
    factor.unsqueeze(-1)?.unsqueeze(-1)?.mul(matrices)
}

impl Tensor {
    /// LU factors with partial pivoting of matrices `[.., m, n]`, f32 or f64. Does not wait, and has no gradient:
    /// [`solve`](Tensor::solve), [`inv`](Tensor::inv) and the determinants have theirs. Source `torch.linalg.lu_factor_ex`. Errors: `Invalid`.
    pub fn lu_factor(&self) -> Result<LuFactors> {
        let (lead, [rows, cols]) = sides("lu_factor", "a", self)?;
        let a = self.detach().contiguous()?;
        let pivots = Tensor::empty(a.device(), DType::I32, &[lead, &[rows.min(cols)]].concat())?;
        let (lu, info) = (a.like(a.shape())?, Tensor::empty(a.device(), DType::I32, lead)?);
        let (ao, lo, po, io) = (a.operand(), lu.operand(), pivots.operand(), info.operand());
        a.device().lu_factor(LuFactor::new(ao.view()?, lo.view_mut()?, po.view_mut()?, io.view_mut()?))?;
        Ok(LuFactors { lu, pivots, info })
    }

    /// X with A X = B for the square matrices `[.., n, n]` of this tensor and B `[.., n, k]`; leading axes broadcast; f32 or f64. Waits for the
    /// device to learn whether it succeeded; [`solve_ex`](Tensor::solve_ex) does not. Source `torch.linalg.solve`. Errors: `Invalid` for shapes
    /// and dtypes; `Factorization` with the number of the pivot that is 0.
    pub fn solve(&self, b: &Tensor) -> Result<Tensor> {
        let (x, info) = self.solve_ex(b)?;
        check_info("solve", &info, PIVOT)?;
        Ok(x)
    }

    /// As [`solve`](Tensor::solve) without waiting: the solutions, and per matrix (i32 `[..]`) 0 or the number of the pivot that is 0, with which
    /// the solution has infinities or NaN. Source `torch.linalg.solve_ex`.
    pub fn solve_ex(&self, b: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "solve";
        same_device(OP, self, b)?;
        let (a, b) = with_one_batch(OP, self, b)?;
        let factors = a.lu_factor()?;
        let (x, info) = (factors.solve(&b, false)?, factors.info.clone());
        let plain = x.clone();
        let x = x.record(OP, &[&a, &b], || {
            let (a, x) = (Saved::new(&a), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, a, x) = (cx.dy()?, a.input(cx, 0)?, x.output(cx, 0)?);
                let db = match cx.create_graph() {
                    true => a.transpose(-2, -1)?.solve_ex(&dx)?.0,
                    false => factors.solve(&dx, true)?,
                };
                if cx.needs(0) {
                    let da = db.matmul(&x.transpose(-2, -1)?)?.mul_scalar(-1.0)?;
                    cx.give(0, da)?;
                }
                if cx.needs(1) { cx.give(1, db) } else { Ok(()) }
            }
        });
        Ok((x, info))
    }

    /// Inverses of the square matrices `[.., n, n]` of this tensor, f32 or f64. Waits for the device; [`inv_ex`](Tensor::inv_ex) does not. Source
    /// `torch.linalg.inv`. Errors: as for [`solve`](Tensor::solve).
    #[doc(alias = "inverse")]
    pub fn inv(&self) -> Result<Tensor> {
        let (y, info) = self.inv_ex()?;
        check_info("inv", &info, PIVOT)?;
        Ok(y)
    }

    /// As [`inv`](Tensor::inv) without waiting: the inverses and, per matrix, 0 or the number of the pivot that is 0. Source
    /// `torch.linalg.inv_ex`.
    pub fn inv_ex(&self) -> Result<(Tensor, Tensor)> {
        let (_, [rows, _]) = sides("inv", "a", self)?;
        self.solve_ex(&Tensor::eye(self.device(), self.dtype(), rows)?)
    }

    /// Determinants `[..]` of the square matrices `[.., n, n]` of this tensor, f32 or f64. Does not wait. The gradient is dy det A^-T, NaN for a
    /// singular matrix. Source `torch.linalg.det`. Errors: `Invalid`.
    pub fn det(&self) -> Result<Tensor> {
        const OP: &str = "det";
        let (a, f, lead) = self.factored(OP)?;
        let y = a.like(&lead)?;
        let (lu, pivots, yo) = (f.lu.operand(), f.pivots.operand(), y.operand());
        a.device().lu_det(LuDet::new(lu.view()?, pivots.view()?).det(yo.view_mut()?))?;
        let plain = y.clone();
        Ok(y.record(OP, &[&a], || {
            let (a, y) = (Saved::new(&a), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, a, y) = (cx.dy()?, a.input(cx, 0)?, y.output(cx, 0)?);
                let (inverse, _) = a.transpose(-2, -1)?.inv_ex()?;
                cx.give(0, times_each(&dy.mul(&y)?, &inverse)?)
            }
        }))
    }

    /// Signs (-1, 0 or 1, without a gradient) and logarithms of the magnitudes of the determinants, both `[..]`, of the square matrices
    /// `[.., n, n]` of this tensor, f32 or f64. Does not wait. The gradient of the logarithm is dy A^-T. Source `torch.linalg.slogdet`. Errors:
    /// `Invalid`.
    pub fn slogdet(&self) -> Result<(Tensor, Tensor)> {
        const OP: &str = "slogdet";
        let (a, f, lead) = self.factored(OP)?;
        let (sign, log) = (a.like(&lead)?, a.like(&lead)?);
        let (lu, pivots, so, lo) = (f.lu.operand(), f.pivots.operand(), sign.operand(), log.operand());
        let io = LuDet::new(lu.view()?, pivots.view()?).sign(so.view_mut()?).logabsdet(lo.view_mut()?);
        a.device().lu_det(io)?;
        let log = log.record(OP, &[&a], || {
            let a = Saved::new(&a);
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, a) = (cx.dy()?, a.input(cx, 0)?);
                let (inverse, _) = a.transpose(-2, -1)?.inv_ex()?;
                cx.give(0, times_each(&dy, &inverse)?)
            }
        });
        Ok((sign, log))
    }

    /// Square matrices in row-major order, their factors, and their leading axes.
    fn factored(&self, op: &'static str) -> Result<(Tensor, LuFactors, Vec<usize>)> {
        let (lead, [rows, cols]) = sides(op, "a", self)?;
        if rows != cols {
            return Err(invalid(op, "a", "square matrices", format!("shape {:?}", self.shape())));
        }
        let a = self.contiguous()?;
        let f = a.lu_factor()?;
        Ok((a, f, lead.to_vec()))
    }
}
