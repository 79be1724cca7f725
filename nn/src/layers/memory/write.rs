//! Writing to a memory.

use trefoil::ops::activation::Activation;

use super::{add_entropy, check, check_entropy_weight, pair, without_memory};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

const OP: &str = "MemoryWrite";

/// Writes to a memory as the neural Turing machine does (Graves et al., 2014): with the key k = W_k x, weights w = softmax(M k / sqrt(width))
/// over the slots of the memory M, the content v = W_v x and what is erased e = sigmoid(W_e x + b_e), slot s becomes M_s (1 - w_s e) + w_s v.
/// Features `[B, in]` and a memory `[B, S, width]`, one for each row, become the memory after that and y = act(W_o v + b) `[B, width]`.
///
/// State: `key.weight`, `content.weight` and `erase.weight [width, in]`, `beta.weight [1, in]` where slots are found by cosine, and
/// `output.weight [width, width]`, all from U(-a, a) of Glorot and Bengio; `erase.bias` and `output.bias [width]` = 0.
#[derive(Debug)]
pub struct MemoryWrite {
    cx: InitContext,
    inputs: usize,
    width: usize,
    entropy: f64,
    key: Dense,
    content: Dense,
    erase: Option<Dense>,
    beta: Option<Dense>,
    output: Dense,
}

impl MemoryWrite {
    /// For features of `in_features` and slots of `memory_dim` numbers. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, memory_dim: usize) -> Result<Self> {
        if memory_dim == 0 {
            return Err(invalid(OP, "memory_dim", "at least 1", "0"));
        }
        let linear = |i| Dense::new(cx, i, memory_dim)?.init(Init::Glorot, Init::Zeros);
        Ok(MemoryWrite {
            cx: cx.clone(),
            inputs: in_features,
            width: memory_dim,
            entropy: 0.0,
            key: linear(in_features)?.no_bias(),
            content: linear(in_features)?.no_bias(),
            erase: Some(linear(in_features)?),
            beta: None,
            output: linear(memory_dim)?,
        })
    }

    /// Finds slots by the cosine of their angle to the key: w = softmax(softplus(W_beta x) cos(k, M)).
    pub fn cosine(mut self) -> Result<Self> {
        let beta = Dense::new(&self.cx, self.inputs, 1)?.no_bias();
        self.beta = Some(beta.init(Init::Glorot, Init::Zeros)?);
        Ok(self)
    }

    /// Only adds to the memory.
    pub fn no_erase(mut self) -> Self {
        self.erase = None;
        self
    }

    /// Sets the activation of the result.
    pub fn activation(mut self, act: Activation) -> Self {
        self.output = self.output.activation(act);
        self
    }

    /// Sets the weight of the mean entropy of the weights of slots, which is [added to the loss](crate::auxiliary) (default 0). Errors:
    /// negative or infinite.
    pub fn entropy_weight(mut self, weight: f64) -> Result<Self> {
        self.entropy = check_entropy_weight(OP, weight)?;
        Ok(self)
    }

    /// The result `[B, width]` and the memory after the write, a new tensor. Gradients flow to features, memory and parameters. Errors:
    /// `Invalid` for shapes that do not fit; a memory that rows share, since their writes would depend on their order.
    pub fn write(&self, x: &Tensor, memory: &Tensor) -> Result<(Tensor, Tensor)> {
        check(OP, x, self.inputs, memory, self.width, false)?;
        let weights = self.slots(x, memory)?;
        add_entropy(&weights, self.entropy)?;
        let weights = weights.unsqueeze(2)?;
        let content = hooks::layer("content", &self.content, x)?;
        let kept = match &self.erase {
            Some(erase) => {
                let erased = hooks::layer("erase", erase, x)?.sigmoid()?.unsqueeze(1)?;
                memory.mul(&weights.mul(&erased)?.rsub_scalar(1.0)?)?
            }
            None => memory.clone(),
        };
        let written = kept.add(&weights.mul(&content.unsqueeze(1)?)?)?;
        Ok((hooks::layer("output", &self.output, &content)?, written))
    }

    /// How much of the write goes to each slot, `[B, S]`.
    fn slots(&self, x: &Tensor, memory: &Tensor) -> Result<Tensor> {
        let key = hooks::layer("key", &self.key, x)?;
        let Some(beta) = &self.beta else {
            let scores = key.unsqueeze(1)?.matmul(&memory.t()?)?.squeeze(1)?;
            return scores.masked_softmax(1.0 / (self.width as f64).sqrt(), None);
        };
        let strength = hooks::layer("beta", beta, x)?.softplus()?;
        // 16 bits do not hold the constant under the fraction.
        let wide = x.dtype().accumulator();
        let (key, memory) = (key.to_dtype(wide)?, memory.to_dtype(wide)?);
        let product = key.unsqueeze(1)?.matmul(&memory.t()?)?.squeeze(1)?;
        let norms = memory.norm_axes(2.0, &[-1], false)?.mul(&key.norm_axes(2.0, &[-1], true)?)?;
        let cosine = product.div(&norms.add_scalar(1e-8)?)?;
        strength.to_dtype(wide)?.mul(&cosine)?.softmax(-1)?.to_dtype(x.dtype())
    }
}

impl Layer for MemoryWrite {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_memory(OP)
    }

    /// `[x, memory]` to the result and the memory after the write.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, memory] = pair(OP, inputs)?;
        let (y, written) = self.write(x, memory)?;
        Ok(vec![y, written])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("key", &self.key);
        v.child("content", &self.content);
        if let Some(erase) = &self.erase {
            v.child("erase", erase);
        }
        if let Some(beta) = &self.beta {
            v.child("beta", beta);
        }
        v.child("output", &self.output);
    }
}
