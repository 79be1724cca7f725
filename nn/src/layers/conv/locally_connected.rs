//! Convolution with weights of its own at each position.

use once_cell::sync::OnceCell;

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::{PerAxis, Weights, batched, fans, named, positive, weight_access};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// A convolution without padding whose weights are not shared between positions, Keras' `LocallyConnected2D`:
/// `[B, C, H, W] -> [B, O, H', W']` with floor((n - k) / stride) + 1 cells per axis. Also takes inputs without the batch axis.
///
/// State: `weight [H', W', O, C, kH, kW]`, `bias [O, H', W']`, both from U(-a, a) with a = 1/sqrt(C*kH*kW) unless set otherwise. They depend
/// on the size of the image, which the first forward or [`input_size`](LocallyConnected::input_size) fixes.
///
/// Errors of `forward`: rank; another number of channels or another size than at first; strides of 0; windows larger than the image.
#[derive(Debug)]
pub struct LocallyConnected {
    weights: Weights,
    channels: Option<usize>,
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    size: OnceCell<[usize; 2]>,
    act: Activation,
}

impl LocallyConnected {
    const KIND: &'static str = "LocallyConnected";

    /// `in_channels -> out_channels` channels with bias, stride 1, no activation. Errors: a size of 0.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        kernel_size: impl PerAxis<usize, 2>,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        Ok(LocallyConnected { channels: Some(in_channels), ..Self::lazy(cx, out_channels, kernel_size)? })
    }

    /// The first forward fixes the number of input channels as well. Errors: a size of 0.
    pub fn lazy(cx: &InitContext, out_channels: usize, kernel_size: impl PerAxis<usize, 2>) -> Result<Self> {
        let kernel_size = kernel_size.per_axis();
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "kernel_size", &kernel_size)?;
        Ok(LocallyConnected {
            weights: Weights::new(cx, Init::Lin),
            channels: None,
            out: out_channels,
            kernel: kernel_size,
            stride: [1; 2],
            size: OnceCell::new(),
            act: Activation::Identity,
        })
    }

    /// Sets the stride, the distance of neighbouring windows. Parameters that were made are dropped, since their sizes depend on it.
    pub fn stride(mut self, stride: impl PerAxis<usize, 2>) -> Self {
        self.stride = stride.per_axis();
        self.weights.reset();
        self.size.take();
        self
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets how weight and bias are filled. Parameters that were made are dropped.
    pub fn init(mut self, weight: Init, bias: Init) -> Self {
        (self.weights.weight_init, self.weights.bias_init) = (weight, bias);
        self.weights.reset();
        self.size.take();
        self
    }

    /// Makes the parameters for images [H, W] now. Errors: no number of channels was given; strides of 0; windows larger than the image.
    pub fn input_size(self, height: usize, width: usize) -> Result<Self> {
        let Some(channels) = self.channels else {
            return Err(invalid(Self::KIND, "in_channels", "a number of channels", "none"));
        };
        named(Self::KIND, self.params(channels, [height, width]).map(|_| ()))?;
        Ok(self)
    }

    fn conv(&self) -> Conv {
        Conv::new().stride(self.stride)
    }

    /// Weight, bias and number of windows per axis for images of one size.
    fn params(&self, channels: usize, size: [usize; 2]) -> Result<(Tensor, Option<Tensor>, [usize; 2])> {
        if let Some(&n) = self.channels.as_ref().filter(|&&n| n != channels) {
            return Err(invalid(Self::KIND, "x", format!("{n} channels"), format!("{channels}")));
        }
        if let Some(first) = self.size.get().filter(|&&s| s != size) {
            return Err(invalid(
                Self::KIND,
                "x",
                format!("images of {first:?} cells, as at first"),
                format!("{size:?}"),
            ));
        }
        let windows = self.conv().output_size(&size, &self.kernel)?;
        let (h, w, [kh, kw]) = (windows[0], windows[1], self.kernel);
        let fan = fans(channels, self.out, &self.kernel);
        let shape = [h, w, self.out, channels, kh, kw];
        let (weight, bias) = self.weights.get(channels, &shape, &[self.out, h, w], fan)?;
        self.size.get_or_init(|| size);
        Ok((weight, bias, [h, w]))
    }
}

weight_access!(impl[] LocallyConnected, weight "[H', W', O, C, kH, kW]", bias "[O, H', W']", "the image's size");

impl Layer for LocallyConnected {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| {
            let c = self.weights.channels(Self::KIND, x)?;
            let (weight, bias, [h, w]) = self.params(c, [x.shape()[2], x.shape()[3]])?;
            same_dtype(Self::KIND, x, &weight)?;
            let (batch, o) = (x.shape()[0], self.out);
            // A product per position: [L, O, C*K] with the columns [L, C*K, B].
            let columns = x.im2col(&self.kernel, &self.conv())?;
            let taps = columns.shape()[1];
            let columns = columns.permute(&[2, 1, 0])?;
            let y = weight.reshape(&[h * w, o, taps])?.matmul(&columns)?;
            let y = y.permute(&[2, 1, 0])?.reshape(&[batch, o, h, w])?;
            match &bias {
                Some(b) => y.add(b)?,
                None => y,
            }
            .activation(self.act)
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.weights.visit("", v);
    }
}
