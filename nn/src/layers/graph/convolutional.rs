//! Graph convolution.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::cache::{GraphCache, Last, check_features, nodes_first, without_edges};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "GraphConvolutional";

/// Graph convolution of Kipf and Welling (2017), `torch_geometric.nn.GCNConv`: act(A' x W^T + b) with the weights A' of the edges normalised
/// by the roots of the degrees of both ends, each node having a self-loop. Features `[N, in]`, or `[B, N, in]` of B samples on one graph,
/// become `[N, out]` or `[B, N, out]`.
///
/// State: `lin.weight [out, in]` from U(-a, a) of Glorot and Bengio, `bias [out]` = 0. Graph and normalised weights are kept until another
/// graph comes, so that a call waits for the device only then.
#[derive(Debug)]
pub struct GraphConvolutional {
    sizes: [usize; 2],
    lin: Dense,
    bias: Option<Param>,
    normalize: bool,
    add_self_loops: bool,
    improved: bool,
    act: Activation,
    graphs: GraphCache,
    normalized: Last<(Graph, DType), (Graph, Option<Tensor>)>,
}

impl GraphConvolutional {
    /// `in_features -> out_features` with bias, normalisation and self-loops. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        let lin = Dense::new(cx, in_features, out_features)?.no_bias().init(Init::Glorot, Init::Zeros)?;
        Ok(GraphConvolutional {
            sizes: [in_features, out_features],
            lin,
            bias: Some(Init::Zeros.param(cx, &[out_features], in_features, out_features)?),
            normalize: true,
            add_self_loops: true,
            improved: false,
            act: Activation::Identity,
            graphs: GraphCache::default(),
            normalized: Last::default(),
        })
    }

    setters! {
        /// Whether nodes without a self-loop get one (default true).
        add_self_loops: bool => add_self_loops;
        /// Whether the self-loops that are added weigh 2 in place of 1 (default false).
        improved: bool => improved;
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the arithmetic of the product with the weight.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.lin = self.lin.precision(precision);
        self
    }

    /// Without normalisation of the weights, and without self-loops.
    pub fn no_normalization(mut self) -> Self {
        (self.normalize, self.add_self_loops) = (false, false);
        self
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The features of the nodes of a graph; `edge_weight` are floats `[E]`, 1 where absent. Gradients flow to features, weights and
    /// parameters. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor, edge_weight: Option<&Tensor>) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        let (graph, weight) = self.weights(graph, edge_weight, x.dtype())?;
        let bias = self.bias.as_ref().map(Param::get);
        let spread = |x: &Tensor, bias: Option<&Tensor>, act| {
            nodes_first(x, |x| graph.spmm(x, weight.as_ref(), bias, act))
        };
        // The product with W comes first where it makes rows shorter.
        if self.sizes[1] <= self.sizes[0] {
            return spread(&hooks::layer("lin", &self.lin, x)?, bias.as_ref(), self.act);
        }
        let x = spread(x, None, Activation::Identity)?;
        hooks::call("lin", &self.lin, &[&x], || self.lin.product(&x, bias.as_ref(), self.act))
    }

    /// The graph that is summed over, and the weights of its edges.
    fn weights(
        &self,
        graph: &Graph,
        weight: Option<&Tensor>,
        dtype: DType,
    ) -> Result<(Graph, Option<Tensor>)> {
        match (self.normalize, weight) {
            (false, w) => Ok((graph.clone(), w.cloned())),
            (true, Some(w)) => {
                let (g, w) = graph.gcn_norm(w, self.improved, self.add_self_loops)?;
                Ok((g, Some(w)))
            }
            (true, None) => {
                let same = |(g, d): &(Graph, DType)| g.is(graph) && *d == dtype;
                self.normalized.get(same, || {
                    let ones = graph.unit_weights(dtype)?;
                    let (g, w) = graph.gcn_norm(&ones, self.improved, self.add_self_loops)?;
                    Ok(((graph.clone(), dtype), (g, Some(w))))
                })
            }
        }
    }
}

impl Layer for GraphConvolutional {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]` or `[x, edge_index, edge_weight]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, rest) = self.graphs.inputs(OP, inputs, 1)?;
        Ok(vec![self.forward_on(&graph, x, rest.first())?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("lin", &self.lin);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}

/// Error unless a size is at least 1.
pub(in crate::layers) fn check_size(op: &'static str, arg: &'static str, n: usize) -> Result<()> {
    if n == 0 {
        return Err(invalid(op, arg, "at least 1", "0"));
    }
    Ok(())
}
