//! The layer of gated linear attention.

use trefoil::ops::gemm::Precision;

use super::state::{Carry, RecurrentState, recur};
use super::{Projection, sequences};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::positive;
use crate::layers::{Dense, RmsNorm};
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "GatedLinearAttention";

/// Gated linear attention (Yang et al., 2023), `[B, T, D] -> [B, T, D]`: queries, keys and values of H heads; for each column of a key the decay
/// sigmoid(W2 W1 x + b)^(1 / normalizer); the recurrence `S = S diag(decay) + v k^T`, `y = S q / sqrt(head_k)`; RMS norm of each head, times SiLU of
/// a gate; a product back to D. Source `GatedLinearAttention` of flash-linear-attention. In 16 bits convolutions and the recurrence are in f32.
///
/// State, with P = expand_k D for queries and V = expand_v D for values, R the rank of the decay and, where J heads of keys and values serve H of
/// queries, P' = P J / H and V' = V J / H: `q_proj.weight [P, D]`, `k_proj.weight [P', D]`, `v_proj.weight [V', D]`, `g_proj.weight [V, D]`,
/// `gk_proj.0.weight [R, D]`, `gk_proj.1.weight [P', R]`, `gk_proj.1.bias [P']`, `o_proj.weight [D, V]`, `g_norm_swish_gate.weight [V / H]` = 1
/// (`g_norm.weight` without a gate); with convolutions of K tokens `q_conv1d.weight [P, 1, K]`, `k_conv1d.weight [P', 1, K]`,
/// `v_conv1d.weight [V', 1, K]`.
///
/// Errors of `forward`: another shape than `[B, T, D]`, heads of keys of more than 256 elements.
#[derive(Debug)]
pub struct GatedLinearAttention {
    cx: InitContext,
    sizes: Sizes,
    normalizer: f64,
    clamp_min: Option<f64>,
    parts: Parts,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    width: usize,
    heads: usize,
    kv_heads: usize,
    /// Widths of keys and of values, as multiples of the width.
    expand: [f64; 2],
    rank: usize,
    /// Tokens of the convolutions.
    kernel: Option<usize>,
    gate: bool,
}

impl Sizes {
    /// Elements of all queries and of all values.
    fn widths(&self) -> [usize; 2] {
        self.expand.map(|factor| (self.width as f64 * factor) as usize)
    }

    fn check(&self) -> Result<()> {
        let all = [self.width, self.heads, self.rank, self.kernel.unwrap_or(1)];
        for (name, n) in ["d_model", "num_heads", "gate_low_rank_dim", "conv_size"].into_iter().zip(all) {
            positive(OP, name, &[n])?;
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let want = format!("a divisor of num_heads, {}", self.heads);
            return Err(invalid(OP, "num_kv_heads", want, format!("{}", self.kv_heads)));
        }
        for ((name, factor), n) in ["expand_k", "expand_v"].into_iter().zip(self.expand).zip(self.widths()) {
            if !factor.is_finite() || n == 0 || !n.is_multiple_of(self.heads) {
                let want =
                    format!("a factor that makes a multiple of {} heads of {}", self.heads, self.width);
                return Err(invalid(OP, name, want, format!("{factor}, which makes {n}")));
            }
        }
        Ok(())
    }
}

/// Two products in a row, the first one without bias.
#[derive(Debug)]
struct LowRank {
    inner: Dense,
    outer: Dense,
}

impl Layer for LowRank {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        hooks::layer("1", &self.outer, &hooks::layer("0", &self.inner, x)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("0", &self.inner);
        v.child("1", &self.outer);
    }
}

#[derive(Debug)]
struct Parts {
    q: Projection,
    k: Projection,
    v: Projection,
    g_proj: Option<Dense>,
    gk_proj: LowRank,
    o_proj: Dense,
    norm: RmsNorm,
}

