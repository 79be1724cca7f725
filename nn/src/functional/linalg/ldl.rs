//! Factors of symmetric matrices that need not be definite.

use trefoil::DType;
use trefoil::ops::linalg::LdlFactor;

use super::sides;
use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// P^T A P = L D L^T of a batch of symmetric matrices, without gradients.
#[derive(Debug, Clone)]
pub struct LdlFactors {
    /// D on the diagonal and, for blocks of two rows, below it; L, whose diagonal is 1, below D; 0 above: `[.., n, n]`.
    pub ld: Tensor,
    /// Exchanges as LAPACK's `sytrf` counts them: i32 `[.., n]`.
    pub pivots: Tensor,
    /// 0, or the number (from 1) of the first column in which nothing was left: i32 `[..]`.
    pub info: Tensor,
}

impl LdlFactors {
    /// X with A X = B for B `[.., n, k]` with the leading axes of A. B receives a gradient, which it has not in PyTorch. Does not wait.
    /// Source `torch.linalg.ldl_solve`. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn solve(&self, b: &Tensor) -> Result<Tensor> {
        let b = b.contiguous()?;
        let x = self.solve_plain(&b)?;
        let factors = self.clone();
        Ok(x.record("ldl_solve", &[&b], || {
            move |cx: &mut BackwardCtx<'_>| {
                // A is symmetric.
                let db = factors.solve(&cx.dy()?)?;
                cx.give(0, db)
            }
        }))
    }

    fn solve_plain(&self, b: &Tensor) -> Result<Tensor> {
        same_device("ldl_solve", &self.ld, b)?;
        let x = b.like(b.shape())?;
        let (ld, pivots) = (self.ld.contiguous()?, self.pivots.contiguous()?);
        let (lo, po, bo, xo) = (ld.operand(), pivots.operand(), b.operand(), x.operand());
        x.device().ldl_solve(lo.view()?, po.view()?, bo.view()?, xo.view_mut()?)?;
        Ok(x)
    }
}

impl Tensor {
    /// Factors of symmetric matrices `[.., n, n]`, f32 or f64, of which the lower triangle is read, with the pivots of Bunch and Kaufman. Does not
    /// wait, and has no gradient, as in PyTorch. Source `torch.linalg.ldl_factor_ex`. Errors: `Invalid` for matrices that are not square.
    pub fn ldl_factor(&self) -> Result<LdlFactors> {
        const OP: &str = "ldl_factor";
        let (lead, [rows, cols]) = sides(OP, "a", self)?;
        if rows != cols {
            return Err(invalid(OP, "a", "square matrices", format!("shape {:?}", self.shape())));
        }
        let a = self.detach().contiguous()?;
        let pivots = Tensor::empty(a.device(), DType::I32, &[lead, &[rows]].concat())?;
        let (ld, info) = (a.like(a.shape())?, Tensor::empty(a.device(), DType::I32, lead)?);
        let (ao, lo, po, io) = (a.operand(), ld.operand(), pivots.operand(), info.operand());
        a.device().ldl_factor(LdlFactor::new(ao.view()?, lo.view_mut()?, po.view_mut()?, io.view_mut()?))?;
        Ok(LdlFactors { ld, pivots, info })
    }
}
