//! Multi-head attention and self-attention.

use std::sync::Arc;

use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Causal, RopeLayout};
use trefoil::ops::elementwise::Binary;
use trefoil::ops::gemm::Precision;
use trefoil::{DType, Layout};

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::functional::packed_heads;
use crate::layers::Dense;
use crate::layers::attention::cache::KvCache;
use crate::layers::attention::rotary::{RopeScaling, Rotary};
use crate::layers::attention::scores::{AttentionMasks, Scores, batched, check_width};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

#[derive(Debug)]
enum InProj {
    /// `in_proj_weight [E + 2 K, E]`.
    Packed(Param),
    /// `q_proj_weight [E, E]`, `k_proj_weight [K, kdim]`, `v_proj_weight [K, vdim]`.
    Separate([Param; 3]),
}

#[derive(Debug)]
enum OutProj {
    Dense(Dense),
    /// Only a bias.
    Bias(Option<Param>),
}

/// `torch.nn.MultiheadAttention(batch_first=True)` (Vaswani et al., 2017): queries `[B, Tq, E]`, keys `[B, Tk, kdim]`, values `[B, Tk,
/// vdim]` to `[B, Tq, E]`; without the batch axis too. Where query, key and value are one tensor, their projections are one product. With
/// [`num_kv_heads`](Self::num_kv_heads) groups of query heads share a head of keys and values (Ainslie et al., 2023).
///
/// State: `in_proj_weight [3 E, E]` (or `q_proj_weight`, `k_proj_weight`, `v_proj_weight` if kdim or vdim differ from E), `in_proj_bias [3
/// E]`, `out_proj.weight [E, E]`, `out_proj.bias [E]`. The former are Glorot-uniform, `out_proj.weight` is U(-1/sqrt(E), 1/sqrt(E)), biases
/// are 0. With G heads of keys and values of H, 3 E is E + 2 E G / H.
#[derive(Debug)]
pub struct MultiHeadAttention {
    cx: InitContext,
    embed: usize,
    heads: usize,
    kv_heads: usize,
    /// Of keys and values that come in.
    widths: [usize; 2],
    in_proj: InProj,
    in_proj_bias: Option<Param>,
    out_proj: OutProj,
    rope: Option<Rotary>,
    alibi: bool,
    causal: bool,
    precision: Precision,
    scores: Scores,
}

const MHA: &str = "MultiHeadAttention";

/// Whether both are the same view of the same memory and of the same place in the graph.
fn same(a: &Tensor, b: &Tensor) -> bool {
    let place = |t: &Tensor| t.edge().map(|e| (Arc::as_ptr(&e.node), e.index));
    let layout = |t: &Tensor| -> Layout { *t.layout() };
    a.shares_storage(b) && layout(a) == layout(b) && place(a) == place(b)
}

impl MultiHeadAttention {
    /// `num_heads` heads over sequences of width `embed_dim`, with biases. Errors: a size of 0, heads that do not divide the width.
    pub fn new(cx: &InitContext, embed_dim: usize, num_heads: usize) -> Result<Self> {
        if num_heads == 0 || embed_dim == 0 || !embed_dim.is_multiple_of(num_heads) {
            let got = format!("{num_heads} num_heads for a width of {embed_dim}");
            return Err(invalid(MHA, "num_heads", "a divisor of embed_dim", got));
        }
        let e = embed_dim;
        Ok(MultiHeadAttention {
            cx: cx.clone(),
            embed: e,
            heads: num_heads,
            kv_heads: num_heads,
            widths: [e, e],
            in_proj: InProj::Packed(Init::Glorot.param(cx, &[3 * e, e], e, 3 * e)?),
            in_proj_bias: Some(Init::Zeros.param(cx, &[3 * e], e, e)?),
            out_proj: OutProj::Dense(Dense::new(cx, e, e)?.init(Init::Lin, Init::Zeros)?),
            rope: None,
            alibi: false,
            causal: false,
            precision: Precision::Ieee,
            scores: Scores::new(cx),
        })
    }

