//! Upsampling and the exchange of channels for resolution.

use serde::Deserialize;
use trefoil::ops::resample::InterpolateMode;

use crate::layers::{
    ChannelShuffle, PixelShuffle, PixelUnshuffle, SubpixelConvolutional, Upsample3D, Upsampling,
};
use crate::network::options::{Act, Axes, InitRule, initialized, layer_type};

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
    UPSAMPLE3D: 38, "Upsample3D", "upsample3d", Upsampling, "nn.Upsample", (1, 1), spatial 3;
    {
        scale_factor: Option<Axes<f64, 3>> = null;
        size: Option<Axes<usize, 3>> = null;
        mode: VolumeMode = "nearest";
        align_corners: bool = false;
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
    UPSAMPLING: 39, "Upsampling", "upsampling", Upsampling, "nn.Upsample", (1, 1), spatial 2;
    {
        scale_factor: Option<Axes<f64, 2>> = null;
        size: Option<Axes<usize, 2>> = null;
        mode: PlaneMode = "nearest";
        align_corners: bool = false;
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
    "nn.Conv2d, nn.PixelShuffle", (1, 1), spatial 2;
    {
        in_channels: Option<usize> = null;
        out_channels: usize;
        upscale_factor: usize;
        kernel_size: usize;
        bias: bool = true;
        activation: Act = "identity";
        icnr_init: bool = false;
        weight_init: Option<InitRule> = null;
        bias_init: Option<InitRule> = null;
    }
    |o, site| {
        let (out, factor, kernel) = (o.out_channels, o.upscale_factor, o.kernel_size);
        let l = match o.in_channels {
            Some(n) => SubpixelConvolutional::new(site.cx, n, out, factor, kernel)?,
            None => SubpixelConvolutional::lazy(site.cx, out, factor, kernel)?,
        };
        let l = initialized!(l.activation(o.activation.0), o);
        if o.icnr_init { l.icnr(true)? } else { l }
    }
}

layer_type! {
    PIXEL_SHUFFLE: 41, "PixelShuffle", "pixel_shuffle", Upsampling, "nn.PixelShuffle", (1, 1);
    { upscale_factor: usize; }
    |o, _site| PixelShuffle::new(o.upscale_factor)?
}

layer_type! {
    PIXEL_UNSHUFFLE: 0, "PixelUnshuffle", "pixel_unshuffle", Upsampling, "nn.PixelUnshuffle", (1, 1);
    { downscale_factor: usize; }
    |o, _site| PixelUnshuffle::new(o.downscale_factor)?
}

layer_type! {
    CHANNEL_SHUFFLE: 0, "ChannelShuffle", "channel_shuffle", Upsampling, "nn.ChannelShuffle", (1, 1);
    { groups: usize; }
    |o, _site| ChannelShuffle::new(o.groups)?
}
