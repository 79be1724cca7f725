//! Graphs: signatures. Edges are lists of ends (`src`, `dst`), or grouped by node in CSR form.

mod attention;
mod check;
pub(crate) mod checker;
mod csr;

pub(crate) use self::check::*;
pub use self::attention::*;
pub use self::csr::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::activation::Activation;

io_struct! {
    /// Edges grouped by one of their ends: what [`CsrOps::csr`] makes. Built once per graph and handed to every call, it saves the sorting that
    /// an operation on a bare list of edges has to do each time. Index lists are contiguous and share a dtype, i32 or i64.
    #[derive(Debug, Clone, Copy)]
    pub struct EdgeGroups<'a> {
        /// `[nodes + 1]`: node v has the entries `rowptr[v] .. rowptr[v + 1]`.
        pub rowptr: View<'a>,
        /// `[E]`: the edges' other ends in the order of the entries. Taken from the list of ends where it is absent.
        pub col: Option<View<'a>>,
        /// `[E]`: the edges' numbers in the order of the entries. Without it the edges are in order already.
        pub perm: Option<View<'a>>,
    }
}

io_struct! {
    /// Operands of [`GraphOps::spmm`].
    #[derive(Debug)]
    pub struct Spmm<'a> {
        /// `[M + 1]`.
        pub rowptr: View<'a>,
        /// `[nnz]`; repeated entries add up, any order.
        pub col: View<'a>,
        /// `[nnz]`, or `[nnz, H]` for X `[K, H, F]`, or further leading axes of X's rows; absent means 1.
        pub values: Option<View<'a>>,
        /// `[K, ..]`.
        pub x: View<'a>,
        /// `[F]`: along the last axis.
        pub bias: Option<View<'a>>,
        /// Applied last; those of [`Gemm::act`](crate::ops::gemm::Gemm::act).
        pub act: Activation = Activation::Identity,
        /// `[M, ..]`.
        pub y: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`GraphOps::spmm_bwd`]. `dy` is the gradient before the activation.
    #[derive(Debug)]
    pub struct SpmmBwd<'a> {
        /// Upstream gradient `[M, ..]`.
        pub dy: View<'a>,
        /// Forward's.
        pub rowptr: View<'a>,
        /// Forward's.
        pub col: View<'a>,
        /// Forward's.
        pub values: Option<View<'a>>,
        /// Forward's.
        pub x: View<'a>,
        /// The transpose, with `col` and `perm`; sorted for this call where it is absent.
        pub transpose: Option<EdgeGroups<'a>>,
        /// Gradient of X.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the values.
        pub dvalues: Option<GradMut<'a>>,
        /// Gradient of the bias `[F]`.
        pub dbias: Option<GradMut<'a>>,
    }
}

/// What an edge from u to v with feature e sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// x_u
    CopyU,
    /// e
    CopyE,
    /// x_u * e
    UMulE,
    /// x_u + e
    UAddE,
    /// x_u + x_v
    UAddV,
    /// x_u - x_v
    USubV,
    /// x_u * x_v
    UMulV,
    /// x_u . x_v over the last axis: a result per edge, nothing is reduced
    UDotV,
}

/// How the messages into a node are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageReduce {
    /// Sum; 0 for a node without edges.
    Sum,
    /// Mean; 0 for a node without edges.
    Mean,
    /// Maximum, NaN wins; 0 for a node without edges.
    Max,
    /// Minimum, NaN wins; 0 for a node without edges.
    Min,
}