    /// Sets the widths of keys and values; the weights are drawn anew, apart where one differs from `embed_dim`. Errors: a size of 0.
    pub fn key_value_dims(mut self, kdim: usize, vdim: usize) -> Result<Self> {
        if kdim == 0 || vdim == 0 {
            let got = format!("kdim {kdim}, vdim {vdim}");
            return Err(invalid(MHA, "kdim", "sizes of at least 1", got));
        }
        self.widths = [kdim, vdim];
        self.in_proj = self.draw(Init::Glorot)?;
        Ok(self)
    }

    /// Sets the number of heads of keys and values, each of which serves a group of query heads; 1 is multi-query attention (Shazeer,
    /// 2019). Weights are drawn anew, biases are 0. Errors: a number that does not divide that of the query heads.
    pub fn num_kv_heads(mut self, num_kv_heads: usize) -> Result<Self> {
        if num_kv_heads == 0 || !self.heads.is_multiple_of(num_kv_heads) {
            let want = format!("a divisor of num_heads {}", self.heads);
            return Err(invalid(MHA, "num_kv_heads", want, format!("{num_kv_heads}")));
        }
        self.kv_heads = num_kv_heads;
        self.in_proj = self.draw(Init::Glorot)?;
        if self.in_proj_bias.is_some() {
            self.in_proj_bias = Some(self.draw_bias(Init::Zeros)?);
        }
        Ok(self)
    }

