//! Routing by agreement.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Init, auxiliary};

/// How the weights between capsules are drawn.
pub(super) const INIT: Init = Init::Normal { mean: 0.0, std: 0.1 };

/// Dynamic routing between capsules (Sabour et al., 2017).
#[derive(Debug, Clone, Copy)]
pub(super) struct Routing {
    pub(super) iterations: usize,
    pub(super) detach: bool,
    pub(super) aux_weight: f64,
}

impl Default for Routing {
    fn default() -> Self {
        Routing { iterations: 3, detach: false, aux_weight: 0.0 }
    }
}

impl Routing {
    /// Capsules u `[B, I, Din]` through weights `[I, Din, J, Dout]` and a bias `[J, Dout]` to capsules `[B, J, Dout]`.
    pub(super) fn run(&self, u: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let u_hat = predictions(u, weight)?;
        let bias = bias.map(|b| b.unsqueeze(1)).transpose()?;
        let mut logits = Tensor::zeros(u.device(), u.dtype(), &[&u_hat.shape()[..3], &[1]].concat())?;
        for _ in 1..self.iterations {
            let v = self.outputs(&u_hat, &logits, bias.as_ref())?;
            logits = logits.add(&u_hat.matmul(&v.transpose(2, 3)?)?)?;
        }
        self.add_entropy(&logits)?;
        self.outputs(&u_hat, &logits, bias.as_ref())?.squeeze(2)
    }

    /// The output capsules `[B, J, 1, Dout]` by the logits `[B, J, I, 1]`.
    fn outputs(&self, u_hat: &Tensor, logits: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let c = logits.softmax(1)?.transpose(2, 3)?;
        let s = if self.detach { c.detach() } else { c }.matmul(u_hat)?;
        if let Some(bias) = bias { s.add(bias)? } else { s }.squash(-1)
    }

    /// Adds the weighted mean entropy of the coupling coefficients of an input capsule to the loss. It has a gradient also where the
    /// coefficients are constants to the routing itself.
    fn add_entropy(&self, logits: &Tensor) -> Result<()> {
        if self.aux_weight == 0.0 {
            return Ok(());
        }
        // The mean runs over the J outputs too, among which the entropy is a sum.
        let outputs = logits.shape()[1] as f64;
        auxiliary::add(|| {
            logits.softmax(1)?.mul(&logits.log_softmax(1)?)?.mean()?.mul_scalar(-self.aux_weight * outputs)
        })
    }
}

/// What each input capsule predicts of each output capsule, `[B, J, I, Dout]`: u_i W_ij.
fn predictions(u: &Tensor, weight: &Tensor) -> Result<Tensor> {
    // One product for each input capsule.
    let each = u.transpose(0, 1)?.matmul(&weight.flatten(2, 3)?)?;
    let shape = [&each.shape()[..2], &weight.shape()[2..]].concat();
    each.reshape(&shape)?.permute(&[1, 2, 0, 3])?.contiguous()
}

/// Error unless u is `[B, I, Din]` with these sizes.
pub(super) fn check(op: &'static str, u: &Tensor, capsules: usize, dim: usize) -> Result<()> {
    match u.shape() {
        [_, i, d] if [*i, *d] == [capsules, dim] => Ok(()),
        other => Err(invalid(op, "u", format!("shape [B, {capsules}, {dim}]"), format!("shape {other:?}"))),
    }
}

/// What layers with a field `routing: Routing` have in common.
macro_rules! routing_methods {
    ($layer:ty, $op:expr) => {
        impl $layer {
            setters! {
                /// Whether the coupling coefficients are constants to the backward pass, in place of a function of the predictions (default
                /// false).
                detach_routing: bool => routing.detach;
            }

            /// Sets the number of iterations (default 3). Errors: 0.
            pub fn routing_iterations(mut self, n: usize) -> Result<Self> {
                $crate::layers::spatial::positive($op, "routing_iterations", &[n])?;
                self.routing.iterations = n;
                Ok(self)
            }

            /// Adds this times the mean entropy of the coupling coefficients to the loss (default 0), so that each capsule sends what it
            /// knows to few others. Errors: a negative or infinite weight.
            pub fn aux_weight(mut self, weight: f64) -> Result<Self> {
                if !(weight >= 0.0 && weight.is_finite()) {
                    let expected = "a finite number of at least 0";
                    return Err($crate::core::error::invalid(
                        $op,
                        "aux_weight",
                        expected,
                        format!("{weight}"),
                    ));
                }
                self.routing.aux_weight = weight;
                Ok(self)
            }
        }
    };
}
pub(super) use routing_methods;
