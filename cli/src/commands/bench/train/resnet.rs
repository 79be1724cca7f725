//! Residual networks.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil_bench::Case;
use trefoil_nn::layers::{BatchNormalization, Convolutional, Dense, GlobalPooling, MaxPooling, Sequential};
use trefoil_nn::{Device, Init, InitContext, Layer, MemoryFormat, Result, Tensor, Visitor};

use super::{MOMENTUM, Training, ids, random};
use crate::error::Result as CliResult;

/// Convolution and batch normalization, with relu unless it ends a block.
#[derive(Debug)]
struct ConvNorm {
    conv: Convolutional,
    norm: BatchNormalization,
}

/// Channels in and out, window, stride.
type ConvSize = (usize, usize, usize, usize);

/// Makes a network's convolutions and counts their arithmetic.
struct ConvBuilder<'a> {
    cx: &'a InitContext,
    precision: Precision,
    batch: usize,
    /// Arithmetic operations of the forward's convolutions.
    flops: f64,
}

impl ConvBuilder<'_> {
    /// A convolution of an image of `side`, and the side of its result.
    fn conv(&mut self, side: usize, (i, o, k, s): ConvSize, act: Activation) -> Result<(ConvNorm, usize)> {
        let conv = Convolutional::new(self.cx, i, o, k)?.stride(s).padding(k / 2).no_bias();
        let conv = conv.init(Init::He, Init::Zeros)?.precision(self.precision);
        let side = (side + 2 * (k / 2) - k) / s + 1;
        self.flops += 2.0 * (self.batch * o * side * side) as f64 * (i * k * k) as f64;
        let norm = BatchNormalization::new(self.cx, o)?.activation(act);
        Ok((ConvNorm { conv, norm }, side))
    }
}

impl Layer for ConvNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv", &self.conv);
        v.child("bn", &self.norm);
    }
}

/// A residual block: convolutions, the last of which ends with the sum and relu.
#[derive(Debug)]
struct Bottleneck {
    body: Vec<ConvNorm>,
    last: ConvNorm,
    downsample: Option<ConvNorm>,
}

impl Layer for Bottleneck {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.body.iter().try_fold(x.clone(), |h, l| l.forward(&h))?;
        let x = match &self.downsample {
            Some(l) => l.forward(x)?,
            None => x.clone(),
        };
        self.last.norm.add_forward(&self.last.conv.forward(&h)?, &x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.body.iter().enumerate().for_each(|(i, l)| v.child(&format!("{i}"), l));
        v.child("last", &self.last);
        if let Some(l) = &self.downsample {
            v.child("downsample", l);
        }
    }
}

/// torchvision's `resnet18` (blocks of two 3x3 convolutions) and `resnet50` (1x1, 3x3 with the stride, 1x1 to four times the width).
pub(super) fn resnet(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (deep, counts) = match c.text("net")? {
        "resnet18" => (false, [2, 2, 2, 2]),
        "resnet50" => (true, [3, 4, 6, 3]),
        _ => return Err(c.unexpected("net", "resnet18 or resnet50").into()),
    };
    let (classes, side, batch) = (c.size("classes")?, c.size("h")?, c.size("b")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let mut convs = ConvBuilder { cx: &cx, precision: c.precision(), batch, flops: 0.0 };
    let (relu, none) = (Activation::Relu, Activation::Identity);
    let (stem, s) = convs.conv(side, (3, 64, 7, 2), relu)?;
    // The image's gradient is not taken.
    let first = convs.flops;
    let mut model = Sequential::new().push(stem).push(MaxPooling::new(3)?.stride(2).padding(1));
    let (mut s, mut from) = ((s + 2 - 3) / 2 + 1, 64);
    for (stage, &count) in counts.iter().enumerate() {
        let width = 64 << stage;
        let out = if deep { 4 * width } else { width };
        for i in 0..count {
            let stride = if i == 0 && stage > 0 { 2 } else { 1 };
            let sizes: &[ConvSize] = if deep {
                &[(from, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
            } else {
                &[(from, width, 3, stride), (width, width, 3, 1)]
            };
            let downsample = match stride > 1 || from != out {
                true => Some(convs.conv(s, (from, out, 1, stride), none)?.0),
                false => None,
            };
            let mut body = vec![];
            for &size in sizes {
                let (layer, next) = convs.conv(s, size, relu)?;
                body.push(layer);
                s = next;
            }
            // The last relu comes behind the sum, which is part of that normalization.
            let last = body.pop().ok_or_else(|| c.unexpected("net", "a network with convolutions"))?;
            model = model.push(Bottleneck { body, last, downsample });
            from = out;
        }
    }
    let head = Dense::new(&cx, from, classes)?.precision(c.precision());
    let model = model.push(GlobalPooling::avg().keepdim(false)).push(head);
    let flops = 3.0 * (convs.flops + 2.0 * (batch * from) as f64 * classes as f64) - first;
    let format = if c.flag("channels_last") { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
    let images = random(d, c.dtype()?, &[batch, 3, side, side])?.to_memory_format(format)?;
    let data = [images, ids(d, &[batch], classes)?];
    Training::new(c, model, MOMENTUM, 0.1, data, flops)
}
