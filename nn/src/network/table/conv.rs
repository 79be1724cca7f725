//! Convolutions.

use crate::layers::{
    Conv1D, Conv3D, Convolutional, Deconvolutional, DeformableConvolutional, DepthwiseSeparableConvolutional,
    DilatedConvolutional, LocallyConnected, PatchEmbedding, SeparableConvolutional,
};
use crate::module::Init;
use crate::network::options::{
    Act, Axes, ConvPadMode, ConvPadding, InitRule, convolution_type, initialized, layer_type, rules,
};

/// Padding and groups, as convolutions proper have them.
macro_rules! padded_and_grouped {
    ($layer:expr, $o:ident) => {{
        let l = $layer.padding_mode($o.padding_mode.into());
        let l = match $o.padding {
            ConvPadding::Same => l.same_padding(),
            ConvPadding::Cells(cells) => l.padding(cells),
        };
        if $o.groups != 1 { l.groups($o.groups)? } else { l }
    }};
}

/// A convolution proper; a dilation that is an argument of the constructor is required.
macro_rules! plain_convolution_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $family:ident, $torch:literal, $type:ident, $axes:literal $(, dilation = $dilation:literal)?;
     ($($argument:expr)?) |$l:ident, $o:ident| $configure:expr) => {
        convolution_type! {
            $id: $entry, $kind, $name, $family, $torch, $type, $axes;
            {
                padding: ConvPadding<$axes> = 0;
                dilation: Axes<usize, $axes> $(= $dilation)?;
                groups: usize = 1;
                padding_mode: ConvPadMode = "zeros";
            }
            ($($argument)?) |$l, $o| padded_and_grouped!($configure, $o)
        }
    };
}

plain_convolution_type! {
    CONVOLUTIONAL: 3, "Convolutional", "convolutional", Core, "nn.Conv2d", Convolutional, 2, dilation = 1;
    () |l, o| l.dilation(o.dilation)
}

plain_convolution_type! {
    CONV1D: 0, "Conv1D", "conv1d", Convolution, "nn.Conv1d", Conv1D, 1, dilation = 1;
    () |l, o| l.dilation(o.dilation)
}

plain_convolution_type! {
    CONV3D: 31, "Conv3D", "conv3d", Convolution, "nn.Conv3d", Conv3D, 3, dilation = 1;
    () |l, o| l.dilation(o.dilation)
}

plain_convolution_type! {
    DILATED_CONVOLUTIONAL: 35, "DilatedConvolutional", "dilated_convolutional", Convolution, "nn.Conv2d(dilation=..)", DilatedConvolutional, 2;
    (o.dilation) |l, o| l
}

convolution_type! {
    DECONVOLUTIONAL: 32, "Deconvolutional", "deconvolutional", Convolution, "nn.ConvTranspose2d", Deconvolutional, 2;
    {
        padding: Axes<usize, 2> = 0;
        output_padding: Axes<usize, 2> = 0;
        groups: usize = 1;
        dilation: Axes<usize, 2> = 1;
    }
    () |l, o| {
        let l = l.padding(o.padding).output_padding(o.output_padding).dilation(o.dilation);
        if o.groups != 1 { l.groups(o.groups)? } else { l }
    }
}

convolution_type! {
    DEPTHWISE_SEPARABLE_CONVOLUTIONAL: 34, "DepthwiseSeparableConvolutional", "depthwise_separable_convolutional", Convolution, "nn.Conv2d(groups=C), nn.Conv2d(1x1)", DepthwiseSeparableConvolutional, 2;
    {
        padding: Axes<usize, 2> = 0;
        dilation: Axes<usize, 2> = 1;
        depth_multiplier: usize = 1;
        mid_activation: Act = "identity";
    }
    () |l, o| {
        let l = l.padding(o.padding).dilation(o.dilation).mid_activation(o.mid_activation.0);
        if o.depth_multiplier != 1 { l.depth_multiplier(o.depth_multiplier)? } else { l }
    }
}

convolution_type! {
    SEPARABLE_CONVOLUTIONAL: 37, "SeparableConvolutional", "separable_convolutional", Convolution, "none (Keras SeparableConv2D)", SeparableConvolutional, 2;
    {
        padding: Axes<usize, 2> = 0;
        dilation: Axes<usize, 2> = 1;
        depth_multiplier: usize = 1;
    }
    () |l, o| {
        let l = l.padding(o.padding).dilation(o.dilation);
        if o.depth_multiplier != 1 { l.depth_multiplier(o.depth_multiplier)? } else { l }
    }
}

layer_type! {
    LOCALLY_CONNECTED: 36, "LocallyConnected", "locally_connected", Convolution, "none (Keras LocallyConnected2D)",
    (1, 1), spatial 2;
    {
        in_channels: Option<usize> = null;
        out_channels: usize;
        kernel_size: Axes<usize, 2>;
        stride: Axes<usize, 2> = 1;
        bias: bool = true;
        activation: Act = "identity";
        weight_init: Option<InitRule> = null;
        bias_init: Option<InitRule> = null;
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
    DEFORMABLE_CONVOLUTIONAL: 33, "DeformableConvolutional", "deformable_convolutional", Convolution,
    "torchvision.ops.deform_conv2d", (1, 1), spatial 2;
    {
        in_channels: Option<usize> = null;
        out_channels: usize;
        kernel_size: Axes<usize, 2> = 3;
        stride: Axes<usize, 2> = 1;
        padding: Axes<usize, 2> = 1;
        dilation: Axes<usize, 2> = 1;
        groups: usize = 1;
        deform_groups: usize = 1;
        modulation: bool = true;
        bias: bool = true;
        weight_init: Option<InitRule> = null;
        bias_init: Option<InitRule> = null;
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
        initialized!(l, o)
    }
}

layer_type! {
    PATCH_EMBEDDING: 30, "PatchEmbedding", "patch_embedding", Transformer, "nn.Conv2d(stride=kernel_size)", (1, 1), spatial 2;
    {
        in_channels: Option<usize> = null;
        patch_size: Axes<usize, 2>;
        embed_dim: usize;
        bias: bool = true;
        flatten: bool = true;
        weight_init: Option<InitRule> = null;
        bias_init: Option<InitRule> = null;
    }
    |o, site| {
        let l = match o.in_channels {
            Some(n) => PatchEmbedding::new(site.cx, n, o.patch_size, o.embed_dim)?,
            None => PatchEmbedding::lazy(site.cx, o.patch_size, o.embed_dim)?,
        };
        initialized!(l.flatten(o.flatten), o)
    }
}