io_struct! {
    /// Operands of [`GraphOps::message_passing`].
    #[derive(Debug)]
    pub struct Messages<'a> {
        /// `[E]`: where edges come from.
        pub src: View<'a>,
        /// `[E]`: where they go.
        pub dst: View<'a>,
        /// Node features `[U, ..]`.
        pub x: Option<View<'a>>,
        /// Edge features `[E]` followed by leading axes of x's rows (all of them: one per feature); for `CopyE` any.
        pub e: Option<View<'a>>,
        /// The edges by `dst`.
        pub by_dst: Option<EdgeGroups<'a>>,
        /// `[V, ..]`; `[E, ..]` without x's last axis for `UDotV`. U = V for messages that use x_v.
        pub y: ViewMut<'a>,
        /// Max and Min: the edge of each element of y, -1 for none; the smallest of equals. Index dtype.
        pub arg: Option<ViewMut<'a>>,
        /// `[V]`: in-degrees. Index dtype.
        pub degree: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`GraphOps::message_passing_bwd`].
    #[derive(Debug)]
    pub struct MessagesBwd<'a> {
        /// Upstream gradient, y's shape.
        pub dy: View<'a>,
        /// Forward's.
        pub src: View<'a>,
        /// Forward's.
        pub dst: View<'a>,
        /// Forward's; not read for `CopyU`, `UAddE`, `UAddV`, `USubV`.
        pub x: Option<View<'a>>,
        /// Forward's; read for `UMulE`.
        pub e: Option<View<'a>>,
        /// Saved by Max and Min.
        pub arg: Option<View<'a>>,
        /// Saved by Mean; counted again where it is absent.
        pub degree: Option<View<'a>>,
        /// The edges by `src`.
        pub by_src: Option<EdgeGroups<'a>>,
        /// The edges by `dst`.
        pub by_dst: Option<EdgeGroups<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of e.
        pub de: Option<GradMut<'a>>,
    }
}

/// What [`GraphOps::sddmm`] computes of x_src and y_dst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EdgeOp {
    /// Inner product over the last axis.
    Dot,
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
}

io_struct! {
    /// Operands of [`GraphOps::sddmm_bwd`].
    #[derive(Debug)]
    pub struct SddmmBwd<'a> {
        /// Upstream gradient per edge.
        pub dout: View<'a>,
        /// Forward's.
        pub src: View<'a>,
        /// Forward's.
        pub dst: View<'a>,
        /// Forward's.
        pub x: View<'a>,
        /// Forward's.
        pub y: View<'a>,
        /// The edges by `src`.
        pub by_src: Option<EdgeGroups<'a>>,
        /// The edges by `dst`.
        pub by_dst: Option<EdgeGroups<'a>>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of y.
        pub dy: Option<GradMut<'a>>,
    }
}

/// How [`GraphOps::group_reduce`] combines the sources of a destination.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum GroupReduce {
    /// Sum, 0 for none.
    Sum,
    /// Mean, 0 for none.
    Mean,
    /// Maximum, NaN wins.
    Max {
        /// Value of a destination without sources.
        empty: f64,
    },
    /// Minimum, NaN wins.
    Min {
        /// Value of a destination without sources.
        empty: f64,
    },
    /// Product, 1 for none.
    Prod,
    /// sqrt(sum (x - mean)^2 / max(n - correction, 1) + eps), 0 for none.
    Std {
        /// 0: of the population, 1: of a sample.
        correction: u32,
        /// Added inside the root.
        eps: f64,
    },
}

io_struct! {
    /// Operands of [`GraphOps::group_reduce`].
    #[derive(Debug)]
    pub struct GroupIo<'a> {
        /// `[outer, n, inner]`.
        pub src: View<'a>,
        /// `[n]`: the destination of each source.
        pub index: View<'a>,
        /// The sources by destination; `col` is not used.
        pub groups: Option<EdgeGroups<'a>>,
        /// `[outer, R, inner]`; only `Sum` may accumulate.
        pub y: GradMut<'a>,
        /// Max and Min: position of the source along n, -1 for none, the smallest of equals. y's shape, the index's dtype.
        pub arg: Option<ViewMut<'a>>,
        /// `[R]`, i32: number of sources.
        pub counts: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`GraphOps::group_reduce_bwd`].
    #[derive(Debug)]
    pub struct GroupBwd<'a> {
        /// Upstream gradient `[outer, R, inner]`.
        pub dy: View<'a>,
        /// Forward's. Max and Min do without; with it they gather.
        pub index: Option<View<'a>>,
        /// Forward's; for `Prod` and `Std`.
        pub src: Option<View<'a>>,
        /// Forward's result; for `Std`.
        pub y: Option<View<'a>>,
        /// Saved by Max and Min.
        pub arg: Option<View<'a>>,
        /// Saved by Mean.
        pub counts: Option<View<'a>>,
        /// The sources by destination; `Prod` and `Std` need them (without, they sort), the others read less memory with them.
        pub groups: Option<EdgeGroups<'a>>,
        /// Gradient of src `[outer, n, inner]`.
        pub dsrc: GradMut<'a>,
    }
}

