//! Small dense systems, as operations on tensors.

use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// X of A X = B for a symmetric positive definite A `[n, n]` and B `[n, k]`, by Gauss-Jordan elimination without exchanges (which such
/// matrices do not need), three launches per row and nothing for the host. A that is not positive definite gives NaN.
pub(crate) fn solve_positive_definite(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let n = a.shape()[0];
    let mut m = Tensor::concat(1, &[a, b])?;
    let others = Tensor::eye(a.device(), a.dtype(), n)?.rsub_scalar(1.0)?;
    for j in 0..n {
        let column = m.narrow(1, j, 1)?;
        let pivot = m.select(0, j)?.select(0, j)?;
        let factors = column.div(&pivot)?.mul(&others.narrow(1, j, 1)?)?;
        m = m.addcmul(&factors, &m.narrow(0, j, 1)?, -1.0)?;
    }
    // A negative pivot has no root.
    let pivots = m.narrow(1, 0, n)?.diagonal(0, 0, 1)?.sqrt()?.square()?;
    m.narrow(1, n, b.shape()[1])?.div(&pivots.unsqueeze(1)?)
}
