//! Dense linear algebra: factorisations, systems, determinants.

mod cholesky;
mod eigh;
mod ldl;
mod lu;
mod matrix_exp;
mod power;
mod qr;
mod spectral;
mod svd;
mod triangular;

use trefoil::DType;

pub use self::ldl::LdlFactors;
pub use self::lu::LuFactors;
pub use self::spectral::MatrixNorm;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Tensor, is_trial};
use crate::functional::elementwise::arithmetic::broadcast;

/// Leading axes and sides of matrices [.., m, n].
fn sides<'a>(op: &'static str, arg: &'static str, t: &'a Tensor) -> Result<(&'a [usize], [usize; 2])> {
    match t.shape().split_last_chunk::<2>() {
        Some((lead, sides)) => Ok((lead, *sides)),
        None => Err(invalid(op, arg, "matrices [.., m, n]", format!("shape {:?}", t.shape()))),
    }
}

/// Two operands in row-major order with their leading axes broadcast.
fn with_one_batch(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let ((la, sa), (lb, sb)) = (sides(op, "a", a)?, sides(op, "b", b)?);
    let lead = broadcast(op, la, lb)?;
    let whole = |t: &Tensor, s: [usize; 2]| t.expand(&[&*lead, &s].concat())?.contiguous();
    Ok((whole(a, sa)?, whole(b, sb)?))
}

/// Refuses the first matrix whose entry in `info` is not 0. Waits for the device.
fn check_info(op: &'static str, info: &Tensor, what: &'static str) -> Result<()> {
    debug_assert_eq!(info.dtype(), DType::I32);
    if is_trial(info.device()) {
        return Ok(());
    }
    match info.to_vec::<i32>()?.into_iter().enumerate().find(|(_, at)| *at != 0) {
        Some((matrix, at)) => Err(NnError::Factorization { op, matrix, what, at: at as usize }),
        None => Ok(()),
    }
}

impl Tensor {
    /// Newton-Schulz iteration towards the nearest matrix with orthonormal rows or columns, of each matrix of `[.., m, n]`, f32 or f64: see
    /// [`LinalgOps::newton_schulz`](trefoil::ops::linalg::LinalgOps::newton_schulz). Muon takes 5 steps. No gradient.
    pub fn newton_schulz(&self, steps: usize) -> Result<Tensor> {
        let x = self.detach().contiguous()?;
        let y = x.like(x.shape())?;
        x.device().newton_schulz(steps, x.operand().view()?, y.operand().view_mut()?)?;
        Ok(y)
    }
}
