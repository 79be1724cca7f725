//! Readout of graphs.

use trefoil::ops::activation::Activation;
use trefoil::ops::graph::GroupReduce;

use super::cache::{Last, Seen, nodes_first};
use super::convolutional::check_size;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::Groups;
use crate::layers::linear::dense::Dense;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "Readout";

/// How the features of the nodes of a graph become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadoutMode {
    /// Not at all: each node by itself.
    None,
    /// Sum, `global_add_pool`.
    Sum,
    /// Mean, `global_mean_pool`.
    Mean,
    /// Maximum, `global_max_pool`.
    Max,
    /// Sum weighted by the softmax of a linear score over the nodes of the graph, `AttentionalAggregation`; Li et al. (2016).
    Attention,
}

impl ReadoutMode {
    fn reduce(self) -> Option<GroupReduce> {
        match self {
            ReadoutMode::None => None,
            ReadoutMode::Sum | ReadoutMode::Attention => Some(GroupReduce::Sum),
            ReadoutMode::Mean => Some(GroupReduce::Mean),
            ReadoutMode::Max => Some(GroupReduce::Max { empty: 0.0 }),
        }
    }
}

/// A linear layer on nodes or on whole graphs: act(W p + b), p the features of a node, or those of all nodes of a graph combined as
/// `torch_geometric.nn.global_mean_pool` and its like do. Features `[.., in]` become `[.., out]`; with a [`mode`](Readout::mode), those of
/// nodes, `[N, in]` or `[B, N, in]`, become those of graphs, `[graphs, out]` or `[B, graphs, out]`. A graph without nodes is act(b). Nodes
/// may stand in any order.
///
/// State: `lin.weight [out, in]`, `lin.bias [out]`, with attention `gate_nn.weight [1, in]`, `gate_nn.bias [1]`; all from U(-1/sqrt(in),
/// 1/sqrt(in)).
#[derive(Debug)]
pub struct Readout {
    cx: InitContext,
    inputs: usize,
    mode: ReadoutMode,
    num_graphs: Option<usize>,
    gate: Option<Dense>,
    lin: Dense,
    groups: Last<(Seen, usize), Groups>,
}

impl Readout {
    /// `in_features -> out_features` of each node, with bias. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        for (arg, n) in [("in_features", in_features), ("out_features", out_features)] {
            check_size(OP, arg, n)?;
        }
        Ok(Readout {
            cx: cx.clone(),
            inputs: in_features,
            mode: ReadoutMode::None,
            num_graphs: None,
            gate: None,
            lin: Dense::new(cx, in_features, out_features)?,
            groups: Last::default(),
        })
    }

    /// Sets how the nodes of a graph are combined.
    pub fn mode(mut self, mode: ReadoutMode) -> Result<Self> {
        self.mode = mode;
        self.gate = match mode {
            ReadoutMode::Attention => Some(Dense::new(&self.cx, self.inputs, 1)?),
            _ => None,
        };
        Ok(self)
    }

    /// Sets the number of graphs in a batch, which [`forward_all`](Layer::forward_all) needs. Errors: 0.
    pub fn num_graphs(mut self, graphs: usize) -> Result<Self> {
        check_size(OP, "num_graphs", graphs)?;
        self.num_graphs = Some(graphs);
        Ok(self)
    }

    /// Sets the activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.lin = self.lin.activation(activation);
        self
    }

    /// Without bias of the linear layer.
    pub fn no_bias(mut self) -> Self {
        self.lin = self.lin.no_bias();
        self
    }

    /// The features of the graphs that nodes belong to. Gradients flow to features and parameters; of equal maxima the first node gets them.
    /// Errors: `Invalid` without a mode, for shapes and dtypes that do not fit.
    pub fn forward_on(&self, x: &Tensor, graphs: &Groups) -> Result<Tensor> {
        let Some(reduce) = self.mode.reduce() else {
            return Err(invalid(OP, "mode", "one that combines the nodes of a graph", "None"));
        };
        match *x.shape() {
            [n, f] | [_, n, f] if n == graphs.len() && f == self.inputs => {}
            _ => {
                let (n, f) = (graphs.len(), self.inputs);
                let expected = format!("shape [{n}, {f}] or [B, {n}, {f}]");
                return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
            }
        }
        let pooled = nodes_first(x, |x| {
            let weighted = match &self.gate {
                Some(gate) => x.mul(&hooks::layer("gate_nn", gate, x)?.group_softmax(graphs)?)?,
                None => x.clone(),
            };
            weighted.group_reduce(reduce, 0, graphs)
        })?;
        hooks::layer("lin", &self.lin, &pooled)
    }
}

impl Layer for Readout {
    /// Of each node by itself. Errors: also a mode, which needs to know the graphs.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.mode != ReadoutMode::None {
            let expected =
                "features and batch, the graph of each node (`forward_all`), or groups (`forward_on`)";
            return Err(invalid(OP, "inputs", expected, "features alone"));
        }
        hooks::layer("lin", &self.lin, x)
    }

    /// `[x]` without a mode; with one `[x, batch]`, `batch [N]` being the graph of each node, below `num_graphs`. Waits for the device when
    /// another batch comes, to examine it.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, batch) = match inputs {
            [x] => return Ok(vec![self.forward(x)?]),
            [x, batch] => (x, batch),
            _ => {
                return Err(invalid(OP, "inputs", "features and batch", format!("{} tensors", inputs.len())));
            }
        };
        let Some(size) = self.num_graphs else {
            return Err(invalid(OP, "num_graphs", "the number of graphs in `batch`", "none"));
        };
        let groups = self.groups.get(
            |(seen, n)| seen.is(batch) && *n == size,
            || Ok(((Seen::new(batch), size), Groups::new(batch, size)?)),
        )?;
        Ok(vec![self.forward_on(x, &groups)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if let Some(gate) = &self.gate {
            v.child("gate_nn", gate);
        }
        v.child("lin", &self.lin);
    }
}
