//! Depthwise separable convolution.

use trefoil::ops::{Activation, Conv, Precision};

use super::image::{PerAxis, Weights, batched, fans, positive};
use crate::error::Result;
use crate::init::Init;
use crate::layer::{Build, Layer, Param, Visitor};
use crate::tensor::Tensor;

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
    depthwise: Weights,
    pointwise: Weights,
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    multiplier: usize,
    mid: Activation,
    act: Activation,
    precision: Precision,
}

impl SeparableBlock<true> {
    /// Sets the activation between the stages.
    pub fn mid_activation(mut self, act: Activation) -> Self {
        self.mid = act;
        self
    }
}

impl<const MID: bool> SeparableBlock<MID> {
    const KIND: &'static str = if MID { "DepthwiseSeparableConvolutional" } else { "SeparableConvolutional" };

    /// `inputs -> outputs` channels with bias, stride 1, no padding, multiplier 1, no activations. Errors: a size of 0.
    pub fn new(cx: &Build, inputs: usize, outputs: usize, kernel: impl PerAxis<usize, 2>) -> Result<Self> {
        Self::lazy(cx, outputs, kernel)?.inputs(inputs)
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &Build, outputs: usize, kernel: impl PerAxis<usize, 2>) -> Result<Self> {
        let kernel = kernel.per_axis();
        positive(Self::KIND, "outputs", &[outputs])?;
        positive(Self::KIND, "kernel", &kernel)?;
        let mut depthwise = Weights::new(cx, Init::Lin);
        depthwise.no_bias();
        Ok(SeparableBlock {
            depthwise,
            pointwise: Weights::new(cx, Init::Lin),
            out: outputs,
            kernel,
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
            multiplier: 1,
            mid: Activation::Identity,
            act: Activation::Identity,
            precision: Precision::Ieee,
        })
    }

    fn inputs(self, inputs: usize) -> Result<Self> {
        positive(Self::KIND, "inputs", &[inputs])?;
        self.params(inputs)?;
        Ok(self)
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.pointwise.no_bias();
        self
    }

    /// Sets the distance of windows.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        self.stride = stride.per_axis();
        self
    }

    /// Sets the zeros around the image.
    pub fn padding(mut self, padding: impl PerAxis<usize, 2>) -> Self {
        self.padding = padding.per_axis();
        self
    }

    /// Sets the distance of a window's cells.
    pub fn dilation(mut self, dilation: impl PerAxis<usize, 2>) -> Self {
        self.dilation = dilation.per_axis();
        self
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
        self
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets how the weights of both stages and the bias are filled and fills them anew.
    pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        self.depthwise.weight_init = weight;
        (self.pointwise.weight_init, self.pointwise.bias_init) = (weight, bias);
        self.anew()
    }

    fn anew(mut self) -> Result<Self> {
        self.pointwise.reset();
        match self.depthwise.reset() {
            Some(inputs) => self.inputs(inputs),
            None => Ok(self),
        }
    }

    /// Weight of the first stage, weight and bias of the second.
    fn params(&self, inputs: usize) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let [kh, kw] = self.kernel;
        let (mid, o) = (inputs.saturating_mul(self.multiplier), self.out);
        let fan = fans(1, self.multiplier, &self.kernel);
        let (depthwise, _) = self.depthwise.get(inputs, &[mid, 1, kh, kw], &[], fan)?;
        let (pointwise, bias) = self.pointwise.get(mid, &[o, mid, 1, 1], &[o], (mid, o))?;
        Ok((depthwise, pointwise, bias))
    }

    /// The weight of the first stage `[C*m, 1, kH, kW]`, once the number of input channels is known.
    pub fn depthwise_weight(&self) -> Option<&Param> {
        self.depthwise.weight()
    }

    /// The weight of the second stage `[O, C*m, 1, 1]`, once the number of input channels is known.
    pub fn pointwise_weight(&self) -> Option<&Param> {
        self.pointwise.weight()
    }

    /// The bias `[O]`, if there is one and the number of input channels is known.
    pub fn bias(&self) -> Option<&Param> {
        self.pointwise.bias()
    }
}

impl<const MID: bool> Layer for SeparableBlock<MID> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let c = self.depthwise.channels(Self::KIND, x)?;
            let (wd, wp, b) = self.params(c)?;
            let p = Conv::new().precision(self.precision);
            let first = p.stride(self.stride).pad(self.padding).dilation(self.dilation).groups(c);
            x.conv2d(&wd, None, &first.act(self.mid))?.conv2d(&wp, b.as_ref(), &p.act(self.act))
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.depthwise.visit("depthwise.", v);
        self.pointwise.visit("pointwise.", v);
    }
}
