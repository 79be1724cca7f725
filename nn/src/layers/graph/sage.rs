//! GraphSAGE.

use trefoil::ops::activation::Activation;
use trefoil::ops::graph::{Message, MessageReduce};

use super::cache::{GraphCache, check_features, nodes_first, without_edges};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "GraphSage";

/// GraphSAGE of Hamilton et al. (2017), `torch_geometric.nn.SAGEConv`: act(W_l m_i + b + W_r x_i), m_i the mean, maximum or sum of the
/// features of the node's sources. Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`.
///
/// State: `lin_l.weight [out, in]`, `lin_l.bias [out]`, `lin_r.weight [out, in]`, and with a projection `lin.weight [in, in]`, `lin.bias
/// [in]`; all from U(-1/sqrt(in), 1/sqrt(in)).
#[derive(Debug)]
pub struct GraphSage {
    cx: InitContext,
    inputs: usize,
    aggregator: MessageReduce,
    normalize: bool,
    act: Activation,
    project: Option<Dense>,
    neighbors: Dense,
    own: Option<Dense>,
    graphs: GraphCache,
}

impl GraphSage {
    /// `in_features -> out_features` by the mean, with bias and the node's own features. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Ok(GraphSage {
            cx: cx.clone(),
            inputs: in_features,
            aggregator: MessageReduce::Mean,
            normalize: false,
            act: Activation::Identity,
            project: None,
            neighbors: Dense::new(cx, in_features, out_features)?,
            own: Some(Dense::new(cx, in_features, out_features)?.no_bias()),
            graphs: GraphCache::default(),
        })
    }

    setters! {
        /// Whether rows of the result are divided by their norms, at least 1e-12 (default false).
        normalize: bool => normalize;
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets how the features of the sources are combined. Errors: `Min`, which the layer does not have.
    pub fn aggregator(mut self, aggregator: MessageReduce) -> Result<Self> {
        self.aggregator = check_aggregator(OP, aggregator)?;
        Ok(self)
    }

    /// Sends relu(W_p x + b_p) in place of x; with the maximum, the pooling of the paper.
    pub fn project(mut self) -> Result<Self> {
        self.project = Some(Dense::new(&self.cx, self.inputs, self.inputs)?.activation(Activation::Relu));
        Ok(self)
    }

    /// Without the node's own features.
    pub fn no_root_weight(mut self) -> Self {
        self.own = None;
        self
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.neighbors = self.neighbors.no_bias();
        self
    }

    /// The features of the nodes of a graph. Gradients flow to features and parameters; of equal maxima the first edge gets them. Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor) -> Result<Tensor> {
        check_features(OP, x, graph, self.inputs)?;
        let z = match &self.project {
            Some(p) => hooks::layer("lin", p, x)?,
            None => x.clone(),
        };
        let m = nodes_first(&z, |z| graph.message_passing(Message::CopyU, self.aggregator, Some(z), None))?;
        let mut y = hooks::layer("lin_l", &self.neighbors, &m)?;
        if let Some(own) = &self.own {
            y = y.add(&hooks::layer("lin_r", own, x)?)?;
        }
        if self.normalize {
            y = y.l2_normalize(-1, 1e-12)?;
        }
        y.activation(self.act)
    }
}

impl Layer for GraphSage {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, _) = self.graphs.inputs(OP, inputs, 0)?;
        Ok(vec![self.forward_on(&graph, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(p) = &self.project {
            v.child("lin", p);
        }
        v.child("lin_l", &self.neighbors);
        if let Some(own) = &self.own {
            v.child("lin_r", own);
        }
    }
}

/// Error unless features are combined by their mean, maximum or sum.
pub(super) fn check_aggregator(op: &'static str, aggregator: MessageReduce) -> Result<MessageReduce> {
    match aggregator {
        MessageReduce::Mean | MessageReduce::Max | MessageReduce::Sum => Ok(aggregator),
        _ => Err(invalid(op, "aggregator", "mean, max or sum", format!("{aggregator:?}"))),
    }
}
