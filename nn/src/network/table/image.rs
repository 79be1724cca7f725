//! Layers for images and volumes: pooling, convolution, upsampling.

use serde::Deserialize;
use trefoil::ops::InterpolateMode;

use crate::layers::{
    AdaptiveAveragePooling, AveragePooling, Conv3D, Convolutional, Deconvolutional, DeformableConvolutional,
    DepthwiseSeparableConvolutional, DilatedConvolutional, GlobalPooling, LocallyConnected, MaxPool3D,
    MaxPooling, PatchEmbedding, PixelShuffle, PixelUnshuffle, SeparableConvolutional, SubpixelConvolutional,
    Upsample3D, Upsampling,
};
use crate::module::Init;
use crate::network::options::{Act, Axes, ConvPadMode, ConvPadding, InitRule, layer_type, rules};

/// Everything that convolutions have in common, with and without groups.
macro_rules! convolution {
    ($layer:expr, $o:ident) => {{
        let l = $layer.stride($o.stride).padding_mode($o.padding_mode.into()).activation($o.activation.0);
        let mut l = match $o.padding {
            ConvPadding::Same => l.same_padding(),
            ConvPadding::Cells(cells) => l.padding(cells),
        };
        if $o.groups != 1 {
            l = l.groups($o.groups)?;
        }
        initial!(l, $o)
    }};
}

/// Bias and initial values.
macro_rules! initial {
    ($layer:expr, $o:ident) => {{
        let mut l = $layer;
        if !$o.bias {
            l = l.no_bias();
        }
        match rules($o.weight_init, $o.bias_init, Init::Lin) {
            Some((weight, bias)) => l.init(weight, bias)?,
            None => l,
        }
    }};
}

layer_type! {
    CONVOLUTIONAL: 3, "Convolutional", "convolutional", Core, "nn.Conv2d", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        padding: ConvPadding<2> = 0,
        dilation: Axes<usize, 2> = 1,
        groups: usize = 1,
        bias: bool = true,
        padding_mode: ConvPadMode = "zeros",
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => Convolutional::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => Convolutional::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        convolution!(l.dilation(o.dilation), o)
    }
}

layer_type! {
    CONV3D: 31, "Conv3D", "conv3d", Convolution, "nn.Conv3d", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 3>,
        stride: Axes<usize, 3> = 1,
        padding: ConvPadding<3> = 0,
        dilation: Axes<usize, 3> = 1,
        groups: usize = 1,
        bias: bool = true,
        padding_mode: ConvPadMode = "zeros",
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => Conv3D::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => Conv3D::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        convolution!(l.dilation(o.dilation), o)
    }
}

layer_type! {
    DECONVOLUTIONAL: 32, "Deconvolutional", "deconvolutional", Convolution, "nn.ConvTranspose2d", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        padding: Axes<usize, 2> = 0,
        output_padding: Axes<usize, 2> = 0,
        groups: usize = 1,
        bias: bool = true,
        dilation: Axes<usize, 2> = 1,
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => Deconvolutional::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => Deconvolutional::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        let mut l = l.stride(o.stride).padding(o.padding).output_padding(o.output_padding);
        l = l.dilation(o.dilation).activation(o.activation.0);
        if o.groups != 1 {
            l = l.groups(o.groups)?;
        }
        initial!(l, o)
    }
}

layer_type! {
    DEFORMABLE_CONVOLUTIONAL: 33, "DeformableConvolutional", "deformable_convolutional", Convolution,
    "torchvision.ops.deform_conv2d", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2> = 3,
        stride: Axes<usize, 2> = 1,
        padding: Axes<usize, 2> = 1,
        dilation: Axes<usize, 2> = 1,
        groups: usize = 1,
        deform_groups: usize = 1,
        modulation: bool = true,
        bias: bool = true,
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => DeformableConvolutional::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => DeformableConvolutional::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        let mut l = l.stride(o.stride).padding(o.padding).dilation(o.dilation);
        if o.groups != 1 {
            l = l.groups(o.groups)?;
        }
        if o.deform_groups != 1 {
            l = l.deform_groups(o.deform_groups)?;
        }
        if !o.modulation {
            l = l.modulation(false)?;
        }
        initial!(l, o)
    }
}

layer_type! {
    DEPTHWISE_SEPARABLE_CONVOLUTIONAL: 34, "DepthwiseSeparableConvolutional", "depthwise_separable_convolutional",
    Convolution, "nn.Conv2d(groups=C), nn.Conv2d(1x1)", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        padding: Axes<usize, 2> = 0,
        dilation: Axes<usize, 2> = 1,
        depth_multiplier: usize = 1,
        bias: bool = true,
        mid_activation: Act = "identity",
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => DepthwiseSeparableConvolutional::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => DepthwiseSeparableConvolutional::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        let mut l = l.stride(o.stride).padding(o.padding).dilation(o.dilation);
        if o.depth_multiplier != 1 {
            l = l.depth_multiplier(o.depth_multiplier)?;
        }
        initial!(l.mid_activation(o.mid_activation.0).activation(o.activation.0), o)
    }
}

