//! Capsules of classes.

use super::routing::{INIT, Routing, check, routing_methods};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Param, Visitor};

const OP: &str = "DigitCapsule";

/// One capsule for each class (Sabour et al., 2017), `[B, I, in_dim] -> [B, J, out_dim]`: [`Capsule`](crate::layers::Capsule) without bias,
/// and with its weights in the order of the paper's first implementations. The score of class j is the length of its capsule,
/// `norm_axes(2.0, &[-1], false)`.
///
/// State: `weight [I, J, in_dim, out_dim]` from N(0, 0.1^2).
///
/// Errors of `forward`: another shape than `[B, I, in_dim]`.
#[derive(Debug)]
pub struct DigitCapsule {
    routing: Routing,
    weight: Param,
    flatten: bool,
}

impl DigitCapsule {
    /// From `in_capsules` capsules of `in_dim` numbers to one of `out_dim` for each class, in three iterations. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_capsules: usize,
        in_dim: usize,
        num_classes: usize,
        out_dim: usize,
    ) -> Result<Self> {
        let sizes = [in_capsules, num_classes, in_dim, out_dim];
        for (arg, n) in ["in_capsules", "num_classes", "in_dim", "out_dim"].into_iter().zip(sizes) {
            positive(OP, arg, &[n])?;
        }
        let weight = INIT.param(cx, &sizes, in_dim, out_dim)?;
        Ok(DigitCapsule { routing: Routing::default(), weight, flatten: false })
    }

    setters! {
        /// Whether the capsules of a sample come as one row, `[B, J * out_dim]` (default false).
        flatten: bool => flatten;
    }
}

routing_methods!(DigitCapsule, OP);

impl Layer for DigitCapsule {
    fn forward(&self, u: &Tensor) -> Result<Tensor> {
        let weight = self.weight.get();
        check(OP, u, weight.shape()[0], weight.shape()[2])?;
        same_dtype(OP, u, &weight)?;
        let v = self.routing.run(u, &weight.transpose(1, 2)?, None)?;
        if self.flatten { v.flatten(1, -1) } else { Ok(v) }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
    }
}