    /// Heads of queries, keys and values.
    fn all_heads(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads]
    }

    /// Widths of the projections `from..from + n` of queries, keys and values together.
    fn width(&self, from: usize, n: usize) -> usize {
        self.embed / self.heads * self.all_heads()[from..from + n].iter().sum::<usize>()
    }

    /// The weights before the attention, filled by this rule.
    fn draw(&self, weight: Init) -> Result<InProj> {
        let (e, kv, [kdim, vdim]) = (self.embed, self.width(1, 1), self.widths);
        let draw =
            |inputs: usize, outputs: usize| weight.param(&self.cx, &[outputs, inputs], inputs, outputs);
        Ok(match kdim == e && vdim == e {
            true => InProj::Packed(draw(e, e + 2 * kv)?),
            false => InProj::Separate([draw(e, e)?, draw(kdim, kv)?, draw(vdim, kv)?]),
        })
    }

    fn draw_bias(&self, bias: Init) -> Result<Param> {
        bias.param(&self.cx, &[self.width(0, 3)], self.embed, self.embed)
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        let e = self.embed;
        self.in_proj = self.draw(weight)?;
        if self.in_proj_bias.is_some() {
            self.in_proj_bias = Some(self.draw_bias(bias)?);
        }
        self.out_proj = match self.out_proj {
            OutProj::Dense(d) => OutProj::Dense(d.init(weight, bias)?),
            OutProj::Bias(Some(_)) => OutProj::Bias(Some(bias.param(&self.cx, &[e], e, e)?)),
            OutProj::Bias(None) => OutProj::Bias(None),
        };
        Ok(self)
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.in_proj_bias = None;
        self.out_proj = match self.out_proj {
            OutProj::Dense(d) => OutProj::Dense(d.no_bias()),
            OutProj::Bias(_) => OutProj::Bias(None),
        };
        self
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        self.scores.dropout(MHA, p)?;
        Ok(self)
    }

    /// Rotates adjacent pairs of queries and keys by their position (rotary embedding, Su et al., 2021). Errors: an odd head size, a base
    /// not above 0.
    pub fn rope(self, base: f64) -> Result<Self> {
        self.rotary(RopeLayout::Interleaved, base)
    }

    /// As [`rope`](Self::rope) with a choice of the pairs; Hugging Face's Llama has [`RopeLayout::Half`].
    pub fn rotary(mut self, layout: RopeLayout, base: f64) -> Result<Self> {
        self.rope = Some(Rotary::new(self.embed / self.heads, layout, base)?);
        Ok(self)
    }

    /// Lowers the rotary frequencies. Errors: no rotary positions, numbers out of range.
    pub fn rope_scaling(mut self, scaling: &RopeScaling) -> Result<Self> {
        let Some(rope) = self.rope else {
            return Err(invalid(MHA, "rope_scaling", "rotary positions to scale, set before", "none"));
        };
        self.rope = Some(rope.scaled(&self.cx, self.embed / self.heads, scaling)?);
        Ok(self)
    }

    /// Adds `-slope |i - j|` to the scores, with a slope for each head (ALiBi, Press et al., 2022).
    pub fn alibi(mut self) -> Self {
        self.alibi = true;
        self
    }

    setters! {
        /// Whether `forward` and `forward_all` hide later keys (default false).
        causal: bool => causal;
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        if let OutProj::Dense(d) = self.out_proj {
            self.out_proj = OutProj::Dense(d.precision(precision));
        }
        self
    }

    /// Leaves out the last projection; its bias stays.
    fn no_out_proj(mut self) -> Result<Self> {
        let bias = match self.in_proj_bias {
            Some(_) => Some(Init::Zeros.param(&self.cx, &[self.embed], self.embed, self.embed)?),
            None => None,
        };
        self.out_proj = OutProj::Bias(bias);
        Ok(self)
    }

    /// The rows of projections `from..from + n` of a packed parameter.
    fn rows(&self, packed: &Param, from: usize, n: usize) -> Result<Tensor> {
        let all = packed.get();
        if n == 3 { Ok(all) } else { all.narrow(0, self.width(0, from), self.width(from, n)) }
    }

    /// `x` projected by the weight of rows `from..from + n`, as heads.
    fn project(&self, x: &Tensor, w: &Tensor, from: usize, n: usize) -> Result<Vec<Tensor>> {
        let b = self.in_proj_bias.as_ref().map(|b| self.rows(b, from, n)).transpose()?;
        let y = x.linear(w, b.as_ref(), Activation::Identity, self.precision)?;
        y.split_head_groups(&self.all_heads()[from..from + n])
    }

    /// Heads of queries, keys and values, the first of which have position `past`.
    fn heads(&self, [q, k, v]: [&Tensor; 3], past: usize) -> Result<[Tensor; 3]> {
        let mut all = vec![];
        match &self.in_proj {
            InProj::Packed(w) => {
                // Equal inputs share a product.
                let mut inputs: Vec<(&Tensor, usize)> = vec![];
                for t in [q, k, v] {
                    match inputs.last_mut() {
                        Some((last, n)) if same(last, t) => *n += 1,
                        _ => inputs.push((t, 1)),
                    }
                }
                for (t, n) in inputs {
                    let from = all.len();
                    all.extend(self.project(t, &self.rows(w, from, n)?, from, n)?);
                }
            }
            InProj::Separate(weights) => {
                for (i, (t, w)) in [q, k, v].into_iter().zip(weights).enumerate() {
                    all.extend(self.project(t, &w.get(), i, 1)?);
                }
            }
        }
        let [q, k, v] = <[Tensor; 3]>::try_from(all)
            .map_err(|l| invalid(MHA, "in_proj", "3 projections", format!("{}", l.len())))?;
        match &self.rope {
            Some(rope) => Ok([rope.turn(&q, past)?, rope.turn(&k, past)?, v]),
            None => Ok([q, k, v]),
        }
    }

    /// Attends from `query` to `key` and `value`. Errors: `Invalid` for widths, lengths, batches and masks that do not fit.
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &AttentionMasks,
    ) -> Result<Tensor> {
        Ok(self.run([query, key, value], masks, false, None)?.0)
    }

    /// Causal self-attention of new tokens `x` `[B, T, E]` behind those that `layer` of the cache holds, whose keys and values are appended;
    /// rotary positions and ALiBi's distances count from the first token of the cache. Token by token or in pieces, the results are those
    /// of one call of `forward` with `causal` over all. Records no gradients. Errors: [`NnError::CacheFull`](crate::NnError::CacheFull),
    /// `Invalid` for widths, and for a cache of other batches, heads or layers.
    pub fn attend_cached(&self, x: &Tensor, cache: &mut KvCache, layer: usize) -> Result<Tensor> {
        no_grad(|| Ok(self.run([x, x, x], &AttentionMasks::new(), false, Some((cache, layer)))?.0))
    }

    /// As [`attend`](Self::attend), and the weights `[B, Tq, Tk]` averaged over the heads, which carry no gradient.
    pub fn attend_with_weights(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &AttentionMasks,
    ) -> Result<(Tensor, Tensor)> {
        let (y, p) = self.run([query, key, value], masks, true, None)?;
        Ok((y, p.ok_or_else(|| invalid(MHA, "weights", "weights", "none"))?))
    }

    fn run(
        &self,
        [query, key, value]: [&Tensor; 3],
        masks: &AttentionMasks,
        weights: bool,
        cache: Option<(&mut KvCache, usize)>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (q, single) = batched(MHA, "query", query)?;
        // One tensor stays one, so that equal inputs are seen to be equal.
        let k = if same(query, key) { q.clone() } else { batched(MHA, "key", key)?.0 };
        let v = if same(key, value) { k.clone() } else { batched(MHA, "value", value)?.0 };
        check_width(MHA, "query", &q, self.embed)?;
        check_width(MHA, "key", &k, self.widths[0])?;
        check_width(MHA, "value", &v, self.widths[1])?;
        if k.shape()[..2] != v.shape()[..2] {
            let want = format!("batch and length of the key, {:?}", &k.shape()[..2]);
            return Err(invalid(MHA, "value", want, format!("{:?}", v.shape())));
        }
        // Attention of one tensor to itself takes the projection as it is.
        let packed = match (&self.in_proj, &self.rope) {
            (InProj::Packed(w), None)
                if !weights
                    && cache.is_none()
                    && self.kv_heads == self.heads
                    && same(&q, &k)
                    && same(&k, &v) =>
            {
                let bias = self.in_proj_bias.as_ref().map(Param::get);
                Some(q.linear(&w.get(), bias.as_ref(), Activation::Identity, self.precision)?)
            }
            _ => None,
        };
        let past = cache.as_ref().map_or(0, |(cache, layer)| cache.len_of(*layer));
        let [q, mut k, mut v] = match &packed {
            Some(x) => packed_heads(x, self.heads)?,
            None => self.heads([&q, &k, &v], past)?,
        };
        let cached = cache.is_some();
        if let Some((cache, layer)) = cache {
            (k, v) = cache.append(layer, &k, &v)?;
        }
        let mut op = self.scores.operation(MHA, &q, &k, masks)?;
        if cached {
            op.options = op.options.causal(Causal::BottomRight);
        }
        if self.alibi {
            let slopes = alibi(q.device(), q.dtype(), self.heads, past, [q.shape()[2], k.shape()[2]])?;
            op.bias = Some(match op.bias {
                Some(b) => b.binary(Binary::Add { alpha: 1.0 }, &slopes)?,
                None => slopes,
            });
        }
        let (o, p) = match weights {
            true => {
                let (o, p) = op.forward_with_weights(&q, &k, &v)?;
                let p = p.mean_axes(&[1], false)?;
                (o, Some(if single { p.squeeze(0)? } else { p }))
            }
            false => match &packed {
                Some(x) => (op.forward_packed(x, self.heads)?, None),
                None => (op.forward(&q, &k, &v)?, None),
            },
        };
        let o = o.merge_heads()?;
        let y = match &self.out_proj {
            OutProj::Dense(d) => hooks::layer("out_proj", d, &o)?,
            OutProj::Bias(Some(b)) => o.add(&b.get())?,
            OutProj::Bias(None) => o,
        };
        Ok((if single { y.squeeze(0)? } else { y }, p))
    }
}

