//! Convolution layers.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;
use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{
    PerAxis, Weights, batched, check_groups, fans, positive, weight_access, weight_methods,
};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Convolution of images, `torch.nn.Conv2d` followed by an activation: `[B, C, H, W] -> [B, O, H', W']`.
pub type Convolutional = ConvNd<2>;

/// Convolution of sequences, `torch.nn.Conv1d` followed by an activation: `[B, C, L] -> [B, O, L']`.
pub type Conv1D = ConvNd<1>;

/// Convolution of volumes, `torch.nn.Conv3d` followed by an activation: `[B, C, D, H, W] -> [B, O, D', H', W']`.
pub type Conv3D = ConvNd<3>;

/// Convolution of images whose windows have gaps (Yu and Koltun, 2016): [`Convolutional`] with the dilation as an argument of the
/// constructor. `same_padding` keeps the image's size.
pub type DilatedConvolutional = ConvNd<2, true>;

/// Convolution over N = 1 to 3 spatial axes, `torch.nn.Conv1d`, `Conv2d` and `Conv3d` followed by an activation. Also takes inputs without
/// the batch axis. Output axes have floor((n + pads - dilation*(k-1) - 1) / stride) + 1 cells; kernels are not flipped. `DILATED`: whether
/// constructors ask for the dilation.
///
/// State: `weight [O, C/groups, K]`, `bias [O]`, both from U(-a, a) with a = 1/sqrt(C/groups * K) unless set otherwise. Convolution, bias
/// and activation run as one kernel where the backend fuses them.
///
/// Errors of `forward`: rank; another number of channels than at first; groups that do not divide the channels; strides or dilations of 0;
/// windows larger than the padded input; `same_padding` with a stride; reflecting padding not below the axis, circular padding above it.
#[derive(Debug)]
pub struct ConvNd<const N: usize, const DILATED: bool = false> {
    weights: Weights,
    out: usize,
    kernel: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
    same: bool,
    mode: PadMode,
    dilation: [usize; N],
    groups: usize,
    act: Activation,
    precision: Precision,
}

impl<const N: usize> ConvNd<N, false> {
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
        Self::build(cx, out_channels, kernel_size.per_axis())
    }

    setters! {
        /// Sets the dilation, the distance of a window's cells (default 1).
        dilation: [usize; N] => dilation;
    }
}

impl<const N: usize> ConvNd<N, true> {
    /// `in_channels -> out_channels` channels with cells of windows `dilation` apart. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        kernel_size: impl PerAxis<usize, N>,
        dilation: impl PerAxis<usize, N>,
    ) -> Result<Self> {
        Self::lazy(cx, out_channels, kernel_size, dilation)?.inputs(in_channels)
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0.
    pub fn lazy(
        cx: &InitContext,
        out_channels: usize,
        kernel_size: impl PerAxis<usize, N>,
        dilation: impl PerAxis<usize, N>,
    ) -> Result<Self> {
        let dilation = dilation.per_axis();
        positive("DilatedConvolutional", "dilation", &dilation)?;
        Ok(ConvNd { dilation, ..Self::build(cx, out_channels, kernel_size.per_axis())? })
    }
}

impl<const N: usize, const DILATED: bool> ConvNd<N, DILATED> {
    const KIND: &'static str = match (N, DILATED) {
        (_, true) => "DilatedConvolutional",
        (1, _) => "Conv1D",
        (2, _) => "Convolutional",
        _ => "Conv3D",
    };

    fn build(cx: &InitContext, out: usize, kernel: [usize; N]) -> Result<Self> {
        positive(Self::KIND, "out_channels", &[out])?;
        positive(Self::KIND, "kernel_size", &kernel)?;
        Ok(ConvNd {
            weights: Weights::new(cx, Init::Lin),
            out,
            kernel,
            stride: [1; N],
            padding: [0; N],
            same: false,
            mode: PadMode::Constant(0.0),
            dilation: [1; N],
            groups: 1,
            act: Activation::Identity,
            precision: Precision::Ieee,
        })
    }

    setters! {
        /// Sets the stride, the distance of neighbouring windows (default 1).
        stride: [usize; N] => stride;
    }

    /// Sets the padding: cells added on both sides of each axis (default 0, which PyTorch calls "valid").
    pub fn padding(mut self, padding: impl PerAxis<usize, N>) -> Self {
        (self.padding, self.same) = (padding.per_axis(), false);
        self
    }

    /// Pads so that the output has the input's size; an odd cell goes behind the axis. Needs stride 1.
    pub fn same_padding(mut self) -> Self {
        self.same = true;
        self
    }

    setters! {
        /// Sets what the padding holds (default zeros).
        padding_mode: PadMode => mode;
    }

    /// Sets the groups of channels that are convolved apart from each other, and makes the parameters anew. Errors: no divisor of both
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
        let shape = [&[o, inputs / g], self.kernel.as_slice()].concat();
        self.weights.get(inputs, &shape, &[o], fans(inputs / g, o / g, &self.kernel))
    }

    /// Cells added before and behind each axis.
    fn pads(&self) -> Result<([usize; N], [usize; N])> {
        if !self.same {
            return Ok((self.padding, self.padding));
        }
        if self.stride != [1; N] {
            let got = format!("{:?} with same_padding", self.stride);
            return Err(invalid(Self::KIND, "stride", "1", got));
        }
        let total: [usize; N] =
            std::array::from_fn(|a| self.dilation[a].saturating_mul(self.kernel[a].saturating_sub(1)));
        Ok((total.map(|t| t / 2), total.map(|t| t - t / 2)))
    }

    /// Lets each filter that is drawn stand this many times in a row, and makes the parameters anew.
    pub(crate) fn repeat(mut self, times: usize) -> Result<Self> {
        self.weights.repeat = times;
        self.anew()
    }
}

weight_methods!(impl[const N: usize, const DILATED: bool] ConvNd<N, DILATED>, weight "[O, C/groups, K]", bias "[O]");

/// x [B, C, ..] padded explicitly.
fn padded(
    layer: &'static str,
    x: &Tensor,
    mode: PadMode,
    before: &[usize],
    after: &[usize],
) -> Result<Tensor> {
    let mut pads = vec![(0, 0); 2];
    for (&b, &a) in before.iter().zip(after) {
        match (i32::try_from(b), i32::try_from(a)) {
            (Ok(b), Ok(a)) => pads.push((b as isize, a as isize)),
            _ => return Err(invalid(layer, "padding", "below 2^31", format!("{b} and {a}"))),
        }
    }
    x.pad(mode, &pads)
}

impl<const N: usize, const DILATED: bool> Layer for ConvNd<N, DILATED> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| {
            let (w, b) = self.params(self.weights.channels(Self::KIND, x)?)?;
            let (before, after) = self.pads()?;
            let p = Conv::new().stride(self.stride).dilation(self.dilation).groups(self.groups);
            let p = p.act(self.act).precision(self.precision);
            if self.mode == PadMode::Constant(0.0) {
                return x.conv(&w, b.as_ref(), &p.pad(before).pad_end(after));
            }
            padded(Self::KIND, x, self.mode, &before, &after)?.conv(&w, b.as_ref(), &p)
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.weights.visit("", v);
    }
}
