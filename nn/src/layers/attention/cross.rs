//! Attention over a second sequence.

use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::attention::projections::Projections;
use crate::layers::attention::scores::{AttentionMasks, batched};
use crate::module::Init;
use crate::module::{InitContext, Layer, Visitor};

/// Multi-head attention of `[B, Tq, Dq]`, or of the pixels of a map `[B, Dq, H, W]`, over a context `[B, Tk, Dc]`; the result has the
/// query's shape. A context of batch 1 serves all. As `Attention` of the diffusers library with `cross_attention_dim`.
///
/// State: `to_q.weight [Dq, Dq]`, `to_k.weight [Dq, Dc]`, `to_v.weight [Dq, Dc]`, `to_out.weight [Dq, Dq]`, `to_out.bias [Dq]`.
#[derive(Debug)]
pub struct CrossAttention {
    parts: Projections,
}

const OP: &str = "CrossAttention";

impl CrossAttention {
    /// `num_heads` heads, biases only in the last projection. Errors: a size of 0, heads that do not divide `query_dim`.
    pub fn new(cx: &InitContext, query_dim: usize, context_dim: usize, num_heads: usize) -> Result<Self> {
        Self::build(cx, query_dim, context_dim, num_heads, false)
    }

    /// As [`new`](Self::new) with biases in all projections.
    pub fn with_qkv_bias(
        cx: &InitContext,
        query_dim: usize,
        context_dim: usize,
        num_heads: usize,
    ) -> Result<Self> {
        Self::build(cx, query_dim, context_dim, num_heads, true)
    }

    fn build(cx: &InitContext, dq: usize, dc: usize, heads: usize, bias: bool) -> Result<Self> {
        if heads == 0 || dq == 0 || dc == 0 || !dq.is_multiple_of(heads) {
            let got = format!("{heads} heads, query_dim {dq}, context_dim {dc}");
            return Err(invalid(OP, "num_heads", "a divisor of query_dim, and sizes of at least 1", got));
        }
        let names = ["to_q", "to_k", "to_v", "to_out"];
        Ok(CrossAttention { parts: Projections::new(cx, OP, names, [dq, dc, dq], heads, [bias, true])? })
    }

    /// Without a bias in the last projection.
    pub fn no_out_bias(self) -> Self {
        CrossAttention { parts: self.parts.no_out_bias() }
    }

    /// Fills the last projection with zeros, so that a residual block starts as the identity.
    pub fn zero_init_out(self) -> Result<Self> {
        Ok(CrossAttention { parts: self.parts.init_out(Init::Zeros, Init::Zeros)? })
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(self, p: f64) -> Result<Self> {
        Ok(CrossAttention { parts: self.parts.dropout(p)? })
    }

    /// Sets the arithmetic of the products.
    pub fn precision(self, precision: Precision) -> Self {
        CrossAttention { parts: self.parts.precision(precision) }
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(self, weight: Init, bias: Init) -> Result<Self> {
        Ok(CrossAttention { parts: self.parts.init(weight, bias)? })
    }

    /// Attends from `query` to `context`; without one to itself, if both widths agree. Errors: `Invalid` for widths, batches and masks that
    /// do not fit.
    pub fn attend(&self, query: &Tensor, context: Option<&Tensor>, masks: &AttentionMasks) -> Result<Tensor> {
        let [dq, dc] = self.parts.widths();
        let map = match query.shape() {
            &[_, c, h, w] if c == dq => Some([h, w]),
            [_, _, _, _] => {
                let got = format!("shape {:?}", query.shape());
                return Err(invalid(OP, "query", format!("{dq} channels on axis 1"), got));
            }
            _ => None,
        };
        let tokens = match map {
            Some(_) => query.flatten(2, 3)?.transpose(1, 2)?,
            None => query.clone(),
        };
        let (q, single) = batched(OP, "query", &tokens)?;
        let c = match context {
            Some(c) => batched(OP, "context", c)?.0,
            None if dq == dc => q.clone(),
            None => return Err(invalid(OP, "context", format!("a sequence of width {dc}"), "none")),
        };
        let y = self.parts.attend(&q, &c, masks)?;
        match map {
            Some([h, w]) => y.transpose(1, 2)?.reshape(&[q.shape()[0], dq, h, w]),
            None if single => y.squeeze(0),
            None => Ok(y),
        }
    }
}

impl Layer for CrossAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, None, &AttentionMasks::new())
    }

    /// `[query]` or `[query, context]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.parts.listed(inputs, |q, c| self.attend(q, c, &AttentionMasks::new()))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.parts.visit(v);
    }
}
