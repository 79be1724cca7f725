//! Graphs: checks that the engine and the CPU make first, and the sizes that they find.

use crate::ops::graph::checker::{Checker, Inputs, joined, product};
use crate::ops::graph::*;
use crate::ops::gemm::fused_act;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::Result;

/// Checks of [`GraphOps::degree`].
pub(crate) fn check_degree(dst: &View<'_>, degree: &ViewMut<'_>) -> Result<()> {
    let c = Checker::new("degree");
    let n = c.list("dst", dst)?;
    let v = degree.as_view();
    if v.shape().len() != 1 {
        return c.wrong("degree", "a vector", v.shape());
    }
    c.small(&[n, v.numel()])?;
    let shape = [v.numel()];
    c.out("degree", Some(degree), DType::I64, &shape, &mut Inputs::new(&[("dst", *dst)]))
}

/// Checks of [`GraphOps::sym_normalize`]: nodes.
pub(crate) fn check_sym_normalize(
    rowptr: &View<'_>,
    col: &View<'_>,
    values: &Option<View<'_>>,
    y: &ViewMut<'_>,
) -> Result<usize> {
    let c = Checker::new("sym_normalize");
    let nodes = c.rowptr(rowptr)?;
    let entries = c.list("col", col)?;
    c.same_index("col", col, rowptr.dtype())?;
    let v = y.as_view();
    c.float("y", &v)?;
    if let Some(x) = values {
        c.like("values", x, &v)?;
        c.shape("values", x, &[entries])?;
    }
    c.small(&[nodes, entries])?;
    let mut inputs = Inputs::new(&[("rowptr", *rowptr), ("col", *col)]).opt("values", values);
    c.out("y", Some(y), v.dtype(), &[entries], &mut inputs)?;
    Ok(nodes)
}

/// Sizes of a checked operation on edges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EdgeShape {
    /// Rows of what is read at the other ends.
    pub(crate) others: usize,
    /// Rows of the result.
    pub(crate) nodes: usize,
    /// Edges.
    pub(crate) edges: usize,
    /// Elements of a node's row.
    pub(crate) columns: usize,
    /// Elements per edge of the values or edge features; 0 without.
    pub(crate) parts: usize,
}

fn matrix<'a>(
    c: &Checker,
    (rowptr, col, values, x): (&View<'a>, &View<'a>, &Option<View<'a>>, &View<'a>),
    y: (&'static str, &View<'_>),
) -> Result<(EdgeShape, Inputs<'a>)> {
    let nodes = c.rowptr(rowptr)?;
    let edges = c.list("col", col)?;
    c.same_index("col", col, rowptr.dtype())?;
    c.float("x", x)?;
    let others = c.rows("x", x)?;
    let tail = &x.shape()[1..];
    let mut parts = 0;
    if let Some(v) = values {
        c.like("values", v, x)?;
        parts = c.parts("values", v, edges, tail)?;
    }
    c.like(y.0, y.1, x)?;
    c.shape(y.0, y.1, &joined(nodes, tail))?;
    let s = EdgeShape { others, nodes, edges, columns: product(tail), parts };
    c.small(&[s.others, s.nodes, s.edges, s.columns])?;
    Ok((s, Inputs::new(&[("rowptr", *rowptr), ("col", *col), ("x", *x)]).opt("values", values)))
}

/// Checks of [`GraphOps::spmm`].
pub(crate) fn check_spmm(io: &Spmm<'_>) -> Result<EdgeShape> {
    let c = Checker::new("spmm");
    fused_act(c.op, io.act)?;
    let (s, inputs) = matrix(&c, (&io.rowptr, &io.col, &io.values, &io.x), ("y", &io.y.as_view()))?;
    if let Some(b) = &io.bias {
        c.like("bias", b, &io.x)?;
        c.shape("bias", b, &[*io.x.shape()[1..].last().unwrap_or(&1)])?;
    }
    c.output("y", &io.y, &inputs.opt("bias", &io.bias))?;
    Ok(s)
}

