//! The matrix exponential.

use trefoil::ops::elementwise::Unary;

use super::sides;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// Coefficients of the numerator of the [13/13] Padé approximant of e^x; those of odd powers change sign in the denominator.
const PADE: [f64; 14] = [
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
];

/// Norm up to which the approximant has the accuracy of f64.
const THETA: f64 = 5.371920351148152;
/// Most squarings of a result.
const SQUARINGS: usize = 16;

impl Tensor {
    /// Matrix exponentials of the square matrices `[.., n, n]` of this tensor, f32 or f64: the [13/13] Padé approximant of A / 2^s, squared s
    /// times, with s at most 16 for each matrix by its 1-norm (N. Higham, "The scaling and squaring method for the matrix exponential
    /// revisited", 2005). Always 16 squarings are computed, so that nothing waits for the device; norms above 350 000 lose digits. The gradient
    /// is that of these operations. Source `torch.linalg.matrix_exp`. Errors: `Invalid` for matrices that are not square, and dtypes.
    pub fn matrix_exp(&self) -> Result<Tensor> {
        const OP: &str = "matrix_exp";
        let (_, [rows, cols]) = sides(OP, "a", self)?;
        if rows != cols {
            return Err(invalid(OP, "a", "square matrices", format!("shape {:?}", self.shape())));
        }
        if self.numel() == 0 {
            return self.copy();
        }
        let norm = self.detach().unary(Unary::Abs)?.sum_axes(&[-2], true)?.amax(&[-1], true)?;
        let squarings = norm.mul_scalar(1.0 / THETA)?.unary(Unary::Log2)?.unary(Unary::Ceil)?;
        let squarings = squarings.unary(Unary::Clamp { lo: Some(0.0), hi: Some(SQUARINGS as f64) })?;
        let a = self.mul(&squarings.mul_scalar(-1.0)?.unary(Unary::Exp2)?)?;
        let mut y = a.pade()?;
        for i in 0..SQUARINGS {
            y = y.matmul(&y)?.where_(&squarings.gt_scalar(i as f64)?, &y)?;
        }
        Ok(y)
    }

    /// The approximant for matrices of small norm.
    fn pade(&self) -> Result<Tensor> {
        let one = Tensor::eye(self.device(), self.dtype(), self.shape()[self.rank() - 1])?;
        let a2 = self.matmul(self)?;
        let a4 = a2.matmul(&a2)?;
        let a6 = a4.matmul(&a2)?;
        let b = |i: usize| PADE[i] / PADE[0];
        let sum = |first: usize| {
            a6.mul_scalar(b(first + 4))?.add_scaled(&a4, b(first + 2))?.add_scaled(&a2, b(first))
        };
        let odd = a6.matmul(&sum(9)?)?.add(&sum(3)?)?.add(&one.mul_scalar(b(1))?)?;
        let even = a6.matmul(&sum(8)?)?.add(&sum(2)?)?.add(&one)?;
        let odd = self.matmul(&odd)?;
        Ok(even.sub(&odd)?.solve_ex(&even.add(&odd)?)?.0)
    }
}
