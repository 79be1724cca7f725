//! Blocks around skip connections.

use serde::Deserialize;
use trefoil::ops::activation::Activation;

use crate::core::options::Limit;
use crate::layers::{
    BasicBlock, BottleneckBlock, DenseBlock, DenseBlockLayer, Highway, InvertedResidualBlock,
    ResidualDenseBlock, Rrdb, RrdbNetConfig, RrdbNetGenerator, RrdbUpsampler, SqueezeAndExcitation,
    Transition, UNetConvBlock, UNetDiscriminator, UNetUpBlock,
};
use crate::network::options::{Act, layer_type};

layer_type! {
    HIGHWAY: 78, "Highway", "highway", Residual, "none", (1, 1);
    {
        dim: usize;
        transform_activation: Act = "tanh";
        gate_activation: Act = "sigmoid";
        gate_bias_init: f64 = -1;
        aux_weight: f64 = 0;
    }
    |o, site| {
        Highway::new(site.cx, o.dim)?
            .transform_activation(o.transform_activation.0)
            .gate_activation(o.gate_activation.0)
            .gate_bias_init(o.gate_bias_init)?
            .aux_weight(o.aux_weight)?
    }
}

layer_type! {
    DENSE_BLOCK_LAYER: 79, "DenseBlockLayer", "dense_block_layer", Residual, "none (torchvision _DenseLayer)", (1, 1), spatial 2;
    {
        in_channels: usize;
        growth_rate: usize;
        bn_size: usize = 4;
        drop_rate: f64 = 0;
    }
    |o, site| {
        DenseBlockLayer::with_bn_size(site.cx, o.in_channels, o.growth_rate, o.bn_size)?.drop_rate(o.drop_rate)?
    }
}

/// Layers of a block, each of which reads the results of all before it; DenseNet-264 has 64.
const BLOCK: Limit = Limit { ok: |n| (1.0..=256.0).contains(&n), says: "1 to 256 layers" };

layer_type! {
    DENSE_BLOCK: 110, "DenseBlock", "dense_block", Residual, "none (torchvision _DenseBlock)", (1, 1), spatial 2;
    {
        num_layers: usize, BLOCK;
        in_channels: usize;
        growth_rate: usize;
        bn_size: usize = 4;
        drop_rate: f64 = 0;
    }
    |o, site| {
        DenseBlock::with_bn_size(site.cx, o.num_layers, o.in_channels, o.growth_rate, o.bn_size)?
            .drop_rate(o.drop_rate)?
    }
}

layer_type! {
    TRANSITION: 82, "Transition", "transition", Residual, "none (torchvision _Transition)", (1, 1), spatial 2;
    {
        in_channels: usize;
        compression: f64 = 0.5;
    }
    |o, site| Transition::with_compression(site.cx, o.in_channels, o.compression)?
}

layer_type! {
    BASIC_BLOCK: 83, "BasicBlock", "basic_block", Residual, "none (torchvision BasicBlock)", (1, 1), spatial 2;
    {
        in_channels: usize;
        out_channels: usize;
        stride: usize = 1;
        zero_init_residual: bool = false;
    }
    |o, site| {
        let l = BasicBlock::new(site.cx, o.in_channels, o.out_channels, o.stride)?;
        if o.zero_init_residual { l.zero_init_residual()? } else { l }
    }
}

layer_type! {
    BOTTLENECK_BLOCK: 84, "BottleneckBlock", "bottleneck_block", Residual, "none (torchvision Bottleneck)", (1, 1), spatial 2;
    {
        in_channels: usize;
        base_channels: usize;
        stride: usize = 1;
        groups: usize = 1;
        base_width: usize = 64;
        zero_init_residual: bool = false;
    }
    |o, site| {
        let (inputs, base) = (o.in_channels, o.base_channels);
        let l = BottleneckBlock::with_groups(site.cx, inputs, base, o.stride, o.groups, o.base_width)?;
        if o.zero_init_residual { l.zero_init_residual()? } else { l }
    }
}

/// Where the channels of an image are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ImageLayout {
    Nchw,
    Nhwc,
}

layer_type! {
    SQUEEZE_AND_EXCITATION: 104, "SqueezeAndExcitation", "squeeze_and_excitation", Specialized,
    "torchvision.ops.SqueezeExcitation", (1, 1);
    {
        channels: usize;
        reduction: usize = 16;
        squeeze: Option<usize> = null;
        activation: Act = "relu";
        gate: Act = "sigmoid";
        layout: ImageLayout = "nchw";
        aux_weight: f64 = 0;
    }
    |o, site| {
        let l = match o.squeeze {
            Some(squeeze) => SqueezeAndExcitation::with_squeeze(site.cx, o.channels, squeeze)?,
            None => SqueezeAndExcitation::new(site.cx, o.channels, o.reduction)?,
        };
        l.activation(o.activation.0)
            .gate(o.gate.0)
            .channels_last(o.layout == ImageLayout::Nhwc)
            .aux_weight(o.aux_weight)?
    }
}

