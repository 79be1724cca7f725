//! Samples of a variational autoencoder.

use std::sync::atomic::{AtomicBool, Ordering};

use super::noise::RandomStream;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{InitContext, Layer, Visitor};

const OP: &str = "RepParameterization";

/// Reparameterised samples of the latent variables of a variational autoencoder (Kingma and Welling, 2014), `[.., 2 Z] -> [.., Z]`: the first
/// half of an input is the mean mu, the second the logarithm of the variance. In training mu + exp(logvar / 2) eps with eps from N(0, 1), so
/// that gradients flow to both halves; in evaluation mu. logvar is taken as it is, not clamped.
///
/// Errors of `forward`: a last axis that is odd or empty.
#[derive(Debug)]
pub struct RepParameterization {
    rng: RandomStream,
    training: AtomicBool,
}

impl RepParameterization {
    /// With a random stream of its own, whose position is part of the saved state.
    pub fn new(cx: &InitContext) -> Self {
        RepParameterization { rng: RandomStream::new(cx), training: AtomicBool::new(true) }
    }
}

impl Layer for RepParameterization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let z = match x.shape().last() {
            Some(&n) if n > 0 && n.is_multiple_of(2) => n / 2,
            _ => {
                let expected = "shape [.., 2 Z] of means and logarithms of variances";
                return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
            }
        };
        let mean = x.narrow(-1, 0, z)?;
        if !self.training.load(Ordering::Relaxed) {
            return Ok(mean);
        }
        let std = x.narrow(-1, z, z)?.mul_scalar(0.5)?.exp()?;
        // A normal number takes up to two words of the generator.
        let eps = std.randn_like(self.rng.take(2 * std.numel()))?;
        eps.mul_add(&std, &mean)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.rng.visit(v);
        v.training(&self.training);
    }
}
