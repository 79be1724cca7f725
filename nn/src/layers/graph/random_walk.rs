//! Diffusion by random walks.

use trefoil::ops::activation::Activation;

use super::cache::{GraphCache, Last, check_features, nodes_first, without_edges};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Graph;
use crate::layers::linear::dense::Dense;
use crate::module::{Init, InitContext, Layer, Visitor, hooks};

const OP: &str = "RandomWalkConv";

/// Diffusion convolution of DCRNN (Li et al., 2018): act([x, P_f x, .., P_f^K x, P_b x, .., P_b^K x] Theta^T + b). P_f lets the features of a
/// node walk along its outgoing edges, with the probability of an edge its part of the node's outgoing weight, P_b against its incoming ones.
/// Features `[N, in]`, or `[B, N, in]` of B samples on one graph, become `[.., out]`. A node where no edge begins (ends) sends nothing.
///
/// State: `lin.weight [out, (1 + directions * K) in]` from U(-a, a) of Glorot and Bengio, term by term; `lin.bias [out]` = 0.
#[derive(Debug)]
pub struct RandomWalkConv {
    cx: InitContext,
    sizes: [usize; 2],
    steps: usize,
    bidirectional: bool,
    chebyshev: bool,
    with_bias: bool,
    lin: Dense,
    graphs: GraphCache,
    reversed: Last<Graph, Graph>,
}

impl RandomWalkConv {
    /// `in_channels -> out_channels` by two steps in both directions, with bias and without activation. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, out_channels: usize) -> Result<Self> {
        for (arg, n) in [("in_channels", in_channels), ("out_channels", out_channels)] {
            check_size(OP, arg, n)?;
        }
        let sizes = [in_channels, out_channels];
        Ok(RandomWalkConv {
            cx: cx.clone(),
            sizes,
            steps: 2,
            bidirectional: true,
            chebyshev: false,
            with_bias: true,
            lin: Self::linear(cx, sizes, 2, true, true)?,
            graphs: GraphCache::default(),
            reversed: Last::default(),
        })
    }

    fn linear(cx: &InitContext, [c, o]: [usize; 2], steps: usize, both: bool, bias: bool) -> Result<Dense> {
        let terms = steps.checked_mul(1 + usize::from(both)).and_then(|n| n.checked_add(1));
        let Some(columns) = terms.and_then(|n| n.checked_mul(c)) else {
            let got = format!("{steps} steps of {c} channels");
            return Err(invalid(OP, "max_diffusion_step", "a number of columns that fits", got));
        };
        let lin = Dense::new(cx, columns, o)?.init(Init::Glorot, Init::Zeros)?;
        Ok(if bias { lin } else { lin.no_bias() })
    }

    /// Makes the parameters anew.
    fn rebuilt(mut self) -> Result<Self> {
        self.lin = Self::linear(&self.cx, self.sizes, self.steps, self.bidirectional, self.with_bias)?;
        Ok(self)
    }

    setters! {
        /// Whether terms behind the first of a direction are those of Chebyshev's recurrence, T_k = 2 P T_(k-1) - T_(k-2), as in the code of
        /// the paper, in place of powers (default false).
        chebyshev: bool => chebyshev;
    }

    /// Sets the number of steps in each direction and fills the parameters anew; with 0 the layer is a linear map.
    pub fn max_diffusion_step(mut self, steps: usize) -> Result<Self> {
        self.steps = steps;
        self.rebuilt()
    }

    /// Walks along the edges only, and fills the parameters anew.
    pub fn unidirectional(mut self) -> Result<Self> {
        self.bidirectional = false;
        self.rebuilt()
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.with_bias = false;
        self.lin = self.lin.no_bias();
        self
    }

    /// Sets the activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.lin = self.lin.activation(activation);
        self
    }

    /// The features of the nodes of a graph whose edges have the weights `edge_weight` `[E]`, 1 where absent. Gradients flow to features,
    /// weights and parameters. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn forward_on(&self, graph: &Graph, x: &Tensor, edge_weight: Option<&Tensor>) -> Result<Tensor> {
        check_features(OP, x, graph, self.sizes[0])?;
        let weight = match edge_weight {
            Some(w) => w.clone(),
            None => graph.unit_weights(x.dtype())?,
        };
        let back = self.reversed.get(|g| g.is(graph), || Ok((graph.clone(), graph.reverse()?)))?;
        let terms = nodes_first(x, |x| {
            let mut terms = vec![x.clone()];
            // What leaves a node along the edges is what comes to it along the reversed ones.
            self.walk(graph, &back.row_norm(&weight)?, &mut terms)?;
            if self.bidirectional {
                self.walk(&back, &graph.row_norm(&weight)?, &mut terms)?;
            }
            Tensor::concat(-1, &terms.iter().collect::<Vec<_>>())
        })?;
        hooks::layer("lin", &self.lin, &terms)
    }

    /// Appends the terms of one direction to a list that begins with x.
    fn walk(&self, graph: &Graph, probability: &Tensor, terms: &mut Vec<Tensor>) -> Result<()> {
        let mut last = terms[0].clone();
        let mut before: Option<Tensor> = None;
        for _ in 0..self.steps {
            let mut next = graph.spmm(&last, Some(probability), None, Activation::Identity)?;
            if let (true, Some(before)) = (self.chebyshev, &before) {
                next = next.mul_scalar(2.0)?.sub(before)?;
            }
            terms.push(next.clone());
            before = Some(std::mem::replace(&mut last, next));
        }
        Ok(())
    }
}

impl Layer for RandomWalkConv {
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
    }
}
