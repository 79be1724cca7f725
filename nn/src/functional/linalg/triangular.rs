//! Cholesky factors and triangular systems.

use trefoil::DType;
use trefoil::ops::linalg::{Triangular, TriangularSolveBwd};

use super::{check_info, sides, with_one_batch};
use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_device};

/// What the entry of a failed Cholesky factorisation is.
const MINOR: &str = "the leading minor of this size is not positive definite";

/// The gradient of A from those of L, in operations that can be differentiated.
fn cholesky_gradient(upper: bool, dl: &Tensor, l: &Tensor) -> Result<Tensor> {
    let turn = |t: &Tensor| if upper { t.transpose(-2, -1) } else { Ok(t.clone()) };
    let (dl, l) = (turn(dl)?.contiguous()?.tril(0)?, turn(l)?);
    let p = l.transpose(-2, -1)?.matmul(&dl)?;
    // The lower triangle with half its diagonal.
    let p = p.tril(0)?.add(&p.tril(-1)?)?.mul_scalar(0.5)?;
    let s = l.solve_triangular(&p, Triangular::lower().trans(true))?;
    let s = l.solve_triangular(&s, Triangular::lower().left(false))?;
    s.add(&s.transpose(-2, -1)?)?.mul_scalar(0.5)
}

impl Tensor {
    /// L with L L^T equal to each symmetric positive definite matrix of `[.., n, n]` (f32 or f64), or with `upper` U with U^T U. Of the matrices the
    /// lower (upper) triangle is read; their gradient is symmetric. Waits for the device to learn whether it succeeded;
    /// [`cholesky_ex`](Tensor::cholesky_ex) does not. Source `torch.linalg.cholesky`. Errors: `Invalid` for shapes and dtypes;
    /// `Factorization` with the size of the first leading minor that is not positive definite.
    pub fn cholesky(&self, upper: bool) -> Result<Tensor> {
        let (l, info) = self.cholesky_ex(upper)?;
        check_info("cholesky", &info, MINOR)?;
        Ok(l)
    }

    /// As [`cholesky`](Tensor::cholesky) without waiting: the factors, and per matrix (i32 `[..]`) 0 or the size of the minor that failed; such
    /// a matrix has NaN for its factor. Source `torch.linalg.cholesky_ex`.
    pub fn cholesky_ex(&self, upper: bool) -> Result<(Tensor, Tensor)> {
        const OP: &str = "cholesky";
        let (lead, _) = sides(OP, "a", self)?;
        let info = Tensor::empty(self.device(), DType::I32, lead)?;
        let a = self.contiguous()?;
        let l = a.like(a.shape())?;
        let (ao, lo, io) = (a.operand(), l.operand(), info.operand());
        a.device().cholesky(upper, ao.view()?, lo.view_mut()?, io.view_mut()?)?;
        let plain = l.clone();
        let l = l.record(OP, &[&a], || {
            let l = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dl, l) = (cx.dy()?, l.output(cx, 0)?);
                    return cx.give(0, cholesky_gradient(upper, &dl, &l)?);
                }
                let Some(da) = cx.target(0)? else { return Ok(()) };
                let (dl, l) = (cx.dy()?.contiguous()?, l.get(cx)?.operand());
                Ok(dl.device().cholesky_bwd(upper, dl.operand().view()?, l.view()?, da.out()?)?)
            }
        });
        Ok((l, info))
    }

    /// X with op(A) X = B, or X op(A) = B, for the triangular matrices `[.., n, n]` of this tensor and B `[.., n, k]` or `[.., k, n]`; leading
    /// axes broadcast; f32 or f64. Only the named triangle is read. Does not wait; a zero on the diagonal gives infinities and NaN. Source
    /// `torch.linalg.solve_triangular`. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn solve_triangular(&self, b: &Tensor, p: Triangular) -> Result<Tensor> {
        const OP: &str = "triangular_solve";
        same_device(OP, self, b)?;
        let (a, b) = with_one_batch(OP, self, b)?;
        let x = b.like(b.shape())?;
        let (ao, bo, xo) = (a.operand(), b.operand(), x.operand());
        x.device().triangular_solve(p, ao.view()?, bo.view()?, xo.view_mut()?)?;
        let plain = x.clone();
        Ok(x.record(OP, &[&a, &b], || {
            let (a, x) = (Saved::new(&a), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dx, a, x) = (cx.dy()?, a.input(cx, 0)?, x.output(cx, 0)?);
                    let db = a.solve_triangular(&dx, p.trans(!p.trans))?;
                    if cx.needs(0) {
                        cx.give(0, triangle_gradient(p, &db, &x)?)?;
                    }
                    return if cx.needs(1) { cx.give(1, db) } else { Ok(()) };
                }
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let dx = cx.dy()?.contiguous()?;
                let (a, x, dxo) = (a.get(cx)?.operand(), x.get(cx)?.operand(), dx.operand());
                let mut io = TriangularSolveBwd::new(dxo.view()?, a.view()?, x.view()?);
                (io.da, io.db) = (out(&da)?, out(&db)?);
                Ok(dx.device().triangular_solve_bwd(p, io)?)
            }
        }))
    }
}

/// The gradient of a triangle from that of the right sides, in operations that can be differentiated.
fn triangle_gradient(p: Triangular, db: &Tensor, x: &Tensor) -> Result<Tensor> {
    let xt = x.transpose(-2, -1)?;
    let g = if p.left { db.matmul(&xt)? } else { xt.matmul(db)? };
    let g = if p.trans { g.transpose(-2, -1)?.contiguous()? } else { g }.mul_scalar(-1.0)?;
    let off = isize::from(p.unit);
    if p.upper { g.triu(off) } else { g.tril(-off) }
}
