//! Sequence layers that carry a state of fixed size from token to token.

pub(crate) mod gated_delta_net;
pub(crate) mod mamba;

use trefoil::ops::activation::Activation;
use trefoil::ops::random::{Distribution, Rng};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

/// Depthwise convolution over the present and the tokens before it, with SiLU; `nn.Conv1d(groups=C, padding=K - 1)` cut to the length.
///
/// State: `weight [C, 1, K]` and, with a bias, `bias [C]`, from U(-1/sqrt(K), 1/sqrt(K)).
#[derive(Debug)]
pub(super) struct ShortConv {
    weight: Param,
    bias: Option<Param>,
}

impl ShortConv {
    pub(super) fn new(cx: &InitContext, channels: usize, kernel: usize, bias: bool) -> Result<Self> {
        let param = |shape: &[usize]| Init::Lin.param(cx, shape, kernel, kernel);
        Ok(ShortConv {
            weight: param(&[channels, 1, kernel])?,
            bias: if bias { Some(param(&[channels])?) } else { None },
        })
    }
}

impl Layer for ShortConv {
    /// `[B, T, C] -> [B, T, C]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::get);
        let y = x.transpose(1, 2)?.causal_conv1d(
            &self.weight.get().squeeze(1)?,
            bias.as_ref(),
            Activation::Swish { beta: 1.0 },
        )?;
        y.transpose(1, 2)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
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
