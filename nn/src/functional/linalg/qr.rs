//! QR factors and least squares.

use trefoil::ops::linalg::{Qr, Triangular};

use super::{sides, with_one_batch};
use crate::core::autograd::{BackwardCtx, Saved, record_all};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_device};

/// dA = (dQ + Q M) R^-T, with M the symmetric matrix that has the lower triangle of R dR^T - dQ^T Q (Walter and Lehmann, "Algorithmic
/// differentiation of linear algebra functions", 2010).
fn gradient(dq: Option<&Tensor>, dr: Option<&Tensor>, q: &Tensor, r: &Tensor) -> Result<Option<Tensor>> {
    let from_r = dr.map(|dr| r.matmul(&dr.transpose(-2, -1)?)).transpose()?;
    let from_q = dq.map(|dq| dq.transpose(-2, -1)?.matmul(q)).transpose()?;
    let m = match (from_r, from_q) {
        (Some(r), Some(q)) => r.sub(&q)?,
        (Some(r), None) => r,
        (None, Some(q)) => q.mul_scalar(-1.0)?,
        (None, None) => return Ok(None),
    };
    let m = m.tril(0)?.add(&m.tril(-1)?.transpose(-2, -1)?)?;
    let w = q.matmul(&m)?;
    let w = dq.map_or(Ok(w.clone()), |dq| w.add(dq))?;
    Ok(Some(r.solve_triangular(&w, Triangular::upper().trans(true).left(false))?))
}

impl Tensor {
    /// Q `[.., m, k]` with orthonormal columns and upper triangular R `[.., k, n]`, k = min(m, n), with Q R equal to each matrix `[.., m, n]` of this
    /// tensor, f32 or f64; an element of R's diagonal may have either sign. Does not wait. The gradients exist where the first k columns are
    /// linearly independent, and are not finite elsewhere. Source `torch.linalg.qr`. Errors: `Invalid`.
    pub fn qr(&self) -> Result<(Tensor, Tensor)> {
        const OP: &str = "qr";
        let (lead, [rows, cols]) = sides(OP, "a", self)?;
        if rows < cols && rows > 0 {
            // The factors of the first columns; the others are turned.
            let (q, r) = self.narrow(-1, 0, rows)?.qr()?;
            let rest = q.transpose(-2, -1)?.matmul(&self.narrow(-1, rows, cols - rows)?)?;
            return Ok((q, Tensor::concat(-1, &[&r, &rest])?));
        }
        let a = self.contiguous()?;
        let k = rows.min(cols);
        let (q, r) = (a.like(&[lead, &[rows, k]].concat())?, a.like(&[lead, &[k, cols]].concat())?);
        let (ao, qo, ro) = (a.operand(), q.operand(), r.operand());
        a.device().qr(Qr::new(ao.view()?, ro.view_mut()?).q(qo.view_mut()?))?;
        let plain = [q.clone(), r.clone()];
        let [q, r] = record_all(OP, &[&a], [q, r], || {
            let [q, r] = plain.each_ref().map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (q, r) = (q.output(cx, 0)?, r.output(cx, 1)?);
                match gradient(cx.upstream(0), cx.upstream(1), &q, &r)? {
                    Some(da) => cx.give(0, da),
                    None => Ok(()),
                }
            }
        });
        Ok((q, r))
    }

    /// X `[.., n, k]` for which |A X - B| is least, of those the shortest, for matrices `[.., m, n]` of this tensor whose rank is min(m, n), and B
    /// `[.., m, k]`; leading axes broadcast; f32 or f64. By QR factors, like LAPACK's gels; does not wait; infinities and NaN where the rank is
    /// less. Source `torch.linalg.lstsq(driver="gels")`. Errors: `Invalid`.
    pub fn lstsq(&self, b: &Tensor) -> Result<Tensor> {
        const OP: &str = "lstsq";
        same_device(OP, self, b)?;
        let (a, b) = with_one_batch(OP, self, b)?;
        let (_, [rows, cols]) = sides(OP, "a", &a)?;
        if rows >= cols {
            let (q, r) = a.qr()?;
            return r.solve_triangular(&q.transpose(-2, -1)?.matmul(&b)?, Triangular::upper());
        }
        // A = R^T Q^T.
        let (q, r) = a.transpose(-2, -1)?.qr()?;
        q.matmul(&r.solve_triangular(&b, Triangular::upper().trans(true))?)
    }
}
