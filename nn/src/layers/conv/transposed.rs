//! Transposed convolution.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;

use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::layers::spatial::{
    PerAxis, Weights, batched, check_groups, fans, positive, weight_access, weight_methods,
};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Transposed convolution of images, `torch.nn.ConvTranspose2d` followed by an activation: `[B, C, H, W] -> [B, O, H', W']`.
pub type Deconvolutional = DeconvNd<2>;

/// Transposed convolution over N = 1 to 3 spatial axes, `torch.nn.ConvTranspose1d`, `2d` and `3d` followed by an activation. Also takes
/// inputs without the batch axis. Output axes have (n-1)*stride - 2*padding + dilation*(k-1) + output_padding + 1 cells.
///
/// State: `weight [C, O/groups, K]`, `bias [O]`, both from U(-a, a) with a = 1/sqrt(O/groups * K) unless set otherwise (PyTorch's rule).
///
/// Errors of `forward`: rank; another number of channels than at first; groups that do not divide the channels; strides or dilations of 0;
/// output padding not below the larger of stride and dilation; no output left by the padding.
#[derive(Debug)]
pub struct DeconvNd<const N: usize> {
    weights: Weights,
    out: usize,
    kernel: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
    output_padding: [usize; N],
    dilation: [usize; N],
    groups: usize,
    act: Activation,
    precision: Precision,
}

impl<const N: usize> DeconvNd<N> {
    const KIND: &'static str = if N == 2 { "Deconvolutional" } else { "DeconvNd" };

    /// `in_channels -> out_channels` channels with bias, stride 1, no padding, no activation. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        kernel_size: impl PerAxis<usize, N>,
    ) -> Result<Self> {
        Self::lazy(cx, out_channels, kernel_size)?.inputs(in_channels)
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, out_channels: usize, kernel_size: impl PerAxis<usize, N>) -> Result<Self> {
        let kernel_size = kernel_size.per_axis();
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "kernel_size", &kernel_size)?;
        Ok(DeconvNd {
            weights: Weights::new(cx, Init::Lin),
            out: out_channels,
            kernel: kernel_size,
            stride: [1; N],
            padding: [0; N],
            output_padding: [0; N],
            dilation: [1; N],
            groups: 1,
            act: Activation::Identity,
            precision: Precision::Ieee,
        })
    }

    setters! {
        /// Sets the stride, the distance of the input's cells in the output (default 1).
        stride: [usize; N] => stride;
        /// Sets the padding: cells cut from both sides of each output axis (default 0).
        padding: [usize; N] => padding;
        /// Sets the output padding: cells added behind each output axis (default 0).
        output_padding: [usize; N] => output_padding;
        /// Sets the dilation, the distance of a window's cells (default 1).
        dilation: [usize; N] => dilation;
    }

    /// Sets the groups of channels that are treated apart from each other, and makes the parameters anew. Errors: no divisor of both
    /// numbers of channels.
    pub fn groups(mut self, groups: usize) -> Result<Self> {
        self.groups = groups;
        self.anew()
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
        /// Sets the arithmetic of the products.
        precision: Precision => precision;
    }

    fn params(&self, inputs: usize) -> Result<(Tensor, Option<Tensor>)> {
        let (o, g) = (self.out, self.groups);
        check_groups(Self::KIND, g, inputs, o)?;
        let shape = [&[inputs, o / g], self.kernel.as_slice()].concat();
        // PyTorch takes axis 1 of the weight for the inputs of the fan.
        self.weights.get(inputs, &shape, &[o], fans(o / g, inputs / g, &self.kernel))
    }
}

weight_methods!(impl[const N: usize] DeconvNd<N>, weight "[C, O/groups, K]", bias "[O]");

impl<const N: usize> Layer for DeconvNd<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| {
            let (w, b) = self.params(self.weights.channels(Self::KIND, x)?)?;
            let p = Conv::new().stride(self.stride).pad(self.padding).out_pad(self.output_padding);
            let p = p.dilation(self.dilation).groups(self.groups).act(self.act).precision(self.precision);
            x.conv_transpose(&w, b.as_ref(), &p)
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.weights.visit("", v);
    }
}
