//! Pooling.

use serde::Deserialize;

use crate::layers::{
    AdaptiveAveragePooling, AdaptiveAvgPool1D, AveragePooling, AvgPool1D, GlobalPooling, MaxPool1D,
    MaxPool3D, MaxPooling, Pooling,
};
use crate::network::options::{Act, Axes, layer_type};

/// Means of windows over a number of spatial axes.
macro_rules! average_pooling_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $torch:literal, $type:ident, $axes:literal) => {
        layer_type! {
            $id: $entry, $kind, $name, Pooling, $torch, (1, 1), spatial $axes;
            {
                kernel_size: Axes<usize, $axes>;
                stride: Option<Axes<usize, $axes>> = null;
                padding: Axes<usize, $axes> = 0;
                ceil_mode: bool = false;
                count_include_pad: bool = true;
                divisor_override: Option<i64> = null;
            }
            |o, _site| {
                let mut l = $type::new(o.kernel_size)?.padding(o.padding);
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
    };
}
average_pooling_type!(AVERAGE_POOLING: 16, "AveragePooling", "average_pooling", "nn.AvgPool2d", AveragePooling, 2);
average_pooling_type!(AVG_POOL1D: 0, "AvgPool1D", "avg_pool1d", "nn.AvgPool1d", AvgPool1D, 1);

/// Maxima of windows over a number of spatial axes.
macro_rules! max_pooling_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $torch:literal, $type:ident, $axes:literal) => {
        layer_type! {
            $id: $entry, $kind, $name, Pooling, $torch, (1, 1), spatial $axes;
            {
                kernel_size: Axes<usize, $axes>;
                stride: Option<Axes<usize, $axes>> = null;
                padding: Axes<usize, $axes> = 0;
                dilation: Axes<usize, $axes> = 1;
                ceil_mode: bool = false;
                return_indices: bool = false;
            }
            |o, _site| {
                let l = $type::new(o.kernel_size)?.padding(o.padding).dilation(o.dilation);
                let l = l.ceil_mode(o.ceil_mode).return_indices(o.return_indices);
                match o.stride {
                    Some(stride) => l.stride(stride),
                    None => l,
                }
            }
        }
    };
}
max_pooling_type!(MAX_POOLING: 17, "MaxPooling", "max_pooling", "nn.MaxPool2d", MaxPooling, 2);
max_pooling_type!(MAX_POOL1D: 0, "MaxPool1D", "max_pool1d", "nn.MaxPool1d", MaxPool1D, 1);
max_pooling_type!(MAX_POOL3D: 18, "MaxPool3D", "max_pool3d", "nn.MaxPool3d", MaxPool3D, 3);

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
        mode: GlobalMode = "avg";
        keepdim: bool = true;
        activation: Act = "identity";
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
    "nn.AdaptiveAvgPool2d", (1, 1), spatial 2;
    { output_size: Axes<Option<usize>, 2> = 1; }
    |o, _site| AdaptiveAveragePooling::keeping(o.output_size.0)?
}

layer_type! {
    ADAPTIVE_AVG_POOL1D: 0, "AdaptiveAvgPool1D", "adaptive_avg_pool1d", Pooling, "nn.AdaptiveAvgPool1d", (1, 1), spatial 1;
    { output_size: Axes<Option<usize>, 1> = 1; }
    |o, _site| AdaptiveAvgPool1D::keeping(o.output_size.0)?
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PoolingMode {
    Max,
    Average,
}

layer_type! {
    POOLING: 113, "Pooling", "pooling", Pooling, "nn.MaxPool2d(..), nn.AvgPool2d(..)", (1, 1), spatial 2;
    {
        pool_size: Axes<usize, 2>;
        stride: Option<Axes<usize, 2>> = null;
        mode: PoolingMode = "max";
    }
    |o, _site| {
        let stride = o.stride.unwrap_or(o.pool_size);
        match o.mode {
            PoolingMode::Max => Pooling::max(o.pool_size, stride)?,
            PoolingMode::Average => Pooling::average(o.pool_size, stride)?,
        }
    }
}
