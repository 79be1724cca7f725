//! Highway layers.

use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Dense;
use crate::layers::attention::scores::check_width;
use crate::layers::spatial::positive;
use crate::module::{Init, InitContext, Layer, Visitor, auxiliary, hooks};

const OP: &str = "Highway";

/// Highway layer of Srivastava et al. (2015): t h + (1 - t) x with h = tanh(W_h x + b_h) and the transform gate t = sigmoid(W_t x + b_t),
/// `[.., D] -> [.., D]`.
///
/// State: `transform.weight [D, D]`, `transform.bias [D]` = 0, `gate.weight [D, D]`, `gate.bias [D]` = -1; weights from U(-a, a) with
/// a = sqrt(3 / D). The bias lets the layer begin as little more than the identity.
///
/// Errors of `forward`: another width than D.
#[derive(Debug)]
pub struct Highway {
    dim: usize,
    transform: Dense,
    gate: Dense,
    aux_weight: f64,
}

impl Highway {
    /// Of width `dim`, with tanh and a sigmoid, without an auxiliary loss. Errors: 0.
    pub fn new(cx: &InitContext, dim: usize) -> Result<Self> {
        positive(OP, "dim", &[dim])?;
        let dense = |bias: f64, act| -> Result<Dense> {
            let l = Dense::lazy(cx, dim)?.init(Init::Glorot, Init::Constant(bias))?;
            Ok(l.inputs(dim)?.activation(act))
        };
        let transform = dense(0.0, Activation::Tanh)?;
        Ok(Highway { dim, transform, gate: dense(-1.0, Activation::Sigmoid)?, aux_weight: 0.0 })
    }

    /// Sets the activation of h.
    pub fn transform_activation(mut self, act: Activation) -> Self {
        self.transform = self.transform.activation(act);
        self
    }

    /// Sets the activation of the gate.
    pub fn gate_activation(mut self, act: Activation) -> Self {
        self.gate = self.gate.activation(act);
        self
    }

    /// Fills the gate's bias with another value. Errors: not a finite number.
    pub fn gate_bias_init(self, value: f64) -> Result<Self> {
        if !value.is_finite() {
            return Err(invalid(OP, "gate_bias_init", "a finite number", format!("{value}")));
        }
        if let Some(bias) = self.gate.bias() {
            bias.get().detach().fill(value)?;
        }
        Ok(self)
    }

    /// Adds this weight times (mean(t) - 0.5)^2 to the loss of a training step (see [`auxiliary`]), which keeps the gate from closing.
    /// Errors: not a finite number of at least 0.
    pub fn aux_weight(mut self, weight: f64) -> Result<Self> {
        check_aux_weight(OP, weight)?;
        self.aux_weight = weight;
        Ok(self)
    }
}

/// Error unless an auxiliary loss can have this weight.
pub(super) fn check_aux_weight(op: &'static str, weight: f64) -> Result<()> {
    if weight.is_finite() && weight >= 0.0 {
        return Ok(());
    }
    Err(invalid(op, "aux_weight", "a finite number of at least 0", format!("{weight}")))
}

impl Layer for Highway {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_width(OP, "x", x, self.dim)?;
        let h = hooks::layer("transform", &self.transform, x)?;
        let t = hooks::layer("gate", &self.gate, x)?;
        if self.aux_weight > 0.0 {
            auxiliary::add(|| t.mean()?.sub_scalar(0.5)?.square()?.mul_scalar(self.aux_weight))?;
        }
        x.lerp_by(&h, &t)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("transform", &self.transform);
        v.child("gate", &self.gate);
    }
}
