//! The message passing neural network.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::graph::{EdgeOp, Message, MessageReduce};

use super::cache::{GraphCache, check_edge_attr, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{Graph, RnnState};
use crate::layers::linear::dense::Dense;
use crate::layers::recurrent::cells::GruCell;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "MessagePassing";

/// The first layer of the messages: relu(W [x_j, x_i, attr_e] + b) for each edge e from j to i. The products with x_j and x_i are made per
/// node and added per edge.
#[derive(Debug)]
struct Ends {
    features: usize,
    weight: Param,
    bias: Param,
}

impl Ends {
    fn new(cx: &InitContext, features: usize, edge_features: usize, out: usize) -> Result<Self> {
        let columns =
            features.checked_mul(2).and_then(|n| n.checked_add(edge_features)).ok_or_else(|| {
                invalid(
                    OP,
                    "in_features",
                    "sizes whose sum is a number",
                    format!("{features} and {edge_features}"),
                )
            })?;
        Ok(Ends {
            features,
            weight: Init::Lin.param(cx, &[out, columns], columns, out)?,
            bias: Init::Lin.param(cx, &[out], columns, out)?,
        })
    }

    /// x `[N, ..]`, attr `[E, D]` `-> [E, .., out]`.
    fn on(&self, graph: &Graph, x: &Tensor, attr: Option<&Tensor>) -> Result<Tensor> {
        let (w, f, b) = (self.weight.get(), self.features, self.bias.get());
        let product = |x: &Tensor, start: usize, len: usize, bias: Option<&Tensor>| {
            x.linear(&w.narrow(1, start, len)?, bias, Activation::Identity, Precision::Ieee)
        };
        let ends = graph.sddmm(EdgeOp::Add, &product(x, 0, f, None)?, &product(x, f, f, Some(&b))?)?;
        let Some(attr) = attr else { return ends.relu() };
        let attr = product(attr, 2 * f, attr.shape()[1], None)?;
        ends.add(&beside(&attr, x.rank())?)?.relu()
    }
}

impl Layer for Ends {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
        v.param("bias", &self.bias);
    }
}

/// Rows of edges `[E, D]` for every sample of messages of this rank.
fn beside(rows: &Tensor, rank: usize) -> Result<Tensor> {
    if rank == 3 { rows.unsqueeze(1) } else { Ok(rows.clone()) }
}

/// Message passing with a gated update of Gilmer et al. (2017): the messages W_2 relu(W_1 [x_j, x_i, attr_e] + b_1) + b_2 of the edges into
/// a node, times the edges' weights where there are any, are combined to m_i, and a GRU cell updates the node, y_i = act(GRU(m_i, h_i)) with
/// h_i = x_i, or W_in x_i where the widths differ. Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`.
///
/// State: `message.0.weight [message, 2 in + edge_features]`, `message.0.bias`, `message.2.weight [message, message]`, `message.2.bias` as in
/// [`Dense`]; `gru.*` ([`GruCell`]); where in and out differ `lin.weight [out, in]` as in `Dense`.
#[derive(Debug)]
pub struct MessagePassing {
    cx: InitContext,
    /// Inputs, outputs, features of a message, features of an edge.
    sizes: [usize; 4],
    aggregator: MessageReduce,
    act: Activation,
    parts: Parts,
    graphs: GraphCache,
}

#[derive(Debug)]
struct Parts {
    ends: Ends,
    second: Dense,
    gru: GruCell,
    lin: Option<Dense>,
}

impl Parts {
    fn new(cx: &InitContext, [inputs, outputs, message, edge]: [usize; 4]) -> Result<Self> {
        let lin = match inputs == outputs {
            true => None,
            false => Some(Dense::new(cx, inputs, outputs)?.no_bias()),
        };
        Ok(Parts {
            ends: Ends::new(cx, inputs, edge, message)?,
            second: Dense::new(cx, message, message)?,
            gru: GruCell::new(cx, message, outputs)?,
            lin,
        })
    }
}

