//! Configurations of the layers, with the shapes of outputs and states.

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;
use trefoil_nn::layers::*;
use trefoil_nn::{InitContext, Layer, Result};

type State = &'static [(&'static str, &'static [usize])];

/// A layer, an input's shape and the expected state.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) make: fn(&InitContext) -> Result<Box<dyn Layer>>,
    pub(super) x: &'static [usize],
    pub(super) y: &'static [usize],
    pub(super) state: State,
}

macro_rules! case {
    ($name:literal, $x:expr => $y:expr, [$($state:tt)*], |$cx:ident| $layer:expr) => {
        Case { name: $name, make: |$cx| Ok(Box::new($layer)), x: &$x, y: &$y, state: &[$($state)*] }
    };
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("conv", [2, 3, 5, 4] => [2, 4, 3, 3], [("weight", &[4, 3, 3, 2]), ("bias", &[4])], |cx| {
            Convolutional::new(cx, 3, 4, [3, 2])?
        }),
        case!("conv grouped", [2, 4, 7, 6] => [2, 6, 4, 4], [("weight", &[6, 2, 3, 2]), ("bias", &[6])], |cx| {
            let layer = Convolutional::new(cx, 4, 6, [3, 2])?.stride([2, 1]).padding([1, 0]).dilation([1, 2]);
            layer.groups(2)?.activation(Activation::Tanh)
        }),
        case!("conv gelu, no bias", [1, 2, 4, 4] => [1, 3, 4, 4], [("weight", &[3, 2, 3, 3])], |cx| {
            Convolutional::new(cx, 2, 3, 3)?.padding(1).activation(Activation::Gelu).no_bias()
        }),
        case!("conv mish", [1, 2, 4, 4] => [1, 3, 2, 2], [("weight", &[3, 2, 3, 3]), ("bias", &[3])], |cx| {
            Convolutional::new(cx, 2, 3, 3)?.activation(Activation::Mish)
        }),
        case!("conv same", [2, 2, 5, 4] => [2, 2, 5, 4], [("weight", &[2, 2, 2, 4]), ("bias", &[2])], |cx| {
            Convolutional::lazy(cx, 2, [2, 4])?.same_padding()
        }),
        case!("conv reflect", [1, 2, 4, 5] => [1, 2, 4, 6], [("weight", &[2, 2, 3, 4]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 2, 2, [3, 4])?.padding([1, 2]).padding_mode(PadMode::Reflect)
        }),
        case!("conv circular, same", [1, 2, 4, 5] => [1, 2, 4, 5], [("weight", &[2, 2, 2, 3]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 2, 2, [2, 3])?.same_padding().padding_mode(PadMode::Circular)
        }),
        case!("conv replicate", [1, 1, 3, 3] => [1, 2, 7, 7], [("weight", &[2, 1, 1, 1]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 1, 2, 1)?.padding(2).padding_mode(PadMode::Replicate)
        }),
        case!("conv 1d", [2, 2, 6] => [2, 3, 3], [("weight", &[3, 2, 2]), ("bias", &[3])], |cx| {
            ConvNd::<1>::new(cx, 2, 3, 2)?.stride(2)
        }),
        case!("conv 3d", [1, 2, 3, 4, 3] => [1, 2, 2, 4, 1], [("weight", &[2, 1, 2, 3, 3]), ("bias", &[2])], |cx| {
            Conv3D::new(cx, 2, 2, [2, 3, 3])?.padding([0, 1, 0]).groups(2)?.activation(Activation::Sigmoid)
        }),
        case!("dilated", [1, 2, 6, 6] => [1, 3, 6, 6], [("weight", &[3, 2, 3, 3]), ("bias", &[3])], |cx| {
            DilatedConvolutional::new(cx, 2, 3, 3, 2)?.same_padding()
        }),
        case!("deconv", [2, 4, 3, 2] => [2, 2, 6, 4], [("weight", &[4, 1, 3, 2]), ("bias", &[2])], |cx| {
            let layer = Deconvolutional::new(cx, 4, 2, [3, 2])?.stride(2).padding([1, 0]).output_padding([1, 0]);
            layer.groups(2)?.activation(Activation::Relu)
        }),
        case!("deconv dilated", [1, 2, 3, 3] => [1, 3, 5, 7], [("weight", &[2, 3, 3, 3])], |cx| {
            Deconvolutional::lazy(cx, 3, 3)?.dilation([1, 2]).activation(Activation::Gelu).no_bias()
        }),
        case!(
            "deformable", [1, 4, 4, 5] => [1, 2, 4, 5],
            [
                ("weight", &[2, 2, 3, 3]), ("bias", &[2]),
                ("offset_conv.weight", &[36, 4, 3, 3]), ("offset_conv.bias", &[36]),
                ("mask_conv.weight", &[18, 4, 3, 3]), ("mask_conv.bias", &[18]),
            ],
            |cx| DeformableConvolutional::new(cx, 4, 2, 3)?.groups(2)?.deform_groups(2)?
        ),
        case!(
            "deformable v1", [1, 2, 5, 4] => [1, 3, 2, 2],
            [("weight", &[3, 2, 2, 2]), ("offset_conv.weight", &[8, 2, 2, 2]), ("offset_conv.bias", &[8])],
            |cx| DeformableConvolutional::lazy(cx, 3, 2)?.stride(2).padding(0).modulation(false)?.no_bias()
        ),
        case!(
            "depthwise separable", [2, 2, 5, 5] => [2, 3, 3, 3],
            [("depthwise.weight", &[4, 1, 3, 2]), ("pointwise.weight", &[3, 4, 1, 1]), ("pointwise.bias", &[3])],
            |cx| {
                let layer = DepthwiseSeparableConvolutional::new(cx, 2, 3, [3, 2])?.stride(2).padding([1, 1]);
                layer.depth_multiplier(2)?.mid_activation(Activation::Gelu).activation(Activation::Sigmoid)
            }
        ),
        case!(
            "separable", [1, 3, 5, 5] => [1, 2, 1, 1],
            [("depthwise.weight", &[3, 1, 3, 3]), ("pointwise.weight", &[2, 3, 1, 1])],
            |cx| SeparableConvolutional::lazy(cx, 2, 3)?.dilation(2).no_bias()
        ),
        case!(
            "locally connected", [2, 2, 5, 4] => [2, 3, 2, 2],
            [("weight", &[2, 2, 3, 2, 3, 2]), ("bias", &[3, 2, 2])],
            |cx| LocallyConnected::new(cx, 2, 3, [3, 2])?.stride(2).activation(Activation::Tanh).input_size(5, 4)?
        ),
        case!(
            "patches", [2, 3, 4, 6] => [2, 6, 5],
            [("proj.weight", &[5, 3, 2, 2]), ("proj.bias", &[5])],
            |cx| PatchEmbedding::new(cx, 3, 2, 5)?
        ),
        case!("patches as image", [1, 1, 4, 6] => [1, 2, 2, 2], [("proj.weight", &[2, 1, 2, 3])], |cx| {
            PatchEmbedding::lazy(cx, [2, 3], 2)?.flatten(false).no_bias()
        }),
        case!("subpixel", [1, 2, 3, 2] => [1, 2, 6, 4], [("weight", &[8, 2, 3, 3]), ("bias", &[8])], |cx| {
            SubpixelConvolutional::new(cx, 2, 2, 2, 3)?.activation(Activation::Tanh)
        }),
        case!("average", [2, 2, 5, 6] => [2, 2, 3, 4], [], |_cx| {
            AveragePooling::new([3, 2])?.stride([2, 2]).padding([1, 1]).count_include_pad(false)
        }),
        case!("average, ceil", [1, 2, 5, 5] => [1, 2, 3, 3], [], |_cx| {
            AveragePooling::new(2)?.ceil_mode(true).divisor(3)
        }),
        case!("max", [2, 2, 6, 5] => [2, 2, 3, 4], [], |_cx| {
            MaxPooling::new([3, 2])?.stride([2, 1]).padding([1, 0])
        }),
        case!("max dilated", [1, 2, 6, 6] => [1, 2, 2, 2], [], |_cx| MaxPooling::new(2)?.dilation(3)),
        case!("max 3d", [1, 2, 4, 4, 5] => [1, 2, 2, 2, 3], [], |_cx| MaxPool3D::new(2)?.ceil_mode(true)),
        case!("adaptive", [2, 2, 5, 4] => [2, 2, 3, 4], [], |_cx| {
            AdaptiveAveragePooling::keeping([Some(3), None])?
        }),
        case!("adaptive, more", [1, 1, 2, 3] => [1, 1, 4, 5], [], |_cx| AdaptiveAveragePooling::new([4, 5])?),
        case!("global average", [2, 3, 4, 5] => [2, 3, 1, 1], [], |_cx| {
            GlobalPooling::avg().activation(Activation::Sigmoid)
        }),
        case!("global maximum", [2, 3, 4, 5] => [2, 3], [], |_cx| GlobalPooling::max().keepdim(false)),
        case!("nearest", [1, 2, 2, 3] => [1, 2, 4, 6], [], |_cx| Upsampling::scale(2.0)?),
        case!("nearest, 1.6", [1, 2, 4, 3] => [1, 2, 6, 4], [], |_cx| Upsampling::scale(1.6)?),
        case!("bilinear", [1, 2, 3, 4] => [1, 2, 5, 7], [], |_cx| {
            Upsampling::size([5, 7])?.mode(InterpolateMode::Linear)
        }),
        case!("bilinear, 1.7 and 0.6", [1, 2, 3, 5] => [1, 2, 5, 3], [], |_cx| {
            Upsampling::scale([1.7, 0.6])?.mode(InterpolateMode::Linear)
        }),
        case!("bicubic, corners", [1, 1, 4, 4] => [1, 1, 6, 6], [], |_cx| {
            Upsampling::scale(1.5)?.mode(InterpolateMode::Cubic).align_corners(true)
        }),
        case!("trilinear", [1, 1, 2, 3, 2] => [1, 1, 4, 6, 4], [], |_cx| {
            Upsample3D::scale(2.0)?.mode(InterpolateMode::Linear).align_corners(true)
        }),
        case!("nearest 3d", [1, 1, 2, 3, 2] => [1, 1, 3, 3, 5], [], |_cx| Upsample3D::size([3, 3, 5])?),
        case!("shuffle", [2, 8, 2, 3] => [2, 2, 4, 6], [], |_cx| PixelShuffle::new(2)?),
        case!("unshuffle", [2, 2, 4, 6] => [2, 8, 2, 3], [], |_cx| PixelUnshuffle::new(2)?),
        case!("channels", [2, 6, 2, 3] => [2, 6, 2, 3], [], |_cx| ChannelShuffle::new(3)?),
        case!("crop", [2, 2, 4, 5] => [2, 2, 3, 2], [], |_cx| Cropping::new(&[(1, 0), (1, 2)])),
        case!("pad", [1, 2, 2, 3] => [1, 2, 3, 6], [], |_cx| {
            Padding::new(&[(1, 0), (1, 2)])?.mode(PadMode::Constant(0.5))
        }),
        case!("pad reflect", [1, 2, 3, 4] => [1, 2, 6, 6], [], |_cx| {
            Padding::new(&[(2, 1), (0, 2)])?.mode(PadMode::Reflect)
        }),
    ]
}