/// ALiBi's bias `[H, Tq, Tk]` of queries from position `past` on. The slopes are 2^(-8 (h + 1) / H); for H that is no power of two, those of
/// the largest power n below it, and then every second one of those of 2 n.
fn alibi(device: &Device, dtype: DType, heads: usize, past: usize, [tq, tk]: [usize; 2]) -> Result<Tensor> {
    // Positions and slopes are exact in the accumulator's dtype.
    let wide = dtype.accumulator();
    let n = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let step = -8.0 / n as f64;
    let exponents = Tensor::arange(device, wide, step, step, n)?;
    let exponents = match heads - n {
        0 => exponents,
        more => Tensor::concat(0, &[&exponents, &Tensor::arange(device, wide, step / 2.0, step, more)?])?,
    };
    let slopes = exponents.exp2()?.neg()?.reshape(&[heads, 1, 1])?;
    let i = Tensor::arange(device, wide, past as f64, 1.0, tq)?.reshape(&[tq, 1])?;
    let j = Tensor::arange(device, wide, 0.0, 1.0, tk)?;
    slopes.mul(&i.sub(&j)?.abs()?)?.to_dtype(dtype)
}

impl Layer for MultiHeadAttention {
    /// Self-attention.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, x, x, &AttentionMasks::of(self.causal))
    }

    /// `[query]`, `[query, key and value]` or `[query, key, value]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (q, k, v) = match inputs {
            [x] => (x, x, x),
            [q, kv] => (q, kv, kv),
            [q, k, v] => (q, k, v),
            _ => return Err(invalid(MHA, "inputs", "1 to 3 tensors", format!("{} tensors", inputs.len()))),
        };
        Ok(vec![self.attend(q, k, v, &AttentionMasks::of(self.causal))?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        match &self.in_proj {
            InProj::Packed(w) => v.param("in_proj_weight", w),
            InProj::Separate([q, k, w]) => {
                v.param("q_proj_weight", q);
                v.param("k_proj_weight", k);
                v.param("v_proj_weight", w);
            }
        }
        if let Some(b) = &self.in_proj_bias {
            v.param("in_proj_bias", b);
        }
        match &self.out_proj {
            OutProj::Dense(d) => v.child("out_proj", d),
            OutProj::Bias(Some(b)) => v.param("out_proj.bias", b),
            OutProj::Bias(None) => {}
        }
        self.scores.visit(v);
    }
}

