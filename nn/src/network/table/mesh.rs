//! Layers of meshes: their inputs are features and the list of neighbours.

use serde::Deserialize;

use crate::core::error::NnError;
use crate::layers::{MeshEdgeConv, MeshPool, SpiralConv};
use crate::network::options::{Act, layer_type};

layer_type! {
    SPIRAL_CONV: 76, "SpiralConv", "spiral_conv", Mesh, "none (`nn.Linear` of indexed features)", (2, 2);
    {
        in_channels: usize;
        out_channels: usize;
        spiral_length: usize;
        bias: bool = true;
        activation: Act = "relu";
    }
    |o, site| {
        let l = SpiralConv::new(site.cx, o.in_channels, o.out_channels, o.spiral_length)?.activation(o.activation.0);
        if o.bias { l } else { l.no_bias() }
    }
}

layer_type! {
    MESH_EDGE_CONV: 74, "MeshEdgeConv", "mesh_edge_conv", Mesh, "none (MeshCNN's MeshConv)", (2, 2);
    {
        in_channels: usize;
        out_channels: usize;
        bias: bool = true;
        symmetric: bool = true;
        activation: Act = "relu";
    }
    |o, site| {
        let l = MeshEdgeConv::new(site.cx, o.in_channels, o.out_channels)?
            .symmetric(o.symmetric)
            .activation(o.activation.0);
        if o.bias { l } else { l.no_bias() }
    }
}

/// How edges are chosen.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Collapse,
    Topk,
}

layer_type! {
    MESH_POOL: 75, "MeshPool", "mesh_pool", Mesh, "none (MeshCNN's MeshPool; PyTorch Geometric TopKPooling)", (2, 3);
    {
        target_edges: usize;
        mode: Mode = "collapse";
        in_channels: Option<usize> = null;
    }
    |o, site| match (o.mode, o.in_channels) {
        (Mode::Collapse, None) => MeshPool::new(o.target_edges)?,
        (Mode::Topk, Some(channels)) => MeshPool::topk(site.cx, o.target_edges, channels)?,
        (Mode::Collapse, Some(_)) => {
            return Err::<_, NnError>(site.wrong("in_channels", "the mode `collapse` has no such option"));
        }
        (Mode::Topk, None) => {
            return Err::<_, NnError>(site.wrong("in_channels", "is missing; the mode `topk` requires it"));
        }
    }
}