impl Parts {
    fn new(cx: &InitContext, s: Sizes) -> Result<Self> {
        let dense = |from: usize, to: usize| Ok::<_, NnError>(Dense::new(cx, from, to)?.no_bias());
        let [keys, values] = s.widths();
        let of_group = |n: usize| n / (s.heads / s.kv_heads);
        let projection = |to: usize, names| Projection::new(cx, [s.width, to], s.kernel, names);
        let gate = Dense::new(cx, s.rank, of_group(keys))?;
        Ok(Parts {
            q: projection(keys, ["q_proj", "q_conv1d"])?,
            k: projection(of_group(keys), ["k_proj", "k_conv1d"])?,
            v: projection(of_group(values), ["v_proj", "v_conv1d"])?,
            g_proj: if s.gate { Some(dense(s.width, values)?) } else { None },
            gk_proj: LowRank { inner: dense(s.width, s.rank)?, outer: gate },
            o_proj: dense(values, s.width)?,
            norm: RmsNorm::new(cx, &[values / s.heads])?.eps(1e-5)?,
        })
    }
}

/// Each head of `[B, T, J, n]` as often as it takes to have `heads`, one after the other.
fn shared(t: &Tensor, heads: usize) -> Result<Tensor> {
    let &[b, steps, own, n] = t.shape() else {
        return Err(invalid(OP, "heads", "shape [B, T, J, n]", format!("shape {:?}", t.shape())));
    };
    if own == heads {
        return Ok(t.clone());
    }
    t.unsqueeze(3)?.expand(&[b, steps, own, heads / own, n])?.reshape(&[b, steps, heads, n])
}

impl GatedLinearAttention {
    /// Width `d_model` and `heads` heads, keys half as wide as the input and values as wide, a decay of rank 16 and normalizer 16, a gate, no
    /// convolutions. Errors: 0, heads that do not divide the widths of keys and values.
    pub fn new(cx: &InitContext, d_model: usize, heads: usize) -> Result<Self> {
        Self::with_expansion(cx, d_model, heads, [0.5, 1.0])
    }

    /// The same with widths of keys and of values that are other multiples of `d_model`, rounded down. Errors: as above.
    pub fn with_expansion(cx: &InitContext, d_model: usize, heads: usize, expand: [f64; 2]) -> Result<Self> {
        let (width, kv_heads) = (d_model, heads);
        let sizes = Sizes { width, heads, kv_heads, expand, rank: 16, kernel: None, gate: true };
        sizes.check()?;
        let parts = Parts::new(cx, sizes)?;
        Ok(GatedLinearAttention { cx: cx.clone(), sizes, normalizer: 16.0, clamp_min: None, parts })
    }

    fn with(self, sizes: Sizes) -> Result<Self> {
        sizes.check()?;
        let parts = Parts::new(&self.cx, sizes)?;
        Ok(GatedLinearAttention { sizes, parts, ..self })
    }

    /// Sets the heads of keys and values, each for several heads of queries; makes the parameters anew. Errors: no divisor of the heads.
    pub fn num_kv_heads(self, n: usize) -> Result<Self> {
        let sizes = Sizes { kv_heads: n, ..self.sizes };
        self.with(sizes)
    }

    /// Sets the rank of the decay's product; makes the parameters anew. Errors: 0.
    pub fn gate_low_rank_dim(self, n: usize) -> Result<Self> {
        let sizes = Sizes { rank: n, ..self.sizes };
        self.with(sizes)
    }

    /// Puts a causal depthwise convolution of `conv_size` tokens and SiLU behind the products of queries, keys and values; makes the parameters
    /// anew. Errors: 0.
    pub fn short_conv(self, conv_size: usize) -> Result<Self> {
        let sizes = Sizes { kernel: Some(conv_size), ..self.sizes };
        self.with(sizes)
    }

    /// Leaves the gate behind the norm out; makes the parameters anew.
    pub fn no_output_gate(self) -> Result<Self> {
        let sizes = Sizes { gate: false, ..self.sizes };
        self.with(sizes)
    }

    /// Sets what the logarithm of the decay is divided by. Errors: not a finite number above 0.
    pub fn gate_logit_normalizer(self, normalizer: f64) -> Result<Self> {
        if !(normalizer > 0.0 && normalizer.is_finite()) {
            let want = "a finite number above 0";
            return Err(invalid(OP, "gate_logit_normalizer", want, format!("{normalizer}")));
        }
        Ok(GatedLinearAttention { normalizer, ..self })
    }

