//! The transformer of graphs.

use std::collections::VecDeque;

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::graph::EdgeOp;

use super::cache::{GraphCache, Last, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial};
use crate::functional::Graph;
use crate::layers::attention::transformer::{Tail, TransformerConfig};
use crate::layers::linear::dense::Dense;
use crate::layers::regularization::dropout::Dropout;
use crate::module::{Init, InitContext, Layer, Param, Visitor, hooks};

const OP: &str = "GraphTransformer";

/// Which nodes a node of a [`GraphTransformer`] attends to, beside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphAttend {
    /// Those from which an edge comes; edges that repeat count as often as they stand there.
    Edges,
    /// All nodes of the same graph.
    All,
}

/// Description of a [`GraphTransformer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GraphTransformerConfig {
    /// Features of a node.
    pub in_features: usize,
    /// Features of a node in the result.
    pub out_features: usize,
    /// Heads of the attention.
    pub heads: usize,
    /// Width of a head; `out_features / heads` where absent.
    pub head_dim: Option<usize>,
    /// Width of the feed-forward network; `4 * out_features` where absent.
    pub ffn_hidden: Option<usize>,
    /// Activation of the feed-forward network.
    pub ffn_activation: Activation,
    /// Probability of all dropouts, that of attention weights included.
    pub dropout: f64,
    /// Whether sums are followed by layer normalization.
    pub norm: bool,
    /// Which nodes a node attends to.
    pub attend: GraphAttend,
    /// Whether scores have a learned bias for each number of hops, and the largest number that has one of its own.
    pub max_distance: Option<usize>,
    /// Biases in linear layers and normalizations.
    pub bias: bool,
    /// Activation of the result.
    pub activation: Activation,
}

impl GraphTransformerConfig {
    /// 8 heads, gelu, dropout 0.1, normalizations, attention along edges, no bias by distance.
    pub fn new(in_features: usize, out_features: usize) -> Self {
        GraphTransformerConfig {
            in_features,
            out_features,
            heads: 8,
            head_dim: None,
            ffn_hidden: None,
            ffn_activation: Activation::Gelu,
            dropout: 0.1,
            norm: true,
            attend: GraphAttend::Edges,
            max_distance: None,
            bias: true,
            activation: Activation::Identity,
        }
    }

    setters! {
        /// Sets the number of heads.
        heads: usize => heads;
        /// Sets the activation of the feed-forward network.
        ffn_activation: Activation => ffn_activation;
        /// Sets the probability of all dropouts.
        dropout: f64 => dropout;
        /// Sets which nodes a node attends to.
        attend: GraphAttend => attend;
        /// Sets the activation of the result.
        activation: Activation => activation;
    }

    /// Sets the width of a head.
    pub fn head_dim(mut self, width: usize) -> Self {
        self.head_dim = Some(width);
        self
    }

    /// Sets the width of the feed-forward network.
    pub fn ffn_hidden(mut self, width: usize) -> Self {
        self.ffn_hidden = Some(width);
        self
    }

    /// Adds a learned number to the scores of each head by the hops of the shortest path between the two nodes (Ying et al., 2021:
    /// Graphormer); `most` hops and more have one number, pairs without a path another one.
    pub fn max_distance(mut self, most: usize) -> Self {
        self.max_distance = Some(most);
        self
    }

