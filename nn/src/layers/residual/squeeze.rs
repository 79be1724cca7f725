//! Squeeze and excitation.

use trefoil::ops::activation::Activation;

use super::highway::check_aux_weight;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Visitor, auxiliary, hooks};

const OP: &str = "SqueezeAndExcitation";

/// Channels times gates that depend on the means of all channels (Hu et al., 2018), `torchvision.ops.SqueezeExcitation`: x s with
/// s = sigmoid(fc2(relu(fc1(mean of x over space)))), of images `[B, C, H, W]` or of vectors `[B, C]`.
///
/// State: `fc1.weight [S, C, 1, 1]`, `fc1.bias [S]`, `fc2.weight [C, S, 1, 1]`, `fc2.bias [C]` as in [`Convolutional`], S being the number of
/// squeezed channels.
///
/// Errors of `forward`: rank; another number of channels than C; images without cells.
#[derive(Debug)]
pub struct SqueezeAndExcitation {
    channels: usize,
    fc1: Convolutional,
    fc2: Convolutional,
    channels_last: bool,
    aux_weight: f64,
}

impl SqueezeAndExcitation {
    /// Squeezes `channels` to max(1, floor(channels / reduction)) channels; 16 is usual. Errors: a size of 0.
    pub fn new(cx: &InitContext, channels: usize, reduction: usize) -> Result<Self> {
        positive(OP, "reduction", &[reduction])?;
        Self::with_squeeze(cx, channels, (channels / reduction).max(1))
    }

    /// Squeezes `channels` to `squeeze` channels. Errors: a size of 0.
    pub fn with_squeeze(cx: &InitContext, channels: usize, squeeze: usize) -> Result<Self> {
        positive(OP, "channels", &[channels])?;
        positive(OP, "squeeze", &[squeeze])?;
        Ok(SqueezeAndExcitation {
            channels,
            fc1: Convolutional::new(cx, channels, squeeze, 1)?.activation(Activation::Relu),
            fc2: Convolutional::new(cx, squeeze, channels, 1)?.activation(Activation::Sigmoid),
            channels_last: false,
            aux_weight: 0.0,
        })
    }

    setters! {
        /// Whether images are `[B, H, W, C]` (default false).
        channels_last: bool => channels_last;
    }

    /// Sets the activation of the squeezed channels.
    pub fn activation(mut self, act: Activation) -> Self {
        self.fc1 = self.fc1.activation(act);
        self
    }

    /// Sets the activation of the gates.
    pub fn gate(mut self, act: Activation) -> Self {
        self.fc2 = self.fc2.activation(act);
        self
    }

    /// Adds this weight times mean(s^2) to the loss of a training step (see [`auxiliary`]), which closes gates that are of no use. Errors:
    /// not a finite number of at least 0.
    pub fn aux_weight(mut self, weight: f64) -> Result<Self> {
        check_aux_weight(OP, weight)?;
        self.aux_weight = weight;
        Ok(self)
    }

    /// The mean of each channel, `[B, C]`.
    fn means(&self, x: &Tensor) -> Result<Tensor> {
        let c = self.channels;
        match x.shape() {
            &[_, n] if n == c => Ok(x.clone()),
            &[_, n, h, w] if !self.channels_last && n == c && h * w > 0 => x.global_avg_pool(),
            &[_, h, w, n] if self.channels_last && n == c && h * w > 0 => x.mean_axes(&[1, 2], false),
            other => {
                let image =
                    if self.channels_last { format!("[B, H, W, {c}]") } else { format!("[B, {c}, H, W]") };
                Err(invalid(OP, "x", format!("{image} or [B, {c}]"), format!("shape {other:?}")))
            }
        }
    }
}

impl Layer for SqueezeAndExcitation {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let means = self.means(x)?;
        let (b, c) = (means.shape()[0], self.channels);
        let s = hooks::layer("fc1", &self.fc1, &means.reshape(&[b, c, 1, 1])?)?;
        let s = hooks::layer("fc2", &self.fc2, &s)?;
        if self.aux_weight > 0.0 {
            auxiliary::add(|| s.square()?.mean()?.mul_scalar(self.aux_weight))?;
        }
        x.mul(&match x.rank() {
            2 => s.reshape(&[b, c])?,
            _ if self.channels_last => s.reshape(&[b, 1, 1, c])?,
            _ => s,
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("fc1", &self.fc1);
        v.child("fc2", &self.fc2);
    }
}