    /// Sets a lower bound of the logarithm of the decay. Errors: not a number of at most 0.
    pub fn clamp_min(self, lowest: f64) -> Result<Self> {
        if lowest.is_nan() || lowest > 0.0 {
            return Err(invalid(OP, "clamp_min", "a number of at most 0", format!("{lowest}")));
        }
        Ok(GatedLinearAttention { clamp_min: Some(lowest), ..self })
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        let p = self.parts;
        let gk_proj = LowRank {
            inner: p.gk_proj.inner.precision(precision),
            outer: p.gk_proj.outer.precision(precision),
        };
        self.parts = Parts {
            q: p.q.precision(precision),
            k: p.k.precision(precision),
            v: p.v.precision(precision),
            g_proj: p.g_proj.map(|g| g.precision(precision)),
            gk_proj,
            o_proj: p.o_proj.precision(precision),
            norm: p.norm,
        };
        self
    }

    /// The name of the norm, which flash-linear-attention computes together with the gate where there is one.
    fn norm(&self) -> &'static str {
        if self.sizes.gate { "g_norm_swish_gate" } else { "g_norm" }
    }

    /// The decay of every column of a key, `[B, T, D] -> [B, T, J, head_k]`, in the arithmetic of the recurrence.
    fn decay(&self, x: &Tensor) -> Result<Tensor> {
        let logits = hooks::layer("gk_proj", &self.parts.gk_proj, x)?;
        let (b, t, width) = (logits.shape()[0], logits.shape()[1], logits.shape()[2]);
        let logits = logits.to_dtype(x.dtype().accumulator())?;
        let mut log = logits.log_sigmoid()?.div_scalar(self.normalizer)?;
        if self.clamp_min.is_some() {
            log = log.clamp(self.clamp_min, None)?;
        }
        log.exp()?.reshape(&[b, t, self.sizes.kv_heads, width / self.sizes.kv_heads])
    }

    /// [`Layer::forward`] for tokens `[B, T, D]` behind those that `state` has seen at `layer`, which goes on to the last of them: equal to the
    /// rows of a pass over all tokens, to rounding. Records no gradients. After an error the state is as before. Errors: those of `forward`,
    /// `Invalid` for a layer that the state has not, or another batch than before.
    pub fn forward_with_state(&self, x: &Tensor, state: &mut RecurrentState, layer: usize) -> Result<Tensor> {
        sequences(OP, x, self.sizes.width)?;
        state.carry(layer, x, |carry| self.run(x, Some(carry)))
    }

    fn run(&self, x: &Tensor, mut carry: Option<&mut Carry>) -> Result<Tensor> {
        let [batch, steps] = sequences(OP, x, self.sizes.width)?;
        let (p, heads, own) = (&self.parts, self.sizes.heads, self.sizes.kv_heads);
        let [keys, values] = self.sizes.widths();
        let whole = x.dtype().accumulator();
        // Scores of queries are scaled as in attention.
        let scale = 1.0 / ((keys / heads) as f64).sqrt();
        let q = p.q.run(x, heads, whole, carry.as_deref_mut())?.mul_scalar(scale)?;
        let k = shared(&p.k.run(x, own, whole, carry.as_deref_mut())?, heads)?;
        let v = shared(&p.v.run(x, own, whole, carry.as_deref_mut())?, heads)?;
        let decay = shared(&self.decay(x)?, heads)?;
        let o = recur(carry, |initial| q.gla_scan(&k, &v, &decay, initial))?.to_dtype(x.dtype())?;
        let o = hooks::layer(self.norm(), &p.norm, &o)?;
        let mut o = o.reshape(&[batch, steps, values])?;
        if let Some(gate) = &p.g_proj {
            o = o.mul(&hooks::layer("g_proj", gate, x)?.silu()?)?;
        }
        hooks::layer("o_proj", &p.o_proj, &o)
    }
}

impl Layer for GatedLinearAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let p = &self.parts;
        [&p.q, &p.k, &p.v].into_iter().for_each(|part| part.visit_product(v));
        if let Some(gate) = &p.g_proj {
            v.child("g_proj", gate);
        }
        [&p.q, &p.k, &p.v].into_iter().for_each(|part| part.visit_convolution(v));
        v.child("gk_proj", &p.gk_proj);
        v.child("o_proj", &p.o_proj);
        v.child(self.norm(), &p.norm);
    }
}