/// Checks of [`GraphOps::spmm_bwd`].
pub(crate) fn check_spmm_bwd(io: &SpmmBwd<'_>) -> Result<EdgeShape> {
    let c = Checker::new("spmm_bwd");
    let (s, mut inputs) = matrix(&c, (&io.rowptr, &io.col, &io.values, &io.x), ("dy", &io.dy))?;
    inputs.add("dy", io.dy);
    if let Some(t) = &io.transpose {
        c.groups("transpose", t, s.others, s.edges, io.col.dtype(), &mut inputs)?;
        if t.perm.is_none() || t.col.is_none() {
            return c.wrong("transpose", "a plan with `col` and `perm`", "one without");
        }
    }
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    match &io.values {
        Some(v) => c.grad("dvalues", io.dvalues.as_ref(), v, v.shape(), &mut inputs)?,
        None if io.dvalues.is_some() => return c.wrong("dvalues", "none without `values`", "one"),
        None => {}
    }
    let bias = [*io.x.shape()[1..].last().unwrap_or(&1)];
    c.grad("dbias", io.dbias.as_ref(), &io.x, &bias, &mut inputs)?;
    Ok(s)
}

impl Message {
    pub(crate) fn needs_e(self) -> bool {
        matches!(self, Message::CopyE | Message::UMulE | Message::UAddE)
    }

    /// Whether x_v takes part, so that both ends are of one set of nodes.
    pub(crate) fn needs_v(self) -> bool {
        matches!(self, Message::UAddV | Message::USubV | Message::UMulV | Message::UDotV)
    }
}

fn need<'b, 'a>(c: &Checker, arg: &'static str, v: &'b Option<View<'a>>) -> Result<&'b View<'a>> {
    match v {
        Some(v) => Ok(v),
        None => c.wrong(arg, "an operand", "none"),
    }
}

/// Checks of [`GraphOps::message_passing`].
pub(crate) fn check_messages(m: Message, r: MessageReduce, io: &Messages<'_>) -> Result<EdgeShape> {
    let c = Checker::new("message_passing");
    let edges = c.ends(&io.src, &io.dst)?;
    let y = io.y.as_view();
    c.float("y", &y)?;
    let mut inputs = Inputs::new(&[("src", io.src), ("dst", io.dst)]).opt("x", &io.x).opt("e", &io.e);
    let rows = if m == Message::CopyE { need(&c, "e", &io.e)? } else { need(&c, "x", &io.x)? };
    c.like(if m == Message::CopyE { "e" } else { "x" }, rows, &y)?;
    let others = c.rows("x", rows)?;
    let tail = rows.shape()[1..].to_vec();
    let parts = if m.needs_e() {
        let e = need(&c, "e", &io.e)?;
        c.like("e", e, &y)?;
        c.parts("e", e, edges, &tail)?
    } else {
        0
    };
    let mut nodes = c.rows("y", &y)?;
    if m == Message::UDotV {
        let Some((_, lead)) = tail.split_last() else {
            return c.wrong("x", "[U, F] or more axes", rows.shape());
        };
        c.shape("y", &y, &joined(edges, lead))?;
        nodes = others;
    } else {
        c.shape("y", &y, &joined(nodes, &tail))?;
    }
    if m.needs_v() && others != nodes {
        return c.wrong("x", format!("{nodes} nodes, as y has"), rows.shape());
    }
    let others = if m == Message::CopyE { edges } else { others };
    let s = EdgeShape { others, nodes, edges, columns: product(&tail), parts };
    c.small(&[s.others, s.nodes, s.edges, s.columns])?;
    c.opt_groups("by_dst", &io.by_dst, nodes, &io.dst, &mut inputs)?;
    c.out("y", Some(&io.y), y.dtype(), y.shape(), &mut inputs)?;
    let extreme = matches!(r, MessageReduce::Max | MessageReduce::Min) && m != Message::UDotV;
    if io.arg.is_some() && !extreme {
        return c.wrong("arg", "none: only max and min choose an edge", "one");
    }
    c.out("arg", io.arg.as_ref(), io.src.dtype(), y.shape(), &mut inputs)?;
    c.out("degree", io.degree.as_ref(), io.src.dtype(), &[nodes], &mut inputs)?;
    Ok(s)
}