    /// Without normalizations.
    pub fn no_norm(mut self) -> Self {
        self.norm = false;
        self
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// The width of a head. Errors: sizes of 0, heads that do not divide the outputs.
    fn checked_head_dim(&self) -> Result<usize> {
        let (out, heads) = (self.out_features, self.heads);
        for (arg, n) in [("in_features", self.in_features), ("out_features", out), ("heads", heads)] {
            check_size(OP, arg, n)?;
        }
        check_size(OP, "ffn_hidden", self.ffn_hidden.unwrap_or(1))?;
        match self.head_dim {
            Some(width) => check_size(OP, "head_dim", width).map(|()| width),
            None if out % heads == 0 => Ok(out / heads),
            None => {
                Err(invalid(OP, "heads", format!("a divisor of {out}, or `head_dim`"), format!("{heads}")))
            }
        }
    }

    /// Feed-forward network, sums and normalizations.
    fn tail(&self, cx: &InitContext) -> Result<Tail> {
        let out = self.out_features;
        let c = TransformerConfig::new(out, self.heads)
            .d_ff(self.ffn_hidden.unwrap_or(out.saturating_mul(4)))
            .activation(self.ffn_activation)
            .dropout(self.dropout)
            .init(Init::Glorot, Init::Zeros);
        let tail = Tail::new(cx, &if self.bias { c } else { c.no_bias() }, 2)?;
        Ok(if self.norm { tail } else { tail.no_norms() })
    }
}

/// Pairs of nodes that attend to each other, and the hops between them where the scores depend on these.
type Pairs = (Graph, Option<Tensor>);

/// Attention along the edges of a graph.
#[derive(Debug)]
struct EdgeAttention {
    heads: usize,
    dim: usize,
    weight: Param,
    bias: Option<Param>,
    out_proj: Dense,
    distances: Option<Param>,
    dropout: Dropout,
}

impl EdgeAttention {
    fn new(cx: &InitContext, c: &GraphTransformerConfig) -> Result<Self> {
        let dim = c.checked_head_dim()?;
        let wide = c.heads.saturating_mul(dim);
        let all = wide.saturating_mul(3);
        let distances = match c.max_distance {
            None => None,
            Some(most) => {
                Some(Init::Zeros.param(cx, &[most.saturating_add(2), c.heads], c.heads, c.heads)?)
            }
        };
        let out_proj = Dense::new(cx, wide, c.out_features)?.init(Init::Glorot, Init::Zeros)?;
        Ok(EdgeAttention {
            heads: c.heads,
            dim,
            weight: Init::Glorot.param(cx, &[all, c.in_features], c.in_features, wide)?,
            bias: c.bias.then(|| Init::Zeros.param(cx, &[all], c.in_features, wide)).transpose()?,
            out_proj: if c.bias { out_proj } else { out_proj.no_bias() },
            distances,
            dropout: Dropout::part(cx, c.dropout)?,
        })
    }

    fn on(&self, (graph, hops): &Pairs, x: &Tensor) -> Result<Tensor> {
        let (heads, dim, bias) = (self.heads, self.dim, self.bias.as_ref().map(Param::get));
        let qkv = x.linear(&self.weight.get(), bias.as_ref(), Activation::Identity, Precision::Ieee)?;
        let y = nodes_first(&qkv, |t| {
            // Samples of a batch are further heads.
            let (nodes, samples) = (t.shape()[0], if t.rank() == 3 { t.shape()[1] } else { 1 });
            let wide = t.reshape(&[nodes, samples, 3, heads, dim])?;
            let part = |i| wide.select(2, i)?.reshape(&[nodes, samples * heads, dim]);
            let q = part(0)?.mul_scalar(1.0 / (dim as f64).sqrt())?;
            let mut scores = graph.sddmm(EdgeOp::Dot, &part(1)?, &q)?;
            if let (Some(table), Some(hops)) = (&self.distances, hops) {
                let bias = table.get().index_select(0, hops)?.unsqueeze(1)?;
                let edges = graph.num_edges();
                scores = scores.reshape(&[edges, samples, heads])?.add(&bias)?.flatten(1, 2)?;
            }
            let alpha = hooks::layer("dropout", &self.dropout, &graph.edge_softmax(&scores)?)?;
            let y = graph.spmm(&part(2)?, Some(&alpha), None, Activation::Identity)?;
            y.reshape(&[&t.shape()[..t.rank() - 1], &[heads * dim]].concat())
        })?;
        hooks::layer("out_proj", &self.out_proj, &y)
    }
}

impl Layer for EdgeAttention {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("in_proj_weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("in_proj_bias", b);
        }
        v.child("out_proj", &self.out_proj);
        if let Some(d) = &self.distances {
            v.param("distance_bias", d);
        }
        v.child("dropout", &self.dropout);
    }
}

/// Transformer block of graphs of Dwivedi and Bresson (2021): the encoder block of Vaswani et al. (2017),
/// `torch.nn.TransformerEncoderLayer`, in which each node attends to itself and to the sources of its edges (or to all nodes of its graph).
/// Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`. Distances are hops from the attended node along the
/// edges; they are counted on the host once per graph.
///
/// State: `self_attn.in_proj_weight [3 heads head_dim, in]` (queries, keys, values), `self_attn.out_proj.weight [out, heads head_dim]`,
/// `linear1.weight [ffn, out]`, `linear2.weight [out, ffn]`, where in and out differ `res.weight [out, in]` of the first residual sum, all
/// from U(-a, a) of Glorot and Bengio; biases `self_attn.in_proj_bias`, `self_attn.out_proj.bias`, `linear1.bias`, `linear2.bias` = 0;
/// `norm1.*`, `norm2.*`; with `max_distance` `self_attn.distance_bias [max_distance + 2, heads]` = 0, its last row for pairs without a path.
#[derive(Debug)]
pub struct GraphTransformer {
    inputs: usize,
    attend: GraphAttend,
    max_distance: Option<usize>,
    act: Activation,
    attn: EdgeAttention,
    res: Option<Dense>,
    tail: Tail,
    graphs: GraphCache,
    pairs: Last<Graph, Pairs>,
}

