//! Capsules that read capsules.

use super::routing::{INIT, Routing, check, routing_methods};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::positive;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "Capsule";

/// Capsules connected by dynamic routing (Sabour et al., 2017), `[B, I, in_dim] -> [B, J, capsule_dim]`. Capsule i predicts u_i W_ij of
/// capsule j; v_j = squash(sum over i of c_ij u_i W_ij + b_j) with the softmax c_i. over the output capsules of logits that begin at 0 and grow,
/// from iteration to iteration, by the product of prediction and v_j. [`squash`](Tensor::squash) keeps lengths below 1.
///
/// State: `weight [I, in_dim, J, capsule_dim]` from N(0, 0.1^2), `bias [J, capsule_dim]` = 0.
///
/// Errors of `forward`: another shape than `[B, I, in_dim]`.
#[derive(Debug)]
pub struct Capsule {
    routing: Routing,
    weight: Param,
    bias: Option<Param>,
}

impl Capsule {
    /// From `in_capsules` capsules of `in_dim` numbers to `num_capsules` of `capsule_dim`, with bias, in three iterations. Errors: a size of
    /// 0.
    pub fn new(
        cx: &InitContext,
        in_capsules: usize,
        in_dim: usize,
        num_capsules: usize,
        capsule_dim: usize,
    ) -> Result<Self> {
        let sizes = [in_capsules, in_dim, num_capsules, capsule_dim];
        for (arg, n) in ["in_capsules", "in_dim", "num_capsules", "capsule_dim"].into_iter().zip(sizes) {
            positive(OP, arg, &[n])?;
        }
        Ok(Capsule {
            routing: Routing::default(),
            weight: INIT.param(cx, &sizes, in_dim, capsule_dim)?,
            bias: Some(Init::Zeros.param(cx, &sizes[2..], in_dim, capsule_dim)?),
        })
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

routing_methods!(Capsule, OP);

impl Layer for Capsule {
    fn forward(&self, u: &Tensor) -> Result<Tensor> {
        let weight = self.weight.get();
        check(OP, u, weight.shape()[0], weight.shape()[1])?;
        same_dtype(OP, u, &weight)?;
        self.routing.run(u, &weight, self.bias.as_ref().map(Param::get).as_ref())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}
