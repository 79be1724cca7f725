//! The selective state-space block.

use trefoil::ops::gemm::Precision;

use super::state::{Carry, RecurrentState, recur};
use super::{ShortConv, sequences, step_bias};
use crate::core::error::{NnError, Result};
use crate::core::tensor::Tensor;
use crate::functional::SelectiveScanOptions;
use crate::layers::Dense;
use crate::layers::spatial::positive;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "Mamba";

/// The block of Mamba (Gu and Dao, 2023), `[B, T, D] -> [B, T, D]`: x and a gate z of width E = expand D from one product; x through a causal
/// depthwise convolution and SiLU; step sizes, B and C from x; the selective scan, times SiLU(z); a product back to D. Source `mamba_ssm.Mamba`,
/// `MambaMixer` of transformers.
///
/// State, with N states per channel, convolution length K and rank R of the step sizes: `in_proj.weight [2 E, D]`, `conv1d.weight [E, 1, K]`,
/// `conv1d.bias [E]`, `x_proj.weight [R + 2 N, E]`, `dt_proj.weight [E, R]` from U(-1/sqrt(R), 1/sqrt(R)), `dt_proj.bias [E]` whose softplus
/// is log-uniform in [1e-3, 1e-1], `A_log [E, N]` = ln(1 .. N), `D [E]` = 1, `out_proj.weight [D, E]`.
///
/// Errors of `forward`: another shape than `[B, T, D]`.
#[derive(Debug)]
pub struct Mamba {
    cx: InitContext,
    sizes: MambaSizes,
    parts: Parts,
}

/// Sizes of [`Mamba`].
#[derive(Debug, Clone, Copy)]
struct MambaSizes {
    width: usize,
    expand: usize,
    states: usize,
    kernel: usize,
    rank: Option<usize>,
}

impl MambaSizes {
    fn inner(&self) -> usize {
        self.width.saturating_mul(self.expand)
    }

    fn rank(&self) -> usize {
        self.rank.unwrap_or(self.width.div_ceil(16))
    }
}

#[derive(Debug)]
struct Parts {
    in_proj: Dense,
    conv1d: ShortConv,
    x_proj: Dense,
    dt_proj: Dense,
    a_log: Param,
    d: Param,
    out_proj: Dense,
}

impl Parts {
    fn new(cx: &InitContext, s: MambaSizes) -> Result<Self> {
        let (inner, rank, n) = (s.inner(), s.rank(), s.states);
        let dense = |from: usize, to: usize| Ok::<_, NnError>(Dense::new(cx, from, to)?.no_bias());
        let rates = Tensor::arange(cx.device(), cx.param_dtype(), 1.0, 1.0, n)?.ln()?;
        let a_log = rates.expand(&[inner, n])?.contiguous()?;
        let dt_proj = Dense::new(cx, rank, inner)?;
        if let Some(bias) = dt_proj.bias() {
            bias.set(step_bias(cx, inner)?.get());
        }
        Ok(Parts {
            in_proj: dense(s.width, inner.saturating_mul(2))?,
            conv1d: ShortConv::new(cx, inner, s.kernel, true)?,
            x_proj: dense(inner, n.saturating_mul(2).saturating_add(rank))?,
            dt_proj,
            a_log: Param::new(a_log.detach()),
            d: Init::Constant(1.0).param(cx, &[inner], 1, 1)?,
            out_proj: dense(inner, s.width)?,
        })
    }
}

impl Mamba {
    /// Width `d_model`, expanded 2 times, with 16 states, a convolution of 4 tokens and step sizes of rank `d_model / 16`. Errors: 0.
    pub fn new(cx: &InitContext, d_model: usize) -> Result<Self> {
        Self::with(cx, MambaSizes { width: d_model, expand: 2, states: 16, kernel: 4, rank: None })
    }

    fn with(cx: &InitContext, sizes: MambaSizes) -> Result<Self> {
        let all = [sizes.width, sizes.expand, sizes.states, sizes.kernel, sizes.rank()];
        for (name, n) in ["d_model", "expand", "d_state", "d_conv", "dt_rank"].into_iter().zip(all) {
            positive(OP, name, &[n])?;
        }
        Ok(Mamba { cx: cx.clone(), sizes, parts: Parts::new(cx, sizes)? })
    }

    /// Sets the factor between the width outside and inside; makes the parameters anew. Errors: 0.
    pub fn expand(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, MambaSizes { expand: n, ..self.sizes })
    }

    /// Sets the states of a channel, at most 256; makes the parameters anew. Errors: 0.
    pub fn d_state(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, MambaSizes { states: n, ..self.sizes })
    }

    /// Sets the tokens of the convolution; makes the parameters anew. Errors: 0.
    pub fn d_conv(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, MambaSizes { kernel: n, ..self.sizes })
    }

    /// Sets the rank of the step sizes; makes the parameters anew. Errors: 0.
    pub fn dt_rank(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, MambaSizes { rank: Some(n), ..self.sizes })
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        let p = self.parts;
        self.parts = Parts {
            in_proj: p.in_proj.precision(precision),
            x_proj: p.x_proj.precision(precision),
            dt_proj: p.dt_proj.precision(precision),
            out_proj: p.out_proj.precision(precision),
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
        sequences(OP, x, self.sizes.width)?;
        let (p, inner) = (&self.parts, self.sizes.inner());
        let [rank, n] = [self.sizes.rank(), self.sizes.states];
        let xz = hooks::call("in_proj", &p.in_proj, &[x], || p.in_proj.forward(x))?;
        let (h, z) = (xz.narrow(-1, 0, inner)?, xz.narrow(-1, inner, inner)?);
        let h = hooks::call("conv1d", &p.conv1d, &[&h], || p.conv1d.run(&h, carry.as_deref_mut()))?;
        let of_h = hooks::call("x_proj", &p.x_proj, &[&h], || p.x_proj.forward(&h))?;
        let low = of_h.narrow(-1, 0, rank)?;
        let dt = hooks::call("dt_proj", &p.dt_proj, &[&low], || p.dt_proj.forward(&low))?;
        let (b, c) = (of_h.narrow(-1, rank, n)?, of_h.narrow(-1, rank + n, n)?);
        let (a, d) = (p.a_log.get().exp()?.neg()?, p.d.get());
        let y = recur(carry, |initial| {
            let options = SelectiveScanOptions { d: Some(&d), z: Some(&z), initial, softplus: true };
            h.selective_scan(&dt, &a, &b, &c, &options)
        })?;
        hooks::call("out_proj", &p.out_proj, &[&y], || p.out_proj.forward(&y))
    }
}

impl Layer for Mamba {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let p = &self.parts;
        v.child("in_proj", &p.in_proj);
        v.child("conv1d", &p.conv1d);
        v.child("x_proj", &p.x_proj);
        v.child("dt_proj", &p.dt_proj);
        v.param("A_log", &p.a_log);
        v.param("D", &p.d);
        v.child("out_proj", &p.out_proj);
    }
}
