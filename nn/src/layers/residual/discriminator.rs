//! The discriminator of Real-ESRGAN.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::{Interpolate, InterpolateMode};

use super::images;
use super::unet::{UNetConvBlock, UNetUpBlock, conv};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::positive;
use crate::layers::{Convolutional, SpectralNormalization};
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "UNetDiscriminator";

/// A U-Net that tells for each pixel of an image whether it is real, `[B, C, H, W] -> [B, 1, H, W]` (logits). H and W are multiples of
/// 2^num_blocks. Also takes inputs without the batch axis.
///
/// [`plain`](UNetDiscriminator::plain): level i has w(i) = min(2^i, 8)*num_feat channels and half of the size of the level above it. A
/// convolution to level 0, [`UNetConvBlock`]s down to level num_blocks, [`UNetUpBlock`]s up again, the last ones to num_feat channels, and a
/// convolution. State: `conv_first`, `down.0` (from level 0) and so on, `up.0` (which reads level 0) and so on, `conv_last`.
///
/// [`real_esrgan`](UNetDiscriminator::real_esrgan): BasicSR's `UNetDiscriminatorSN` (Wang et al., 2021), three levels down by convolutions of
/// 4x4 cells, up again by bilinear interpolation and convolutions, to which the levels on the way down are added, and three more
/// convolutions, with [`SpectralNormalization`] of all but the first and the last. State: `conv0` to `conv9`; entries `conv1.weight_orig`,
/// `conv1.weight_u` and `conv1.weight_v` of its files are `conv1.parametrizations.weight.original`, `conv1.parametrizations.weight.0._u` and
/// `conv1.parametrizations.weight.0._v` here, to which a [`StateMap`](crate::StateMap) renames them.
///
/// Errors of `forward`: rank; another number of channels than C; sizes that are no such multiples.
#[derive(Debug)]
pub struct UNetDiscriminator {
    channels: usize,
    /// Levels below the image.
    levels: usize,
    net: Box<dyn Layer>,
}

impl UNetDiscriminator {
    /// Most levels: the sides of an image of two cells on the lowest one have 2^17.
    const DEEPEST: usize = 16;

    /// For images of `in_channels` channels, with `num_feat` channels (64 is usual) on the first of `num_blocks` levels (4 is usual). Errors:
    /// a size of 0; more than 16 levels.
    pub fn plain(cx: &InitContext, in_channels: usize, num_feat: usize, num_blocks: usize) -> Result<Self> {
        positive(OP, "num_blocks", &[num_blocks])?;
        if num_blocks > Self::DEEPEST {
            let want = format!("at most {}", Self::DEEPEST);
            return Err(invalid(OP, "num_blocks", want, format!("{num_blocks}")));
        }
        Self::of(in_channels, num_feat, num_blocks, || {
            Ok(Box::new(Plain::new(cx, in_channels, num_feat, num_blocks)?))
        })
    }

    /// For images of `in_channels` channels, with `num_feat` channels (64 is usual) on the first of three levels. Errors: a size of 0.
    pub fn real_esrgan(cx: &InitContext, in_channels: usize, num_feat: usize) -> Result<Self> {
        Self::of(in_channels, num_feat, 3, || Ok(Box::new(Spectral::new(cx, in_channels, num_feat)?)))
    }

    fn of(
        channels: usize,
        num_feat: usize,
        levels: usize,
        net: impl FnOnce() -> Result<Box<dyn Layer>>,
    ) -> Result<Self> {
        positive(OP, "in_channels", &[channels])?;
        positive(OP, "num_feat", &[num_feat])?;
        Ok(UNetDiscriminator { channels, levels, net: net()? })
    }
}

impl Layer for UNetDiscriminator {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(OP, self.channels, x, |x| {
            let least = 1 << self.levels;
            if x.shape()[2..].iter().any(|n| !n.is_multiple_of(least)) {
                let want = format!("images whose sides are multiples of {least}");
                return Err(invalid(OP, "x", want, format!("shape {:?}", x.shape())));
            }
            hooks::layer("", &*self.net, x)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&*self.net);
    }
}

