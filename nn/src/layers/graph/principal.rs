//! Principal neighbourhood aggregation.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::graph::{EdgeOp, GroupReduce};

use super::cache::{GraphCache, Last, check_edge_attr, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use super::weight_and_bias;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{Graph, Groups};
use crate::layers::activation::elementwise::Activate;
use crate::layers::containers::sequential::Sequential;
use crate::layers::linear::dense::Dense;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "PrincipalNeighbourhoodAggregation";
/// Variances up to this are 0.
const LEAST_VARIANCE: f64 = 1e-5;

/// How the messages into a node are combined. A node without messages has 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PnaAggregator {
    /// Mean.
    Mean,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Standard deviation of the population; 0, without gradient, where the variance is at most 1e-5.
    Std,
    /// Sum.
    Sum,
}

/// What combined messages are multiplied by, d being the number of edges into the node and delta the mean of ln(d + 1) in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PnaScaler {
    /// 1.
    Identity,
    /// ln(d + 1) / delta.
    Amplification,
    /// delta / ln(max(d, 1) + 1).
    Attenuation,
}

/// What the sizes of the parts follow from.
#[derive(Debug, Clone)]
struct Options {
    inputs: usize,
    outputs: usize,
    edge_features: Option<usize>,
    pre_layers: usize,
    post_layers: usize,
    aggregators: Vec<PnaAggregator>,
    scalers: Vec<PnaScaler>,
}

#[derive(Debug)]
struct Parts {
    edge_encoder: Option<Dense>,
    /// Of both ends of an edge and its features.
    pair: Dense,
    /// Behind it, each behind a relu.
    pre: Vec<Dense>,
    post: Sequential,
    lin: Dense,
}

impl Options {
    fn parts(&self, cx: &InitContext) -> Result<Parts> {
        let (f, o) = (self.inputs, self.outputs);
        let (ends, edge_encoder) = match self.edge_features {
            Some(n) => (3usize, Some(Dense::new(cx, n, f)?)),
            None => (2, None),
        };
        let pair = Dense::new(cx, f.saturating_mul(ends), f)?;
        let pre = (1..self.pre_layers).map(|_| Dense::new(cx, f, f)).collect::<Result<_>>()?;
        let blocks = self.aggregators.len().saturating_mul(self.scalers.len()).saturating_add(1);
        let mut post = Sequential::new().push(Dense::new(cx, f.saturating_mul(blocks), o)?);
        for _ in 1..self.post_layers {
            post = post.push(Activate(Activation::Relu)).push(Dense::new(cx, o, o)?);
        }
        Ok(Parts { edge_encoder, pair, pre, post, lin: Dense::new(cx, o, o)? })
    }
}

/// Principal neighbourhood aggregation of Corso et al. (2020), `torch_geometric.nn.PNAConv` with one tower: the messages pre(x_i, x_j) are
/// combined by several aggregators, each result is scaled by several functions of the degree, and act(lin(post(x_i, all of these))) is the
/// node's new feature. Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`; with
/// [`edge_features`](PrincipalNeighbourhoodAggregation::edge_features), messages also read `edge_attr [E, edge_features]`.
///
/// State, all as in [`Dense`](crate::layers::Dense): `pre_nns.0.0.weight [in, 2 in]` (`[in, 3 in]` with features of edges),
/// `pre_nns.0.0.bias [in]`, `post_nns.0.0.weight [out, (aggregators * scalers + 1) in]`, `post_nns.0.0.bias [out]`, `lin.weight [out, out]`,
/// `lin.bias [out]`, with features of edges `edge_encoder.weight [in, edge_features]`, `edge_encoder.bias [in]`; further layers before and
/// behind the aggregation are `pre_nns.0.2`, `post_nns.0.2` and so on. The degrees of training, which PyTorch Geometric's state files hold as
/// `aggr_module.avg_deg_log`, are an argument here.
#[derive(Debug)]
pub struct PrincipalNeighbourhoodAggregation {
    cx: InitContext,
    options: Options,
    delta: f64,
    act: Activation,
    parts: Parts,
    graphs: GraphCache,
    scales: Last<(Graph, DType), Vec<Option<Tensor>>>,
}

