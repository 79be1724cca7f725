//! The graph isomorphism network.

use trefoil::ops::activation::Activation;

use super::cache::{GraphCache, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::functional::Graph;
use crate::layers::activation::elementwise::Activate;
use crate::layers::containers::sequential::Sequential;
use crate::layers::linear::dense::Dense;
use crate::layers::norm::channel_norm::BatchNormalization;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "GraphIsomorphism";

/// Graph isomorphism network of Xu et al. (2019), `torch_geometric.nn.GINConv`: act(MLP((1 + eps) x_i + sum of x_j over the node's
/// sources)), the MLP being two linear layers with a relu between them. Features `[N, in]`, or `[B, N, in]` of B samples on one graph,
/// become `[.., out]`.
///
/// State: `eps [1]`, `nn.0.weight [hidden, in]`, `nn.0.bias [hidden]`, `nn.2.weight [out, hidden]`, `nn.2.bias [out]` (the second linear
/// layer is `nn.3` behind a batch normalization `nn.1`). Weights as in [`Dense`](crate::layers::Dense).
#[derive(Debug)]
pub struct GraphIsomorphism {
    cx: InitContext,
    /// Inputs, hidden, outputs.
    sizes: [usize; 3],
    eps: Param,
    learn: bool,
    batch_norm: bool,
    act: Activation,
    nn: Sequential,
    graphs: GraphCache,
}

impl GraphIsomorphism {
    /// `in_features -> out_features` with as many hidden features as outputs and a trainable eps of 0. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features)] {
            check_size(OP, arg, n)?;
        }
        let sizes = [in_features, out_features, out_features];
        Ok(GraphIsomorphism {
            cx: cx.clone(),
            sizes,
            eps: Init::Zeros.param(cx, &[1], 1, 1)?,
            learn: true,
            batch_norm: false,
            act: Activation::Identity,
            nn: Self::mlp(cx, sizes, false)?,
            graphs: GraphCache::default(),
        })
    }

    fn mlp(cx: &InitContext, [inputs, hidden, outputs]: [usize; 3], batch_norm: bool) -> Result<Sequential> {
        let mut nn = Sequential::new().push(Dense::new(cx, inputs, hidden)?);
        if batch_norm {
            nn = nn.push(BatchNormalization::new(cx, hidden)?);
        }
        Ok(nn.push(Activate(Activation::Relu)).push(Dense::new(cx, hidden, outputs)?))
    }

    setters! {
        /// Sets the activation of the result.
        activation: Activation => act;
    }

    /// Sets the number of hidden features and fills the layers anew. Errors: 0.
    pub fn mlp_hidden(mut self, hidden: usize) -> Result<Self> {
        check_size(OP, "mlp_hidden", hidden)?;
        self.sizes[1] = hidden;
        self.nn = Self::mlp(&self.cx, self.sizes, self.batch_norm)?;
        Ok(self)
    }

    /// With batch normalization before the relu; fills the layers anew.
    pub fn batch_norm(mut self) -> Result<Self> {
        self.batch_norm = true;
        self.nn = Self::mlp(&self.cx, self.sizes, true)?;
        Ok(self)
    }

    /// Sets eps, and whether it is trained or stays in the state as it is. Errors: not a finite number.
    pub fn epsilon(mut self, eps: f64, learn: bool) -> Result<Self> {
        if !eps.is_finite() {
            return Err(invalid(OP, "epsilon", "a finite number", format!("{eps}")));
        }
        let t = Tensor::full(self.cx.device(), self.cx.param_dtype(), &[1], eps)?;
        self.eps = if learn { Param::new(t) } else { Param::buffer(t) };
        self.learn = learn;
        Ok(self)
    }

    /// The features of the nodes of a graph. Gradients flow to features and parameters. Errors: `Invalid` for shapes and dtypes that do not
    /// fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        same_dtype(OP, x, &self.eps.get())?;
        let sum = nodes_first(x, |x| graph.spmm(x, None, None, Activation::Identity))?;
        let s = sum.add(x)?.add(&x.mul(&self.eps.get())?)?;
        // Batch normalization takes features on the second axis.
        let rows = s.reshape(&[s.numel() / self.sizes[0], self.sizes[0]])?;
        let y = hooks::layer("nn", &self.nn, &rows)?.activation(self.act)?;
        y.reshape(&[&x.shape()[..x.rank() - 1], &[self.sizes[2]]].concat())
    }
}

impl Layer for GraphIsomorphism {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, _) = self.graphs.inputs(OP, inputs, 0)?;
        Ok(vec![self.forward_on(&graph, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        match self.learn {
            true => v.param("eps", &self.eps),
            false => v.buffer("eps", &self.eps),
        }
        v.child("nn", &self.nn);
    }
}
