//! The generator of ESRGAN.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::{Interpolate, InterpolateMode};

use super::images;
use super::residual_dense::{Rrdb, check_residual_scale};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{named, positive};
use crate::layers::{Checkpointed, Convolutional, SubpixelConvolutional};
use crate::module::{InitContext, Layer, Visitor, hooks};

/// How [`RrdbNetGenerator`] doubles the size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RrdbUpsampler {
    /// Nearest neighbours, then a convolution.
    #[default]
    NearestConv,
    /// A convolution to four times the channels, then [`PixelShuffle`](crate::layers::PixelShuffle).
    PixelShuffle,
}

/// What a [`RrdbNetGenerator`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct RrdbNetConfig {
    /// Channels of the image that is read.
    pub in_channels: usize,
    /// Channels of the image that is made.
    pub out_channels: usize,
    /// Channels between them.
    pub num_feat: usize,
    /// Channels of each inner convolution of the blocks.
    pub num_grow_ch: usize,
    /// Number of blocks.
    pub num_block: usize,
    /// Factor of the resolution: 2, 4 or 8.
    pub scale: usize,
    /// What the residuals of the blocks are multiplied by.
    pub residual_scale: f64,
    /// How the resolution grows.
    pub upsampler: RrdbUpsampler,
    /// Whether the backward pass computes the inside of each block again instead of keeping it, see [`Checkpointed`].
    pub checkpoint: bool,
}

impl Default for RrdbNetConfig {
    /// ESRGAN: 23 blocks of 64 and 32 channels, four times the resolution of images of 3 channels.
    fn default() -> Self {
        RrdbNetConfig {
            in_channels: 3,
            out_channels: 3,
            num_feat: 64,
            num_grow_ch: 32,
            num_block: 23,
            scale: 4,
            residual_scale: 0.2,
            upsampler: RrdbUpsampler::default(),
            checkpoint: false,
        }
    }
}

impl RrdbNetConfig {
    setters! {
        /// Sets the channels of the image that is read.
        in_channels: usize => in_channels;
        /// Sets the channels of the image that is made.
        out_channels: usize => out_channels;
        /// Sets the channels between them.
        num_feat: usize => num_feat;
        /// Sets the channels of each inner convolution of the blocks.
        num_grow_ch: usize => num_grow_ch;
        /// Sets the number of blocks.
        num_block: usize => num_block;
        /// Sets the factor of the resolution: 2, 4 or 8.
        scale: usize => scale;
        /// Sets what the residuals of the blocks are multiplied by.
        residual_scale: f64 => residual_scale;
        /// Sets how the resolution grows.
        upsampler: RrdbUpsampler => upsampler;
        /// Whether the backward pass computes the inside of each block again instead of keeping it (default false).
        checkpoint: bool => checkpoint;
    }

    /// How often the resolution is doubled.
    fn doublings(&self) -> Result<usize> {
        match self.scale {
            2 => Ok(1),
            4 => Ok(2),
            8 => Ok(3),
            other => Err(invalid(KIND, "scale", "2, 4 or 8", format!("{other}"))),
        }
    }
}

const KIND: &str = "RrdbNetGenerator";
/// Names of what doubles the resolution.
const UP: [&str; 3] = ["conv_up1", "conv_up2", "conv_up3"];
const LEAKY: Activation = Activation::LeakyRelu { slope: 0.2 };

/// Doubles the resolution.
#[derive(Debug)]
enum Up {
    Nearest(Convolutional),
    Shuffle(SubpixelConvolutional),
}

impl Up {
    fn new(cx: &InitContext, upsampler: RrdbUpsampler, channels: usize) -> Result<Self> {
        Ok(match upsampler {
            RrdbUpsampler::NearestConv => Up::Nearest(conv(cx, channels, channels)?.activation(LEAKY)),
            RrdbUpsampler::PixelShuffle => {
                Up::Shuffle(SubpixelConvolutional::new(cx, channels, channels, 2, 3)?.activation(LEAKY))
            }
        })
    }

    fn layer(&self) -> &dyn Layer {
        match self {
            Up::Nearest(conv) => conv,
            Up::Shuffle(conv) => conv,
        }
    }

