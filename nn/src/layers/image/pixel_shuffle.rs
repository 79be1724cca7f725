//! Channels exchanged for resolution.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::{batched, named, positive};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Blocks of r*r channels as squares of cells, `torch.nn.PixelShuffle`: `[.., C*r*r, H, W] -> [.., C, r*H, r*W]`.
#[derive(Debug, Clone, Copy)]
pub struct PixelShuffle {
    factor: usize,
}

impl PixelShuffle {
    /// Resolution grows by `upscale_factor`. Errors: 0.
    pub fn new(upscale_factor: usize) -> Result<Self> {
        positive("PixelShuffle", "upscale_factor", &[upscale_factor])?;
        Ok(PixelShuffle { factor: upscale_factor })
    }
}

impl Layer for PixelShuffle {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named("PixelShuffle", x.pixel_shuffle(self.factor))
    }
}

/// Squares of cells as blocks of r*r channels, `torch.nn.PixelUnshuffle`: `[.., C, r*H, r*W] -> [.., C*r*r, H, W]`.
#[derive(Debug, Clone, Copy)]
pub struct PixelUnshuffle {
    factor: usize,
}

impl PixelUnshuffle {
    /// Resolution shrinks by `downscale_factor`. Errors: 0.
    pub fn new(downscale_factor: usize) -> Result<Self> {
        positive("PixelUnshuffle", "downscale_factor", &[downscale_factor])?;
        Ok(PixelUnshuffle { factor: downscale_factor })
    }
}

impl Layer for PixelUnshuffle {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named("PixelUnshuffle", x.pixel_unshuffle(self.factor))
    }
}

/// A convolution that makes O*r*r channels, which become r times the resolution (ESPCN; Shi et al., 2016):
/// `[B, C, H, W] -> [B, O, r*H, r*W]`. Also takes inputs without the batch axis.
///
/// State: `weight [O*r*r, C, k, k]`, `bias [O*r*r]`, both from U(-a, a) with a = 1/sqrt(C*k*k) unless set otherwise.
///
/// Errors of `forward`: rank; another number of channels than at first.
#[derive(Debug)]
pub struct SubpixelConvolutional {
    conv: Convolutional,
    factor: usize,
}

impl SubpixelConvolutional {
    const KIND: &'static str = "SubpixelConvolutional";

    /// `in_channels -> out_channels` channels at `upscale_factor` times the resolution, with bias and without activation. Errors: a size of
    /// 0; an even kernel.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        upscale_factor: usize,
        kernel_size: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        Self::lazy(cx, out_channels, upscale_factor, kernel_size)?.with(|conv| conv.inputs(in_channels))
    }

    /// The first forward fixes the number of input channels and makes the parameters. Errors: a size of 0; an even kernel.
    pub fn lazy(
        cx: &InitContext,
        out_channels: usize,
        upscale_factor: usize,
        kernel_size: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "upscale_factor", &[upscale_factor])?;
        if kernel_size.is_multiple_of(2) {
            return Err(invalid(Self::KIND, "kernel_size", "an odd size", format!("{kernel_size}")));
        }
        let filters = out_channels.saturating_mul(upscale_factor).saturating_mul(upscale_factor);
        let conv = Convolutional::lazy(cx, filters, kernel_size)?.padding(kernel_size / 2);
        Ok(SubpixelConvolutional { conv, factor: upscale_factor })
    }

    fn with(self, change: impl FnOnce(Convolutional) -> Result<Convolutional>) -> Result<Self> {
        Ok(SubpixelConvolutional { conv: named(Self::KIND, change(self.conv))?, factor: self.factor })
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.conv = self.conv.no_bias();
        self
    }

    /// Sets the activation.
    pub fn activation(mut self, act: Activation) -> Self {
        // Elementwise, so it commutes with the rearrangement and can be fused.
        self.conv = self.conv.activation(act);
        self
    }

    /// Sets the arithmetic of the products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.conv = self.conv.precision(precision);
        self
    }

    /// Sets how weight and bias are filled and fills them anew.
    pub fn init(self, weight: Init, bias: Init) -> Result<Self> {
        self.with(|conv| conv.init(weight, bias))
    }

    /// Whether the r*r filters of an output channel start equal, so that the result starts as a nearest-neighbour enlargement (ICNR; Aitken
    /// et al., 2017; default false). Fills the weight anew. The bias of an output channel stays drawn for each of its filters.
    pub fn icnr(self, on: bool) -> Result<Self> {
        let times = if on { self.factor.saturating_mul(self.factor) } else { 1 };
        self.with(|conv| conv.repeat(times))
    }

    /// The weight `[O*r*r, C, k, k]`, once the number of input channels is known.
    pub fn weight(&self) -> Option<&Param> {
        self.conv.weight()
    }

    /// The bias `[O*r*r]`, if there is one and the number of input channels is known.
    pub fn bias(&self) -> Option<&Param> {
        self.conv.bias()
    }
}

impl Layer for SubpixelConvolutional {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, 2, x, |x| hooks::layer("", &self.conv, x)?.pixel_shuffle(self.factor))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.conv.visit(v);
    }
}
