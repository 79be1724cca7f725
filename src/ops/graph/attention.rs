//! Graph attention: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::check;
use crate::ops::graph::*;
use crate::ops::graph::checker::{Checker, Inputs, product, stat_dtype};

io_struct! {
    /// Operands of [`GraphAttentionOps::gat`].
    #[derive(Debug)]
    pub struct Gat<'a> {
        /// `[E]`.
        pub src: View<'a>,
        /// `[E]`.
        pub dst: View<'a>,
        /// The edges by `dst`.
        pub by_dst: Option<EdgeGroups<'a>>,
        /// `[U, H, F]`.
        pub x: View<'a>,
        /// `[U, H]`.
        pub score_src: View<'a>,
        /// `[V, H]`.
        pub score_dst: View<'a>,
        /// `[V, H, F]`.
        pub y: ViewMut<'a>,
        /// `[V, H]`, f32 (f64 for f64 data): logarithm of the sum of exponentials, for backward.
        pub lse: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`GraphAttentionOps::gat_bwd`].
    #[derive(Debug)]
    pub struct GatBwd<'a> {
        /// Upstream gradient `[V, H, F]`.
        pub dy: View<'a>,
        /// Forward's.
        pub src: View<'a>,
        /// Forward's.
        pub dst: View<'a>,
        /// The edges by `src`.
        pub by_src: Option<EdgeGroups<'a>>,
        /// The edges by `dst`.
        pub by_dst: Option<EdgeGroups<'a>>,
        /// Forward's.
        pub x: View<'a>,
        /// Forward's.
        pub score_src: View<'a>,
        /// Forward's.
        pub score_dst: View<'a>,
        /// Saved by forward.
        pub lse: View<'a>,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of `score_src`.
        pub dscore_src: Option<GradMut<'a>>,
        /// Gradient of `score_dst`.
        pub dscore_dst: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Softmax over the edges of a node, and graph attention.
    pub trait GraphAttentionOps : Graph => GRAPH_ATTENTION_OPS {
        /// Softmax of the logits [E, ..] over the edges with the same `dst` below `nodes`, per trailing position. A slice of only -inf, or with +inf or NaN,
        /// is NaN. Oracle `torch_geometric.utils.softmax`; also `scatter_softmax`.
        fn edge_softmax(&self, nodes: usize, dst: View<'_>, groups: Option<EdgeGroups<'_>>, logits: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dlogits = y * (dy - sum over the node of y * dy).
        fn edge_softmax_bwd(&self, nodes: usize, dst: View<'_>, groups: Option<EdgeGroups<'_>>, dy: View<'_>, y: View<'_>, dlogits: GradMut<'_>) -> Result<()>;
        /// Graph attention in one pass: y_v = sum a x_u, a the softmax over the edges into v of leaky_relu(score_src\[u\] + score_dst\[v\]) with this slope.
        /// A node without edges is 0. Oracle `torch_geometric.nn.GATConv` (Velickovic et al., 2018) without its linear maps.
        fn gat(&self, slope: f64, io: Gat<'_>) -> Result<()>;
        /// Gradients of [`GraphAttentionOps::gat`]; the attention is computed again from `lse`.
        fn gat_bwd(&self, slope: f64, io: GatBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a checked attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatShape {
    pub(crate) edges: usize,
    pub(crate) sources: usize,
    pub(crate) targets: usize,
    pub(crate) heads: usize,
    pub(crate) features: usize,
}

fn gat_shape(
    c: &Checker,
    slope: f64,
    [src, dst, x, score_src, score_dst]: [&View<'_>; 5],
    y: (&'static str, &View<'_>),
) -> Result<GatShape> {
    if !slope.is_finite() {
        return c.wrong("slope", "a finite number", slope);
    }
    let edges = c.ends(src, dst)?;
    c.float("x", x)?;
    let &[sources, heads, features] = x.shape() else { return c.wrong("x", "[U, H, F]", x.shape()) };
    c.like("score_src", score_src, x)?;
    c.shape("score_src", score_src, &[sources, heads])?;
    c.like("score_dst", score_dst, x)?;
    let targets = c.rows("score_dst", score_dst)?;
    c.shape("score_dst", score_dst, &[targets, heads])?;
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &[targets, heads, features])?;
    c.small(&[edges, sources, targets, heads * features])?;
    Ok(GatShape { edges, sources, targets, heads, features })
}

/// Checks of [`GraphAttentionOps::gat`].
pub(crate) fn check_gat(slope: f64, io: &Gat<'_>) -> Result<GatShape> {
    let c = Checker::new("gat");
    let all = [&io.src, &io.dst, &io.x, &io.score_src, &io.score_dst];
    let s = gat_shape(&c, slope, all, ("y", &io.y.as_view()))?;
    let mut inputs = Inputs::new(&[
        ("src", io.src),
        ("dst", io.dst),
        ("x", io.x),
        ("score_src", io.score_src),
        ("score_dst", io.score_dst),
    ]);
    c.opt_groups("by_dst", &io.by_dst, s.targets, &io.dst, &mut inputs)?;
    c.out("y", Some(&io.y), io.x.dtype(), io.y.shape(), &mut inputs)?;
    c.out("lse", io.lse.as_ref(), stat_dtype(io.x.dtype()), &[s.targets, s.heads], &mut inputs)?;
    Ok(s)
}

/// Checks of [`GraphAttentionOps::gat_bwd`].
pub(crate) fn check_gat_bwd(slope: f64, io: &GatBwd<'_>) -> Result<GatShape> {
    let c = Checker::new("gat_bwd");
    let all = [&io.src, &io.dst, &io.x, &io.score_src, &io.score_dst];
    let s = gat_shape(&c, slope, all, ("dy", &io.dy))?;
    check::dtype(c.op, "lse", &io.lse, stat_dtype(io.x.dtype()))?;
    check::contiguous(c.op, "lse", &io.lse)?;
    c.shape("lse", &io.lse, &[s.targets, s.heads])?;
    let mut inputs = Inputs::new(&[
        ("dy", io.dy),
        ("src", io.src),
        ("dst", io.dst),
        ("x", io.x),
        ("score_src", io.score_src),
        ("score_dst", io.score_dst),
        ("lse", io.lse),
    ]);
    c.opt_groups("by_src", &io.by_src, s.sources, &io.src, &mut inputs)?;
    c.opt_groups("by_dst", &io.by_dst, s.targets, &io.dst, &mut inputs)?;
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    c.grad("dscore_src", io.dscore_src.as_ref(), &io.x, io.score_src.shape(), &mut inputs)?;
    c.grad("dscore_dst", io.dscore_dst.as_ref(), &io.x, io.score_dst.shape(), &mut inputs)?;
    Ok(s)
}

/// Checks of the two softmax operations: edges, columns.
pub(crate) fn check_edge_softmax<'a>(
    op: &'static str,
    nodes: usize,
    dst: &View<'a>,
    groups: &Option<EdgeGroups<'a>>,
    given: &[(&'static str, View<'a>)],
    out: (&'static str, &ViewMut<'a>),
) -> Result<(usize, usize)> {
    let c = Checker::new(op);
    let edges = c.list("dst", dst)?;
    let mut inputs = Inputs::new(&[("dst", *dst)]);
    let v = out.1.as_view();
    c.float(out.0, &v)?;
    if c.rows(out.0, &v)? != edges {
        return c.wrong(out.0, format!("[{edges}, ..]"), v.shape());
    }
    for (arg, x) in given {
        c.like(arg, x, &v)?;
        c.shape(arg, x, v.shape())?;
        inputs.add(arg, *x);
    }
    let columns = product(&v.shape()[1..]);
    c.small(&[nodes, edges, columns])?;
    c.opt_groups("groups", groups, nodes, dst, &mut inputs)?;
    c.output(out.0, out.1, &inputs)?;
    Ok((edges, columns))
}
