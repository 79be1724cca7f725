//! Blocks around skip connections, and the networks of super-resolution that are made of them.

pub(crate) mod densenet;
pub(crate) mod discriminator;
pub(crate) mod generator;
pub(crate) mod highway;
pub(crate) mod inverted;
pub(crate) mod residual_dense;
pub(crate) mod resnet;
pub(crate) mod squeeze;
pub(crate) mod unet;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::layers::spatial::batched;
use crate::module::{Init, InitContext};

/// Runs `f` on images `[B, C, H, W]`, or on one image `[C, H, W]`, of `channels` channels. Errors name the layer.
fn images(
    layer: &'static str,
    channels: usize,
    x: &Tensor,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    batched(layer, 2, x, |x| match x.shape()[1] {
        c if c == channels => f(x),
        c => Err(invalid(
            layer,
            "x",
            format!("{channels} channels"),
            format!("shape {:?} with {c}", x.shape()),
        )),
    })
}

/// N(0, 2 / fan), `torch.nn.init.kaiming_normal_`.
fn he_normal(fan: usize) -> Init {
    Init::Normal { mean: 0.0, std: (2.0 / fan as f64).sqrt() }
}

/// A convolution in front of a batch normalization, whose shift makes a bias idle. Stride 1 keeps the size of the image.
fn conv_without_bias(
    cx: &InitContext,
    [inputs, outputs]: [usize; 2],
    kernel_size: usize,
    groups: usize,
    weight: Init,
) -> Result<Convolutional> {
    let conv = Convolutional::lazy(cx, outputs, kernel_size)?.no_bias().padding(kernel_size / 2);
    conv.init(weight, Init::Zeros)?.groups(groups)?.inputs(inputs)
}

/// Fan of [`he_normal`] that keeps the size of gradients, `mode="fan_out"`: as in PyTorch, groups are not taken into account.
fn fan_out(outputs: usize, kernel_size: usize) -> usize {
    outputs.saturating_mul(kernel_size * kernel_size)
}
