//! Attention over a second sequence.

use trefoil::ops::Precision;

use super::Dense;
use super::attention::{AttentionMasks, Scores, batched, check_width};
use crate::error::{Result, invalid};
use crate::init::Init;
use crate::layer::{Build, Layer, Visitor};
use crate::tensor::Tensor;

/// Multi-head attention of `[B, Tq, Dq]`, or of the pixels of a map `[B, Dq, H, W]`, over a context `[B, Tk, Dc]`; the result has the
/// query's shape. A context of batch 1 serves all. As `Attention` of the diffusers library with `cross_attention_dim`.
///
/// State: `to_q.weight [Dq, Dq]`, `to_k.weight [Dq, Dc]`, `to_v.weight [Dq, Dc]`, `to_out.weight [Dq, Dq]`, `to_out.bias [Dq]`.
#[derive(Debug)]
pub struct CrossAttention {
    to_q: Dense,
    to_k: Dense,
    to_v: Dense,
    to_out: Dense,
    heads: usize,
    widths: [usize; 2],
    scores: Scores,
}

const OP: &str = "CrossAttention";

impl CrossAttention {
    /// `heads` heads, biases only in the last projection. Errors: a size of 0, heads that do not divide `query_dim`.
    pub fn new(cx: &Build, query_dim: usize, context_dim: usize, heads: usize) -> Result<Self> {
        Self::build(cx, query_dim, context_dim, heads, false)
    }

    /// As [`new`](Self::new) with biases in all projections.
    pub fn with_qkv_bias(cx: &Build, query_dim: usize, context_dim: usize, heads: usize) -> Result<Self> {
        Self::build(cx, query_dim, context_dim, heads, true)
    }

    fn build(cx: &Build, dq: usize, dc: usize, heads: usize, bias: bool) -> Result<Self> {
        if heads == 0 || dq == 0 || dc == 0 || !dq.is_multiple_of(heads) {
            let got = format!("{heads} heads, query_dim {dq}, context_dim {dc}");
            return Err(invalid(OP, "heads", "a divisor of query_dim, and sizes of at least 1", got));
        }
        let dense = |inputs| {
            let l = Dense::new(cx, inputs, dq)?;
            Ok::<Dense, crate::NnError>(if bias { l } else { l.no_bias() })
        };
        Ok(CrossAttention {
            to_q: dense(dq)?,
            to_k: dense(dc)?,
            to_v: dense(dc)?,
            to_out: Dense::new(cx, dq, dq)?,
            heads,
            widths: [dq, dc],
            scores: Scores::new(cx),
        })
    }

    /// Without a bias in the last projection.
    pub fn no_out_bias(mut self) -> Self {
        self.to_out = self.to_out.no_bias();
        self
    }

    /// Fills the last projection with zeros, so that a residual block starts as the identity.
    pub fn zero_init_out(mut self) -> Result<Self> {
        self.to_out = self.to_out.init(Init::Zeros, Init::Zeros)?;
        Ok(self)
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        self.scores.dropout(OP, p)?;
        Ok(self)
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.to_q = self.to_q.precision(precision);
        self.to_k = self.to_k.precision(precision);
        self.to_v = self.to_v.precision(precision);
        self.to_out = self.to_out.precision(precision);
        self
    }

    /// Attends from `query` to `context`; without one to itself, if both widths agree. Errors: `Invalid` for widths, batches and masks that
    /// do not fit.
    pub fn attend(&self, query: &Tensor, context: Option<&Tensor>, masks: &AttentionMasks) -> Result<Tensor> {
        let [dq, dc] = self.widths;
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
        check_width(OP, "query", &q, dq)?;
        check_width(OP, "context", &c, dc)?;
        let (b, bc) = (q.shape()[0], c.shape()[0]);
        if bc != b && bc != 1 {
            return Err(invalid(OP, "context", format!("a batch of {b} or 1"), format!("{bc}")));
        }
        let heads = |l: &Dense, x: &Tensor| -> Result<Tensor> {
            let t = l.forward(x)?.split_heads(1, self.heads)?.swap_remove(0);
            let [_, h, n, d] = [t.shape()[0], t.shape()[1], t.shape()[2], t.shape()[3]];
            t.expand(&[b, h, n, d])
        };
        let (q, k, v) = (heads(&self.to_q, &q)?, heads(&self.to_k, &c)?, heads(&self.to_v, &c)?);
        let o = self.scores.operation(OP, &q, &k, masks)?.forward(&q, &k, &v)?;
        let y = self.to_out.forward(&o.merge_heads()?)?;
        match map {
            Some([h, w]) => y.transpose(1, 2)?.reshape(&[b, dq, h, w]),
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
        match inputs {
            [q] => Ok(vec![self.forward(q)?]),
            [q, c] => Ok(vec![self.attend(q, Some(c), &AttentionMasks::new())?]),
            _ => Err(invalid(OP, "inputs", "1 or 2 tensors", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("to_q", &self.to_q);
        v.child("to_k", &self.to_k);
        v.child("to_v", &self.to_v);
        v.child("to_out", &self.to_out);
        self.scores.visit(v);
    }

    fn set_training(&self, on: bool) {
        self.scores.set_training(on);
    }
}
