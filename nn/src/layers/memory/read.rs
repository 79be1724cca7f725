//! Reading from a memory.

use trefoil::ops::activation::Activation;

use super::{add_entropy, check, check_entropy_weight, pair, without_memory};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

const OP: &str = "MemoryRead";

/// Reads a memory by attention (Sukhbaatar et al., 2015; Graves et al., 2014): a = softmax(scale M W_q x) over the slots of the memory M,
/// y = act(W_o W_v M^T a + b). Features `[B, in]` and a memory `[B, S, width]`, or `[S, width]` that all rows share, become `[B, out]`.
///
/// State: `query.weight [width, in]`, `value.weight [out, width]`, `output.weight [out, out]`, all from U(-a, a) of Glorot and Bengio, and
/// `output.bias [out]` = 0.
#[derive(Debug)]
pub struct MemoryRead {
    inputs: usize,
    width: usize,
    scale: f64,
    entropy: f64,
    query: Dense,
    value: Dense,
    output: Dense,
}

impl MemoryRead {
    /// For features of `in_features` and slots of `memory_dim` numbers; the scale is 1 / sqrt(memory_dim). Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, memory_dim: usize, out_features: usize) -> Result<Self> {
        if memory_dim == 0 {
            return Err(invalid(OP, "memory_dim", "at least 1", "0"));
        }
        let linear = |i, o| Dense::new(cx, i, o)?.init(Init::Glorot, Init::Zeros);
        Ok(MemoryRead {
            inputs: in_features,
            width: memory_dim,
            scale: 1.0 / (memory_dim as f64).sqrt(),
            entropy: 0.0,
            query: linear(in_features, memory_dim)?.no_bias(),
            value: linear(memory_dim, out_features)?.no_bias(),
            output: linear(out_features, out_features)?,
        })
    }

    /// Sets the factor of the scores. Errors: not a finite number.
    pub fn scale(mut self, scale: f64) -> Result<Self> {
        if !scale.is_finite() {
            return Err(invalid(OP, "scale", "a finite number", format!("{scale}")));
        }
        self.scale = scale;
        Ok(self)
    }

    /// Sets the activation of the result.
    pub fn activation(mut self, act: Activation) -> Self {
        self.output = self.output.activation(act);
        self
    }

    /// Sets the weight of the mean entropy of the attention, which is [added to the loss](crate::auxiliary) (default 0). Errors: negative
    /// or infinite.
    pub fn entropy_weight(mut self, weight: f64) -> Result<Self> {
        self.entropy = check_entropy_weight(OP, weight)?;
        Ok(self)
    }

    /// What was read `[B, out]`, and the attention `[B, S]`. Gradients flow to features, memory and parameters. Errors: `Invalid` for shapes
    /// that do not fit.
    pub fn read(&self, x: &Tensor, memory: &Tensor) -> Result<(Tensor, Tensor)> {
        check(OP, x, self.inputs, memory, self.width, true)?;
        let query = hooks::layer("query", &self.query, x)?;
        let (attention, read) = match memory.rank() {
            2 => {
                let a = query.matmul(&memory.t()?)?.masked_softmax(self.scale, None)?;
                let read = a.matmul(memory)?;
                (a, read)
            }
            _ => {
                let a = query.unsqueeze(1)?.matmul(&memory.t()?)?.masked_softmax(self.scale, None)?;
                let read = a.matmul(memory)?.squeeze(1)?;
                (a.squeeze(1)?, read)
            }
        };
        add_entropy(&attention, self.entropy)?;
        let value = hooks::layer("value", &self.value, &read)?;
        Ok((hooks::layer("output", &self.output, &value)?, attention))
    }
}

impl Layer for MemoryRead {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_memory(OP)
    }

    /// `[x, memory]` to the result and the attention.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, memory] = pair(OP, inputs)?;
        let (y, attention) = self.read(x, memory)?;
        Ok(vec![y, attention])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("query", &self.query);
        v.child("value", &self.value);
        v.child("output", &self.output);
    }
}