/// Blocks of convolutions, skips that are joined.
#[derive(Debug)]
struct Plain {
    first: Convolutional,
    down: Vec<(String, UNetConvBlock)>,
    up: Vec<(String, UNetUpBlock)>,
    last: Convolutional,
}

impl Plain {
    fn new(cx: &InitContext, channels: usize, num_feat: usize, levels: usize) -> Result<Self> {
        let width = |level: usize| num_feat.saturating_mul(8.min(1 << level));
        let down =
            |i: usize| Ok((format!("down.{i}"), UNetConvBlock::new(cx, width(i), width(i + 1), true)?));
        // The block that reads level i gives as many channels as level i - 1 has.
        let up = |i: usize| {
            let below = if i + 1 == levels { width(levels) } else { width(i) };
            Ok((format!("up.{i}"), UNetUpBlock::new(cx, below, width(i), width(i.saturating_sub(1)))?))
        };
        Ok(Plain {
            first: conv(cx, channels, width(0))?,
            down: (0..levels).map(down).collect::<Result<_>>()?,
            up: (0..levels).map(up).collect::<Result<_>>()?,
            last: conv(cx, num_feat, 1)?.activation(Activation::Identity),
        })
    }
}

impl Layer for Plain {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = hooks::layer("conv_first", &self.first, x)?;
        let mut skips = vec![];
        for (name, block) in &self.down {
            let below = hooks::layer(name, block, &y)?;
            skips.push(std::mem::replace(&mut y, below));
        }
        for ((name, block), skip) in self.up.iter().zip(&skips).rev() {
            y = hooks::call(name, block, &[&y, skip], || block.join(&y, skip))?;
        }
        hooks::layer("conv_last", &self.last, &y)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv_first", &self.first);
        for (name, block) in &self.down {
            v.child(name, block);
        }
        for (name, block) in &self.up {
            v.child(name, block);
        }
        v.child("conv_last", &self.last);
    }
}

/// Names of the convolutions.
const CONVS: [&str; 10] =
    ["conv0", "conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "conv8", "conv9"];

/// Spectrally normalized convolutions, skips that are added.
#[derive(Debug)]
struct Spectral {
    convs: Vec<Box<dyn Layer>>,
}

impl Spectral {
    fn new(cx: &InitContext, channels: usize, num_feat: usize) -> Result<Self> {
        // In units of num_feat: what conv0 to conv8 give.
        let widths = [1usize, 2, 4, 8, 4, 2, 1, 1, 1].map(|w| w.saturating_mul(num_feat));
        let mut convs: Vec<Box<dyn Layer>> = vec![Box::new(conv(cx, channels, num_feat)?)];
        for (i, w) in widths.windows(2).enumerate() {
            let act = Activation::LeakyRelu { slope: 0.2 };
            let (kernel_size, stride) = if i < 3 { (4, 2) } else { (3, 1) };
            let conv = Convolutional::new(cx, w[0], w[1], kernel_size)?.stride(stride).padding(1);
            convs.push(Box::new(SpectralNormalization::new(cx, conv.no_bias().activation(act))?));
        }
        convs.push(Box::new(conv(cx, num_feat, 1)?.activation(Activation::Identity)));
        Ok(Spectral { convs })
    }

    fn conv(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        hooks::layer(CONVS[i], &*self.convs[i], x)
    }
}

impl Layer for Spectral {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x0 = self.conv(0, x)?;
        let x1 = self.conv(1, &x0)?;
        let x2 = self.conv(2, &x1)?;
        let mut y = self.conv(3, &x2)?;
        for (i, skip) in [(4, &x2), (5, &x1), (6, &x0)] {
            let wide = y.interpolate_by(&[2.0; 2], Interpolate::new(InterpolateMode::Linear))?;
            y = self.conv(i, &wide)?.add(skip)?;
        }
        (7..CONVS.len()).try_fold(y, |y, i| self.conv(i, &y))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, conv) in CONVS.into_iter().zip(&self.convs) {
            v.child(name, &**conv);
        }
    }
}
