//! Depthwise separable convolution.

use once_cell::sync::OnceCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::{PerAxis, batched, positive};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Depthwise separable convolution with an activation between the stages (MobileNet; Howard et al., 2017). Batch normalisation is a layer of
/// its own, put between blocks.
pub type DepthwiseSeparableConvolutional = SeparableBlock<true>;

/// Depthwise separable convolution without a nonlinearity between the stages (Xception; Chollet, 2017), Keras' `SeparableConv2D`.
pub type SeparableConvolutional = SeparableBlock<false>;

/// A convolution of each channel for itself, then one of 1x1 cells that mixes them: `[B, C, H, W] -> [B, O, H', W']`. Also takes inputs
/// without the batch axis. Stride, padding and dilation belong to the first stage, the bias to the second; with a multiplier m channel
/// c*m + q of the first stage reads channel c. `MID`: whether an activation may stand between the stages.
///
/// State: `depthwise.weight [C*m, 1, kH, kW]` from U(-a, a) with a = 1/sqrt(kH * kW), `pointwise.weight [O, C*m, 1, 1]` and
/// `pointwise.bias [O]` with a = 1/sqrt(C*m), unless set otherwise.
///
/// Errors of `forward`: rank; another number of channels than at first; strides or dilations of 0; windows larger than the padded input.
#[derive(Debug)]
pub struct SeparableBlock<const MID: bool> {
    cx: InitContext,
    stages: OnceCell<Stages>,
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    multiplier: usize,
    bias: bool,
    init: [Init; 2],
    mid: Activation,
    act: Activation,
    precision: Precision,
}

#[derive(Debug)]
struct Stages {
    channels: usize,
    depthwise: Convolutional,
    pointwise: Convolutional,
}

impl SeparableBlock<true> {
    /// Sets the activation between the stages.
    pub fn mid_activation(mut self, act: Activation) -> Self {
        self.mid = act;
        self.each(|first, second| (first.activation(act), second))
    }
}

impl<const MID: bool> SeparableBlock<MID> {
    const KIND: &'static str = if MID { "DepthwiseSeparableConvolutional" } else { "SeparableConvolutional" };

    /// `in_channels -> out_channels` channels with bias, stride 1, no padding, multiplier 1, no activations. Errors: a size of 0.
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
        Ok(SeparableBlock {
            cx: cx.clone(),
            stages: OnceCell::new(),
            out: out_channels,
            kernel: kernel_size,
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
            multiplier: 1,
            bias: true,
            init: [Init::Lin; 2],
            mid: Activation::Identity,
            act: Activation::Identity,
            precision: Precision::Ieee,
        })
    }

    fn inputs(self, inputs: usize) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[inputs])?;
        self.stages(inputs)?;
        Ok(self)
    }

    fn stages(&self, channels: usize) -> Result<&Stages> {
        self.stages.get_or_try_init(|| {
            let [weight, bias] = self.init;
            let mid = channels.saturating_mul(self.multiplier);
            let first = Convolutional::lazy(&self.cx, mid, self.kernel)?.no_bias().init(weight, bias)?;
            let first = first.groups(channels)?.activation(self.mid).precision(self.precision);
            let first = first.stride(self.stride).padding(self.padding).dilation(self.dilation);
            let second = Convolutional::lazy(&self.cx, self.out, 1)?.init(weight, bias)?;
            let second = second.activation(self.act).precision(self.precision);
            let second = if self.bias { second } else { second.no_bias() };
            let stages =
                Stages { channels, depthwise: first.inputs(channels)?, pointwise: second.inputs(mid)? };
            Ok(stages)
        })
    }

    /// Adapts the stages, if they were made.
    fn each(
        mut self,
        f: impl FnOnce(Convolutional, Convolutional) -> (Convolutional, Convolutional),
    ) -> Self {
        if let Some(Stages { channels, depthwise, pointwise }) = self.stages.take() {
            let (depthwise, pointwise) = f(depthwise, pointwise);
            self.stages = OnceCell::from(Stages { channels, depthwise, pointwise });
        }
        self
    }

    fn anew(mut self) -> Result<Self> {
        match self.stages.take() {
            Some(s) => self.inputs(s.channels),
            None => Ok(self),
        }
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self.each(|first, second| (first, second.no_bias()))
    }

    /// Sets the stride, the distance of neighbouring windows.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        let stride = stride.per_axis();
        self.stride = stride;
        self.each(|first, second| (first.stride(stride), second))
    }

    /// Sets the padding: zeros around the image.
    pub fn padding(mut self, padding: impl PerAxis<usize, 2>) -> Self {
        let padding = padding.per_axis();
        self.padding = padding;
        self.each(|first, second| (first.padding(padding), second))
    }

    /// Sets the dilation, the distance of a window's cells.
    pub fn dilation(mut self, dilation: impl PerAxis<usize, 2>) -> Self {
        let dilation = dilation.per_axis();
        self.dilation = dilation;
        self.each(|first, second| (first.dilation(dilation), second))
    }

    /// Sets how many channels the first stage makes of each, and makes the parameters anew. Errors: 0.
    pub fn depth_multiplier(mut self, multiplier: usize) -> Result<Self> {
        positive(Self::KIND, "depth_multiplier", &[multiplier])?;
        self.multiplier = multiplier;
        self.anew()
    }

    /// Sets the activation.
    pub fn activation(mut self, act: Activation) -> Self {
        self.act = act;
        self.each(|first, second| (first, second.activation(act)))
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self.each(|first, second| (first.precision(precision), second.precision(precision)))
    }

    /// Sets how the weights of both stages and the bias are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.init = [weight, bias];
        self.anew()
    }

    /// The weight of the first stage `[C*m, 1, kH, kW]`, once the number of input channels is known.
    pub fn depthwise_weight(&self) -> Option<&Param> {
        self.stages.get().and_then(|s| s.depthwise.weight())
    }

    /// The weight of the second stage `[O, C*m, 1, 1]`, once the number of input channels is known.
    pub fn pointwise_weight(&self) -> Option<&Param> {
        self.stages.get().and_then(|s| s.pointwise.weight())
    }

    /// The bias `[O]`, if there is one and the number of input channels is known.
    pub fn bias(&self) -> Option<&Param> {
        self.stages.get().and_then(|s| s.pointwise.bias())
    }
}

impl<const MID: bool> Layer for SeparableBlock<MID> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let c = x.shape()[1];
            let s = self.stages(c)?;
            if s.channels != c {
                let got = format!("shape {:?} with {c}", x.shape());
                return Err(invalid(Self::KIND, "x", format!("{} channels", s.channels), got));
            }
            // What does not fit the windows is this layer's error, not its first stage's.
            let windows = Conv::new().stride(self.stride).pad(self.padding).dilation(self.dilation);
            windows.output_size(&x.shape()[2..], &self.kernel)?;
            hooks::layer("pointwise", &s.pointwise, &hooks::layer("depthwise", &s.depthwise, x)?)
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(s) = self.stages.get() {
            v.child("depthwise", &s.depthwise);
            v.child("pointwise", &s.pointwise);
        }
    }
}
