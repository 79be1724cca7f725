//! The recurrent block of Griffin.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::state::{Carry, RecurrentState};
use super::{ShortConv, sequences};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::layers::spatial::positive;
use crate::layers::{Dense, Rglru};
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "RecurrentBlock";

/// The recurrent block of Griffin (De et al., 2024), `[B, T, D] -> [B, T, D]`: one branch of width W from a product with GELU; another one from a
/// product, a causal depthwise convolution and an [`Rglru`]; the product of both, and a product back to D. Source `RecurrentGemmaRecurrentBlock`
/// of transformers.
///
/// State, with convolution length K: `linear_y.weight [W, D]`, `linear_y.bias [W]`, `linear_x.weight [W, D]`, `linear_x.bias [W]`,
/// `linear_out.weight [D, W]`, `linear_out.bias [D]`, `conv_1d.weight [W, 1, K]`, `conv_1d.bias [W]`, and that of [`Rglru`] behind `rg_lru`.
///
/// Errors of `forward`: another shape than `[B, T, D]`.
#[derive(Debug)]
pub struct RecurrentBlock {
    cx: InitContext,
    sizes: Sizes,
    linear_y: Dense,
    linear_x: Dense,
    linear_out: Dense,
    conv_1d: ShortConv,
    rg_lru: Rglru,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    width: usize,
    inner: usize,
    blocks: usize,
    kernel: usize,
}

impl RecurrentBlock {
    /// Width `d_model` outside and inside, gates of `blocks` blocks, a convolution of 4 tokens, the tanh form of GELU. Errors: 0, a width that is
    /// no multiple of the blocks.
    pub fn new(cx: &InitContext, d_model: usize, blocks: usize) -> Result<Self> {
        Self::with_width(cx, d_model, d_model, blocks)
    }

    /// The same with another width inside. Errors: as above.
    pub fn with_width(cx: &InitContext, d_model: usize, lru_width: usize, blocks: usize) -> Result<Self> {
        Self::with(cx, Sizes { width: d_model, inner: lru_width, blocks, kernel: 4 })
    }

    fn with(cx: &InitContext, sizes: Sizes) -> Result<Self> {
        let Sizes { width, inner, blocks, kernel } = sizes;
        for (name, n) in [("d_model", width), ("lru_width", inner), ("conv1d_width", kernel)] {
            positive(OP, name, &[n])?;
        }
        Ok(RecurrentBlock {
            cx: cx.clone(),
            sizes,
            linear_y: Dense::new(cx, width, inner)?.activation(Activation::GeluTanh),
            linear_x: Dense::new(cx, width, inner)?,
            linear_out: Dense::new(cx, inner, width)?,
            conv_1d: ShortConv::new(cx, inner, kernel, true)?.activation(Activation::Identity),
            rg_lru: Rglru::new(cx, inner, blocks)?,
        })
    }

    /// Sets the tokens of the convolution; makes the parameters anew. Errors: 0.
    pub fn conv1d_width(self, n: usize) -> Result<Self> {
        Self::with(&self.cx, Sizes { kernel: n, ..self.sizes })
    }

    /// Sets the activation of the first branch.
    pub fn activation(mut self, act: Activation) -> Self {
        self.linear_y = self.linear_y.activation(act);
        self
    }

    /// As [`Rglru::first_as_is`].
    pub fn first_as_is(mut self) -> Self {
        self.rg_lru = self.rg_lru.first_as_is();
        self
    }

    /// Sets the arithmetic of the products, but for those of the gates.
    pub fn precision(self, precision: Precision) -> Self {
        RecurrentBlock {
            linear_y: self.linear_y.precision(precision),
            linear_x: self.linear_x.precision(precision),
            linear_out: self.linear_out.precision(precision),
            ..self
        }
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
        let y = hooks::layer("linear_y", &self.linear_y, x)?;
        let h = hooks::layer("linear_x", &self.linear_x, x)?;
        let h = hooks::call("conv_1d", &self.conv_1d, &[&h], || self.conv_1d.run(&h, carry.as_deref_mut()))?;
        let h = hooks::call("rg_lru", &self.rg_lru, &[&h], || self.rg_lru.run(&h, carry))?;
        hooks::layer("linear_out", &self.linear_out, &h.mul(&y)?)
    }
}

impl Layer for RecurrentBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("linear_y", &self.linear_y);
        v.child("linear_x", &self.linear_x);
        v.child("linear_out", &self.linear_out);
        v.child("conv_1d", &self.conv_1d);
        v.child("rg_lru", &self.rg_lru);
    }
}
