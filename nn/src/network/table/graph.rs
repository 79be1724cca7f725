//! Layers of graphs: their inputs are features, `edge_index [2, E]` and, where they have them, weights of the edges.

use serde::Deserialize;
use trefoil::ops::graph::MessageReduce;

use crate::layers::{GraphAttention, GraphConvolutional, GraphIsomorphism, GraphSage};
use crate::network::options::{Act, Size, layer_type};

layer_type! {
    GRAPH_CONVOLUTIONAL: 62, "GraphConvolutional", "graph_convolutional", Graph, "none (PyTorch Geometric GCNConv)", (2, 3);
    {
        in_features: usize;
        out_features: usize;
        bias: bool = true;
        normalize: bool = true;
        add_self_loops: Option<bool> = null;
        improved: bool = false;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = GraphConvolutional::new(site.cx, o.in_features, o.out_features)?
            .improved(o.improved)
            .activation(o.activation.0);
        if !o.bias {
            l = l.no_bias();
        }
        match (o.normalize, o.add_self_loops) {
            (true, loops) => l.add_self_loops(loops.unwrap_or(true)),
            (false, None | Some(false)) => l.no_normalization(),
            (false, Some(true)) => return Err(site.wrong("add_self_loops", "self-loops need `normalize`")),
        }
    }
}

layer_type! {
    GRAPH_ATTENTION: 63, "GraphAttention", "graph_attention", Graph, "none (PyTorch Geometric GATConv)", (2, 2);
    {
        in_features: usize;
        out_features: usize;
        heads: usize = 1;
        concat: bool = true;
        negative_slope: f64 = 0.2;
        dropout: f64 = 0;
        add_self_loops: bool = true;
        bias: bool = true;
        residual: bool = false;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = GraphAttention::new(site.cx, o.in_features, o.out_features, o.heads)?
            .negative_slope(o.negative_slope)?
            .dropout(o.dropout)?
            .add_self_loops(o.add_self_loops)
            .activation(o.activation.0);
        if !o.concat {
            l = l.mean_heads()?;
        }
        if o.residual {
            l = l.residual()?;
        }
        if o.bias { l } else { l.no_bias() }
    }
}

/// How the features of a node's sources are combined.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Aggregator {
    Mean,
    Max,
    Sum,
}

impl From<Aggregator> for MessageReduce {
    fn from(a: Aggregator) -> Self {
        match a {
            Aggregator::Mean => MessageReduce::Mean,
            Aggregator::Max => MessageReduce::Max,
            Aggregator::Sum => MessageReduce::Sum,
        }
    }
}

layer_type! {
    GRAPH_SAGE: 64, "GraphSage", "graph_sage", Graph, "none (PyTorch Geometric SAGEConv)", (2, 2);
    {
        in_features: usize;
        out_features: usize;
        aggregator: Aggregator = "mean";
        project: bool = false;
        normalize: bool = false;
        root_weight: bool = true;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = GraphSage::new(site.cx, o.in_features, o.out_features)?
            .aggregator(o.aggregator.into())?
            .normalize(o.normalize)
            .activation(o.activation.0);
        if o.project {
            l = l.project()?;
        }
        if !o.root_weight {
            l = l.no_root_weight();
        }
        if o.bias { l } else { l.no_bias() }
    }
}

layer_type! {
    GRAPH_ISOMORPHISM: 65, "GraphIsomorphism", "graph_isomorphism", Graph, "none (PyTorch Geometric GINConv)", (2, 2);
    {
        in_features: usize;
        out_features: usize;
        mlp_hidden: Option<Size> = null;
        learn_epsilon: bool = true;
        epsilon: f64 = 0;
        batch_norm: bool = false;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = GraphIsomorphism::new(site.cx, o.in_features, o.out_features)?
            .epsilon(o.epsilon, o.learn_epsilon)?
            .activation(o.activation.0);
        if let Some(hidden) = o.mlp_hidden {
            l = l.mlp_hidden(hidden.0)?;
        }
        if o.batch_norm { l.batch_norm()? } else { l }
    }
}
