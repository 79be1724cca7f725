//! Embedding of the times of a diffusion process.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor, is_trial, same_handle};
use crate::layers::linear::dense::Dense;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "TimeEmbedding";

/// Embedding of the time steps of a diffusion process (Ho et al., 2020): W2 act(W1 e + b1) + b2 of the sines and cosines e of the time at
/// D/2 frequencies max_period^(-i / (D/2 - shift)); for an odd D the last element is 0. Times `[B]` or `[B, 1]`, floats or integers, become
/// `[B, O]`. The angles are computed in f32 (f64 for parameters of f64), so that networks in 16 bits tell large times apart.
///
/// The defaults, sines before cosines and a shift of 0, are those of `get_timestep_embedding` of Hugging Face's Diffusers; DDPM's own code
/// has a shift of 1, OpenAI's guided diffusion has the cosines first.
///
/// State: `linear_1.weight [O, D]`, `linear_1.bias`, `linear_2.weight [O, O]`, `linear_2.bias`, as in Diffusers' `TimestepEmbedding`; values
/// as in [`Dense`](crate::layers::Dense).
///
/// Errors of `forward`: another shape than `[B]` or `[B, 1]`.
#[derive(Debug)]
pub struct TimeEmbedding {
    waves: Waves,
    /// `[1, D/2]`. A constant, no state.
    frequencies: Param,
    linear: [Dense; 2],
}

impl TimeEmbedding {
    /// `embedding_dim` sines and cosines to `output_dim` features, with a base of 10,000 and silu between the linear layers. Errors: fewer
    /// than two sines and cosines; no outputs; `OutOfMemory`.
    pub fn new(cx: &InitContext, embedding_dim: usize, output_dim: usize) -> Result<Self> {
        if embedding_dim < 2 {
            return Err(invalid(OP, "embedding_dim", "at least 2", format!("{embedding_dim}")));
        }
        positive(OP, "output_dim", &[output_dim])?;
        let first = Dense::new(cx, embedding_dim, output_dim)?;
        let linear =
            [first.activation(Activation::Swish { beta: 1.0 }), Dense::new(cx, output_dim, output_dim)?];
        let waves = Waves {
            width: embedding_dim,
            max_period: 10_000.0,
            shift: 0.0,
            cos_first: false,
            dtype: cx.param_dtype(),
        };
        let frequencies = Param::buffer(waves.frequencies(cx.device())?);
        Ok(TimeEmbedding { waves, frequencies, linear })
    }

    /// Sets the base of the frequencies (default 10,000). Errors: no finite number above 0.
    pub fn max_period(mut self, max_period: f64) -> Result<Self> {
        if !(max_period > 0.0 && max_period.is_finite()) {
            return Err(invalid(OP, "max_period", "a finite number above 0", format!("{max_period}")));
        }
        self.waves.max_period = max_period;
        self.refreshed()
    }

    /// Sets what the divisor D/2 of the exponents is lowered by (default 0). Errors: no finite number below D/2.
    pub fn downscale_freq_shift(mut self, shift: f64) -> Result<Self> {
        let half = self.waves.width / 2;
        if !(shift < half as f64 && shift.is_finite()) {
            let expected = format!("a finite number below {half}, half of embedding_dim");
            return Err(invalid(OP, "downscale_freq_shift", expected, format!("{shift}")));
        }
        self.waves.shift = shift;
        self.refreshed()
    }

    fn refreshed(self) -> Result<Self> {
        let device = self.frequencies.get().device().clone();
        self.frequencies.set(self.waves.frequencies(&device)?);
        Ok(self)
    }

    setters! {
        /// Whether the cosines stand before the sines (default false).
        flip_sin_to_cos: bool => waves.cos_first;
    }

    /// Sets the activation between the linear layers (default silu).
    pub fn activation(mut self, act: Activation) -> Self {
        let [first, second] = self.linear;
        self.linear = [first.activation(act), second];
        self
    }
}

/// The sines and cosines of a time.
#[derive(Debug, Clone, Copy)]
struct Waves {
    width: usize,
    max_period: f64,
    shift: f64,
    cos_first: bool,
    /// That of the result.
    dtype: DType,
}

impl Waves {
    /// `[1, D/2]`, computed in f64.
    fn frequencies(&self, device: &Device) -> Result<Tensor> {
        let half = self.width / 2;
        let exponent = -self.max_period.ln() / (half as f64 - self.shift);
        let all = (0..half).map(|i| (i as f64 * exponent).exp());
        let wide = self.dtype == DType::F64;
        match wide {
            _ if is_trial(device) => {
                Tensor::empty(device, if wide { DType::F64 } else { DType::F32 }, &[1, half])
            }
            true => Tensor::from_slice(device, &limits::collect(all)?, &[1, half]),
            false => Tensor::from_slice(device, &limits::collect(all.map(|f| f as f32))?, &[1, half]),
        }
    }

    /// Of times `[B]`: `[B, D]`.
    fn of(&self, times: &Tensor, frequencies: &Tensor) -> Result<Tensor> {
        let angles = times.to_dtype(frequencies.dtype())?.unsqueeze(1)?.mul(frequencies)?;
        let (sin, cos) = (angles.sin()?, angles.cos()?);
        let waves = Tensor::concat(1, &if self.cos_first { [&cos, &sin] } else { [&sin, &cos] })?;
        let odd = (self.width % 2) as isize;
        let waves = if odd == 0 { waves } else { waves.pad(PadMode::Constant(0.0), &[(0, 0), (0, odd)])? };
        waves.to_dtype(self.dtype)
    }
}

impl Layer for TimeEmbedding {
    fn forward(&self, t: &Tensor) -> Result<Tensor> {
        let ([b] | [b, 1]) = *t.shape() else {
            return Err(invalid(OP, "t", "shape [B] or [B, 1]", format!("shape {:?}", t.shape())));
        };
        if !same_handle(self.frequencies.get().device(), t.device()) {
            // The layer was moved.
            self.frequencies.set(self.waves.frequencies(t.device())?);
        }
        let waves = self.waves.of(&t.reshape(&[b])?, &self.frequencies.get())?;
        let [first, second] = &self.linear;
        hooks::layer("linear_2", second, &hooks::layer("linear_1", first, &waves)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let [first, second] = &self.linear;
        v.child("linear_1", first);
        v.child("linear_2", second);
    }
}
