//! Layers of meshes: their inputs are features and the list of neighbours.

use crate::layers::{MeshEdgeConv, SpiralConv};
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