    fn forward(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let x = match self {
            Up::Nearest(_) => x.interpolate_by(&[2.0; 2], Interpolate::new(InterpolateMode::Nearest))?,
            Up::Shuffle(_) => x.clone(),
        };
        hooks::layer(name, self.layer(), &x)
    }
}

/// A convolution of 3x3 cells that keeps the size of the image.
fn conv(cx: &InitContext, inputs: usize, outputs: usize) -> Result<Convolutional> {
    Ok(Convolutional::new(cx, inputs, outputs, 3)?.padding(1))
}

/// The generator of ESRGAN (Wang et al., 2018), which makes images of a higher resolution: `[B, C, H, W] -> [B, O, scale*H, scale*W]`. A
/// convolution, [`Rrdb`] blocks and a convolution around which the features are added, then for each doubling nearest neighbours and a
/// convolution (or a convolution and a pixel shuffle) with leaky relu, and two more convolutions. Convolutions have 3x3 cells. Also takes
/// inputs without the batch axis.
///
/// State, with the names of BasicSR's `RRDBNet`: `conv_first`, `body.0` and so on as in [`Rrdb`], `conv_body`, `conv_up1` to `conv_up3`,
/// `conv_hr`, `conv_last`, each as in [`Convolutional`]. For a scale of 2, BasicSR's network unshuffles the image and doubles its size twice,
/// this one once.
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct RrdbNetGenerator {
    config: RrdbNetConfig,
    first: Convolutional,
    body: Vec<(String, Checkpointed)>,
    after_body: Convolutional,
    up: Vec<Up>,
    hr: Convolutional,
    last: Convolutional,
}

impl RrdbNetGenerator {
    /// Makes a generator. Errors: a size of 0; another scale than 2, 4 and 8; a scale of residuals outside of [0, 1].
    pub fn new(cx: &InitContext, config: &RrdbNetConfig) -> Result<Self> {
        let c = *config;
        for (arg, n) in [
            ("in_channels", c.in_channels),
            ("out_channels", c.out_channels),
            ("num_feat", c.num_feat),
            ("num_grow_ch", c.num_grow_ch),
            ("num_block", c.num_block),
        ] {
            positive(KIND, arg, &[n])?;
        }
        check_residual_scale(KIND, c.residual_scale)?;
        let doublings = c.doublings()?;
        let block = |i: usize| {
            let block = Rrdb::new(cx, c.num_feat, c.num_grow_ch)?.residual_scale(c.residual_scale)?;
            Ok((format!("body.{i}"), Checkpointed::new(block)))
        };
        Ok(RrdbNetGenerator {
            config: c,
            first: conv(cx, c.in_channels, c.num_feat)?,
            body: named(KIND, (0..c.num_block).map(block).collect())?,
            after_body: conv(cx, c.num_feat, c.num_feat)?,
            up: (0..doublings).map(|_| Up::new(cx, c.upsampler, c.num_feat)).collect::<Result<_>>()?,
            hr: conv(cx, c.num_feat, c.num_feat)?.activation(LEAKY),
            last: conv(cx, c.num_feat, c.out_channels)?,
        })
    }

    fn block(&self, y: &Tensor, (name, block): &(String, Checkpointed)) -> Result<Tensor> {
        if self.config.checkpoint {
            hooks::layer(name, block, y)
        } else {
            hooks::layer(name, block.layer(), y)
        }
    }
}

impl Layer for RrdbNetGenerator {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(KIND, self.config.in_channels, x, |x| {
            let first = hooks::layer("conv_first", &self.first, x)?;
            let body = self.body.iter().try_fold(first.clone(), |y, b| self.block(&y, b))?;
            let y = first.add(&hooks::layer("conv_body", &self.after_body, &body)?)?;
            let y = UP.into_iter().zip(&self.up).try_fold(y, |y, (name, up)| up.forward(name, &y))?;
            hooks::layer("conv_last", &self.last, &hooks::layer("conv_hr", &self.hr, &y)?)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv_first", &self.first);
        for (name, block) in &self.body {
            v.child(name, block.layer());
        }
        v.child("conv_body", &self.after_body);
        for (name, up) in UP.into_iter().zip(&self.up) {
            v.child(name, up.layer());
        }
        v.child("conv_hr", &self.hr);
        v.child("conv_last", &self.last);
    }
}
