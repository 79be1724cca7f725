//! A step of heat flow by the implicit Euler method.

use trefoil::DType;
use trefoil::ops::activation::Activation;

use crate::core::autograd::{BackwardCtx, CustomOp};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::functional::Graph;

/// Solves (M + tau L) y = b for y, M the diagonal of the masses and L a symmetric positive semidefinite matrix, by conjugate gradients with
/// the diagonal as preconditioner: inputs b `[V, S, B, C]` and tau of a shape that broadcasts with it, `[S, 1, 1]` or `[S, 1, C]`. Each column
/// is a system of its own and rests as soon as its residual is at the precision of the dtype, so that nothing is read on the host.
pub(super) struct ImplicitStep {
    pub(super) graph: Graph,
    pub(super) weight: Tensor,
    /// Diagonals of L and M, `[V, 1, 1, 1]`.
    pub(super) diagonal: Tensor,
    pub(super) mass: Tensor,
    pub(super) iterations: usize,
}

impl ImplicitStep {
    /// L x.
    fn laplacian(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.flatten(1, -1)?;
        self.graph.spmm(&rows, Some(&self.weight), None, Activation::Identity)?.reshape(x.shape())
    }

    fn solve(&self, b: &Tensor, tau: &Tensor) -> Result<Tensor> {
        let dot = |a: &Tensor, b: &Tensor| a.mul(b)?.sum_axes(&[0], true);
        let inverse = tau.mul(&self.diagonal)?.add(&self.mass)?.recip()?;
        // Squares of small columns would be 0.
        let largest = b.abs()?.amax(&[0], true)?;
        let scale = largest.masked_fill(&largest.eq_scalar(0.0)?, 1.0)?;
        let b = b.div(&scale)?;
        let mut y = b.zeros_like()?;
        let (mut r, mut p) = (b.clone(), b.mul(&inverse)?);
        let mut rz = dot(&r, &p)?;
        let precision: f64 = if b.dtype() == DType::F64 { 1e-16 } else { 1e-7 };
        let rest = rz.mul_scalar(precision * precision)?;
        for _ in 0..self.iterations {
            let done = rz.le(&rest)?;
            let ap = self.mass.mul(&p)?.add(&tau.mul(&self.laplacian(&p)?)?)?;
            let alpha = rz.div(&dot(&p, &ap)?)?.masked_fill(&done, 0.0)?;
            y = alpha.mul_add(&p, &y)?;
            r = r.sub(&alpha.mul(&ap)?)?;
            let z = r.mul(&inverse)?;
            let next = dot(&r, &z)?;
            let beta = next.div(&rz)?.masked_fill(&done, 0.0)?;
            p = beta.mul_add(&p, &z)?;
            rz = next;
        }
        y.mul(&scale)
    }
}

impl CustomOp for ImplicitStep {
    fn name(&self) -> &'static str {
        "implicit_step"
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (b, tau) = (&inputs[0], &inputs[1]);
        let y = self.solve(b, tau)?;
        save.extend([tau.clone(), y.clone()]);
        Ok(vec![y])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let (tau, y) = (&saved[0], &saved[1]);
        // The matrix is its own transpose.
        let z = self.solve(&cx.dy()?.contiguous()?, tau)?;
        if cx.needs(1) {
            let dtau = z.mul(&self.laplacian(y)?)?.neg()?.sum_to_shape(tau.shape())?;
            cx.give(1, dtau)?;
        }
        cx.give(0, z)
    }
}
