//! Sequence layers that carry a state of fixed size from token to token.

pub(crate) mod gated_delta_net;
pub(crate) mod gated_linear_attention;
pub(crate) mod mamba;
pub(crate) mod recurrent_block;
pub(crate) mod rglru;
pub(crate) mod state;

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::random::{Distribution, Rng};

use self::state::Carry;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Dense;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

/// Depthwise convolution over the present and the tokens before it, with SiLU as a rule; `nn.Conv1d(groups=C, padding=K - 1)` cut to the length.
///
/// State: `weight [C, 1, K]` and, with a bias, `bias [C]`, from U(-1/sqrt(K), 1/sqrt(K)).
#[derive(Debug)]
pub(super) struct ShortConv {
    weight: Param,
    bias: Option<Param>,
    act: Activation,
}

impl ShortConv {
    pub(super) fn new(cx: &InitContext, channels: usize, kernel: usize, bias: bool) -> Result<Self> {
        let param = |shape: &[usize]| Init::Lin.param(cx, shape, kernel, kernel);
        Ok(ShortConv {
            weight: param(&[channels, 1, kernel])?,
            bias: if bias { Some(param(&[channels])?) } else { None },
            act: Activation::Swish { beta: 1.0 },
        })
    }

    pub(super) fn activation(self, act: Activation) -> Self {
        ShortConv { act, ..self }
    }

    /// Weight `[C, K]` and bias in the dtype of an input.
    fn parameters(&self, dtype: DType) -> Result<(Tensor, Option<Tensor>)> {
        let bias = self.bias.as_ref().map(|b| b.get().to_dtype(dtype)).transpose()?;
        Ok((self.weight.get().squeeze(1)?.to_dtype(dtype)?, bias))
    }

    /// [`Layer::forward`] behind the tokens before.
    fn run(&self, x: &Tensor, carry: Option<&mut Carry>) -> Result<Tensor> {
        let Some(carry) = carry else { return self.forward(x) };
        let (weight, bias) = self.parameters(x.dtype())?;
        let x = x.transpose(1, 2)?;
        carry.through(|old| {
            let (y, last) = x.causal_conv1d_with_state(&weight, bias.as_ref(), self.act, old)?;
            Ok((y.transpose(1, 2)?, last))
        })
    }
}

impl Layer for ShortConv {
    /// `[B, T, C] -> [B, T, C]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.parameters(x.dtype())?;
        let y = x.transpose(1, 2)?.causal_conv1d(&weight, bias.as_ref(), self.act)?;
        y.transpose(1, 2)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}

/// A product without bias, and the convolution behind it where there is one.
#[derive(Debug)]
struct Projection {
    proj: Dense,
    conv: Option<ShortConv>,
    names: [&'static str; 2],
}

impl Projection {
    /// Of `sizes` `[from, to]`, with a convolution of `kernel` tokens.
    fn new(
        cx: &InitContext,
        sizes: [usize; 2],
        kernel: Option<usize>,
        names: [&'static str; 2],
    ) -> Result<Self> {
        let [from, to] = sizes;
        let proj = Dense::new(cx, from, to)?.no_bias();
        let conv = kernel.map(|k| ShortConv::new(cx, to, k, false)).transpose()?;
        Ok(Projection { proj, conv, names })
    }

    fn precision(self, precision: Precision) -> Self {
        Projection { proj: self.proj.precision(precision), ..self }
    }

    /// `[B, T, D] -> [B, T, H, head]`, the convolution and the result in `dtype`.
    fn run(&self, x: &Tensor, heads: usize, dtype: DType, carry: Option<&mut Carry>) -> Result<Tensor> {
        let mut y = hooks::layer(self.names[0], &self.proj, x)?.to_dtype(dtype)?;
        if let Some(conv) = &self.conv {
            y = hooks::call(self.names[1], conv, &[&y], || conv.run(&y, carry))?;
        }
        let (b, t, width) = (y.shape()[0], y.shape()[1], y.shape()[2]);
        y.reshape(&[b, t, heads, width / heads])
    }

    fn visit_product(&self, v: &mut Visitor<'_>) {
        v.child(self.names[0], &self.proj);
    }

    fn visit_convolution(&self, v: &mut Visitor<'_>) {
        if let Some(conv) = &self.conv {
            v.child(self.names[1], conv);
        }
    }
}

/// Batch, tokens and width of an input `[B, T, D]`.
pub(super) fn sequences(op: &'static str, x: &Tensor, width: usize) -> Result<[usize; 2]> {
    match *x.shape() {
        [b, t, d] if d == width => Ok([b, t]),
        _ => Err(invalid(op, "x", format!("shape [B, T, {width}]"), format!("shape {:?}", x.shape()))),
    }
}

/// Biases of step sizes: softplus of them is uniform in its logarithm between 1e-3 and 1e-1 (Gu and Dao, 2023).
pub(super) fn step_bias(cx: &InitContext, n: usize) -> Result<Param> {
    let uniform = Distribution::Uniform { lo: 1e-3f64.ln(), hi: 1e-1f64.ln() };
    let rng = Rng::new(cx.seed()).at(cx.next_stream(), 0);
    let steps =
        Tensor::random(cx.device(), cx.param_dtype(), &[n], uniform, rng)?.exp()?.clamp(Some(1e-4), None)?;
    // The inverse of softplus: ln(e^x - 1) = x + ln(1 - e^-x).
    let inverse = steps.add(&steps.neg()?.expm1()?.neg()?.ln()?)?;
    Ok(Param::new(inverse.detach()))
}
