//! Core, normalization and dense-like layers.

use crate::layers::{
    BatchNormalization, Dense, Embedding, FullyConnected, GatedLinearUnit, GroupNormalization,
    InstanceNormalization, LayerNormalization, RmsNorm,
};
use crate::network::options::{Act, InitRule, List, Size, initialized, layer_type};

/// A linear layer: the options that all have, and how its activation is set.
macro_rules! dense_type {
    ($id:ident: $entry:literal, $kind:literal, $name:literal, $family:ident, $torch:literal, $type:ident; $act:ident = $default:literal, |$l:ident| $set:expr) => {
        layer_type! {
            $id: $entry, $kind, $name, $family, $torch, (1, 1);
            {
                in_features: Option<usize> = null;
                out_features: usize;
                bias: bool = true;
                $act: Act = $default;
                weight_init: Option<InitRule> = null;
                bias_init: Option<InitRule> = null;
            }
            |o, site| {
                let $l = match o.in_features {
                    Some(n) => $type::new(site.cx, n, o.out_features)?,
                    None => $type::lazy(site.cx, o.out_features)?,
                };
                let $act = o.$act.0;
                initialized!($set, o)
            }
        }
    };
}

dense_type! {
    DENSE: 1, "Dense", "dense", Core, "nn.Linear", Dense;
    activation = "identity", |l| l.activation(activation)
}

dense_type! {
    FULLY_CONNECTED: 2, "FullyConnected", "fully_connected", Core, "nn.Linear for `[B, in]`", FullyConnected;
    activation = "identity", |l| l.activation(activation)
}

dense_type! {
    GATED_LINEAR_UNIT: 61, "GatedLinearUnit", "gated_linear_unit", DenseLike, "nn.Linear and F.glu", GatedLinearUnit;
    gate_activation = "sigmoid", |l| l.gate(gate_activation)?
}

layer_type! {
    BATCH_NORMALIZATION: 4, "BatchNormalization", "batch_normalization", Core, "nn.BatchNorm1d/2d/3d", (1, 1);
    {
        num_features: usize;
        eps: f64 = 1e-5;
        momentum: Option<f64> = 0.1;
        affine: bool = true;
        track_running_stats: bool = true;
    }
    |o, site| {
        let mut l = BatchNormalization::new(site.cx, o.num_features)?.eps(o.eps)?.momentum(o.momentum)?;
        if !o.affine {
            l = l.no_affine();
        }
        if o.track_running_stats { l } else { l.no_running_stats() }
    }
}

layer_type! {
    LAYER_NORMALIZATION: 5, "LayerNormalization", "layer_normalization", Core, "nn.LayerNorm", (1, 1);
    {
        normalized_shape: List<usize>;
        eps: f64 = 1e-5;
        elementwise_affine: bool = true;
        bias: bool = true;
    }
    |o, site| {
        let mut l = LayerNormalization::new(site.cx, &o.normalized_shape.0)?.eps(o.eps)?;
        if !o.bias {
            l = l.no_bias();
        }
        if o.elementwise_affine { l } else { l.no_affine() }
    }
}

layer_type! {
    EMBEDDING: 6, "Embedding", "embedding", Core, "nn.Embedding", (1, 1);
    {
        num_embeddings: Size;
        embedding_dim: Size;
        padding_idx: Option<i64> = null;
        scale_by_sqrt_dim: bool = false;
        max_norm: Option<f64> = null;
        norm_type: f64 = 2;
        scale_grad_by_freq: bool = false;
        weight_init: Option<InitRule> = null;
    }
    |o, site| {
        let mut l = Embedding::new(site.cx, o.num_embeddings.0, o.embedding_dim.0)?;
        if let Some(rule) = o.weight_init {
            l = l.init(site.cx, rule.into())?;
        }
        if let Some(row) = o.padding_idx {
            l = l.padding_idx(row)?;
        }
        if let Some(bound) = o.max_norm {
            l = l.max_norm(bound, o.norm_type)?;
        }
        if o.scale_grad_by_freq {
            l = l.scale_grad_by_freq();
        }
        if o.scale_by_sqrt_dim { l.scale_by_sqrt_dim() } else { l }
    }
}

layer_type! {
    INSTANCE_NORMALIZATION: 21, "InstanceNormalization", "instance_normalization", Normalization,
    "nn.InstanceNorm1d/2d/3d", (1, 1);
    {
        num_features: usize;
        eps: f64 = 1e-5;
        momentum: Option<f64> = 0.1;
        affine: bool = false;
        track_running_stats: bool = false;
    }
    |o, site| {
        let mut l = InstanceNormalization::new(o.num_features)?.eps(o.eps)?;
        if o.affine {
            l = l.affine(site.cx)?;
        }
        if o.track_running_stats { l.running_stats(site.cx, o.momentum)? } else { l }
    }
}

layer_type! {
    GROUP_NORMALIZATION: 22, "GroupNormalization", "group_normalization", Normalization, "nn.GroupNorm", (1, 1);
    {
        num_groups: usize;
        num_channels: Size;
        eps: f64 = 1e-5;
        affine: bool = true;
    }
    |o, site| {
        let l = GroupNormalization::new(site.cx, o.num_groups, o.num_channels.0)?.eps(o.eps)?;
        if o.affine { l } else { l.no_affine() }
    }
}

layer_type! {
    RMS_NORM: 24, "RMSNorm", "rms_norm", Normalization, "nn.RMSNorm", (1, 1);
    {
        normalized_shape: List<usize>;
        eps: Option<f64> = 1e-6;
        elementwise_affine: bool = true;
    }
    |o, site| {
        let l = RmsNorm::new(site.cx, &o.normalized_shape.0)?;
        let l = if let Some(eps) = o.eps { l.eps(eps)? } else { l.machine_eps() };
        if o.elementwise_affine { l } else { l.no_affine() }
    }
}
