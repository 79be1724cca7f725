//! The block of MobileNetV2.

use trefoil::ops::activation::Activation;

use super::{conv_without_bias, fan_out, he_normal, images};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{named, positive};
use crate::layers::{Activate, BatchNormalization, Convolutional, Sequential, SqueezeAndExcitation};
use crate::module::{InitContext, Layer, Visitor, hooks};

/// Inverted residual block of MobileNetV2 (Sandler et al., 2018), torchvision's `InvertedResidual`: a convolution of 1x1 cells to
/// expand_ratio*C channels, one of 3x3 cells of each channel for itself, and one of 1x1 cells to O channels, `[B, C, H, W] -> [B, O,
/// ceil(H/stride), ceil(W/stride)]`. Each has batch normalization, the first two also relu6; with stride 1 and C = O the input is added. A
/// ratio of 1 leaves the first convolution out. Also takes inputs without the batch axis.
///
/// State: `conv.0.0.weight [hidden, C, 1, 1]`, `conv.1.0.weight [hidden, 1, 3, 3]`, `conv.2.weight [O, hidden, 1, 1]`, from N(0, 2 /
/// fan_out); `conv.0.1`, `conv.1.1` and `conv.3` as in [`BatchNormalization`]. Without the first convolution the numbers are 1 less; behind
/// [`SqueezeAndExcitation`], which is `conv.2`, the last two are 1 more.
///
/// Errors of `forward`: rank; another number of channels than C.
#[derive(Debug)]
pub struct InvertedResidualBlock {
    cx: InitContext,
    inputs: usize,
    outputs: usize,
    stride: usize,
    expand_ratio: usize,
    se_ratio: Option<usize>,
    act: Activation,
    conv: Sequential,
}

impl InvertedResidualBlock {
    const KIND: &'static str = "InvertedResidualBlock";

    /// `in_channels -> out_channels` channels; MobileNetV2 mostly has an `expand_ratio` of 6. Errors: a size of 0; a stride other than 1 and
    /// 2.
    pub fn new(
        cx: &InitContext,
        in_channels: usize,
        out_channels: usize,
        stride: usize,
        expand_ratio: usize,
    ) -> Result<Self> {
        positive(Self::KIND, "in_channels", &[in_channels])?;
        positive(Self::KIND, "out_channels", &[out_channels])?;
        positive(Self::KIND, "expand_ratio", &[expand_ratio])?;
        if !matches!(stride, 1 | 2) {
            return Err(invalid(Self::KIND, "stride", "1 or 2", format!("{stride}")));
        }
        let block = InvertedResidualBlock {
            cx: cx.clone(),
            inputs: in_channels,
            outputs: out_channels,
            stride,
            expand_ratio,
            se_ratio: None,
            act: Activation::Relu6,
            conv: Sequential::new(),
        };
        block.anew()
    }

    fn anew(mut self) -> Result<Self> {
        self.conv = named(Self::KIND, self.layers())?;
        Ok(self)
    }

    fn layers(&self) -> Result<Sequential> {
        let hidden = self.inputs.saturating_mul(self.expand_ratio);
        let mut all = Sequential::new();
        if self.expand_ratio != 1 {
            all = all.push(self.activated(self.inputs, hidden, 1, 1)?);
        }
        all = all.push(self.activated(hidden, hidden, 3, hidden)?);
        if let Some(ratio) = self.se_ratio {
            all = all.push(SqueezeAndExcitation::new(&self.cx, hidden, ratio)?);
        }
        let project = self.conv(hidden, self.outputs, 1, 1)?;
        Ok(all.push(project).push(BatchNormalization::new(&self.cx, self.outputs)?))
    }

    fn conv(
        &self,
        inputs: usize,
        outputs: usize,
        kernel_size: usize,
        groups: usize,
    ) -> Result<Convolutional> {
        let weight = he_normal(fan_out(outputs, kernel_size));
        conv_without_bias(&self.cx, [inputs, outputs], kernel_size, groups, weight)
    }

    /// A convolution with batch normalization and activation; the one of 3x3 cells has the stride.
    fn activated(
        &self,
        inputs: usize,
        outputs: usize,
        kernel_size: usize,
        groups: usize,
    ) -> Result<Sequential> {
        let stride = if kernel_size == 3 { self.stride } else { 1 };
        let conv = self.conv(inputs, outputs, kernel_size, groups)?.stride(stride);
        let norm = BatchNormalization::new(&self.cx, outputs)?;
        Ok(Sequential::new().push(conv).push(norm).push(Activate(self.act)))
    }

    /// Puts [`SqueezeAndExcitation`] to max(1, floor(hidden / se_ratio)) channels behind the second convolution, and makes the parameters
    /// anew; 4 is usual. Errors: 0.
    pub fn squeeze_and_excitation(mut self, se_ratio: usize) -> Result<Self> {
        positive(Self::KIND, "se_ratio", &[se_ratio])?;
        self.se_ratio = Some(se_ratio);
        self.anew()
    }

    /// Sets the activation of the first two convolutions, and makes the parameters anew.
    pub fn activation(mut self, act: Activation) -> Result<Self> {
        self.act = act;
        self.anew()
    }
}

impl Layer for InvertedResidualBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        images(Self::KIND, self.inputs, x, |x| {
            let y = hooks::layer("conv", &self.conv, x)?;
            if self.stride == 1 && self.inputs == self.outputs { x.add(&y) } else { Ok(y) }
        })
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv", &self.conv);
    }
}