/// Checks of [`GraphOps::message_passing_bwd`].
pub(crate) fn check_messages_bwd(m: Message, r: MessageReduce, io: &MessagesBwd<'_>) -> Result<EdgeShape> {
    let c = Checker::new("message_passing_bwd");
    let edges = c.ends(&io.src, &io.dst)?;
    c.float("dy", &io.dy)?;
    let first = c.rows("dy", &io.dy)?;
    let mut inputs = Inputs::new(&[("dy", io.dy), ("src", io.src), ("dst", io.dst)])
        .opt("x", &io.x)
        .opt("e", &io.e)
        .opt("arg", &io.arg)
        .opt("degree", &io.degree);
    let reads_x = matches!(m, Message::UMulE | Message::UMulV | Message::UDotV);
    let x = if reads_x { Some(need(&c, "x", &io.x)?) } else { io.x.as_ref() };
    let mut tail = io.dy.shape()[1..].to_vec();
    let mut nodes = first;
    if m == Message::UDotV {
        tail = x.map_or(vec![], |x| x.shape().get(1..).unwrap_or_default().to_vec());
        let Some((_, lead)) = tail.split_last() else { return c.wrong("x", "[U, F] or more axes", ()) };
        c.shape("dy", &io.dy, &joined(edges, lead))?;
        nodes = x.map_or(0, |x| x.shape()[0]);
    }
    let grad_rows = io.dx.as_ref().map(|g| g.out.shape().first().copied().unwrap_or(0));
    let others = match x {
        _ if m == Message::CopyE => edges,
        Some(x) => c.rows("x", x)?,
        None if m.needs_v() => nodes,
        None => grad_rows.unwrap_or(nodes),
    };
    if m.needs_v() && others != nodes {
        return c.wrong("x", format!("{nodes} nodes, as dy has"), others);
    }
    let x_shape = joined(others, &tail);
    if let Some(x) = x.filter(|_| m != Message::CopyE) {
        c.like("x", x, &io.dy)?;
        c.shape("x", x, &x_shape)?;
    }
    let mut parts = 0;
    let mut e_shape = vec![];
    if m.needs_e() {
        let e = match (&io.e, &io.de) {
            (Some(e), _) => Some(*e),
            (None, _) if m == Message::UMulE && io.dx.is_some() => return c.wrong("e", "an operand", "none"),
            (None, Some(g)) => Some(g.out.as_view()),
            (None, None) => None,
        };
        if let Some(e) = e {
            c.like("e", &e, &io.dy)?;
            parts = c.parts("e", &e, edges, &tail)?;
            e_shape = e.shape().to_vec();
        }
    }
    let s = EdgeShape { others, nodes, edges, columns: product(&tail), parts };
    c.small(&[s.others, s.nodes, s.edges, s.columns])?;
    if matches!(r, MessageReduce::Max | MessageReduce::Min) && m != Message::UDotV {
        let arg = need(&c, "arg", &io.arg)?;
        c.same_index("arg", arg, io.src.dtype())?;
        c.shape("arg", arg, io.dy.shape())?;
    }
    if let Some(d) = &io.degree {
        c.same_index("degree", d, io.src.dtype())?;
        c.shape("degree", d, &[nodes])?;
    }
    c.opt_groups("by_src", &io.by_src, others, &io.src, &mut inputs)?;
    c.opt_groups("by_dst", &io.by_dst, nodes, &io.dst, &mut inputs)?;
    if m == Message::CopyE && io.dx.is_some() {
        return c.wrong("dx", "none: x takes no part", "one");
    }
    if !m.needs_e() && io.de.is_some() {
        return c.wrong("de", "none: e takes no part", "one");
    }
    c.grad("dx", io.dx.as_ref(), &io.dy, &x_shape, &mut inputs)?;
    c.grad("de", io.de.as_ref(), &io.dy, &e_shape, &mut inputs)?;
    Ok(s)
}

