//! More layers of graphs: readout, directed edges, edges with features and types, several aggregations at once.

use serde::Deserialize;

use super::graph::Aggregator;
use crate::layers::{
    DirectionalGraph, EdgeConditionalConvolutional, HeterogeneousGraph, PnaAggregator, PnaScaler,
    PrincipalNeighbourhoodAggregation, Readout, ReadoutMode,
};
use crate::network::options::{Act, Size, layer_type};

/// How the nodes of a graph are combined.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    None,
    Sum,
    Mean,
    Max,
    Attention,
}

impl From<Mode> for ReadoutMode {
    fn from(m: Mode) -> Self {
        match m {
            Mode::None => ReadoutMode::None,
            Mode::Sum => ReadoutMode::Sum,
            Mode::Mean => ReadoutMode::Mean,
            Mode::Max => ReadoutMode::Max,
            Mode::Attention => ReadoutMode::Attention,
        }
    }
}

layer_type! {
    READOUT: 73, "Readout", "readout", Graph, "none (PyTorch Geometric global_add_pool and its like, then nn.Linear)", (1, 2);
    {
        in_features: usize;
        out_features: usize;
        mode: Mode = "none";
        num_graphs: Option<Size> = null;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l =
            Readout::new(site.cx, o.in_features, o.out_features)?.mode(o.mode.into())?.activation(o.activation.0);
        match (o.mode, o.num_graphs) {
            (Mode::None, Some(_)) => return Err(site.wrong("num_graphs", "needs a `mode` that combines nodes")),
            (Mode::None, None) => {}
            (_, None) => return Err(site.wrong("num_graphs", "is missing: this `mode` needs it")),
            (_, Some(n)) => l = l.num_graphs(n.0)?,
        }
        if o.bias { l } else { l.no_bias() }
    }
}

/// How the directions of edges are combined.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Directions {
    Sum,
    Concat,
}

layer_type! {
    DIRECTIONAL_GRAPH: 70, "DirectionalGraph", "directional_graph", Graph, "none (PyTorch Geometric DirGNNConv)", (2, 2);
    {
        in_features: usize;
        out_features: usize;
        alpha: Option<f64> = null;
        aggregator: Aggregator = "mean";
        root_weight: bool = true;
        mode: Directions = "sum";
        gating: bool = false;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l = DirectionalGraph::new(site.cx, o.in_features, o.out_features)?
            .aggregator(o.aggregator.into())?
            .activation(o.activation.0);
        if !o.root_weight {
            l = l.no_root_weight()?;
        }
        match (o.mode, o.alpha, o.gating) {
            (Directions::Sum, _, true) => return Err(site.wrong("gating", "needs the mode `concat`")),
            (Directions::Sum, alpha, false) => l.alpha(alpha.unwrap_or(0.5))?,
            (Directions::Concat, Some(_), _) => return Err(site.wrong("alpha", "needs the mode `sum`")),
            (Directions::Concat, None, gating) => l.concat(gating)?,
        }
    }
}

layer_type! {
    EDGE_CONDITIONAL_CONVOLUTIONAL: 71, "EdgeConditionalConvolutional", "edge_conditional_convolutional", Graph,
    "none (PyTorch Geometric NNConv)", (3, 3);
    {
        in_features: usize;
        out_features: usize;
        edge_features: usize;
        edge_hidden: usize = 64;
        aggregator: Aggregator = "mean";
        root_weight: bool = true;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let mut l =
            EdgeConditionalConvolutional::new(site.cx, o.in_features, o.out_features, o.edge_features)?
                .edge_hidden(o.edge_hidden)?
                .aggregator(o.aggregator.into())?
                .activation(o.activation.0);
        if !o.root_weight {
            l = l.no_root_weight();
        }
        if o.bias { l } else { l.no_bias() }
    }
}

/// What combines the messages into a node.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Aggregation {
    Mean,
    Min,
    Max,
    Std,
    Sum,
}

impl From<Aggregation> for PnaAggregator {
    fn from(a: Aggregation) -> Self {
        match a {
            Aggregation::Mean => PnaAggregator::Mean,
            Aggregation::Min => PnaAggregator::Min,
            Aggregation::Max => PnaAggregator::Max,
            Aggregation::Std => PnaAggregator::Std,
            Aggregation::Sum => PnaAggregator::Sum,
        }
    }
}

/// What scales them by the degree.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scaler {
    Identity,
    Amplification,
    Attenuation,
}

impl From<Scaler> for PnaScaler {
    fn from(s: Scaler) -> Self {
        match s {
            Scaler::Identity => PnaScaler::Identity,
            Scaler::Amplification => PnaScaler::Amplification,
            Scaler::Attenuation => PnaScaler::Attenuation,
        }
    }
}

layer_type! {
    PRINCIPAL_NEIGHBOURHOOD_AGGREGATION: 72, "PrincipalNeighbourhoodAggregation", "principal_neighbourhood_aggregation",
    Graph, "none (PyTorch Geometric PNAConv)", (2, 3);
    {
        in_features: usize;
        out_features: usize;
        aggregators: Vec<Aggregation> = ["mean", "min", "max", "std"];
        scalers: Vec<Scaler> = ["identity", "amplification", "attenuation"];
        deg_histogram: Vec<u64>;
        edge_features: Option<usize> = null;
        pre_layers: usize = 1;
        post_layers: usize = 1;
        activation: Act = "identity";
    }
    |o, site| {
        let aggregators: Vec<PnaAggregator> = o.aggregators.into_iter().map(Into::into).collect();
        let scalers: Vec<PnaScaler> = o.scalers.into_iter().map(Into::into).collect();
        let l = PrincipalNeighbourhoodAggregation::new(site.cx, o.in_features, o.out_features, &o.deg_histogram)?
            .aggregators(&aggregators)?
            .scalers(&scalers)?
            .pre_layers(o.pre_layers)?
            .post_layers(o.post_layers)?
            .activation(o.activation.0);
        match o.edge_features {
            Some(n) => l.edge_features(n)?,
            None => l,
        }
    }
}

layer_type! {
    HETEROGENEOUS_GRAPH: 68, "HeterogeneousGraph", "heterogeneous_graph", Graph, "none (PyTorch Geometric RGCNConv)", (4, 4);
    {
        in_features: usize;
        out_features: usize;
        node_types: Vec<String>;
        edge_types: Vec<[String; 3]>;
        num_bases: Option<usize> = null;
        aggregator: Aggregator = "mean";
        root_weight: bool = true;
        bias: bool = true;
        activation: Act = "identity";
    }
    |o, site| {
        let nodes: Vec<(&str, usize)> = o.node_types.iter().map(|t| (t.as_str(), o.in_features)).collect();
        let edges: Vec<_> = o.edge_types.iter().map(|[s, r, d]| (s.as_str(), r.as_str(), d.as_str())).collect();
        let mut l = HeterogeneousGraph::new(site.cx, &nodes, &edges, o.out_features)?
            .aggregator(o.aggregator.into())?
            .activation(o.activation.0);
        if let Some(bases) = o.num_bases {
            l = l.num_bases(bases)?;
        }
        if !o.root_weight {
            l = l.no_root_weight();
        }
        if o.bias { l } else { l.no_bias() }
    }
}
