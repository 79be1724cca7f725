//! Optical flow by a pyramid of images.

use trefoil::ops::activation::Activation;
use trefoil::ops::pool::Window;
use trefoil::ops::resample::{GridSample, Interpolate, InterpolateMode, SampleMode, SamplePadding};

use super::warp::{identity, widened};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::containers::sequential::Sequential;
use crate::layers::conv::convolutional::Convolutional;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "SpyNet";
/// Images are enlarged to multiples of 2^(levels - 1).
const MOST_LEVELS: usize = 16;
/// Channels behind the convolutions of a level.
const CHANNELS: [usize; 5] = [32, 64, 32, 16, 2];
/// Means and standard deviations of the colors of ImageNet.
const IMAGENET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];

/// Optical flow by a spatial pyramid (Ranjan and Black, 2017), as in BasicSR: how far each pixel of a reference frame has moved in a
/// supporting frame, in pixels, `[B, 2, H, W]` with x before y. Frames come as one input `[B, 2 C, H, W]`, the reference first, or as two
/// `[B, C, H, W]`.
///
/// Both are enlarged to multiples of 2^(levels - 1) and halved levels - 1 times. From the smallest pair on, the flow so far is doubled, the
/// supporting frame is warped by it, and five convolutions of 7 by 7 cells with relu between them (2 C + 2 -> 32 -> 64 -> 32 -> 16 -> 2
/// channels) correct it.
///
/// State of level i, from the smallest frames on: `basic_module.i.basic_module.0.weight` and `.bias`, then those of 2, 4, 6 and 8; values as
/// in [`Convolutional`]. With [`normalize_imagenet`](SpyNet::normalize_imagenet) also the buffers `mean` and `std`, so that BasicSR's files
/// load.
///
/// Errors of `forward`: rank, another number of channels, frames without a pixel; of two frames also shapes that differ.
#[derive(Debug)]
pub struct SpyNet {
    cx: InitContext,
    channels: usize,
    levels: Vec<Sequential>,
    imagenet: Option<[Param; 2]>,
}

impl SpyNet {
    /// Six levels for frames of `in_channels` channels. Errors: no channels.
    pub fn new(cx: &InitContext, in_channels: usize) -> Result<Self> {
        Self::with_levels(cx, in_channels, 6)
    }

    /// `num_levels` levels. Errors: no channels; a number of levels outside of 1 to 16.
    pub fn with_levels(cx: &InitContext, in_channels: usize, num_levels: usize) -> Result<Self> {
        Self::of(cx, in_channels, num_levels, &CHANNELS)
    }

    /// As [`with_levels`](Self::with_levels) with a single convolution of 7 by 7 cells in each level.
    pub fn single_conv(cx: &InitContext, in_channels: usize, num_levels: usize) -> Result<Self> {
        Self::of(cx, in_channels, num_levels, &CHANNELS[4..])
    }

    fn of(cx: &InitContext, channels: usize, levels: usize, outputs: &[usize]) -> Result<Self> {
        positive(OP, "in_channels", &[channels])?;
        if !(1..=MOST_LEVELS).contains(&levels) {
            return Err(invalid(OP, "num_levels", format!("1 to {MOST_LEVELS}"), format!("{levels}")));
        }
        let levels = (0..levels).map(|_| level(cx, channels.saturating_mul(2).saturating_add(2), outputs));
        Ok(SpyNet { cx: cx.clone(), channels, levels: levels.collect::<Result<_>>()?, imagenet: None })
    }

    /// Subtracts the mean colors of ImageNet from the frames, and divides them by their standard deviations. Errors: other than 3 channels.
    pub fn normalize_imagenet(mut self) -> Result<Self> {
        if self.channels != 3 {
            let got = format!("{} channels", self.channels);
            return Err(invalid(OP, "normalize_imagenet", "frames of 3 channels", got));
        }
        let colors = |c: [f32; 3]| -> Result<_> {
            let t = Tensor::from_slice(self.cx.device(), &c, &[1, 3, 1, 1])?;
            Ok(Param::buffer(t.to_dtype(self.cx.param_dtype())?))
        };
        self.imagenet = Some([colors(IMAGENET[0])?, colors(IMAGENET[1])?]);
        Ok(self)
    }

