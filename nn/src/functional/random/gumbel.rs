//! Draws from categories that can be differentiated.

use trefoil::ops::random::Rng;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis};

impl Tensor {
    /// Softmax along an axis of (x + Gumbel noise) / tau, x being logits (Jang et al., 2017): a sample from the categories that becomes one-hot
    /// as tau goes to 0. With `hard` the value is one-hot and the gradient that of the soft sample. Source
    /// `torch.nn.functional.gumbel_softmax`. Errors: tau not above 0.
    pub fn gumbel_softmax(&self, tau: f64, hard: bool, along: isize, rng: Rng<'_>) -> Result<Tensor> {
        const OP: &str = "gumbel_softmax";
        axis(OP, along, self.rank())?;
        if tau.is_nan() || tau <= 0.0 {
            return Err(invalid(OP, "tau", "a number above 0", format!("{tau}")));
        }
        // Uniform in (0, 1]; the smallest exponential draw keeps the noise finite.
        let uniform = self.rand_like(rng)?.rsub_scalar(1.0)?;
        let exponential = uniform.ln()?.neg()?.clamp(Some(1e-7), None)?;
        let soft = self.sub(&exponential.ln()?)?.mul_scalar(1.0 / tau)?.softmax(along)?;
        if !hard {
            return Ok(soft);
        }
        let plain = soft.detach();
        let index = plain.argmax(along)?.unsqueeze(along)?;
        let one = Tensor::ones(self.device(), self.dtype(), index.shape())?;
        plain.zeros_like()?.scatter(along, &index, &one)?.sub(&plain)?.add(&soft)
    }
}