/// [`MultiHeadAttention`] of a sequence with itself, `[B, T, E]` or `[T, E]`; state and initial values as there.
#[derive(Debug)]
pub struct SelfAttention(MultiHeadAttention);

impl SelfAttention {
    /// `num_heads` heads (8 is usual) over sequences of width `embed_dim`, with biases. Errors: as [`MultiHeadAttention::new`].
    pub fn new(cx: &InitContext, embed_dim: usize, num_heads: usize) -> Result<Self> {
        Ok(SelfAttention(MultiHeadAttention::new(cx, embed_dim, num_heads)?))
    }

    /// Without biases.
    pub fn no_bias(self) -> Self {
        SelfAttention(self.0.no_bias())
    }

    /// Sets how weights and biases are filled and fills them anew.
    pub fn init(self, weight: Init, bias: Init) -> Result<Self> {
        Ok(SelfAttention(self.0.init(weight, bias)?))
    }

    /// Without the last projection: of `out_proj` only the bias remains.
    pub fn no_out_proj(self) -> Result<Self> {
        Ok(SelfAttention(self.0.no_out_proj()?))
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(self, p: f64) -> Result<Self> {
        Ok(SelfAttention(self.0.dropout(p)?))
    }

    /// Whether `forward` hides later steps (default false).
    pub fn causal(self, on: bool) -> Self {
        SelfAttention(self.0.causal(on))
    }

    /// Sets the arithmetic of the products.
    pub fn precision(self, precision: Precision) -> Self {
        SelfAttention(self.0.precision(precision))
    }

    /// Attends with masks.
    pub fn attend(&self, x: &Tensor, masks: &AttentionMasks) -> Result<Tensor> {
        self.0.attend(x, x, x, masks)
    }
}

impl Layer for SelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&self.0);
    }
}
