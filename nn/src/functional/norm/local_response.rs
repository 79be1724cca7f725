//! Normalization over neighbouring channels.

use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

impl Tensor {
    /// x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta for `[N, C, ..]`; channels beyond the ends count as 0 (Krizhevsky et
    /// al., 2012). Source `torch.nn.functional.local_response_norm` (alpha 1e-4, beta 0.75, k 1). Errors: fewer than three axes, a size of 0.
    pub fn local_response_norm(&self, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
        const OP: &str = "local_response_norm";
        if self.rank() < 3 {
            return Err(invalid(OP, "self", "shape [N, C, ..]", format!("{:?}", self.shape())));
        }
        if size == 0 {
            return Err(invalid(OP, "size", "at least 1", "0"));
        }
        let mut pads = vec![(0, 0); self.rank()];
        pads[1] = ((size / 2) as isize, ((size - 1) / 2) as isize);
        let squares = self.square()?.pad(PadMode::Constant(0.0), &pads)?;
        let mean = squares.unfold(1, size, 1)?.mean_axes(&[-1], false)?;
        self.div(&mean.mul_scalar(alpha)?.add_scalar(k)?.pow_scalar(beta)?)
    }
}