layer_type! {
    INVERTED_RESIDUAL_BLOCK: 111, "InvertedResidualBlock", "inverted_residual_block", Residual,
    "none (torchvision InvertedResidual)", (1, 1), spatial 2;
    {
        in_channels: usize;
        out_channels: usize;
        stride: usize = 1;
        expand_ratio: usize = 6;
        use_se: bool = false;
        se_ratio: usize = 4;
        activation: Act = "relu6";
    }
    |o, site| {
        let l = InvertedResidualBlock::new(site.cx, o.in_channels, o.out_channels, o.stride, o.expand_ratio)?;
        let l = if o.use_se { l.squeeze_and_excitation(o.se_ratio)? } else { l };
        if o.activation.0 != Activation::Relu6 { l.activation(o.activation.0)? } else { l }
    }
}

layer_type! {
    RESIDUAL_DENSE_BLOCK: 80, "ResidualDenseBlock", "residual_dense_block", Residual, "none (BasicSR ResidualDenseBlock)",
    (1, 1), spatial 2;
    {
        num_feat: usize = 64;
        num_grow_ch: usize = 32;
        residual_scale: f64 = 0.2;
        negative_slope: f64 = 0.2;
    }
    |o, site| {
        ResidualDenseBlock::new(site.cx, o.num_feat, o.num_grow_ch)?
            .residual_scale(o.residual_scale)?
            .negative_slope(o.negative_slope)?
    }
}

layer_type! {
    RRDB: 81, "Rrdb", "rrdb", Residual, "none (BasicSR RRDB)", (1, 1), spatial 2;
    {
        num_feat: usize = 64;
        num_grow_ch: usize = 32;
        residual_scale: f64 = 0.2;
    }
    |o, site| Rrdb::new(site.cx, o.num_feat, o.num_grow_ch)?.residual_scale(o.residual_scale)?
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UpsamplerName {
    NearestConv,
    PixelShuffle,
}

layer_type! {
    RRDBNET_GENERATOR: 115, "RrdbNetGenerator", "rrdbnet_generator", Residual, "none (BasicSR RRDBNet)", (1, 1), spatial 2;
    {
        in_channels: usize = 3;
        out_channels: usize = 3;
        num_feat: usize = 64;
        num_grow_ch: usize = 32;
        num_block: usize = 23;
        scale: usize = 4;
        residual_scale: f64 = 0.2;
        upsampler: UpsamplerName = "nearest_conv";
        checkpoint: bool = false;
    }
    |o, site| {
        let config = RrdbNetConfig {
            in_channels: o.in_channels,
            out_channels: o.out_channels,
            num_feat: o.num_feat,
            num_grow_ch: o.num_grow_ch,
            num_block: o.num_block,
            scale: o.scale,
            residual_scale: o.residual_scale,
            upsampler: match o.upsampler {
                UpsamplerName::NearestConv => RrdbUpsampler::NearestConv,
                UpsamplerName::PixelShuffle => RrdbUpsampler::PixelShuffle,
            },
            checkpoint: o.checkpoint,
        };
        RrdbNetGenerator::new(site.cx, &config)?
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum UNetMode {
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "realesrgan")]
    RealEsrgan,
}

layer_type! {
    UNET_DISCRIMINATOR: 116, "UNetDiscriminator", "unet_discriminator", Residual, "none (BasicSR UNetDiscriminatorSN)",
    (1, 1), spatial 2;
    {
        in_channels: usize = 3;
        num_feat: usize = 64;
        num_blocks: Option<usize> = null;
        mode: UNetMode = "plain";
    }
    |o, site| match (o.mode, o.num_blocks) {
        (UNetMode::Plain, n) => UNetDiscriminator::plain(site.cx, o.in_channels, o.num_feat, n.unwrap_or(4))?,
        (UNetMode::RealEsrgan, None) => UNetDiscriminator::real_esrgan(site.cx, o.in_channels, o.num_feat)?,
        (UNetMode::RealEsrgan, Some(_)) => {
            return Err(site.wrong("num_blocks", "the mode `realesrgan` has a number of its own"));
        }
    }
}

layer_type! {
    UNET_CONV_BLOCK: 0, "UNetConvBlock", "unet_conv_block", Residual, "none", (1, 1), spatial 2;
    {
        in_channels: usize;
        out_channels: usize;
        downsample: bool = true;
    }
    |o, site| UNetConvBlock::new(site.cx, o.in_channels, o.out_channels, o.downsample)?
}

layer_type! {
    UNET_UP_BLOCK: 0, "UNetUpBlock", "unet_up_block", Residual, "none", (2, 2);
    {
        in_channels: usize;
        skip_channels: usize;
        out_channels: usize;
    }
    |o, site| UNetUpBlock::new(site.cx, o.in_channels, o.skip_channels, o.out_channels)?
}