    /// The flow `[B, 2, H, W]` from a reference frame to a supporting one, both `[B, C, H, W]`.
    pub fn flow(&self, reference: &Tensor, support: &Tensor) -> Result<Tensor> {
        let (b, h, w) = match *reference.shape() {
            [b, c, h, w] if c == self.channels && h > 0 && w > 0 => (b, h, w),
            _ => {
                let expected = format!("shape [B, {}, H, W]", self.channels);
                return Err(invalid(OP, "reference", expected, format!("shape {:?}", reference.shape())));
            }
        };
        if support.shape() != reference.shape() {
            let expected = format!("the shape {:?} of the reference", reference.shape());
            return Err(invalid(OP, "support", expected, format!("shape {:?}", support.shape())));
        }
        let unit = 1 << (self.levels.len() - 1);
        let size = [h.next_multiple_of(unit), w.next_multiple_of(unit)];
        // One batch of both.
        let mut frames = resized(&Tensor::concat(0, &[reference, support])?, &size, false)?;
        if let Some([mean, std]) = &self.imagenet {
            same_dtype(OP, &frames, &mean.get())?;
            frames = frames.sub(&mean.get())?.div(&std.get())?;
        }
        let mut pyramid = vec![frames];
        for _ in 1..self.levels.len() {
            pyramid.extend(pyramid.last().map(|x| x.avg_pool(&Window::new(&[2, 2]))).transpose()?);
        }
        // Resized to the first level it is still 0.
        let mut flow = Tensor::zeros(reference.device(), reference.dtype(), &[b, 2, 1, 1])?;
        for (i, (net, frames)) in self.levels.iter().zip(pyramid.iter().rev()).enumerate() {
            let (reference, support) = (frames.narrow(0, 0, b)?, frames.narrow(0, b, b)?);
            let up = resized(&flow, &frames.shape()[2..], true)?.mul_scalar(2.0)?;
            let x = Tensor::concat(1, &[&reference, &warped(&support, &up)?, &up])?;
            flow = hooks::layer(&format!("basic_module.{i}.basic_module"), net, &x)?.add(&up)?;
        }
        // A flow along an axis grows and shrinks with it.
        let back = [w as f64 / size[1] as f64, h as f64 / size[0] as f64];
        resized(&flow, &[h, w], false)?.mul(&pair(&flow, back)?.reshape(&[2, 1, 1])?)
    }
}

/// The convolutions of a level, with relu between them.
fn level(cx: &InitContext, inputs: usize, outputs: &[usize]) -> Result<Sequential> {
    let mut net = Sequential::new();
    let mut from = inputs;
    for (i, &to) in outputs.iter().enumerate() {
        let act = if i + 1 < outputs.len() { Activation::Relu } else { Activation::Identity };
        // PyTorch counts activations too.
        let conv = Convolutional::new(cx, from, to, 7)?.padding(3).activation(act);
        net = net.named((2 * i).to_string(), conv);
        from = to;
    }
    Ok(net)
}

/// Two numbers, made on the device.
fn pair(like: &Tensor, [a, b]: [f64; 2]) -> Result<Tensor> {
    Tensor::linspace(like.device(), like.dtype(), a, b, 2)
}

/// Bilinear interpolation to another size.
fn resized(x: &Tensor, size: &[usize], align_corners: bool) -> Result<Tensor> {
    if x.shape()[2..] == *size {
        return Ok(x.clone());
    }
    x.interpolate(size, Interpolate::new(InterpolateMode::Linear).align_corners(align_corners))
}

/// x at the positions that a flow `[B, 2, H, W]` points to; beyond the border, the border.
fn warped(x: &Tensor, flow: &Tensor) -> Result<Tensor> {
    let (h, w) = (x.shape()[2], x.shape()[3]);
    let flow = widened(flow)?.permute(&[0, 2, 3, 1])?;
    // -1 and 1 are the centers of the outer cells; an axis of one cell has no others.
    let cell = |n: usize| 2.0 / n.saturating_sub(1).max(1) as f64;
    let here = identity(flow.device(), flow.dtype())?.unsqueeze(0)?.affine_grid(&[h, w], true)?;
    let grid = flow.mul(&pair(&flow, [cell(w), cell(h)])?)?.add(&here)?;
    let p = GridSample::new(SampleMode::Linear).padding(SamplePadding::Border).align_corners(true);
    widened(x)?.grid_sample(&grid, p)?.to_dtype(x.dtype())
}

impl Layer for SpyNet {
    /// The flow between the frames of one tensor `[B, 2 C, H, W]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let c = self.channels;
        match x.shape() {
            &[_, n, _, _] if n.is_multiple_of(2) && n / 2 == c => {
                self.flow(&x.narrow(1, 0, c)?, &x.narrow(1, c, c)?)
            }
            other => {
                let expected = format!("shape [B, C, H, W] with twice {c} channels");
                Err(invalid(OP, "x", expected, format!("shape {other:?}")))
            }
        }
    }

    /// `[x]` with both frames, or `[reference, support]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(vec![self.forward(x)?]),
            [reference, support] => Ok(vec![self.flow(reference, support)?]),
            _ => Err(invalid(OP, "inputs", "1 or 2 tensors", format!("{} tensors", inputs.len()))),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, net) in self.levels.iter().enumerate() {
            v.child(&format!("basic_module.{i}.basic_module"), net);
        }
        if let Some([mean, std]) = &self.imagenet {
            v.buffer("mean", mean);
            v.buffer("std", std);
        }
    }
}
