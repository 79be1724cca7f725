//! Layers of graphs whose updates are networks of their own: message passing, transformers, diffusion.

use serde::Deserialize;

use crate::layers::{GraphAttend, GraphTransformer, GraphTransformerConfig, MessagePassing};
use crate::network::options::{Act, Size, layer_type};
use crate::network::table::graph::Aggregator;

layer_type! {
    MESSAGE_PASSING: 67, "MessagePassing", "message_passing", Graph, "none", (2, 4);
    {
        in_features: usize;
        out_features: usize;
        message_features: Option<Size> = null;
        edge_dim: usize = 0;
        aggr: Aggregator = "sum";
        activation: Act = "identity";
    }
    |o, site| {
        let l = MessagePassing::new(site.cx, o.in_features, o.out_features)?
            .edge_dim(o.edge_dim)?
            .aggr(o.aggr.into())?
            .activation(o.activation.0);
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
