//! The block of gated delta networks.

use trefoil::ops::gemm::Precision;
use trefoil::ops::random::{Distribution, Rng};

use super::state::{Carry, RecurrentState, recur};
use super::{Projection, sequences, step_bias};
use crate::core::error::{NnError, Result};
use crate::core::tensor::Tensor;
use crate::layers::spatial::positive;
use crate::layers::{Dense, RmsNorm};
use crate::module::{InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "GatedDeltaNet";

/// The block of gated delta networks (Yang, Kautz and Hatamizadeh, 2025), `[B, T, D] -> [B, T, D]`: queries, keys and values of H heads, each through a
/// causal depthwise convolution and SiLU, queries and keys of unit length; decay exp(-exp(A_log) softplus(a + dt_bias)) and share sigmoid(b) of a
/// token per head; the gated delta rule; RMS norm of each head, times SiLU of a gate; a product back to D. Source `GatedDeltaNet` of
/// flash-linear-attention. In 16 bits convolutions, decays, shares and the recurrence are in f32.
///
/// State, with P = H head_dim for queries and keys and V = H head_v_dim for values: `q_proj.weight [P, D]`, `k_proj.weight [P, D]`,
/// `v_proj.weight [V, D]`, `a_proj.weight [H, D]`, `b_proj.weight [H, D]`, `A_log [H]`, the logarithm of numbers from U(0, 16), `dt_bias [H]` whose
/// softplus is log-uniform in [1e-3, 1e-1], `q_conv1d.weight [P, 1, K]`, `k_conv1d.weight [P, 1, K]`, `v_conv1d.weight [V, 1, K]`,
/// `g_proj.weight [V, D]`, `o_norm.weight [head_v_dim]` = 1, `o_proj.weight [D, V]`.
///
/// Errors of `forward`: another shape than `[B, T, D]`.
#[derive(Debug)]
pub struct GatedDeltaNet {
    cx: InitContext,
    sizes: Sizes,
    parts: Parts,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    width: usize,
    heads: usize,
    /// Elements of a head's queries and keys, and of its values.
    head: [usize; 2],
    kernel: usize,
}

#[derive(Debug)]
struct Parts {
    q: Projection,
    k: Projection,
    v: Projection,
    a_proj: Dense,
    b_proj: Dense,
    a_log: Param,
    dt_bias: Param,
    g_proj: Dense,
    o_norm: RmsNorm,
    o_proj: Dense,
}

impl Parts {
    fn new(cx: &InitContext, s: Sizes) -> Result<Self> {
        let dense = |from: usize, to: usize| Ok::<_, NnError>(Dense::new(cx, from, to)?.no_bias());
        let [keys, values] = s.head.map(|n| n.saturating_mul(s.heads));
        let projection = |to: usize, names| Projection::new(cx, [s.width, to], Some(s.kernel), names);
        let rng = Rng::new(cx.seed()).at(cx.next_stream(), 0);
        let rates = Distribution::Uniform { lo: 1e-3, hi: 16.0 };
        let a_log = Tensor::random(cx.device(), cx.param_dtype(), &[s.heads], rates, rng)?.ln()?;
        Ok(Parts {
            q: projection(keys, ["q_proj", "q_conv1d"])?,
            k: projection(keys, ["k_proj", "k_conv1d"])?,
            v: projection(values, ["v_proj", "v_conv1d"])?,
            a_proj: dense(s.width, s.heads)?,
            b_proj: dense(s.width, s.heads)?,
            a_log: Param::new(a_log.detach()),
            dt_bias: step_bias(cx, s.heads)?,
            g_proj: dense(s.width, values)?,
            o_norm: RmsNorm::new(cx, &s.head[1..])?.eps(1e-5)?,
            o_proj: dense(values, s.width)?,
        })
    }
}

impl GatedDeltaNet {
    /// Width `d_model` and `heads` heads of `head_dim` elements, values twice as wide, a convolution of 4 tokens. Errors: 0.
    pub fn new(cx: &InitContext, d_model: usize, heads: usize, head_dim: usize) -> Result<Self> {
        Self::with(
            cx,
            Sizes { width: d_model, heads, head: [head_dim, head_dim.saturating_mul(2)], kernel: 4 },
        )
    }

    fn with(cx: &InitContext, sizes: Sizes) -> Result<Self> {
        let all = [sizes.width, sizes.heads, sizes.head[0], sizes.head[1], sizes.kernel];
        for (name, n) in ["d_model", "num_heads", "head_dim", "head_v_dim", "conv_size"].into_iter().zip(all)
        {
            positive(OP, name, &[n])?;
        }
        Ok(GatedDeltaNet { cx: cx.clone(), sizes, parts: Parts::new(cx, sizes)? })
    }

    /// Sets the elements of a head's values; makes the parameters anew. Errors: 0.
    pub fn head_v_dim(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, Sizes { head: [self.sizes.head[0], n], ..self.sizes })
    }

    /// Sets the tokens of the convolutions; makes the parameters anew. Errors: 0.
    pub fn conv_size(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, Sizes { kernel: n, ..self.sizes })
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        let p = self.parts;
        self.parts = Parts {
            q: p.q.precision(precision),
            k: p.k.precision(precision),
            v: p.v.precision(precision),
            a_proj: p.a_proj.precision(precision),
            b_proj: p.b_proj.precision(precision),
            g_proj: p.g_proj.precision(precision),
            o_proj: p.o_proj.precision(precision),
            ..p
        };
        self
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
        let (p, heads, [head, values]) = (&self.parts, self.sizes.heads, self.sizes.head);
        // Factors near 1 are the memory of a state: 16 bits would make many of them 1.
        let whole = x.dtype().accumulator();
        let q = p.q.run(x, heads, whole, carry.as_deref_mut())?;
        let k = p.k.run(x, heads, whole, carry.as_deref_mut())?;
        let v = p.v.run(x, heads, whole, carry.as_deref_mut())?;
        // Scores of queries are scaled as in attention.
        let q = q.l2_normalize(-1, 1e-6)?.mul_scalar(1.0 / (head as f64).sqrt())?;
        let k = k.l2_normalize(-1, 1e-6)?;
        let share = hooks::call("b_proj", &p.b_proj, &[x], || p.b_proj.forward(x))?;
        let share = share.to_dtype(whole)?.sigmoid()?;
        let step = hooks::call("a_proj", &p.a_proj, &[x], || p.a_proj.forward(x))?.to_dtype(whole)?;
        let step = step.add(&p.dt_bias.get().to_dtype(whole)?)?.softplus()?;
        let decay = step.mul(&p.a_log.get().to_dtype(whole)?.exp()?)?.neg()?.exp()?;
        let o = recur(carry, |initial| q.gated_delta_scan(&k, &v, &decay, &share, initial))?;
        let o = o.to_dtype(x.dtype())?;
        let o = hooks::call("o_norm", &p.o_norm, &[&o], || p.o_norm.forward(&o))?;
        let gate = hooks::call("g_proj", &p.g_proj, &[x], || p.g_proj.forward(x))?.silu()?;
        let o = o.reshape(&[batch, steps, heads * values])?.mul(&gate)?;
        hooks::call("o_proj", &p.o_proj, &[&o], || p.o_proj.forward(&o))
    }
}

impl Layer for GatedDeltaNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let p = &self.parts;
        [&p.q, &p.k, &p.v].into_iter().for_each(|part| part.visit_product(v));
        v.child("a_proj", &p.a_proj);
        v.child("b_proj", &p.b_proj);
        v.param("A_log", &p.a_log);
        v.param("dt_bias", &p.dt_bias);
        [&p.q, &p.k, &p.v].into_iter().for_each(|part| part.visit_convolution(v));
        v.child("g_proj", &p.g_proj);
        v.child("o_norm", &p.o_norm);
        v.child("o_proj", &p.o_proj);
    }
}