impl MessagePassing {
    /// `in_features -> out_features` by sums of messages of as many features as outputs, of edges without features. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features)] {
            check_size(OP, arg, n)?;
        }
        let sizes = [in_features, out_features, out_features, 0];
        Ok(MessagePassing {
            cx: cx.clone(),
            sizes,
            aggregator: MessageReduce::Sum,
            act: Activation::Identity,
            parts: Parts::new(cx, sizes)?,
            graphs: GraphCache::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the number of features of a message and fills the parameters anew. Errors: 0.
    pub fn message_features(mut self, features: usize) -> Result<Self> {
        check_size(OP, "message_features", features)?;
        self.sizes[2] = features;
        self.parts = Parts::new(&self.cx, self.sizes)?;
        Ok(self)
    }

    /// Sets the number of features of an edge, 0 for none, and fills the parameters anew.
    pub fn edge_features(mut self, features: usize) -> Result<Self> {
        self.sizes[3] = features;
        self.parts = Parts::new(&self.cx, self.sizes)?;
        Ok(self)
    }

    /// Sets how the messages into a node are combined. Errors: `Min`, which the layer does not have.
    pub fn aggregator(mut self, aggregator: MessageReduce) -> Result<Self> {
        if !matches!(aggregator, MessageReduce::Sum | MessageReduce::Mean | MessageReduce::Max) {
            return Err(invalid(OP, "aggregator", "sum, mean or max", format!("{aggregator:?}")));
        }
        self.aggregator = aggregator;
        Ok(self)
    }

    /// The features of the nodes of a graph, whose edges have the features `edge_attr` `[E, edge_features]` if that is not 0, and the weights
    /// `edge_weight` `[E]`, 1 where absent. Gradients flow to features, weights and parameters; of equal maxima the first edge gets them.
    /// Errors: `Invalid` for features of edges that are missing or that the layer does not have, shapes and dtypes that do not fit.
    pub fn forward_on(
        &self,
        graph: &Graph,
        x: &Tensor,
        edge_attr: Option<&Tensor>,
        edge_weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        self.check_edges(graph, edge_attr, edge_weight)?;
        let p = &self.parts;
        let m = nodes_first(x, |x| {
            let hidden = hooks::call("message.0", &p.ends, &[x], || p.ends.on(graph, x, edge_attr))?;
            self.combined(graph, &hidden, edge_weight)
        })?;
        let h = match &p.lin {
            Some(lin) => hooks::layer("lin", lin, x)?,
            None => x.clone(),
        };
        let shape = h.shape().to_vec();
        // The cell takes rows.
        let rows = |t: &Tensor, width: usize| t.reshape(&[t.numel() / width, width]);
        let state = RnnState { h: rows(&h, self.sizes[1])?, c: None };
        let m = rows(&m, self.sizes[2])?;
        let y = hooks::call("gru", &p.gru, &[&m, &state.h], || Ok(p.gru.step(&m, Some(&state))?.h))?;
        y.reshape(&shape)?.activation(self.act)
    }

    /// The messages into each node, whose second layer has not been applied to `hidden` `[E, ..]` yet. It is linear, so that sums and means go
    /// through it after they were formed, once per node and not per edge.
    fn combined(&self, graph: &Graph, hidden: &Tensor, edge_weight: Option<&Tensor>) -> Result<Tensor> {
        let second = &self.parts.second;
        let combine = |m: &Tensor| graph.message_passing(Message::CopyE, self.aggregator, None, Some(m));
        let weighed = |m: &Tensor| match edge_weight {
            Some(w) => m.mul(&beside(&w.unsqueeze(1)?, m.rank())?),
            None => Ok(m.clone()),
        };
        let Some(weight) = second.weight().filter(|_| self.aggregator != MessageReduce::Max) else {
            return combine(&weighed(&hooks::layer("message.2", second, hidden)?)?);
        };
        let sum = combine(&weighed(hidden)?)?;
        hooks::call("message.2", second, &[&sum], || {
            let product = sum.linear(&weight.get(), None, Activation::Identity, Precision::Ieee)?;
            let Some(bias) = second.bias() else { return Ok(product) };
            // A node has the bias as often as it has messages.
            let of_edges = match edge_weight {
                Some(w) => w.clone(),
                None => graph.unit_weights(sum.dtype())?,
            };
            let times = combine(&of_edges.unsqueeze(1)?)?;
            product.add(&beside(&times, product.rank())?.mul(&bias.get())?)
        })
    }

    fn check_edges(&self, graph: &Graph, attr: Option<&Tensor>, weight: Option<&Tensor>) -> Result<()> {
        let (edges, width) = (graph.num_edges(), self.sizes[3]);
        match (attr, width) {
            (None, 0) => {}
            (Some(a), 0) => {
                let got = format!("shape {:?}", a.shape());
                return Err(invalid(OP, "edge_attr", "none: `edge_features` is 0", got));
            }
            (None, _) => return Err(invalid(OP, "edge_attr", format!("shape [{edges}, {width}]"), "none")),
            (Some(a), _) => check_edge_attr(OP, a, graph, width)?,
        }
        match weight {
            Some(w) if w.shape() != [edges] => {
                Err(invalid(OP, "edge_weight", format!("shape [{edges}]"), format!("shape {:?}", w.shape())))
            }
            _ => Ok(()),
        }
    }
}

impl Layer for MessagePassing {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`, then edge_attr `[E, edge_features]` unless `edge_features` is 0, then, if there are any, the weights `[E]` of the edges.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let own = usize::from(self.sizes[3] > 0);
        let (x, graph, rest) = self.graphs.inputs(OP, inputs, 2)?;
        let (attr, weight) = match rest {
            // A matrix is no weight: without `edge_features` it is refused as what it is.
            [one] if own == 1 || one.rank() == 2 => (Some(one), None),
            [weight] => (None, Some(weight)),
            [attr, weight] => (Some(attr), Some(weight)),
            _ => (None, None),
        };
        Ok(vec![self.forward_on(&graph, x, attr, weight)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("message.0", &self.parts.ends);
        v.child("message.2", &self.parts.second);
        v.child("gru", &self.parts.gru);
        if let Some(lin) = &self.parts.lin {
            v.child("lin", lin);
        }
    }
}