impl PrincipalNeighbourhoodAggregation {
    /// `in_features -> out_features` with mean, minimum, maximum and standard deviation, each as it is, amplified and attenuated;
    /// `deg_histogram[d]` is the number of nodes with d edges into them in the training data. Errors: a size of 0, no node with an edge into
    /// it.
    pub fn new(
        cx: &InitContext,
        in_features: usize,
        out_features: usize,
        deg_histogram: &[u64],
    ) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features)] {
            check_size(OP, arg, n)?;
        }
        let nodes: f64 = deg_histogram.iter().map(|&n| n as f64).sum();
        let logs = deg_histogram.iter().enumerate().map(|(d, &n)| n as f64 * (d as f64).ln_1p());
        let delta = logs.sum::<f64>() / nodes.max(1.0);
        if delta == 0.0 {
            let expected = "at least one node with an edge into it";
            return Err(invalid(OP, "deg_histogram", expected, format!("{deg_histogram:?}")));
        }
        let options = Options {
            inputs: in_features,
            outputs: out_features,
            edge_features: None,
            pre_layers: 1,
            post_layers: 1,
            aggregators: vec![
                PnaAggregator::Mean,
                PnaAggregator::Min,
                PnaAggregator::Max,
                PnaAggregator::Std,
            ],
            scalers: vec![PnaScaler::Identity, PnaScaler::Amplification, PnaScaler::Attenuation],
        };
        Ok(PrincipalNeighbourhoodAggregation {
            cx: cx.clone(),
            delta,
            act: Activation::Identity,
            parts: options.parts(cx)?,
            options,
            graphs: GraphCache::default(),
            scales: Last::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the aggregators and fills the layers anew. Errors: none.
    pub fn aggregators(mut self, aggregators: &[PnaAggregator]) -> Result<Self> {
        check_size(OP, "aggregators", aggregators.len())?;
        self.options.aggregators = aggregators.to_vec();
        self.rebuilt()
    }

    /// Sets the scalers and fills the layers anew. Errors: none.
    pub fn scalers(mut self, scalers: &[PnaScaler]) -> Result<Self> {
        check_size(OP, "scalers", scalers.len())?;
        self.options.scalers = scalers.to_vec();
        self.rebuilt()
    }

    /// Sets the number of features of an edge and fills the layers anew. Errors: 0.
    pub fn edge_features(mut self, features: usize) -> Result<Self> {
        check_size(OP, "edge_features", features)?;
        self.options.edge_features = Some(features);
        self.rebuilt()
    }

    /// Sets the number of linear layers before the aggregation, relus between them, and fills the layers anew. Errors: 0.
    pub fn pre_layers(mut self, layers: usize) -> Result<Self> {
        check_size(OP, "pre_layers", layers)?;
        self.options.pre_layers = layers;
        self.rebuilt()
    }

    /// Sets the number of linear layers behind the aggregation, relus between them, and fills the layers anew. Errors: 0.
    pub fn post_layers(mut self, layers: usize) -> Result<Self> {
        check_size(OP, "post_layers", layers)?;
        self.options.post_layers = layers;
        self.rebuilt()
    }

    fn rebuilt(mut self) -> Result<Self> {
        self.parts = self.options.parts(&self.cx)?;
        Ok(self)
    }

    /// The features of the nodes of a graph, whose edges have features exactly if [`edge_features`](Self::edge_features) was set.
    /// Gradients flow to both and to parameters; of equal maxima or minima the first edge gets them. Errors: `Invalid` for shapes and
    /// dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor, edge_attr: Option<&Tensor>) -> Result<Tensor> {
        check_features(OP, x, graph, self.options.inputs)?;
        match (self.options.edge_features, edge_attr) {
            (None, None) => {}
            (Some(n), Some(attr)) => check_edge_attr(OP, attr, graph, n)?,
            (Some(n), None) => return Err(invalid(OP, "edge_attr", format!("shape [E, {n}]"), "none")),
            (None, Some(_)) => {
                return Err(invalid(OP, "edge_attr", "none, as `edge_features` is not set", "a tensor"));
            }
        }
        let y = nodes_first(x, |x| {
            let blocks = self.combined(graph, &self.messages(graph, x, edge_attr)?)?;
            let parts: Vec<&Tensor> = std::iter::once(x).chain(&blocks).collect();
            Tensor::concat(-1, &parts)
        })?;
        let y = hooks::layer("post_nns.0", &self.parts.post, &y)?;
        hooks::layer("lin", &self.parts.lin, &y)?.activation(self.act)
    }

    /// The messages of the edges: x `[N, in]` or `[N, B, in] -> [E, in]` or `[E, B, in]`.
    fn messages(&self, graph: &Graph, x: &Tensor, edge_attr: Option<&Tensor>) -> Result<Tensor> {
        let encoder = self.parts.edge_encoder.as_ref().zip(edge_attr);
        let encoded = encoder.map(|(part, attr)| hooks::layer("edge_encoder", part, attr)).transpose()?;
        let m = hooks::call("pre_nns.0.0", &self.parts.pair, &[x], || {
            let (weight, bias) = weight_and_bias(OP, &self.parts.pair)?;
            let multiply = |x: &Tensor, block: usize, bias: Option<&Tensor>| {
                let weight = weight.narrow(1, block * self.options.inputs, self.options.inputs)?;
                x.linear(&weight, bias, Activation::Identity, Precision::Ieee)
            };
            // The product of the features side by side is a sum of products, of which those of a node are the same for all of its edges.
            let (target, source) = (multiply(x, 0, Some(&bias))?, multiply(x, 1, None)?);
            let m = graph.sddmm(EdgeOp::Add, &source, &target)?;
            let Some(encoded) = &encoded else { return Ok(m) };
            let e = multiply(encoded, 2, None)?;
            m.add(&if x.rank() == 3 { e.unsqueeze(1)? } else { e })
        })?;
        let mut rest = self.parts.pre.iter().enumerate();
        rest.try_fold(m, |m, (i, layer)| hooks::layer(&pre_name(i), layer, &m.relu()?))
    }

    /// The messages combined by each aggregator, scaled by each scaler: `[N, .., aggregators * in]` for each of these.
    fn combined(&self, graph: &Graph, messages: &Tensor) -> Result<Vec<Tensor>> {
        let groups = graph.by_dst();
        let combine = |a: &PnaAggregator| match a {
            PnaAggregator::Mean => messages.group_reduce(GroupReduce::Mean, 0, groups),
            PnaAggregator::Min => messages.group_reduce(GroupReduce::Min { empty: 0.0 }, 0, groups),
            PnaAggregator::Max => messages.group_reduce(GroupReduce::Max { empty: 0.0 }, 0, groups),
            PnaAggregator::Std => deviation(messages, groups),
            PnaAggregator::Sum => messages.group_reduce(GroupReduce::Sum, 0, groups),
        };
        let all = self.options.aggregators.iter().map(combine).collect::<Result<Vec<_>>>()?;
        let all = Tensor::concat(-1, &all.iter().collect::<Vec<_>>())?;
        let scales = self.scales.get(
            |(g, dtype)| g.is(graph) && *dtype == all.dtype(),
            || Ok(((graph.clone(), all.dtype()), self.scales_of(graph, all.dtype())?)),
        )?;
        let scaled = |scale: &Option<Tensor>| match scale {
            Some(s) => all.mul(&if all.rank() == 3 { s.unsqueeze(1)? } else { s.clone() }),
            None => Ok(all.clone()),
        };
        scales.iter().map(scaled).collect()
    }

    /// The factors of the nodes `[N, 1]` by each scaler; none for the identity.
    fn scales_of(&self, graph: &Graph, dtype: DType) -> Result<Vec<Option<Tensor>>> {
        let degree = graph.in_degree()?.to_dtype(dtype.accumulator())?.unsqueeze(1)?;
        let scale = |s: &PnaScaler| {
            let scale = match s {
                PnaScaler::Identity => return Ok(None),
                PnaScaler::Amplification => degree.log1p()?.div_scalar(self.delta)?,
                PnaScaler::Attenuation => {
                    degree.clamp(Some(1.0), None)?.log1p()?.recip()?.mul_scalar(self.delta)?
                }
            };
            scale.to_dtype(dtype).map(Some)
        };
        self.options.scalers.iter().map(scale).collect()
    }
}

