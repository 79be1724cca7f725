//! Graph convolution that tells the directions of edges apart.

use trefoil::ops::activation::Activation;
use trefoil::ops::graph::MessageReduce;

use super::cache::{GraphCache, Last, check_features, without_edges};
use super::convolutional::check_size;
use super::sage::{GraphSage, check_aggregator};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "DirectionalGraph";

/// What combines the parts side by side.
#[derive(Debug)]
struct Concat {
    gate: Option<Dense>,
    lin: Dense,
}

/// Directed graph convolution (Dir-GNN) of Rossi et al. (2023), `torch_geometric.nn.DirGNNConv(SAGEConv(..))`: act(alpha h_out + (1 - alpha)
/// h_in + W x_i + b), h_in = W_in m + b_in of the mean, maximum or sum m of the features of the node's sources, and h_out likewise of
/// those that the node is a source of. [`concat`](DirectionalGraph::concat) sets the three side by side under another linear layer in place
/// of adding them. Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`.
///
/// State: `conv_in.lin_l.weight [out, in]`, `conv_in.lin_l.bias [out]`, the same of `conv_out`, `lin.weight [out, in]`, `lin.bias [out]`;
/// with `concat`, of k parts, `combine.weight [out, k * out]`, `combine.bias [out]`, and if gated `gate.weight [k, k * out]`,
/// `gate.bias [k]`. All as in [`Dense`](crate::layers::Dense).
#[derive(Debug)]
pub struct DirectionalGraph {
    cx: InitContext,
    /// Inputs, outputs.
    sizes: [usize; 2],
    conv_in: GraphSage,
    conv_out: GraphSage,
    own: Option<Dense>,
    /// Without `concat`.
    alpha: f64,
    concat: Option<Concat>,
    act: Activation,
    graphs: GraphCache,
    reversed: Last<Graph, Graph>,
}

impl DirectionalGraph {
    /// `in_features -> out_features` by means, with the node's own features, both directions weighing the same. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features)] {
            check_size(OP, arg, n)?;
        }
        let conv = || GraphSage::new(cx, in_features, out_features).map(GraphSage::no_root_weight);
        Ok(DirectionalGraph {
            cx: cx.clone(),
            sizes: [in_features, out_features],
            conv_in: conv()?,
            conv_out: conv()?,
            own: Some(Dense::new(cx, in_features, out_features)?),
            alpha: 0.5,
            concat: None,
            act: Activation::Identity,
            graphs: GraphCache::default(),
            reversed: Last::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets how the features of the nodes at the other ends are combined. Errors: `Min`, which the layer does not have.
    pub fn aggregator(mut self, aggregator: MessageReduce) -> Result<Self> {
        check_aggregator(OP, aggregator)?;
        self.conv_in = self.conv_in.aggregator(aggregator)?;
        self.conv_out = self.conv_out.aggregator(aggregator)?;
        Ok(self)
    }

    /// Adds the directions, edges out of a node weighing alpha and edges into it 1 - alpha. Errors: outside of [0, 1].
    pub fn alpha(mut self, alpha: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&alpha) {
            return Err(invalid(OP, "alpha", "a number in [0, 1]", format!("{alpha}")));
        }
        (self.alpha, self.concat) = (alpha, None);
        Ok(self)
    }

    /// Sets the parts (in, out, own) side by side under a linear layer in place of adding them; `gated`: each is first scaled by a sigmoid
    /// of a linear map of all.
    pub fn concat(mut self, gated: bool) -> Result<Self> {
        let parts = if self.own.is_some() { 3 } else { 2 };
        let (out, wide) = (self.sizes[1], self.sizes[1].saturating_mul(parts));
        let gate = match gated {
            true => Some(Dense::new(&self.cx, wide, parts)?.activation(Activation::Sigmoid)),
            false => None,
        };
        self.concat = Some(Concat { gate, lin: Dense::new(&self.cx, wide, out)? });
        Ok(self)
    }

    /// Without the node's own features.
    pub fn no_root_weight(mut self) -> Result<Self> {
        self.own = None;
        match self.concat.take() {
            Some(c) => self.concat(c.gate.is_some()),
            None => Ok(self),
        }
    }

    /// The features of the nodes of a graph. Gradients flow to features and parameters; of equal maxima the first edge gets them. Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        let reversed = self.reversed.get(|g| g.is(graph), || Ok((graph.clone(), graph.reverse()?)))?;
        let side = |name: &str, conv: &GraphSage, graph: &Graph| {
            hooks::call(name, conv, &[x], || conv.forward_on(graph, x))
        };
        let into = side("conv_in", &self.conv_in, graph)?;
        let out = side("conv_out", &self.conv_out, &reversed)?;
        let own = self.own.as_ref().map(|own| hooks::layer("lin", own, x)).transpose()?;
        let Some(concat) = &self.concat else {
            let sum = into.lerp(&out, self.alpha)?;
            let sum = if let Some(own) = &own { sum.add(own)? } else { sum };
            return sum.activation(self.act);
        };
        let parts: Vec<&Tensor> = [&into, &out].into_iter().chain(&own).collect();
        let mut y = Tensor::concat(-1, &parts)?;
        if let Some(gate) = &concat.gate {
            let scale = hooks::layer("gate", gate, &y)?.unsqueeze(-1)?;
            y = Tensor::stack(-2, &parts)?.mul(&scale)?.flatten(-2, -1)?;
        }
        hooks::layer("combine", &concat.lin, &y)?.activation(self.act)
    }
}

impl Layer for DirectionalGraph {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, _) = self.graphs.inputs(OP, inputs, 0)?;
        Ok(vec![self.forward_on(&graph, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("conv_in", &self.conv_in);
        v.child("conv_out", &self.conv_out);
        if let Some(own) = &self.own {
            v.child("lin", own);
        }
        if let Some(concat) = &self.concat {
            if let Some(gate) = &concat.gate {
                v.child("gate", gate);
            }
            v.child("combine", &concat.lin);
        }
    }
}
