//! Deformable convolution.

use once_cell::sync::OnceCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::{
    PerAxis, Weights, batched, check_groups, fans, positive, weight_access, weight_methods,
};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Convolution of images that learns where its taps read: Dai et al. (2017), with a learned factor per tap Zhu et al. (2019).
/// `[B, C, H, W] -> [B, O, H', W']` with offsets and factors from two convolutions of the same input, `torchvision.ops.deform_conv2d`.
/// Also takes inputs without the batch axis. Stride 1, padding 1, dilation 1 unless set otherwise.
///
/// State: `weight [O, C/groups, kH, kW]`, `bias [O]` from U(-a, a) with a = 1/sqrt(C/groups * kH * kW); `offset_conv.weight
/// [2*D*kH*kW, C, kH, kW]`, `mask_conv.weight [D*kH*kW, C, kH, kW]` and their biases, which start at 0 (no displacement, factors 1/2).
///
/// Errors of `forward`: rank; another number of channels than at first; groups that do not divide the channels; strides or dilations of 0;
/// windows larger than the padded input.
#[derive(Debug)]
pub struct DeformableConvolutional {
    cx: InitContext,
    weights: Weights,
    maps: OnceCell<Maps>,
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    deform_groups: usize,
    modulation: bool,
}

/// The convolutions that say where taps read and with which factor.
#[derive(Debug)]
struct Maps {
    offset: Convolutional,
    mask: Option<Convolutional>,
}

impl DeformableConvolutional {
    const KIND: &'static str = "DeformableConvolutional";

    /// `in_channels -> out_channels` channels with bias and factors. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        kernel_size: impl PerAxis<usize, 2>,
    ) -> Result<Self> {
        Self::lazy(cx, out_channels, kernel_size)?.inputs(in_channels)
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, out_channels: usize, kernel_size: impl PerAxis<usize, 2>) -> Result<Self> {
        let kernel_size = kernel_size.per_axis();
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "kernel_size", &kernel_size)?;
        Ok(DeformableConvolutional {
            cx: cx.clone(),
            weights: Weights::new(cx, Init::Lin),
            maps: OnceCell::new(),
            out: out_channels,
            kernel: kernel_size,
            stride: [1; 2],
            padding: [1; 2],
            dilation: [1; 2],
            groups: 1,
            deform_groups: 1,
            modulation: true,
        })
    }

    /// Sets the stride, the distance of neighbouring windows.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        let stride = stride.per_axis();
        self.stride = stride;
        self.each(|c| c.stride(stride))
    }

    /// Sets the padding: zeros around the image.
    pub fn padding(mut self, padding: impl PerAxis<usize, 2>) -> Self {
        let padding = padding.per_axis();
        self.padding = padding;
        self.each(|c| c.padding(padding))
    }

    /// Sets the dilation, the distance of a window's cells before they are displaced.
    pub fn dilation(mut self, dilation: impl PerAxis<usize, 2>) -> Self {
        let dilation = dilation.per_axis();
        self.dilation = dilation;
        self.each(|c| c.dilation(dilation))
    }

    /// Sets the groups of the main convolution and makes the parameters anew. Errors: no divisor of both numbers of channels.
    pub fn groups(mut self, groups: usize) -> Result<Self> {
        self.groups = groups;
        self.anew()
    }

    /// Sets the number D of groups of input channels that share offsets and makes the parameters anew. Errors: no divisor of the channels.
    pub fn deform_groups(mut self, groups: usize) -> Result<Self> {
        self.deform_groups = groups;
        self.maps.take();
        self.anew()
    }

    /// Whether taps have learned factors (default true). Makes the parameters anew.
    pub fn modulation(mut self, on: bool) -> Result<Self> {
        self.modulation = on;
        self.maps.take();
        self.anew()
    }

    /// The main convolution's weight and bias, and the other convolutions.
    fn params(&self, inputs: usize) -> Result<(Tensor, Option<Tensor>, &Maps)> {
        let (o, g, d) = (self.out, self.groups, self.deform_groups);
        check_groups(Self::KIND, g, inputs, o)?;
        if d == 0 || !inputs.is_multiple_of(d) {
            let expected = format!("a divisor of {inputs} input channels");
            return Err(invalid(Self::KIND, "deform_groups", expected, format!("{d}")));
        }
        let shape = [o, inputs / g, self.kernel[0], self.kernel[1]];
        let (w, b) = self.weights.get(inputs, &shape, &[o], fans(inputs / g, o / g, &self.kernel))?;
        Ok((w, b, self.maps(inputs)?))
    }

    fn maps(&self, inputs: usize) -> Result<&Maps> {
        self.maps.get_or_try_init(|| {
            let [kh, kw] = self.kernel;
            let taps = self.deform_groups.saturating_mul(kh).saturating_mul(kw);
            let conv = |outputs: usize| {
                let c =
                    Convolutional::lazy(&self.cx, outputs, self.kernel)?.init(Init::Zeros, Init::Zeros)?;
                c.stride(self.stride).padding(self.padding).dilation(self.dilation).inputs(inputs)
            };
            let offset = conv(taps.saturating_mul(2))?;
            let mask = if self.modulation { Some(conv(taps)?.activation(Activation::Sigmoid)) } else { None };
            Ok(Maps { offset, mask })
        })
    }

    /// Adapts the other convolutions, if they were made.
    fn each(mut self, f: impl Fn(Convolutional) -> Convolutional) -> Self {
        if let Some(Maps { offset, mask }) = self.maps.take() {
            self.maps = OnceCell::from(Maps { offset: f(offset), mask: mask.map(f) });
        }
        self
    }
}

weight_methods!(impl[] DeformableConvolutional, weight "[O, C/groups, kH, kW]", bias "[O]");

impl Layer for DeformableConvolutional {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let (w, b, maps) = self.params(self.weights.channels(Self::KIND, x)?)?;
            let p = Conv::new().stride(self.stride).pad(self.padding).dilation(self.dilation);
            // All three convolutions have these windows; what does not fit is this layer's error.
            p.output_size(&x.shape()[2..], &self.kernel)?;
            let offset = hooks::layer("offset_conv", &maps.offset, x)?;
            let mask = maps.mask.as_ref().map(|m| hooks::layer("mask_conv", m, x)).transpose()?;
            x.deform_conv(&w, &offset, mask.as_ref(), b.as_ref(), &p.groups(self.groups))
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.weights.visit("", v);
        if let Some(Maps { offset, mask }) = self.maps.get() {
            v.child("offset_conv", offset);
            if let Some(mask) = mask {
                v.child("mask_conv", mask);
            }
        }
    }
}