impl GraphTransformer {
    /// A block of this description. Errors: sizes of 0, heads that do not divide the outputs where there is no `head_dim`, a dropout
    /// outside of [0, 1].
    pub fn new(cx: &InitContext, config: &GraphTransformerConfig) -> Result<Self> {
        let attn = EdgeAttention::new(cx, config)?;
        let (inputs, out) = (config.in_features, config.out_features);
        let res = match inputs == out {
            true => None,
            false => Some(Dense::new(cx, inputs, out)?.no_bias().init(Init::Glorot, Init::Zeros)?),
        };
        Ok(GraphTransformer {
            inputs,
            attend: config.attend,
            max_distance: config.max_distance,
            act: config.activation,
            attn,
            res,
            tail: config.tail(cx)?,
            graphs: GraphCache::default(),
            pairs: Last::default(),
        })
    }

    /// The features of the nodes of a graph, whose [`batch`](Graph::batch) tells which nodes belong together. Gradients flow to features
    /// and parameters. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor) -> Result<Tensor> {
        check_features(OP, x, graph, self.inputs)?;
        let pairs = self.pairs.get(|g| g.is(graph), || Ok((graph.clone(), self.pairs_of(graph)?)))?;
        let rest = match &self.res {
            Some(res) => hooks::layer("res", res, x)?,
            None => x.clone(),
        };
        let attend = |_: &Tensor| hooks::call("self_attn", &self.attn, &[x], || self.attn.on(&pairs, x));
        self.tail.run(&rest, &[&attend])?.activation(self.act)
    }

    fn pairs_of(&self, graph: &Graph) -> Result<Pairs> {
        match self.attend {
            GraphAttend::Edges => {
                let looped = graph.remove_self_loops(None)?.0.add_self_loops(None, 1.0)?.0;
                let hops = match self.max_distance {
                    // Edges are one hop, the node itself none.
                    Some(most) => {
                        let one = looped.src().ne(looped.dst())?.to_dtype(DType::I64)?;
                        Some(if most == 0 { one.zeros_like()? } else { one })
                    }
                    None => None,
                };
                Ok((looped, hops))
            }
            GraphAttend::All => {
                let of = graph.batch()?.index();
                // Rows of target and source.
                let at = of.unsqueeze(1)?.eq(&of.unsqueeze(0)?)?.nonzero()?;
                let edges = Tensor::stack(0, &[&at.select(1, 1)?, &at.select(1, 0)?])?;
                let all = Graph::new(&edges, graph.num_src())?;
                let hops = self.max_distance.map(|most| hops(graph, &all, most)).transpose()?;
                Ok((all, hops))
            }
        }
    }
}

impl Layer for GraphTransformer {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, _) = self.graphs.inputs(OP, inputs, 0)?;
        Ok(vec![self.forward_on(&graph, x)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("self_attn", &self.attn);
        if let Some(res) = &self.res {
            v.child("res", res);
        }
        self.tail.visit(v);
    }
}

/// Hops of the shortest path along the edges of `graph` from the source to the target of each of `pairs`, i64 `[E]`: at most `most`, and
/// most + 1 where there is no path. Searches on the host.
fn hops(graph: &Graph, pairs: &Graph, most: usize) -> Result<Tensor> {
    let (device, nodes) = (graph.edge_index().device(), graph.num_src());
    if is_trial(device) {
        return Tensor::zeros(device, DType::I64, &[pairs.num_edges()]);
    }
    let next = outgoing(graph)?;
    let mut hops = vec![0i64; pairs.num_edges()];
    let mut found = vec![None; nodes];
    for (start, wanted) in outgoing(pairs)?.into_iter().enumerate() {
        found.fill(None);
        found[start] = Some(0usize);
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            let further = found[node].map(|n| n + 1);
            for &(target, _) in &next[node] {
                if found[target].is_none() {
                    found[target] = further;
                    queue.push_back(target);
                }
            }
        }
        for (target, edge) in wanted {
            hops[edge] = found[target].map_or(most.saturating_add(1), |n| n.min(most)) as i64;
        }
    }
    Tensor::from_slice(device, &hops, &[hops.len()])
}

/// The target and the number of each edge out of each node.
fn outgoing(graph: &Graph) -> Result<Vec<Vec<(usize, usize)>>> {
    let host = |t: &Tensor| t.to_dtype(DType::I64)?.to_vec::<i64>();
    let mut out = vec![vec![]; graph.num_src()];
    for (edge, (src, dst)) in host(graph.src())?.into_iter().zip(host(graph.dst())?).enumerate() {
        out[src as usize].push((dst as usize, edge));
    }
    Ok(out)
}
