//! Attention with projections, and what all attention layers share.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::attention::{Attention as Options, Causal};
use trefoil::ops::elementwise::Binary;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::ScaledDotProductAttention;
use crate::layers::attention::projections::Projections;
use crate::layers::regularization::noise::RandomStream;
use crate::module::Init;
use crate::module::{InitContext, Layer, Visitor};

/// Which keys a query does not see, in the sense of `torch.nn.MultiheadAttention`. What is given combines. A query that sees no key gives
/// 0.
#[derive(Debug, Clone, Default)]
pub struct AttentionMasks {
    /// u8: not 0 = blocked; or floats that are added to the scores and get a gradient. Broadcasts to `[B, H, Lq, Lk]`.
    pub attn_mask: Option<Tensor>,
    /// u8 `[B, Lk]`: not 0 = no query sees this key.
    pub key_padding_mask: Option<Tensor>,
    /// Key j is visible to query i only if j <= i.
    pub is_causal: bool,
}

impl AttentionMasks {
    /// Everything visible.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hides later keys.
    pub fn causal(mut self) -> Self {
        self.is_causal = true;
        self
    }

    /// What a layer without masks hides.
    pub(crate) fn of(causal: bool) -> Self {
        AttentionMasks { is_causal: causal, ..Self::default() }
    }

    /// Sets the mask of scores.
    pub fn attn_mask(mut self, mask: Tensor) -> Self {
        self.attn_mask = Some(mask);
        self
    }

    /// Sets the mask of keys.
    pub fn key_padding_mask(mut self, mask: Tensor) -> Self {
        self.key_padding_mask = Some(mask);
        self
    }

    /// What is added to scores `[b, h, lq, lk]`, and which are visible.
    fn parts(&self, op: &'static str, dtype: DType, s: [usize; 4]) -> Result<[Option<Tensor>; 2]> {
        let (mut bias, mut visible) = (None, None);
        if let Some(m) = &self.attn_mask {
            let fits = crate::functional::broadcast(op, m.shape(), &s).is_ok_and(|d| *d == s);
            if m.rank() > 4 || !fits || !(m.dtype().is_float() || m.dtype() == DType::U8) {
                let want = format!("u8 or floats that broadcast to {s:?}");
                return Err(invalid(op, "attn_mask", want, format!("{} {:?}", m.dtype(), m.shape())));
            }
            match m.dtype() {
                DType::U8 => visible = Some(m.logical_not()?),
                _ => bias = Some(m.to_dtype(dtype)?),
            }
        }
        if let Some(m) = &self.key_padding_mask {
            if m.dtype() != DType::U8 || m.shape() != [s[0], s[3]] {
                let want = format!("u8 [{}, {}]", s[0], s[3]);
                return Err(invalid(op, "key_padding_mask", want, format!("{} {:?}", m.dtype(), m.shape())));
            }
            let keys = m.logical_not()?.reshape(&[s[0], 1, 1, s[3]])?;
            visible = Some(match visible {
                Some(v) => v.binary(Binary::LogicalAnd, &keys)?,
                None => keys,
            });
        }
        Ok([bias, visible])
    }
}

/// Dropout of attention weights, and the call of the operation.
#[derive(Debug)]
pub(crate) struct Scores {
    dropout: f64,
    rng: RandomStream,
    training: AtomicBool,
}

impl Scores {
    pub(crate) fn new(cx: &InitContext) -> Self {
        Scores { dropout: 0.0, rng: RandomStream::new(cx), training: AtomicBool::new(true) }
    }

    /// Sets the probability. Errors: outside of [0, 1).
    pub(crate) fn dropout(&mut self, op: &'static str, p: f64) -> Result<()> {
        if !(0.0..1.0).contains(&p) {
            return Err(invalid(op, "dropout", "a probability in [0, 1)", format!("{p}")));
        }
        self.dropout = p;
        Ok(())
    }

    /// The operation for queries `[B, H, Lq, D]` and keys `[B, H, Lk, D]`.
    pub(crate) fn operation(
        &self,
        op: &'static str,
        q: &Tensor,
        k: &Tensor,
        masks: &AttentionMasks,
    ) -> Result<ScaledDotProductAttention> {
        let (&[b, h, lq, _], &[bk, _, lk, _]) = (q.shape(), k.shape()) else {
            return Err(invalid(op, "query", "heads [B, H, L, D]", format!("{:?}", q.shape())));
        };
        if b != bk {
            return Err(invalid(op, "key", format!("a batch of {b}"), format!("{bk}")));
        }
        if lk == 0 {
            return Err(invalid(op, "key", "at least one key", "none"));
        }
        let mut options = Options::new();
        if masks.is_causal {
            options = options.causal(Causal::TopLeft);
        }
        if self.training.load(Ordering::Relaxed) && self.dropout > 0.0 {
            let draws = [h, lq, lk].iter().try_fold(b, |n, &m| n.checked_mul(m));
            let Some(draws) = draws else {
                let got = format!("{b} x {h} x {lq} x {lk}");
                return Err(invalid(op, "query", "scores that can be counted in 64 bits", got));
            };
            options = options.dropout(self.dropout, self.rng.take(draws));
        }
        let [bias, mask] = masks.parts(op, q.dtype(), [b, h, lq, lk])?;
        Ok(ScaledDotProductAttention { bias, mask, ..ScaledDotProductAttention::with(options) })
    }

