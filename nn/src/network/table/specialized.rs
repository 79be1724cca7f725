//! Layers of one purpose: diffusion times, samples of autoencoders, warped images, radial basis functions, qubits.

use serde::Deserialize;
use serde_json::Value;
use trefoil::ops::resample::SamplePadding;

use crate::layers::{
    Measurement, Quantum, Rbf, RepParameterization, SpatialTransformer, SpyNet, TimeEmbedding,
};
use crate::network::options::{Act, Size, layer_type};

layer_type! {
    TIME_EMBEDDING: 107, "TimeEmbedding", "time_embedding", Specialized, "none (Diffusers' TimestepEmbedding)", (1, 1);
    {
        embedding_dim: usize;
        output_dim: usize;
        max_period: f64 = 10000;
        flip_sin_to_cos: bool = false;
        downscale_freq_shift: f64 = 0;
        activation: Act = "silu";
    }
    |o, site| {
        TimeEmbedding::new(site.cx, o.embedding_dim, o.output_dim)?
            .max_period(o.max_period)?
            .downscale_freq_shift(o.downscale_freq_shift)?
            .flip_sin_to_cos(o.flip_sin_to_cos)
            .activation(o.activation.0)
    }
}

layer_type! {
    REP_PARAMETERIZATION: 98, "RepParameterization", "rep_parameterization", Specialized, "none", (1, 1);
    {}
    |o, site| RepParameterization::new(site.cx)
}

/// What lies outside of an image.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

layer_type! {
    SPATIAL_TRANSFORMER: 101, "SpatialTransformer", "spatial_transformer", Specialized, "F.affine_grid, F.grid_sample", (1, 1), spatial 2;
    {
        out_height: usize;
        out_width: usize;
        in_channels: usize;
        in_height: usize;
        in_width: usize;
        hidden: Option<Size> = null;
        localization: Option<Value> = null;
        align_corners: bool = false;
        padding: Outside = "zeros";
        identity_reg: f64 = 0;
    }
    |o, site| {
        let (from, to) = ([o.in_height, o.in_width], [o.out_height, o.out_width]);
        let l = SpatialTransformer::new(site.cx, o.in_channels, from, to)?
            .align_corners(o.align_corners)
            .padding(match o.padding {
                Outside::Zeros => SamplePadding::Zeros,
                Outside::Border => SamplePadding::Border,
                Outside::Reflection => SamplePadding::Reflection,
            })
            .identity_reg(o.identity_reg)?;
        match (o.hidden, &o.localization) {
            (None, None) => l,
            (Some(hidden), None) => l.hidden(hidden.0)?,
            (None, Some(net)) => l.localization(site.layer("localization", net)?),
            (Some(_), Some(_)) => return Err(site.wrong("hidden", "is that of the default `localization`")),
        }
    }
}

/// The convolutions of a level.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FlowMode {
    Standard,
    SingleConv,
}

layer_type! {
    SPYNET: 103, "SpyNet", "spynet", Specialized, "none (BasicSR's SpyNet)", (1, 2), spatial 2;
    {
        num_levels: usize = 6;
        in_channels: usize = 3;
        normalize_imagenet: bool = false;
        mode: FlowMode = "standard";
    }
    |o, site| {
        let l = match o.mode {
            FlowMode::Standard => SpyNet::with_levels(site.cx, o.in_channels, o.num_levels)?,
            FlowMode::SingleConv => SpyNet::single_conv(site.cx, o.in_channels, o.num_levels)?,
        };
        if o.normalize_imagenet { l.normalize_imagenet()? } else { l }
    }
}

layer_type! {
    RBF: 95, "Rbf", "rbf", Specialized, "none (torch.cdist)", (1, 1);
    {
        in_features: usize;
        out_features: usize;
        width_init: f64 = 1;
        width_floor: f64 = 1e-6;
    }
    |o, site| Rbf::new(site.cx, o.in_features, o.out_features)?.widths(o.width_init, o.width_floor)?
}

layer_type! {
    MEASUREMENT: 91, "Measurement", "measurement", Specialized, "none", (1, 2);
    {
        size: usize;
        complex: bool = false;
    }
    |o, site| Measurement::new(o.size)?.complex(o.complex)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entangle {
    None,
    Ring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Measure {
    Probs,
    ExpvalZ,
}

layer_type! {
    QUANTUM: 94, "Quantum", "quantum", Specialized, "none", (1, 1);
    {
        num_qubits: usize;
        num_layers: usize = 1;
        entangle: Entangle = "none";
        measure: Measure = "probs";
    }
    |o, site| {
        let mut l = Quantum::new(site.cx, o.num_qubits)?.num_layers(o.num_layers)?;
        if o.entangle == Entangle::Ring {
            l = l.ring();
        }
        if o.measure == Measure::ExpvalZ { l.expval_z() } else { l }
    }
}
