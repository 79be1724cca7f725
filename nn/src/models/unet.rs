//! U-Net.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{BatchNormalization, Convolutional, Deconvolutional, MaxPooling, Sequential, Upsampling};
use crate::module::{InitContext, Layer, Visitor, hooks};

/// Halvings on the way down.
const LEVELS: usize = 4;

/// What a [`UNet`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct UNetConfig {
    in_channels: usize,
    num_classes: usize,
    width: usize,
    bilinear: bool,
}

impl UNetConfig {
    /// From images of this many channels to this many classes per pixel, with 64 channels at full size, upsampling by transposed convolutions.
    pub fn new(in_channels: usize, num_classes: usize) -> Self {
        UNetConfig { in_channels, num_classes, width: 64, bilinear: false }
    }

    /// Sets the channels at full size, which double with each halving of the image (default 64).
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Upsamples by bilinear interpolation, with half as many channels at the lowest level and on the way up.
    pub fn bilinear(mut self) -> Self {
        self.bilinear = true;
        self
    }
}

/// U-Net (Ronneberger et al., 2015), with padded convolutions and batch normalization as in milesial's `Pytorch-UNet`:
/// `[B, C, H, W] -> [B, num_classes, H, W]` (logits). Sides are at least 16; where they are no multiples of 16, what comes up is padded by
/// zeros to the size of what it is joined to.
///
/// State, under the names of that code: `inc.double_conv.0.weight`, `inc.double_conv.1` (batch normalization), `inc.double_conv.3.weight`,
/// `inc.double_conv.4`; `down1.maxpool_conv.1.double_conv` and so on to `down4`; `up1.up` (without [`bilinear`](UNetConfig::bilinear)),
/// `up1.conv.double_conv` and so on to `up4`; `outc.conv`. Weights start by PyTorch's rule.
#[derive(Debug)]
pub struct UNet {
    inc: Sequential,
    down: Vec<(String, Sequential)>,
    up: Vec<(String, Up)>,
    outc: Sequential,
}

impl UNet {
    /// Makes a model. Errors: a size of 0, by the name of the part.
    pub fn new(cx: &InitContext, config: &UNetConfig) -> Result<Self> {
        let c = config;
        let width = |level: usize| c.width.saturating_mul(1 << level);
        // What levels below the first give to the one above them.
        let given = |level: usize| if c.bilinear { width(level) / 2 } else { width(level) };
        let inc = double_conv(cx, c.in_channels, c.width, c.width)?;
        let down = |level: usize| -> Result<_> {
            let outputs = if level == LEVELS { given(level) } else { width(level) };
            let conv = double_conv(cx, width(level - 1), outputs, outputs)?;
            let pooled = Sequential::new().push(MaxPooling::new(2)?).push(conv);
            Ok((format!("down{level}"), Sequential::new().named("maxpool_conv", pooled)))
        };
        let up = |level: usize| -> Result<_> {
            let outputs = if level == 1 { c.width } else { given(level - 1) };
            Ok((format!("up{}", LEVELS + 1 - level), Up::new(cx, width(level), outputs, c.bilinear)?))
        };
        Ok(UNet {
            inc,
            down: (1..=LEVELS).map(down).collect::<Result<_>>()?,
            up: (1..=LEVELS).rev().map(up).collect::<Result<_>>()?,
            outc: Sequential::new().named("conv", Convolutional::new(cx, c.width, c.num_classes, 1)?),
        })
    }
}

impl Layer for UNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 4 {
            return Err(invalid("UNet", "x", "shape [B, C, H, W]", format!("shape {:?}", x.shape())));
        }
        let mut y = hooks::layer("inc", &self.inc, x)?;
        let mut skips = vec![];
        for (name, part) in &self.down {
            let below = hooks::layer(name, part, &y)?;
            skips.push(std::mem::replace(&mut y, below));
        }
        for ((name, part), skip) in self.up.iter().zip(skips.iter().rev()) {
            y = hooks::call(name, part, &[&y, skip], || part.join(&y, skip))?;
        }
        hooks::layer("outc", &self.outc, &y)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("inc", &self.inc);
        self.down.iter().for_each(|(name, part)| v.child(name, part));
        self.up.iter().for_each(|(name, part)| v.child(name, part));
        v.child("outc", &self.outc);
    }
}

/// Two convolutions of 3x3 cells, each with batch normalization and ReLU.
fn double_conv(cx: &InitContext, inputs: usize, hidden: usize, outputs: usize) -> Result<Sequential> {
    let conv = |inputs, outputs| -> Result<_> {
        Ok(Convolutional::new(cx, inputs, outputs, 3)?.padding(1).no_bias())
    };
    let norm =
        |channels| -> Result<_> { Ok(BatchNormalization::new(cx, channels)?.activation(Activation::Relu)) };
    // An activation of its own has the index behind each normalization.
    let convs = Sequential::new()
        .named("0", conv(inputs, hidden)?)
        .named("1", norm(hidden)?)
        .named("3", conv(hidden, outputs)?)
        .named("4", norm(outputs)?);
    Ok(Sequential::new().named("double_conv", convs))
}

/// Doubles the size of an image, joins it to that from the way down, and convolves both.
#[derive(Debug)]
struct Up {
    up: Box<dyn Layer>,
    conv: Sequential,
}

impl Up {
    /// `inputs` are the channels of both images together.
    fn new(cx: &InitContext, inputs: usize, outputs: usize, bilinear: bool) -> Result<Self> {
        let half = inputs / 2;
        if bilinear {
            let up = Upsampling::scale(2.0)?.mode(InterpolateMode::Linear).align_corners(true);
            return Ok(Up { up: Box::new(up), conv: double_conv(cx, inputs, half, outputs)? });
        }
        let up = Deconvolutional::new(cx, inputs, half, 2)?.stride(2);
        Ok(Up { up: Box::new(up), conv: double_conv(cx, inputs, outputs, outputs)? })
    }

    fn join(&self, x: &Tensor, skip: &Tensor) -> Result<Tensor> {
        let mut y = hooks::layer("up", &*self.up, x)?;
        if y.shape()[2..] != skip.shape()[2..] {
            let missing = |axis: usize| {
                let n = (skip.shape()[axis] - y.shape()[axis]) as isize;
                (n / 2, n - n / 2)
            };
            y = y.pad(PadMode::Constant(0.0), &[(0, 0), (0, 0), missing(2), missing(3)])?;
        }
        hooks::layer("conv", &self.conv, &Tensor::concat(1, &[skip, &y])?)
    }
}

impl Layer for Up {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        Err(invalid(self.kind(), "inputs", "[x, skip], by forward_all", "1 tensor"))
    }

    /// `[x, skip]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, skip] => Ok(vec![self.join(x, skip)?]),
            _ => Err(invalid(self.kind(), "inputs", "[x, skip]", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("up", &*self.up);
        v.child("conv", &self.conv);
    }
}
