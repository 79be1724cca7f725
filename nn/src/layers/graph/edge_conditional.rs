//! Edge-conditioned convolution.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::graph::{Message, MessageReduce};

use super::cache::{GraphCache, check_edge_attr, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use super::weight_and_bias;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "EdgeConditionalConvolutional";

/// Edge-conditioned convolution of Simonovsky and Komodakis (2017), `torch_geometric.nn.NNConv`: act(W x_i + b + the mean or sum over the
/// edges into i of x_j Theta_e), where a network of the edge's features, two linear layers with a relu between them, gives the matrix
/// Theta_e `[in, out]`. Features `[N, in]`, or `[B, N, in]` of B samples on one graph, and `edge_attr [E, edge_features]` become `[.., out]`.
///
/// State: `nn.0.weight [hidden, edge_features]`, `nn.0.bias [hidden]`, `nn.2.weight [in * out, hidden]`, `nn.2.bias [in * out]` and
/// `lin.weight [out, in]` as in [`Dense`](crate::layers::Dense), `bias [out]` = 0.
///
/// The matrices Theta_e are not formed. With h_e the hidden features of an edge, the messages into a node are the product of W2 with the
/// sum over its edges of the outer products h_e x_j^T: memory grows with N * hidden * in in place of E * in * out, and the product with W2
/// is one of nodes, not of edges. Hooks of `nn.0` see the edges in the order of their targets.
#[derive(Debug)]
pub struct EdgeConditionalConvolutional {
    cx: InitContext,
    /// Inputs, outputs, features of an edge.
    sizes: [usize; 3],
    aggregator: MessageReduce,
    act: Activation,
    hidden: Dense,
    theta: Dense,
    own: Option<Dense>,
    bias: Option<Param>,
    graphs: GraphCache,
}

impl EdgeConditionalConvolutional {
    /// `in_features -> out_features` by the mean, with bias, the node's own features, and 64 hidden features of an edge. Errors: a size
    /// of 0.
    pub fn new(
        cx: &InitContext,
        in_features: usize,
        out_features: usize,
        edge_features: usize,
    ) -> Result<Self> {
        let sizes = [in_features, out_features, edge_features];
        for (arg, n) in ["in_features", "out_features", "edge_features"].into_iter().zip(sizes) {
            check_size(OP, arg, n)?;
        }
        let [hidden, theta] = Self::network(cx, sizes, 64)?;
        Ok(EdgeConditionalConvolutional {
            cx: cx.clone(),
            sizes,
            aggregator: MessageReduce::Mean,
            act: Activation::Identity,
            hidden,
            theta,
            own: Some(Dense::new(cx, in_features, out_features)?.no_bias()),
            bias: Some(Init::Zeros.param(cx, &[out_features], in_features, out_features)?),
            graphs: GraphCache::default(),
        })
    }

    fn network(cx: &InitContext, [inputs, outputs, edge]: [usize; 3], hidden: usize) -> Result<[Dense; 2]> {
        let first = Dense::new(cx, edge, hidden)?.activation(Activation::Relu);
        Ok([first, Dense::new(cx, hidden, inputs.saturating_mul(outputs))?])
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the number of hidden features of an edge and fills the network anew. Errors: 0.
    pub fn edge_hidden(mut self, hidden: usize) -> Result<Self> {
        check_size(OP, "edge_hidden", hidden)?;
        [self.hidden, self.theta] = Self::network(&self.cx, self.sizes, hidden)?;
        Ok(self)
    }

    /// Sets how messages are combined. Errors: others than mean and sum, which the layer does not have.
    pub fn aggregator(mut self, aggregator: MessageReduce) -> Result<Self> {
        if !matches!(aggregator, MessageReduce::Mean | MessageReduce::Sum) {
            return Err(invalid(OP, "aggregator", "mean or sum", format!("{aggregator:?}")));
        }
        self.aggregator = aggregator;
        Ok(self)
    }

    /// Without the node's own features.
    pub fn no_root_weight(mut self) -> Self {
        self.own = None;
        self
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The features of the nodes of a graph whose edges have features `[E, edge_features]`. Gradients flow to both and to parameters.
    /// Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor, edge_attr: &Tensor) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        check_edge_attr(OP, edge_attr, graph, self.sizes[2])?;
        // Edges in the order of their targets, so that those into a node are a group of rows.
        let edge_attr = graph.by_dst().ordered(edge_attr)?;
        let hidden = hooks::layer("nn.0", &self.hidden, &edge_attr)?;
        let mut y = hooks::call("nn.2", &self.theta, &[x, &hidden], || {
            nodes_first(x, |x| self.messages(graph, x, &hidden))
        })?;
        if let Some(own) = &self.own {
            y = y.add(&hooks::layer("lin", own, x)?)?;
        }
        if let Some(b) = &self.bias {
            y = y.add(&b.get())?;
        }
        y.activation(self.act)
    }

    /// The messages x_j Theta_e, combined: x `[N, in]` or `[N, B, in]`, hidden `[E, H]` in the order of the edges' targets -> `[N, out]` or
    /// `[N, B, out]`.
    fn messages(&self, graph: &Graph, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        let [inputs, outputs, _] = self.sizes;
        let (weight, bias) = weight_and_bias(OP, &self.theta)?;
        let (n, samples) = (x.shape()[0], if x.rank() == 3 { x.shape()[1] } else { 1 });
        let lead = x.shape()[..x.rank() - 1].to_vec();
        let (terms, edges) = (hidden.shape()[1], graph.by_dst());
        let offsets = edges.rowptr().to_dtype(DType::I32)?;
        let x = x.reshape(&[n, samples * inputs])?;
        let rows = graph.sources_by_dst()?.spread(&x)?;
        let multiply = |x: &Tensor, w: &Tensor| x.linear(w, None, Activation::Identity, Precision::Ieee);
        // Per node the product of the weight with the sum of h_e x_j^T; the bias has a factor of 1 for h_e.
        let weight = weight.reshape(&[inputs, outputs, terms])?.permute(&[1, 2, 0])?;
        let y = match samples {
            1 => hidden.bilinear_ragged(&rows, &weight, &offsets)?.unsqueeze(1)?,
            _ => {
                let sums = hidden.gemm_ragged_sum(&rows, &offsets)?;
                let sums = sums.reshape(&[n, terms, samples, inputs])?.transpose(1, 2)?.flatten(2, 3)?;
                multiply(&sums, &weight.reshape(&[outputs, terms * inputs])?)?
            }
        };
        let plain = graph.message_passing(Message::CopyU, MessageReduce::Sum, Some(&x), None)?;
        let plain = plain.reshape(&[n, samples, inputs])?;
        let y = y.add(&multiply(&plain, &bias.reshape(&[inputs, outputs])?.t()?)?)?;
        let y = match self.aggregator {
            MessageReduce::Mean => {
                let degree = edges.counts()?.to_dtype(y.dtype())?.clamp(Some(1.0), None)?;
                y.div(&degree.reshape(&[n, 1, 1])?)?
            }
            _ => y,
        };
        y.reshape(&[&lead[..], &[outputs]].concat())
    }
}

impl Layer for EdgeConditionalConvolutional {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index, edge_attr]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, rest) = self.graphs.inputs(OP, inputs, 1)?;
        let Some(edge_attr) = rest.first() else {
            let expected = format!("shape [E, {}]", self.sizes[2]);
            return Err(invalid(OP, "edge_attr", expected, "none"));
        };
        Ok(vec![self.forward_on(&graph, x, edge_attr)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("nn.0", &self.hidden);
        v.child("nn.2", &self.theta);
        if let Some(own) = &self.own {
            v.child("lin", own);
        }
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}
