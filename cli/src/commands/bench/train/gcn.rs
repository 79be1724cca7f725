//! A graph convolutional network.

use trefoil::ops::activation::Activation;
use trefoil_bench::{Case, random_edges};
use trefoil_nn::layers::{GraphConvolutional, Sequential};
use trefoil_nn::{Device, Graph, InitContext, Layer, Result, Tensor, Visitor};

use super::{ADAM, Training, ids, random};
use crate::error::Result as CliResult;

/// A graph convolution on the graph that the network is trained on, as `GCNConv(cached=True)`.
#[derive(Debug)]
struct OnGraph {
    graph: Graph,
    conv: GraphConvolutional,
}

impl Layer for OnGraph {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.conv.forward_on(&self.graph, x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.conv.visit(v);
    }
}

/// Edges between nodes that are drawn.
fn graph(d: &Device, nodes: usize, edges: usize) -> CliResult<Graph> {
    let (src, dst) = random_edges(nodes, edges);
    let ends: Vec<i32> = src.into_iter().chain(dst).map(|n| n as i32).collect();
    Ok(Graph::new(&Tensor::from_slice(d, &ends, &[2, edges])?, nodes)?)
}

pub(super) fn gcn(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (nodes, edges, classes) = (c.size("nodes")?, c.size("edges")?, c.size("classes")?);
    let sizes = [&[c.size("in")?], c.list("hidden")?.as_slice(), &[classes]].concat();
    let (cx, dtype) = (InitContext::new(d, 1).dtype(c.dtype()?), c.dtype()?);
    let graph = graph(d, nodes, edges)?;
    let (mut model, mut flops) = (Sequential::new(), 0.0);
    for (i, pair) in sizes.windows(2).enumerate() {
        let act = if i + 2 < sizes.len() { Activation::Relu } else { Activation::Identity };
        let conv = GraphConvolutional::new(&cx, pair[0], pair[1])?.activation(act).precision(c.precision());
        model = model.push(OnGraph { graph: graph.clone(), conv });
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (nodes * pair[0]) as f64 * pair[1] as f64;
        // The sparse product of the shorter rows and, but for the features of the nodes, its gradient.
        flops += (products - 1.0) * 2.0 * ((nodes + edges) * pair[0].min(pair[1])) as f64;
    }
    let data = [random(d, dtype, &[nodes, sizes[0]])?, ids(d, &[nodes], classes)?];
    Training::new(c, model, ADAM, 1e-2, data, flops)
}
