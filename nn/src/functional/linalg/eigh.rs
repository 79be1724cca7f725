//! Eigenvalues of symmetric matrices.

use trefoil::DType;
use trefoil::ops::linalg::Eigh;

use super::{check_info, sides};
use crate::core::autograd::{BackwardCtx, Saved, record_all};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// The symmetric part of V (diag(dw) + V^T dV / (w_j - w_i)) V^T (Giles, "An extended collection of matrix derivative results", 2008).
fn gradient(dw: Option<&Tensor>, dv: Option<&Tensor>, w: &Tensor, v: &Tensor) -> Result<Option<Tensor>> {
    let one = Tensor::eye(v.device(), v.dtype(), v.shape()[v.rank() - 1])?;
    let diagonal = dw.map(|dw| one.mul(&dw.unsqueeze(-2)?)).transpose()?;
    let rest = match dv {
        Some(dv) => {
            // The diagonal is 1 before the reciprocal and 0 after it.
            let gaps = w.unsqueeze(-2)?.sub(&w.unsqueeze(-1)?)?.add(&one)?;
            Some(v.transpose(-2, -1)?.matmul(dv)?.mul(&gaps.recip()?.sub(&one)?)?)
        }
        None => None,
    };
    let inner = match (diagonal, rest) {
        (Some(d), Some(r)) => d.add(&r)?,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Ok(None),
    };
    let g = v.matmul(&inner)?.matmul(&v.transpose(-2, -1)?)?;
    Ok(Some(g.add(&g.transpose(-2, -1)?)?.mul_scalar(0.5)?))
}

impl Tensor {
    /// Eigenvalues `[.., n]`, ascending, and eigenvectors `[.., n, n]`, in columns, of the symmetric matrices `[.., n, n]` of this tensor, f32 or
    /// f64, of which the lower (`upper`: upper) triangle is read; their gradient is symmetric. An eigenvector may have either sign; where
    /// eigenvalues are equal, gradients through eigenvectors are not finite. Waits for the device to learn whether it succeeded;
    /// [`eigh_ex`](Tensor::eigh_ex) does not. Source `torch.linalg.eigh`. Errors: `Invalid`; `Factorization` for a matrix that holds NaN or
    /// infinities, or whose rotations did not converge.
    pub fn eigh(&self, upper: bool) -> Result<(Tensor, Tensor)> {
        let (w, v, info) = self.eigh_ex(upper)?;
        check_info("eigh", &info, "the rotations did not converge, or the matrix is not finite")?;
        Ok((w, v))
    }

    /// As [`eigh`](Tensor::eigh) without waiting: eigenvalues, eigenvectors and, per matrix (i32 `[..]`), 0 or 1 where they did not converge.
    pub fn eigh_ex(&self, upper: bool) -> Result<(Tensor, Tensor, Tensor)> {
        const OP: &str = "eigh";
        let (lead, [rows, _]) = sides(OP, "a", self)?;
        let a = self.contiguous()?;
        let info = Tensor::empty(a.device(), DType::I32, lead)?;
        let (w, v) = (a.like(&[lead, &[rows]].concat())?, a.like(a.shape())?);
        let (ao, wo, vo, io) = (a.operand(), w.operand(), v.operand(), info.operand());
        let operands = Eigh::new(ao.view()?, wo.view_mut()?, io.view_mut()?).v(vo.view_mut()?);
        a.device().eigh(upper, operands)?;
        let plain = [w.clone(), v.clone()];
        let [w, v] = record_all(OP, &[&a], [w, v], || {
            let [w, v] = plain.each_ref().map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (w, v) = (w.output(cx, 0)?, v.output(cx, 1)?);
                match gradient(cx.upstream(0), cx.upstream(1), &w, &v)? {
                    Some(da) => cx.give(0, da),
                    None => Ok(()),
                }
            }
        });
        Ok((w, v, info))
    }

    /// The eigenvalues of [`eigh`](Tensor::eigh). Source `torch.linalg.eigvalsh`.
    pub fn eigvalsh(&self, upper: bool) -> Result<Tensor> {
        Ok(self.eigh(upper)?.0)
    }
}