layer_type! {
    DILATED_CONVOLUTIONAL: 35, "DilatedConvolutional", "dilated_convolutional", Convolution,
    "nn.Conv2d(dilation=..)", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        padding: ConvPadding<2> = 0,
        dilation: Axes<usize, 2>,
        groups: usize = 1,
        bias: bool = true,
        padding_mode: ConvPadMode = "zeros",
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => DilatedConvolutional::new(site.cx, n, o.out_channels, o.kernel_size, o.dilation)?,
            None => DilatedConvolutional::lazy(site.cx, o.out_channels, o.kernel_size, o.dilation)?,
        };
        convolution!(l, o)
    }
}

layer_type! {
    LOCALLY_CONNECTED: 36, "LocallyConnected", "locally_connected", Convolution, "none (Keras LocallyConnected2D)",
    (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        bias: bool = true,
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => LocallyConnected::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => LocallyConnected::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        let l = l.stride(o.stride).activation(o.activation.0);
        let l = if o.bias { l } else { l.no_bias() };
        match rules(o.weight_init, o.bias_init, Init::Lin) {
            Some((weight, bias)) => l.init(weight, bias),
            None => l,
        }
    }
}

layer_type! {
    SEPARABLE_CONVOLUTIONAL: 37, "SeparableConvolutional", "separable_convolutional", Convolution,
    "none (Keras SeparableConv2D)", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        kernel_size: Axes<usize, 2>,
        stride: Axes<usize, 2> = 1,
        padding: Axes<usize, 2> = 0,
        dilation: Axes<usize, 2> = 1,
        depth_multiplier: usize = 1,
        bias: bool = true,
        activation: Act = "identity",
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => SeparableConvolutional::new(site.cx, n, o.out_channels, o.kernel_size)?,
            None => SeparableConvolutional::lazy(site.cx, o.out_channels, o.kernel_size)?,
        };
        let mut l = l.stride(o.stride).padding(o.padding).dilation(o.dilation);
        if o.depth_multiplier != 1 {
            l = l.depth_multiplier(o.depth_multiplier)?;
        }
        initial!(l.activation(o.activation.0), o)
    }
}

layer_type! {
    PATCH_EMBEDDING: 30, "PatchEmbedding", "patch_embedding", Transformer, "nn.Conv2d(stride=kernel_size)", (1, 1);
    {
        in_channels: Option<usize> = null,
        patch_size: Axes<usize, 2>,
        embed_dim: usize,
        bias: bool = true,
        flatten: bool = true,
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => PatchEmbedding::new(site.cx, n, o.patch_size, o.embed_dim)?,
            None => PatchEmbedding::lazy(site.cx, o.patch_size, o.embed_dim)?,
        };
        initial!(l.flatten(o.flatten), o)
    }
}

layer_type! {
    AVERAGE_POOLING: 16, "AveragePooling", "average_pooling", Pooling, "nn.AvgPool2d", (1, 1);
    {
        kernel_size: Axes<usize, 2>,
        stride: Option<Axes<usize, 2>> = null,
        padding: Axes<usize, 2> = 0,
        ceil_mode: bool = false,
        count_include_pad: bool = true,
        divisor_override: Option<i64> = null,
    }
    |o, _site| {
        let mut l = AveragePooling::new(o.kernel_size)?.padding(o.padding);
        l = l.ceil_mode(o.ceil_mode).count_include_pad(o.count_include_pad);
        if let Some(stride) = o.stride {
            l = l.stride(stride);
        }
        match o.divisor_override {
            Some(n) => l.divisor(n),
            None => l,
        }
    }
}

layer_type! {
    MAX_POOLING: 17, "MaxPooling", "max_pooling", Pooling, "nn.MaxPool2d", (1, 1);
    {
        kernel_size: Axes<usize, 2>,
        stride: Option<Axes<usize, 2>> = null,
        padding: Axes<usize, 2> = 0,
        dilation: Axes<usize, 2> = 1,
        ceil_mode: bool = false,
        return_indices: bool = false,
    }
    |o, _site| {
        let l = MaxPooling::new(o.kernel_size)?.padding(o.padding).dilation(o.dilation);
        let l = l.ceil_mode(o.ceil_mode).return_indices(o.return_indices);
        match o.stride {
            Some(stride) => l.stride(stride),
            None => l,
        }
    }
}

