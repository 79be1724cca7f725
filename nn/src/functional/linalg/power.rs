//! Powers of matrices.

use super::sides;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

impl Tensor {
    /// Powers of the square matrices `[.., n, n]` of this tensor with an integer exponent, by squaring; negative ones of their inverses, for
    /// which the host waits as [`inv`](Tensor::inv) does. Source `torch.linalg.matrix_power`. Errors: matrices that are not square, those of
    /// `inv`.
    pub fn matrix_power(&self, n: i64) -> Result<Tensor> {
        const OP: &str = "matrix_power";
        let (_, [rows, cols]) = sides(OP, "a", self)?;
        if rows != cols {
            return Err(invalid(OP, "a", "square matrices", format!("shape {:?}", self.shape())));
        }
        if n == 0 {
            return Tensor::eye(self.device(), self.dtype(), rows)?.expand(self.shape())?.copy();
        }
        let mut square = if n < 0 { self.inv()? } else { self.clone() };
        let (mut left, mut y) = (n.unsigned_abs(), None::<Tensor>);
        loop {
            if left & 1 == 1 {
                y = Some(match y {
                    Some(y) => y.matmul(&square)?,
                    None => square.clone(),
                });
            }
            left >>= 1;
            match (left, y) {
                (0, Some(y)) => return Ok(y),
                (_, rest) => y = rest,
            }
            square = square.matmul(&square)?;
        }
    }
}