/// Sizes of a checked sddmm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairShape {
    pub(crate) edges: usize,
    pub(crate) sources: usize,
    pub(crate) targets: usize,
    /// Elements of a row.
    pub(crate) columns: usize,
    /// Elements of the result per edge.
    pub(crate) parts: usize,
}

fn pairs(
    c: &Checker,
    op: EdgeOp,
    (src, dst, x, y): (&View<'_>, &View<'_>, &View<'_>, &View<'_>),
    out: (&'static str, &View<'_>),
) -> Result<PairShape> {
    let edges = c.ends(src, dst)?;
    c.float("x", x)?;
    c.like("y", y, x)?;
    let (sources, targets) = (c.rows("x", x)?, c.rows("y", y)?);
    let tail = &x.shape()[1..];
    c.shape("y", y, &joined(targets, tail))?;
    let kept = match (op, tail.split_last()) {
        (EdgeOp::Dot, Some((_, lead))) => lead,
        (EdgeOp::Dot, None) => return c.wrong("x", "[U, F] or more axes", x.shape()),
        _ => tail,
    };
    c.like(out.0, out.1, x)?;
    c.shape(out.0, out.1, &joined(edges, kept))?;
    let s = PairShape { edges, sources, targets, columns: product(tail), parts: product(kept) };
    c.small(&[s.edges, s.sources, s.targets, s.columns])?;
    Ok(s)
}

/// Checks of [`GraphOps::sddmm`].
pub(crate) fn check_sddmm(
    op: EdgeOp,
    src: &View<'_>,
    dst: &View<'_>,
    x: &View<'_>,
    y: &View<'_>,
    out: &ViewMut<'_>,
) -> Result<PairShape> {
    let c = Checker::new("sddmm");
    let s = pairs(&c, op, (src, dst, x, y), ("out", &out.as_view()))?;
    c.output("out", out, &Inputs::new(&[("src", *src), ("dst", *dst), ("x", *x), ("y", *y)]))?;
    Ok(s)
}

/// Checks of [`GraphOps::sddmm_bwd`].
pub(crate) fn check_sddmm_bwd(op: EdgeOp, io: &SddmmBwd<'_>) -> Result<PairShape> {
    let c = Checker::new("sddmm_bwd");
    let s = pairs(&c, op, (&io.src, &io.dst, &io.x, &io.y), ("dout", &io.dout))?;
    let mut inputs =
        Inputs::new(&[("dout", io.dout), ("src", io.src), ("dst", io.dst), ("x", io.x), ("y", io.y)]);
    c.opt_groups("by_src", &io.by_src, s.sources, &io.src, &mut inputs)?;
    c.opt_groups("by_dst", &io.by_dst, s.targets, &io.dst, &mut inputs)?;
    c.grad("dx", io.dx.as_ref(), &io.x, io.x.shape(), &mut inputs)?;
    c.grad("dy", io.dy.as_ref(), &io.x, io.y.shape(), &mut inputs)?;
    Ok(s)
}

/// Sizes of a checked reduction of groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupShape {
    pub(crate) outer: usize,
    pub(crate) sources: usize,
    pub(crate) inner: usize,
    pub(crate) nodes: usize,
}

