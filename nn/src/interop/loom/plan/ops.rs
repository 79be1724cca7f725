//! What the plan of a network consists of.

use trefoil::ops::activation::Activation;

use crate::layers::SoftmaxKind;

/// An activation followed by a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::interop::loom) struct Act {
    pub(in crate::interop::loom) act: Activation,
    pub(in crate::interop::loom) scale: f64,
}

impl Act {
    pub(super) fn plain(act: Activation) -> Self {
        Act { act, scale: 1.0 }
    }
}

/// Axes of a convolution: channels, filters, window, stride, padding, input and output sizes.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) struct Window {
    pub(in crate::interop::loom) channels: usize,
    pub(in crate::interop::loom) filters: usize,
    pub(in crate::interop::loom) kernel: usize,
    pub(in crate::interop::loom) stride: usize,
    pub(in crate::interop::loom) padding: usize,
    pub(in crate::interop::loom) size: Vec<usize>,
    pub(in crate::interop::loom) out: Vec<usize>,
    /// Every place reads the first window.
    pub(in crate::interop::loom) fixed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) struct Heads {
    pub(in crate::interop::loom) d: usize,
    pub(in crate::interop::loom) heads: usize,
    pub(in crate::interop::loom) kv_heads: usize,
    pub(in crate::interop::loom) head_dim: usize,
    pub(in crate::interop::loom) base: f64,
    /// Heads of size 0.
    pub(in crate::interop::loom) empty: bool,
    pub(in crate::interop::loom) projected: bool,
    pub(in crate::interop::loom) one_sequence: bool,
}

/// How a softmax reads its rows.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) enum SoftmaxPlan {
    Kind(SoftmaxKind),
    /// A grid over the first elements, zeros behind it.
    CutGrid {
        rows: usize,
        cols: usize,
        temperature: f64,
    },
    /// Loom's sparsemax.
    SparseBug,
    /// Softmax and sparsemax mixed; the sparse part may be Loom's.
    Blend {
        weight: f64,
        bug: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) enum Combine {
    Concat {
        batch_major: bool,
    },
    Add,
    Mean,
    /// Branches in the order of their cells.
    Grid(Vec<usize>),
    Filter,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) enum Op {
    Dense {
        inputs: usize,
        outputs: usize,
        act: Act,
    },
    Conv1d {
        window: Window,
        act: Act,
    },
    Conv2d {
        window: Window,
        act: Act,
    },
    Rnn {
        input: usize,
        hidden: usize,
        steps: usize,
    },
    Lstm {
        input: usize,
        hidden: usize,
        steps: usize,
    },
    Mha(Heads),
    Softmax {
        plan: SoftmaxPlan,
        whole: bool,
    },
    LayerNorm {
        n: usize,
        eps: f64,
        batch_rows: bool,
    },
    RmsNorm {
        n: usize,
        eps: f64,
    },
    SwiGlu {
        inputs: usize,
        inner: usize,
    },
    Embedding {
        vocab: usize,
        dim: usize,
    },
    Parallel {
        combine: Combine,
        branches: Vec<Node>,
    },
    Sequential {
        children: Vec<Node>,
        untouched: bool,
    },
    /// Adds the previous layer's input.
    Residual,
    Activate(Act),
    /// The input.
    Pass,
    /// Nothing comes out.
    Vanish,
}

/// A planned layer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::interop::loom) struct Node {
    pub(in crate::interop::loom) path: String,
    pub(in crate::interop::loom) op: Op,
    /// Elements per sample, where the file determines them.
    pub(in crate::interop::loom) outputs: Option<usize>,
}
