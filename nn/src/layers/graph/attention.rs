//! Graph attention.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::ops::activation::Activation;
use trefoil::ops::graph::EdgeOp;

use super::cache::{GraphCache, Last, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::layers::regularization::dropout::Dropout;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "GraphAttention";

/// Graph attention of Velickovic et al. (2018), `torch_geometric.nn.GATConv`: per head, each node sums the features W x_j of its sources,
/// weighted by the softmax over its edges of leaky_relu(a_src . W x_j + a_dst . W x_i). Features `[N, in]`, or `[B, N, in]` of B samples on
/// one graph, become `[.., heads * out]`, or `[.., out]` where heads are averaged.
///
/// State: `lin.weight [heads * out, in]`, `att_src [1, heads, out]` and `att_dst [1, heads, out]`, all from U(-a, a) of Glorot and Bengio,
/// `bias` = 0, and with `residual` `res.weight`. Without dropout the attention runs as one kernel that stores none of it.
#[derive(Debug)]
pub struct GraphAttention {
    cx: InitContext,
    /// Inputs, outputs of a head, heads.
    sizes: [usize; 3],
    concat: bool,
    slope: f64,
    loops: bool,
    with_bias: bool,
    act: Activation,
    lin: Dense,
    att: [Param; 2],
    bias: Option<Param>,
    res: Option<Dense>,
    dropout: Option<Dropout>,
    training: AtomicBool,
    graphs: GraphCache,
    looped: Last<Graph, Graph>,
}

impl GraphAttention {
    /// `in_features -> heads * out_features` with bias, self-loops and a slope of 0.2. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize, heads: usize) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features), ("heads", heads)] {
            check_size(OP, arg, n)?;
        }
        let wide = heads.saturating_mul(out_features);
        let att = || Init::Glorot.param(cx, &[1, heads, out_features], heads, out_features);
        Ok(GraphAttention {
            cx: cx.clone(),
            sizes: [in_features, out_features, heads],
            concat: true,
            slope: 0.2,
            loops: true,
            with_bias: true,
            act: Activation::Identity,
            lin: Dense::new(cx, in_features, wide)?.no_bias().init(Init::Glorot, Init::Zeros)?,
            att: [att()?, att()?],
            bias: Some(Init::Zeros.param(cx, &[wide], in_features, wide)?),
            res: None,
            dropout: None,
            training: AtomicBool::new(true),
            graphs: GraphCache::default(),
            looped: Last::default(),
        })
    }

    setters! {
        /// Whether the edges of nodes to themselves are replaced by one for each node (default true).
        add_self_loops: bool => loops;
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Averages the heads in place of setting them side by side.
    pub fn mean_heads(mut self) -> Result<Self> {
        self.concat = false;
        self.rebuilt()
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        (self.with_bias, self.bias) = (false, None);
        self
    }

    /// Sets the slope of the leaky relu. Errors: not a finite number.
    pub fn negative_slope(mut self, slope: f64) -> Result<Self> {
        if !slope.is_finite() {
            return Err(invalid(OP, "negative_slope", "a finite number", format!("{slope}")));
        }
        self.slope = slope;
        Ok(self)
    }

    /// Drops attention weights in training. Errors: a probability outside of [0, 1).
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            return Err(invalid(OP, "dropout", "a probability in [0, 1)", format!("{p}")));
        }
        self.dropout = if p > 0.0 { Some(Dropout::part(&self.cx, p)?) } else { None };
        Ok(self)
    }

    /// Adds a linear map of the node's own features.
    pub fn residual(mut self) -> Result<Self> {
        let lin = Dense::new(&self.cx, self.sizes[0], self.outputs())?;
        self.res = Some(lin.no_bias().init(Init::Glorot, Init::Zeros)?);
        Ok(self)
    }

    fn outputs(&self) -> usize {
        if self.concat { self.sizes[1] * self.sizes[2] } else { self.sizes[1] }
    }

    /// Makes what has the size of the result anew.
    fn rebuilt(mut self) -> Result<Self> {
        let n = self.outputs();
        if self.with_bias {
            self.bias = Some(Init::Zeros.param(&self.cx, &[n], self.sizes[0], n)?);
        }
        if self.res.is_some() { self.residual() } else { Ok(self) }
    }

    /// The features of the nodes of a graph. Gradients flow to features and parameters. Errors: `Invalid` for shapes and dtypes that do not
    /// fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor) -> Result<Tensor> {
        let [inputs, out, heads] = self.sizes;
        check_features(OP, x, graph, inputs)?;
        let graph = match self.loops {
            true => self.looped.get(
                |g| g.is(graph),
                || {
                    let looped = graph.remove_self_loops(None)?.0.add_self_loops(None, 1.0)?.0;
                    Ok((graph.clone(), looped))
                },
            )?,
            false => graph.clone(),
        };
        let h = hooks::layer("lin", &self.lin, x)?;
        let y = nodes_first(&h, |h| {
            // Samples of a batch are further heads.
            let (nodes, samples) = (h.shape()[0], if h.rank() == 3 { h.shape()[1] } else { 1 });
            let wide = h.reshape(&[nodes, samples, heads, out])?;
            let scores =
                |a: &Param| wide.mul(&a.get())?.sum_axes(&[-1], false)?.reshape(&[nodes, samples * heads]);
            let rows = wide.reshape(&[nodes, samples * heads, out])?;
            let y = self.attend(&graph, &rows, &scores(&self.att[0])?, &scores(&self.att[1])?)?;
            let y = y.reshape(&[nodes, samples, heads, out])?;
            let y = if self.concat { y.flatten(2, 3)? } else { y.mean_axes(&[2], false)? };
            y.reshape(&[&h.shape()[..h.rank() - 1], &[self.outputs()]].concat())
        })?;
        let y = match &self.res {
            Some(res) => y.add(&hooks::layer("res", res, x)?)?,
            None => y,
        };
        match &self.bias {
            Some(b) => y.add(&b.get())?.activation(self.act),
            None => y.activation(self.act),
        }
    }

    /// h `[N, H, O]` and scores `[N, H]`.
    fn attend(&self, graph: &Graph, h: &Tensor, src: &Tensor, dst: &Tensor) -> Result<Tensor> {
        let Some(dropout) = self.dropout.as_ref().filter(|_| self.training.load(Ordering::Relaxed)) else {
            return graph.gat(h, src, dst, self.slope);
        };
        let logits = graph.sddmm(EdgeOp::Add, src, dst)?.leaky_relu(self.slope)?;
        let alpha = hooks::layer("dropout", dropout, &graph.edge_softmax(&logits)?)?;
        graph.spmm(h, Some(&alpha), None, Activation::Identity)
    }
}

impl Layer for GraphAttention {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, _) = self.graphs.inputs(OP, inputs, 0)?;
        Ok(vec![self.forward_on(&graph, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("lin", &self.lin);
        v.param("att_src", &self.att[0]);
        v.param("att_dst", &self.att[1]);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
        if let Some(res) = &self.res {
            v.child("res", res);
        }
        if let Some(d) = &self.dropout {
            v.child("dropout", d);
        }
        v.training(&self.training);
    }
}
