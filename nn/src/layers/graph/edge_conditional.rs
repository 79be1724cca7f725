//! Edge-conditioned convolution.

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
/// The matrices Theta_e are not formed. With h_e the hidden features of an edge, x_j Theta_e = sum over k of h_ek (x_j W2_k), so that edges
/// only weigh rows of nodes: memory grows with N * hidden * min(in, out) in place of E * in * out, and the product with W2 is one of
/// nodes, not of edges.
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
        let hidden = hooks::layer("nn.0", &self.hidden, edge_attr)?;
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

    /// The messages x_j Theta_e, combined: x `[N, in]` or `[N, B, in]`, hidden `[E, H] -> [N, out]` or `[N, B, out]`.
    fn messages(&self, graph: &Graph, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        let [inputs, outputs, _] = self.sizes;
        let (weight, bias) = weight_and_bias(OP, &self.theta)?;
        // The bias is one more column of the weight, whose factor is 1.
        let weight = Tensor::concat(1, &[&weight, &bias.unsqueeze(1)?])?;
        let ones = Tensor::ones(hidden.device(), hidden.dtype(), &[graph.num_edges(), 1])?;
        let factors = Tensor::concat(1, &[hidden, &ones])?;
        let (n, samples) = (x.shape()[0], if x.rank() == 3 { x.shape()[1] } else { 1 });
        let terms = factors.shape()[1];
        let weight = weight.reshape(&[inputs, outputs, terms])?;
        let rows = x.reshape(&[n, samples, inputs])?;
        let multiply = |x: &Tensor, w: &Tensor| x.linear(w, None, Activation::Identity, Precision::Ieee);
        let combine = |rows: &Tensor| {
            graph.message_passing(Message::UMulE, self.aggregator, Some(rows), Some(&factors))
        };
        // The product with the weight comes first where it makes rows shorter.
        let y = if outputs <= inputs {
            let weight = weight.permute(&[2, 1, 0])?.reshape(&[terms * outputs, inputs])?;
            let products = multiply(&rows, &weight)?.reshape(&[n, samples, terms, outputs])?;
            combine(&products.transpose(1, 2)?)?.sum_axes(&[1], false)?
        } else {
            let sums = combine(&rows.unsqueeze(1)?.expand(&[n, terms, samples, inputs])?)?;
            let weight = weight.permute(&[1, 2, 0])?.reshape(&[outputs, terms * inputs])?;
            multiply(&sums.transpose(1, 2)?.flatten(2, 3)?, &weight)?
        };
        y.reshape(&[&x.shape()[..x.rank() - 1], &[outputs]].concat())
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
