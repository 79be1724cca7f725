//! Layers of graphs whose updates are networks of their own: message passing, transformers, diffusion.

use serde::Deserialize;

use crate::layers::{
    DiffusionConv, DiffusionMethod, GraphAttend, GraphTransformer, GraphTransformerConfig, MessagePassing,
    RandomWalkConv,
};
use crate::network::options::{Act, Size, layer_type};
use crate::network::table::graph::Aggregator;

layer_type! {
    MESSAGE_PASSING: 67, "MessagePassing", "message_passing", Graph, "none", (2, 4);
    {
        in_features: usize;
        out_features: usize;
        message_features: Option<Size> = null;
        edge_features: usize = 0;
        aggregator: Aggregator = "sum";
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = MessagePassing::new(site.cx, o.in_features, o.out_features)?
            .aggregator(o.aggregator.into())?
            .activation(o.activation.0);
        if o.edge_features > 0 {
            l = l.edge_features(o.edge_features)?;
        }
        match o.message_features {
            Some(features) => l.message_features(features.0)?,
            None => l,
        }
    }
}

/// The names of normalizations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Norm {
    Layer,
    None,
}

/// The names of [`GraphAttend`].
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Attend {
    Edges,
    All,
}

layer_type! {
    GRAPH_TRANSFORMER: 66, "GraphTransformer", "graph_transformer", Graph,
        "none (`nn.TransformerEncoderLayer` with a mask of edges)", (2, 2);
    {
        in_features: usize;
        out_features: usize;
        heads: usize = 8;
        head_dim: Option<Size> = null;
        ffn_hidden: Option<Size> = null;
        ffn_activation: Act = "gelu";
        dropout: f64 = 0.1;
        norm: Norm = "layer";
        attend: Attend = "edges";
        max_distance: Option<usize> = null;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let mut c = GraphTransformerConfig::new(o.in_features, o.out_features)
            .heads(o.heads)
            .ffn_activation(o.ffn_activation.0)
            .dropout(o.dropout)
            .attend(match o.attend {
                Attend::Edges => GraphAttend::Edges,
                Attend::All => GraphAttend::All,
            })
            .activation(o.activation.0);
        c.head_dim = o.head_dim.map(|n| n.0);
        c.ffn_hidden = o.ffn_hidden.map(|n| n.0);
        c.max_distance = o.max_distance;
        c.norm = o.norm == Norm::Layer;
        c.bias = o.bias;
        GraphTransformer::new(site.cx, &c)?
    }
}

/// What diffuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Diffusion {
    Heat,
    RandomWalk,
}

/// The names of [`DiffusionMethod`].
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Spectral,
    Implicit,
}

/// How terms of a random walk follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Recurrence {
    Power,
    Chebyshev,
}

layer_type! {
    DIFFUSION_CONV: 69, "DiffusionConv", "diffusion_conv", Graph, "none", (2, 4);
    {
        kind: Diffusion = "heat";
        in_channels: usize;
        out_channels: usize;
        num_time_scales: Option<usize> = null;
        per_channel_time: Option<bool> = null;
        num_eigenvectors: Option<usize> = null;
        method: Option<Method> = null;
        min_time: Option<f64> = null;
        max_iterations: Option<usize> = null;
        max_diffusion_step: Option<usize> = null;
        bidirectional: Option<bool> = null;
        recurrence: Option<Recurrence> = null;
        bias: bool = true;
        activation: Option<Act> = null;
    }
    |o, site| {
        use Diffusion::{Heat, RandomWalk};
        let given = [
            ("num_time_scales", o.num_time_scales.is_some(), Heat),
            ("per_channel_time", o.per_channel_time.is_some(), Heat),
            ("num_eigenvectors", o.num_eigenvectors.is_some(), Heat),
            ("method", o.method.is_some(), Heat),
            ("min_time", o.min_time.is_some(), Heat),
            ("max_iterations", o.max_iterations.is_some(), Heat),
            ("max_diffusion_step", o.max_diffusion_step.is_some(), RandomWalk),
            ("bidirectional", o.bidirectional.is_some(), RandomWalk),
            ("recurrence", o.recurrence.is_some(), RandomWalk),
        ];
        if let Some((key, ..)) = given.iter().find(|(_, given, kind)| *given && *kind != o.kind) {
            return Err(site.wrong(key, format!("the kind {:?} has no such option", o.kind)));
        }
        if o.kind == RandomWalk {
            let mut l = RandomWalkConv::new(site.cx, o.in_channels, o.out_channels)?
                .chebyshev(o.recurrence == Some(Recurrence::Chebyshev));
            if let Some(steps) = o.max_diffusion_step {
                l = l.max_diffusion_step(steps)?;
            }
            if o.bidirectional == Some(false) {
                l = l.unidirectional()?;
            }
            if let Some(act) = o.activation {
                l = l.activation(act.0);
            }
            return Ok(Box::new(if o.bias { l } else { l.no_bias() }));
        }
        let mut l = DiffusionConv::new(site.cx, o.in_channels, o.out_channels)?.method(match o.method {
            None | Some(Method::Spectral) => DiffusionMethod::Spectral,
            Some(Method::Implicit) => DiffusionMethod::Implicit,
        });
        if let Some(scales) = o.num_time_scales {
            l = l.num_time_scales(scales)?;
        }
        if o.per_channel_time == Some(true) {
            l = l.per_channel_time()?;
        }
        if let Some(pairs) = o.num_eigenvectors {
            l = l.num_eigenvectors(pairs)?;
        }
        if let Some(least) = o.min_time {
            l = l.min_time(least)?;
        }
        if let Some(steps) = o.max_iterations {
            l = l.max_iterations(steps)?;
        }
        if let Some(act) = o.activation {
            l = l.activation(act.0);
        }
        if o.bias { l } else { l.no_bias() }
    }
}
