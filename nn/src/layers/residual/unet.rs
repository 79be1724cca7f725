//! The blocks of U-Nets.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::{Interpolate, InterpolateMode};

use super::images;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Visitor, hooks};

/// A convolution of 3x3 cells with a leaky relu.
pub(super) fn conv(cx: &InitContext, inputs: usize, outputs: usize) -> Result<Convolutional> {
    Ok(Convolutional::new(cx, inputs, outputs, 3)?
        .padding(1)
        .activation(Activation::LeakyRelu { slope: 0.2 }))
}

/// On the way down of a U-Net (Ronneberger et al., 2015): two convolutions of 3x3 cells with leaky relu of slope 0.2, the first of which may
/// halve the image, `[B, C, H, W] -> [B, O, ceil(H/2), ceil(W/2)]`. Also takes inputs without the batch axis.
///
/// State: `conv1.weight [O, C, 3, 3]`, `conv1.bias [O]`, `conv2.weight [O, O, 3, 3]`, `conv2.bias [O]` as in [`Convolutional`].
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct UNetConvBlock {
    channels: usize,
    conv1: Convolutional,
    conv2: Convolutional,
}

impl UNetConvBlock {
    const KIND: &'static str = "UNetConvBlock";

    /// `in_channels -> out_channels` channels; `downsample`: whether the image is halved. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, out_channels: usize, downsample: bool) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "out_channels", &[out_channels])?;
        let stride = if downsample { 2 } else { 1 };
        Ok(UNetConvBlock {
            channels: in_channels,
            conv1: conv(cx, in_channels, out_channels)?.stride(stride),
            conv2: conv(cx, out_channels, out_channels)?,
        })
    }
}

impl Layer for UNetConvBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.channels, x, |x| {
            hooks::layer("conv2", &self.conv2, &hooks::layer("conv1", &self.conv1, x)?)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv1", &self.conv1);
        v.child("conv2", &self.conv2);
    }
}

/// On the way up of a U-Net (Ronneberger et al., 2015): the image `[B, C, H, W]` is doubled by nearest neighbours and joined with the image of
/// that size `[B, S, 2*H, 2*W]` from the way down, then come two convolutions of 3x3 cells with leaky relu of slope 0.2, to `[B, O, 2*H,
/// 2*W]`.
///
/// State: `conv1.weight [O, C + S, 3, 3]`, `conv1.bias [O]`, `conv2.weight [O, O, 3, 3]`, `conv2.bias [O]` as in [`Convolutional`].
///
/// The inputs are those two images in this order. Errors: shapes other than these.
#[derive(Debug)]
pub struct UNetUpBlock {
    channels: [usize; 2],
    conv1: Convolutional,
    conv2: Convolutional,
}

impl UNetUpBlock {
    const KIND: &'static str = "UNetUpBlock";

    /// `in_channels` from below and `skip_channels` from the way down to `out_channels` channels. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        skip_channels: usize,
        out_channels: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "skip_channels", &[skip_channels])?;
        positive(Self::KIND, "out_channels", &[out_channels])?;
        Ok(UNetUpBlock {
            channels: [in_channels, skip_channels],
            conv1: conv(cx, in_channels.saturating_add(skip_channels), out_channels)?,
            conv2: conv(cx, out_channels, out_channels)?,
        })
    }

    /// The image from below joined with that from the way down. Errors: shapes that do not fit.
    pub fn join(&self, x: &Tensor, skip: &Tensor) -> Result<Tensor> {
        let [c, s] = self.channels;
        let &[b, n, h, w] = x.shape() else {
            return Err(invalid(
                Self::KIND,
                "x",
                format!("shape [B, {c}, H, W]"),
                format!("{:?}", x.shape()),
            ));
        };
        if n != c {
            return Err(invalid(Self::KIND, "x", format!("{c} channels"), format!("shape {:?}", x.shape())));
        }
        let wide = x.interpolate_by(&[2.0; 2], Interpolate::new(InterpolateMode::Nearest))?;
        let want = [b, s, 2 * h, 2 * w];
        if skip.shape() != want {
            let got = format!("{:?}", skip.shape());
            return Err(invalid(Self::KIND, "skip", format!("shape {want:?}"), got));
        }
        let y = hooks::layer("conv1", &self.conv1, &Tensor::concat(1, &[&wide, skip])?)?;
        hooks::layer("conv2", &self.conv2, &y)
    }
}

impl Layer for UNetUpBlock {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        Err(invalid(Self::KIND, "inputs", "[x, skip], by forward_all", "1 tensor"))
    }

    /// `[x, skip]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, skip] => Ok(vec![self.join(x, skip)?]),
            _ => Err(invalid(Self::KIND, "inputs", "[x, skip]", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv1", &self.conv1);
        v.child("conv2", &self.conv2);
    }
}