/// The name of a linear layer behind the first one of messages.
fn pre_name(i: usize) -> String {
    format!("pre_nns.0.{}", 2 * i + 2)
}

/// The standard deviation of each group, 0 where the variance is too small.
fn deviation(x: &Tensor, groups: &Groups) -> Result<Tensor> {
    // Inside the root, for the gradient of equal messages; far below what counts, and taken away again.
    const EPS: f64 = 1e-12;
    let std = x.group_reduce(GroupReduce::Std { correction: 0, eps: EPS }, 0, groups)?;
    let variance = std.square()?.sub_scalar(EPS)?;
    let small = variance.detach().le_scalar(LEAST_VARIANCE)?;
    variance.clamp(Some(LEAST_VARIANCE), None)?.sqrt()?.masked_fill(&small, 0.0)
}

impl Layer for PrincipalNeighbourhoodAggregation {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        without_edges(OP)
    }

    /// `[x, edge_index]`, or `[x, edge_index, edge_attr]` if edges have features.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, graph, rest) = self.graphs.inputs(OP, inputs, 1)?;
        Ok(vec![self.forward_on(&graph, x, rest.first())?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        let parts = &self.parts;
        if let Some(encoder) = &parts.edge_encoder {
            v.child("edge_encoder", encoder);
        }
        v.child("pre_nns.0.0", &parts.pair);
        for (i, layer) in parts.pre.iter().enumerate() {
            v.child(&pre_name(i), layer);
        }
        v.child("post_nns.0", &parts.post);
        v.child("lin", &parts.lin);
    }
}