layer_type! {
    MAX_POOL3D: 18, "MaxPool3D", "max_pool3d", Pooling, "nn.MaxPool3d", (1, 1);
    {
        kernel_size: Axes<usize, 3>,
        stride: Option<Axes<usize, 3>> = null,
        padding: Axes<usize, 3> = 0,
        dilation: Axes<usize, 3> = 1,
        ceil_mode: bool = false,
        return_indices: bool = false,
    }
    |o, _site| {
        let l = MaxPool3D::new(o.kernel_size)?.padding(o.padding).dilation(o.dilation);
        let l = l.ceil_mode(o.ceil_mode).return_indices(o.return_indices);
        match o.stride {
            Some(stride) => l.stride(stride),
            None => l,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GlobalMode {
    Avg,
    Max,
}

layer_type! {
    GLOBAL_POOLING: 19, "GlobalPooling", "global_pooling", Pooling, "nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)",
    (1, 1);
    {
        mode: GlobalMode = "avg",
        keepdim: bool = true,
        activation: Act = "identity",
    }
    |o, _site| {
        let l = match o.mode {
            GlobalMode::Avg => GlobalPooling::avg(),
            GlobalMode::Max => GlobalPooling::max(),
        };
        l.keepdim(o.keepdim).activation(o.activation.0)
    }
}

layer_type! {
    ADAPTIVE_AVERAGE_POOLING: 20, "AdaptiveAveragePooling", "adaptive_average_pooling", Pooling,
    "nn.AdaptiveAvgPool2d", (1, 1);
    { output_size: Axes<Option<usize>, 2> = 1 }
    |o, _site| AdaptiveAveragePooling::keeping(o.output_size.0)?
}

/// Modes in two dimensions.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PlaneMode {
    Nearest,
    Bilinear,
}

/// Modes in three dimensions.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VolumeMode {
    Nearest,
    Trilinear,
}

/// By factor or to a size; exactly one of them.
macro_rules! upsample {
    ($type:ident, $o:ident, $site:ident) => {
        match ($o.scale_factor, $o.size) {
            (Some(factor), None) => $type::scale(factor)?,
            (None, Some(size)) => $type::size(size)?,
            (None, None) => {
                return Err(
                    $site.wrong("scale_factor", "is missing; one of `scale_factor` and `size` is required")
                )
            }
            _ => return Err($site.wrong("size", "only one of `scale_factor` and `size` is possible")),
        }
    };
}

layer_type! {
    UPSAMPLE3D: 38, "Upsample3D", "upsample3d", Upsampling, "nn.Upsample", (1, 1);
    {
        scale_factor: Option<Axes<f64, 3>> = null,
        size: Option<Axes<usize, 3>> = null,
        mode: VolumeMode = "nearest",
        align_corners: bool = false,
    }
    |o, site| {
        let mode = match o.mode {
            VolumeMode::Nearest => InterpolateMode::Nearest,
            VolumeMode::Trilinear => InterpolateMode::Linear,
        };
        upsample!(Upsample3D, o, site).mode(mode).align_corners(o.align_corners)
    }
}

layer_type! {
    UPSAMPLING: 39, "Upsampling", "upsampling", Upsampling, "nn.Upsample", (1, 1);
    {
        scale_factor: Option<Axes<f64, 2>> = null,
        size: Option<Axes<usize, 2>> = null,
        mode: PlaneMode = "nearest",
        align_corners: bool = false,
    }
    |o, site| {
        let mode = match o.mode {
            PlaneMode::Nearest => InterpolateMode::Nearest,
            PlaneMode::Bilinear => InterpolateMode::Linear,
        };
        upsample!(Upsampling, o, site).mode(mode).align_corners(o.align_corners)
    }
}

layer_type! {
    SUBPIXEL_CONVOLUTIONAL: 40, "SubpixelConvolutional", "subpixel_convolutional", Upsampling,
    "nn.Conv2d, nn.PixelShuffle", (1, 1);
    {
        in_channels: Option<usize> = null,
        out_channels: usize,
        upscale_factor: usize,
        kernel_size: usize,
        bias: bool = true,
        activation: Act = "identity",
        icnr_init: bool = false,
        weight_init: Option<InitRule> = null,
        bias_init: Option<InitRule> = null,
    }
    |o, site| {
        let (out, factor, kernel) = (o.out_channels, o.upscale_factor, o.kernel_size);
        let l = match o.in_channels {
            Some(n) => SubpixelConvolutional::new(site.cx, n, out, factor, kernel)?,
            None => SubpixelConvolutional::lazy(site.cx, out, factor, kernel)?,
        };
        let l = initial!(l.activation(o.activation.0), o);
        if o.icnr_init { l.icnr(true)? } else { l }
    }
}

layer_type! {
    PIXEL_SHUFFLE: 41, "PixelShuffle", "pixel_shuffle", Upsampling, "nn.PixelShuffle", (1, 1);
    { upscale_factor: usize }
    |o, _site| PixelShuffle::new(o.upscale_factor)?
}

layer_type! {
    PIXEL_UNSHUFFLE: 0, "PixelUnshuffle", "pixel_unshuffle", Upsampling, "nn.PixelUnshuffle", (1, 1);
    { downscale_factor: usize }
    |o, _site| PixelUnshuffle::new(o.downscale_factor)?
}