op_family! {
    /// Message passing on graphs. All operands are contiguous; data is f32, f16, bf16 or f64 of one dtype per call, indices are i32 or i64 of one
    /// dtype. Deterministic: edges are grouped by their destination (and by their source for gradients), each output has one writer, sums run in
    /// the order of the edges, and nodes with many edges are cut in parts that are combined in order. A node, edge or column out of range and a
    /// rowptr that does not rise from 0 to the number of edges are `IndexOutOfRange`, reported by the next call that waits; shapes and dtypes that
    /// do not fit, and 2^31 nodes or edges and more, are `Invalid`.
    pub trait GraphOps : Graph => GRAPH_OPS {
        /// `degree[v]` (i64) = number of edges with `dst` v. Oracle `torch.bincount`.
        fn degree(&self, dst: View<'_>, degree: ViewMut<'_>) -> Result<()>;
        /// Values of D^-1/2 A D^-1/2 for a square CSR matrix A, D its row sums; 0 where a degree is not above 0. Without values A is 1 at its entries.
        /// Oracle Kipf and Welling (2017).
        fn sym_normalize(&self, rowptr: View<'_>, col: View<'_>, values: Option<View<'_>>, y: ViewMut<'_>) -> Result<()>;
        /// Y = act(A X + bias) for a CSR matrix A [M, K]; an empty row is 0 (+ bias). Oracle `torch.sparse_csr_tensor(..) @ X`.
        fn spmm(&self, io: Spmm<'_>) -> Result<()>;
        /// dX = A^T dY, dvalues[i, j] = dY\[i\] . X\[j\], dbias = column sums of dY.
        fn spmm_bwd(&self, io: SpmmBwd<'_>) -> Result<()>;
        /// y_v = red over the edges (u -> v) of the message; messages are not stored. Oracle gather, then `index_add` or `scatter_reduce(include_self=False)`.
        fn message_passing(&self, message: Message, reduce: MessageReduce, io: Messages<'_>) -> Result<()>;
        /// Gradients of [`GraphOps::message_passing`]; Max and Min give theirs to the saved edge.
        fn message_passing_bwd(&self, message: Message, reduce: MessageReduce, io: MessagesBwd<'_>) -> Result<()>;
        /// `out[e] = x[src[e]] op y[dst[e]]`; `Dot` drops the last axis. `[U, ..]`, `[V, ..]` to `[E, ..]`.
        fn sddmm(&self, op: EdgeOp, src: View<'_>, dst: View<'_>, x: View<'_>, y: View<'_>, out: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`GraphOps::sddmm`].
        fn sddmm_bwd(&self, op: EdgeOp, io: SddmmBwd<'_>) -> Result<()>;
        /// `y[o, r, c]` = the sources `src[o, i, c]` with `index[i] = r` combined. Oracle `torch.scatter_reduce`, torch_scatter.
        fn group_reduce(&self, how: GroupReduce, io: GroupIo<'_>) -> Result<()>;
        /// Gradient of [`GraphOps::group_reduce`] by the sources: a gather; Max and Min give theirs to the saved source.
        fn group_reduce_bwd(&self, how: GroupReduce, io: GroupBwd<'_>) -> Result<()>;
    }
}