fn group_shape(
    c: &Checker,
    src: (&'static str, &View<'_>),
    y: (&'static str, &View<'_>),
) -> Result<GroupShape> {
    c.float(src.0, src.1)?;
    c.like(y.0, y.1, src.1)?;
    let (a, b) = (src.1.shape(), y.1.shape());
    let (&[outer, sources, inner], 3) = (a, b.len()) else {
        return c.wrong(src.0, "[outer, n, inner], and three axes of the result", (a, b));
    };
    c.shape(y.0, y.1, &[outer, b[1], inner])?;
    c.small(&[sources, b[1], outer * inner])?;
    Ok(GroupShape { outer, sources, inner, nodes: b[1] })
}

/// Checks of [`GraphOps::group_reduce`].
pub(crate) fn check_group(how: GroupReduce, io: &GroupIo<'_>) -> Result<GroupShape> {
    let c = Checker::new("group_reduce");
    let y = io.y.out.as_view();
    let s = group_shape(&c, ("src", &io.src), ("y", &y))?;
    c.index("index", &io.index)?;
    c.shape("index", &io.index, &[s.sources])?;
    if io.y.accumulate && how != GroupReduce::Sum {
        return c.wrong("y", "an output that is overwritten (only sums accumulate)", "accumulation");
    }
    if let GroupReduce::Std { eps, .. } = how
        && !(eps >= 0.0 && eps.is_finite())
    {
        return c.wrong("eps", "a finite number of at least 0", eps);
    }
    let mut inputs = Inputs::new(&[("src", io.src), ("index", io.index)]);
    c.opt_groups("groups", &io.groups, s.nodes, &io.index, &mut inputs)?;
    c.out("y", Some(&io.y.out), y.dtype(), y.shape(), &mut inputs)?;
    if io.arg.is_some() && !matches!(how, GroupReduce::Max { .. } | GroupReduce::Min { .. }) {
        return c.wrong("arg", "none: only max and min choose a source", "one");
    }
    c.out("arg", io.arg.as_ref(), io.index.dtype(), y.shape(), &mut inputs)?;
    c.out("counts", io.counts.as_ref(), DType::I32, &[s.nodes], &mut inputs)?;
    Ok(s)
}

/// Checks of [`GraphOps::group_reduce_bwd`].
pub(crate) fn check_group_bwd(how: GroupReduce, io: &GroupBwd<'_>) -> Result<GroupShape> {
    let c = Checker::new("group_reduce_bwd");
    let d = io.dsrc.out.as_view();
    let s = group_shape(&c, ("dsrc", &d), ("dy", &io.dy))?;
    let mut inputs = Inputs::new(&[("dy", io.dy)])
        .opt("index", &io.index)
        .opt("src", &io.src)
        .opt("y", &io.y)
        .opt("arg", &io.arg)
        .opt("counts", &io.counts);
    let extreme = matches!(how, GroupReduce::Max { .. } | GroupReduce::Min { .. });
    if !extreme {
        need(&c, "index", &io.index)?;
    }
    if let Some(i) = &io.index {
        c.index("index", i)?;
        c.shape("index", i, &[s.sources])?;
        c.opt_groups("groups", &io.groups, s.nodes, i, &mut inputs)?;
    }
    if extreme {
        let arg = need(&c, "arg", &io.arg)?;
        c.index("arg", arg)?;
        c.shape("arg", arg, io.dy.shape())?;
    }
    if how == GroupReduce::Mean {
        let n = need(&c, "counts", &io.counts)?;
        c.same_index("counts", n, DType::I32)?;
        c.shape("counts", n, &[s.nodes])?;
    }
    if matches!(how, GroupReduce::Prod | GroupReduce::Std { .. }) {
        let x = need(&c, "src", &io.src)?;
        c.like("src", x, &d)?;
        c.shape("src", x, d.shape())?;
    }
    if matches!(how, GroupReduce::Std { .. }) {
        let y = need(&c, "y", &io.y)?;
        c.like("y", y, &d)?;
        c.shape("y", y, io.dy.shape())?;
    }
    c.out("dsrc", Some(&io.dsrc.out), d.dtype(), d.shape(), &mut inputs)?;
    Ok(s)
}
