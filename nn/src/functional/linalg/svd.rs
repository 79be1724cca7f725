//! Singular values and vectors.

use trefoil::DType;
use trefoil::ops::linalg::Svd;

use super::{check_info, sides};
use crate::core::autograd::{BackwardCtx, Saved, record_all};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// X - X^T over s_j^2 - s_i^2.
fn rotation(x: &Tensor, gaps: &Tensor) -> Result<Tensor> {
    x.sub(&x.transpose(-2, -1)?)?.div(gaps)
}

/// g - P P^T g for the orthonormal columns P: the part of g that they do not span.
fn beyond(g: &Tensor, p: &Tensor) -> Result<Tensor> {
    g.sub(&p.matmul(&p.transpose(-2, -1)?.matmul(g)?)?)
}

/// U (R_U S + S R_V + diag(ds)) V^T, with R the rotations of U^T dU and V^T dV, and what U and V do not span where A is not square (J. Townsend,
/// "Differentiating the singular value decomposition", 2016; `svd_backward` of PyTorch).
fn gradient(upstream: [Option<&Tensor>; 3], [u, s, vh]: [&Tensor; 3]) -> Result<Option<Tensor>> {
    let [du, ds, dvh] = upstream;
    let (across, down) = (s.unsqueeze(-2)?, s.unsqueeze(-1)?);
    let one = Tensor::eye(s.device(), s.dtype(), s.shape()[s.rank() - 1])?;
    // 1 on the diagonal.
    let gaps = || across.sub(&down)?.mul(&across.add(&down)?)?.add(&one);
    let mut inner = match ds {
        Some(ds) => one.mul(&ds.unsqueeze(-2)?)?,
        None if du.is_some() || dvh.is_some() => one.mul_scalar(0.0)?,
        None => return Ok(None),
    };
    let (mut left, mut right) = (None, None);
    if let Some(du) = du {
        inner = inner.add(&rotation(&u.transpose(-2, -1)?.matmul(du)?, &gaps()?)?.mul(&across)?)?;
        left = Some(beyond(&du.div(&across)?, u)?);
    }
    if let Some(dvh) = dvh {
        let (v, dv) = (vh.transpose(-2, -1)?, dvh.transpose(-2, -1)?);
        inner = inner.add(&rotation(&vh.matmul(&dv)?, &gaps()?)?.mul(&down)?)?;
        right = Some(beyond(&dv.div(&across)?, &v)?.transpose(-2, -1)?);
    }
    let mut g = u.matmul(&inner)?.matmul(vh)?;
    // Square factors span everything.
    if let Some(left) = left.filter(|_| u.shape()[u.rank() - 2] > s.shape()[s.rank() - 1]) {
        g = g.add(&left.matmul(vh)?)?;
    }
    if let Some(right) = right.filter(|_| vh.shape()[vh.rank() - 1] > s.shape()[s.rank() - 1]) {
        g = g.add(&u.matmul(&right)?)?;
    }
    Ok(Some(g))
}

impl Tensor {
    /// U `[.., m, k]`, s `[.., k]` and V^T `[.., k, n]`, k = min(m, n), with A = U diag(s) V^T for each matrix `[.., m, n]` of this tensor, f32 or
    /// f64: U and V have orthonormal columns, s descends. A pair of vectors may have either sign; gradients through vectors are not finite where
    /// singular values are equal, or where one is 0 and the matrix is not square. Waits for the device to learn whether it succeeded;
    /// [`svd_ex`](Tensor::svd_ex) does not. Source `torch.linalg.svd(full_matrices=False)`. Errors: `Invalid`; `Factorization` for a matrix that
    /// holds NaN or infinities.
    pub fn svd(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let (u, s, vh, info) = self.svd_ex()?;
        check_info("svd", &info, "the rotations did not converge, or the matrix is not finite")?;
        Ok((u, s, vh))
    }

    /// As [`svd`](Tensor::svd) without waiting: U, s, V^T and, per matrix (i32 `[..]`), 0 or 1 where they did not converge. The factors of a
    /// matrix that is not finite are NaN.
    pub fn svd_ex(&self) -> Result<(Tensor, Tensor, Tensor, Tensor)> {
        const OP: &str = "svd";
        let (lead, [rows, cols]) = sides(OP, "a", self)?;
        let (a, k) = (self.contiguous()?, rows.min(cols));
        let info = Tensor::empty(a.device(), DType::I32, lead)?;
        let part = |sides: &[usize]| a.like(&[lead, sides].concat());
        let (u, s, vh) = (part(&[rows, k])?, part(&[k])?, part(&[k, cols])?);
        let (ao, uo, so, vo, io) = (a.operand(), u.operand(), s.operand(), vh.operand(), info.operand());
        let operands = Svd::new(ao.view()?, so.view_mut()?, io.view_mut()?);
        a.device().svd(operands.u(uo.view_mut()?).vh(vo.view_mut()?))?;
        let plain = [u.clone(), s.clone(), vh.clone()];
        let [u, s, vh] = record_all(OP, &[&a], [u, s, vh], || {
            let saved = plain.each_ref().map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let [u, s, vh] = &saved;
                let (u, s, vh) = (u.output(cx, 0)?, s.output(cx, 1)?, vh.output(cx, 2)?);
                let upstream = [cx.upstream(0), cx.upstream(1), cx.upstream(2)];
                match gradient(upstream, [&u, &s, &vh])? {
                    Some(da) => cx.give(0, da),
                    None => Ok(()),
                }
            }
        });
        Ok((u, s, vh, info))
    }

    /// The singular values `[.., k]` of [`svd`](Tensor::svd), without vectors where no gradient is asked for. Source `torch.linalg.svdvals`.
    pub fn svdvals(&self) -> Result<Tensor> {
        let (s, info) = self.svdvals_ex()?;
        check_info("svdvals", &info, "the rotations did not converge, or the matrix is not finite")?;
        Ok(s)
    }

    /// As [`svdvals`](Tensor::svdvals) without waiting: the values and, per matrix (i32 `[..]`), 0 or 1 where they did not converge.
    pub fn svdvals_ex(&self) -> Result<(Tensor, Tensor)> {
        if self.requires_grad() {
            let (_, s, _, info) = self.svd_ex()?;
            return Ok((s, info));
        }
        let (lead, [rows, cols]) = sides("svd", "a", self)?;
        let a = self.contiguous()?;
        let s = a.like(&[lead, &[rows.min(cols)]].concat())?;
        let info = Tensor::empty(a.device(), DType::I32, lead)?;
        let (ao, so, io) = (a.operand(), s.operand(), info.operand());
        a.device().svd(Svd::new(ao.view()?, so.view_mut()?, io.view_mut()?))?;
        Ok((s, info))
    }
}