    pub(crate) fn visit(&self, v: &mut Visitor<'_>) {
        self.rng.visit(v);
        v.training(&self.training);
    }
}

/// `[T, D]` as a batch of one; whether that was needed. Errors: another rank than 2 or 3, or no steps.
pub(crate) fn batched(op: &'static str, arg: &'static str, x: &Tensor) -> Result<(Tensor, bool)> {
    let (x, single) = match x.rank() {
        2 => (x.unsqueeze(0)?, true),
        3 => (x.clone(), false),
        _ => {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid(op, arg, "shape [B, T, D] or [T, D]", got));
        }
    };
    if x.shape()[1] == 0 {
        return Err(invalid(op, arg, "at least one step", "none"));
    }
    Ok((x, single))
}

/// Error unless the last axis has this size.
pub(crate) fn check_width(op: &'static str, arg: &'static str, x: &Tensor, width: usize) -> Result<()> {
    if x.shape().last() == Some(&width) {
        return Ok(());
    }
    Err(invalid(op, arg, format!("a last axis of {width}"), format!("shape {:?}", x.shape())))
}

/// Single-head scaled dot-product attention with projections: queries from one sequence `[B, Tq, D]` (or `[Tq, D]`), keys and values from
/// the same or another `[B, Tk, Dc]`; the result has the query's shape.
///
/// State: `q_proj.weight [A, D]`, `k_proj.weight [A, Dc]`, `v_proj.weight [A, Dc]`, `out_proj.weight [D, A]`, with `bias` of each where
/// there are biases.
#[derive(Debug)]
pub struct Attention {
    parts: Projections,
    causal: bool,
}

const OP: &str = "Attention";

impl Attention {
    /// Sequences of width `embed_dim`, queries and keys of width `attention_size`, no biases. Errors: a size of 0.
    pub fn new(cx: &InitContext, embed_dim: usize, attention_size: usize) -> Result<Self> {
        Self::with_context(cx, embed_dim, attention_size, embed_dim)
    }

    /// As [`new`](Self::new) with keys and values from sequences of width `context_dim`.
    pub fn with_context(
        cx: &InitContext,
        embed_dim: usize,
        attention_size: usize,
        context_dim: usize,
    ) -> Result<Self> {
        Self::build(cx, embed_dim, attention_size, context_dim, false)
    }

    /// As [`with_context`](Self::with_context) with a bias in each projection.
    pub fn with_bias(
        cx: &InitContext,
        embed_dim: usize,
        attention_size: usize,
        context_dim: usize,
    ) -> Result<Self> {
        Self::build(cx, embed_dim, attention_size, context_dim, true)
    }

    fn build(cx: &InitContext, d: usize, a: usize, dc: usize, bias: bool) -> Result<Self> {
        if d == 0 || a == 0 || dc == 0 {
            let got = format!("embed_dim {d}, attention_size {a}, context_dim {dc}");
            return Err(invalid(OP, "embed_dim", "sizes of at least 1", got));
        }
        let names = ["q_proj", "k_proj", "v_proj", "out_proj"];
        Ok(Attention { parts: Projections::new(cx, OP, names, [d, dc, a], 1, [bias; 2])?, causal: false })
    }

    /// Width of the sequences.
    pub(crate) fn embed_dim(&self) -> usize {
        self.parts.widths()[0]
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        self.parts = self.parts.dropout(p)?;
        Ok(self)
    }

    setters! {
        /// Whether `forward` and `forward_all` hide later keys (default false).
        causal: bool => causal;
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.parts = self.parts.precision(precision);
        self
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.parts = self.parts.init(weight, bias)?;
        Ok(self)
    }

    /// Attends from `query` to `context` (without one, to itself). Errors: `Invalid` for widths, batches and masks that do not fit.
    pub fn attend(&self, query: &Tensor, context: Option<&Tensor>, masks: &AttentionMasks) -> Result<Tensor> {
        let (q, single) = batched(OP, "query", query)?;
        let c = match context {
            Some(c) => batched(OP, "context", c)?.0,
            None => q.clone(),
        };
        let (b, bc) = (q.shape()[0], c.shape()[0]);
        if b != bc {
            return Err(invalid(OP, "context", format!("a batch of {b}"), format!("{bc}")));
        }
        let y = self.parts.attend(&q, &c, masks)?;
        if single { y.squeeze(0) } else { Ok(y) }
    }
}

impl Layer for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, None, &AttentionMasks::of(self.causal))
    }

    /// `[query]` or `[query, context]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.parts.listed(inputs, |q, c| self.attend(q, c, &AttentionMasks::of(self.causal)))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.parts.visit(v);
    }
}
