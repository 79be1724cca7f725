//! Graphs: messages, their gradients, and reductions of groups.

pub(super) mod aggregate;
pub(super) mod attention;
pub(super) mod csr;
pub(super) mod plan;

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, code_of_op, dims};
use crate::engine::ops::graph::aggregate::*;
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::plan::*;
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::fused_act;
use crate::ops::graph::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::BLOCK;
use crate::spec::kernels::graph::*;

/// Rows of a per-edge computation: A by one list of ends, B by another.
#[derive(Clone, Copy)]
struct Pair<'a> {
    op: &'static str,
    left: View<'a>,
    a: View<'a>,
    a_rows: usize,
    right: Option<(View<'a>, View<'a>, usize)>,
    degree: Option<View<'a>>,
    mask: Option<View<'a>>,
}

impl<'a> Pair<'a> {
    /// A by one list, B by another: index, rows and their number.
    fn new(
        op: &'static str,
        (left, a, a_rows): (View<'a>, View<'a>, usize),
        right: Option<(View<'a>, View<'a>, usize)>,
    ) -> Self {
        Pair { op, left, a, a_rows, right, degree: None, mask: None }
    }

    /// Whether the degree or the mask is 64-bit.
    fn wide_saved(&self) -> bool {
        self.degree.or(self.mask).is_some_and(|v| v.dtype() == DType::I64)
    }
}

/// How the rows of a pair become one (`op` of the kernel).
#[derive(Clone, Copy)]
#[repr(i32)]
enum How {
    /// A alone.
    Left = 0,
    Add = 1,
    Sub = 2,
    Mul = 3,
}

/// A function per edge: operands of the kernel, for `inner` columns of `nodes` nodes, `outer` times.
struct EdgeApply<'a> {
    op: &'static str,
    /// Softmax, its gradient, and those of a standard deviation and a product, as in the kernel.
    what: i32,
    node: View<'a>,
    rows: [Option<View<'a>>; 4],
    stats: [Option<View<'a>>; 2],
    /// Only of a standard deviation.
    rowptr: Option<View<'a>>,
    correction: u32,
    size: (usize, usize, usize),
}

impl Engine {
    /// What runs a pass over a million edges with 64 columns in f32.
    pub(crate) fn explain_graph(&self, op: &'static str) -> Result<Choice> {
        let nodes = NodeProblem { dtype: DType::F32, columns: 64, edges: 1_000_000, wide: true };
        match op {
            "group_reduce_bwd" => {
                self.explain_problem(op, &GroupBwdProblem { nodes, row: 256, grouped: true })
            }
            _ => self.explain_problem(op, &nodes),
        }
    }

    /// `out[o, e, c] (+)= A[left[e]] how B[right[e]]`; `size`: outer, inner.
    fn edge_map(
        &self,
        p: &Pair<'_>,
        how: How,
        [outer, inner]: [usize; 2],
        out: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (dt, edges) = (out.dtype(), p.left.numel());
        let b = p.right.map(|r| r.1);
        let wide = wide_rows(dt, inner, [Some(p.a), b, Some(*out)].into_iter().flatten());
        let w = NodeProblem { dtype: dt, columns: outer * inner, edges: 0, wide }.whole();
        let args = EdgeMapArgs {
            left: self.arg_in(&p.left),
            right: self.arg_opt(p.right.map(|r| r.0).as_ref()),
            a: self.arg_in(&p.a),
            b: self.arg_opt(b.as_ref()),
            degree: self.arg_opt(p.degree.as_ref()),
            mask: self.arg_opt(p.mask.as_ref()),
            out: self.arg_in(out),
            err: self.arg_error(),
            size: dims([edges, outer * inner, inner, p.a_rows, p.right.map_or(0, |r| r.2), w.lane_bits()]),
            op: how as i32,
            alpha: 1.0,
            wide_index: wide_index(&p.left),
            wide_saved: i32::from(p.wide_saved()),
            wide: i32::from(wide),
            accumulate: i32::from(accumulate),
            code: code_of_op(p.op),
        };
        self.launch(&EDGE_MAP, dt, "", w.grid(edges.div_ceil(4)), &args)
    }

    /// `out[e, j] (+)=` the inner product of A[left[e]] and B[right[e]] over part j of `parts`.
    fn edge_dot(
        &self,
        p: &Pair<'_>,
        parts: usize,
        columns: usize,
        out: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (dt, edges) = (out.dtype(), p.left.numel());
        let b = p.right.map(|r| r.1);
        let span = columns / parts.max(1);
        let wide = wide_rows(dt, span, [Some(p.a), b].into_iter().flatten());
        let vecs = if wide { span * dt.size() / 16 } else { span };
        let lanes = vecs.clamp(1, 32).next_power_of_two();
        let args = EdgeDotArgs {
            left: self.arg_in(&p.left),
            right: self.arg_opt(p.right.map(|r| r.0).as_ref()),
            a: self.arg_in(&p.a),
            b: self.arg_opt(b.as_ref()),
            degree: self.arg_opt(p.degree.as_ref()),
            mask: self.arg_opt(p.mask.as_ref()),
            out: self.arg_in(out),
            stat: Ptr::NULL,
            err: self.arg_error(),
            size: dims([edges, parts, span, p.a_rows, p.right.map_or(0, |r| r.2), lanes]),
            wide_index: wide_index(&p.left),
            wide_saved: i32::from(p.wide_saved()),
            wide: i32::from(wide),
            accumulate: i32::from(accumulate),
            code: code_of_op(p.op),
        };
        let blocks = edges.div_ceil(4 * (BLOCK as usize / lanes));
        self.launch(&EDGE_DOT, dt, "", Grid::Blocks([blocks, parts.min(MAX_GRID_YZ), 1]), &args)
    }

    fn message_grad_e(
        &self,
        m: Message,
        s: &EdgeShape,
        io: &MessagesBwd<'_>,
        degree: Option<View<'_>>,
        de: &GradMut<'_>,
    ) -> Result<()> {
        let right = io.x.filter(|_| m == Message::UMulE).map(|x| (io.src, x, s.others));
        let p = Pair::new("message_passing_bwd", (io.dst, io.dy, s.nodes), right);
        let p = Pair { degree, mask: io.arg, ..p };
        let out = de.out.as_view();
        if s.parts == s.columns {
            let how = if right.is_some() { How::Mul } else { How::Left };
            return self.edge_map(&p, how, [1, s.columns], &out, de.accumulate);
        }
        self.edge_dot(&p, s.parts, s.columns, &out, de.accumulate)
    }

    /// Sums over the edges that leave a node, then, where x_v takes part, over those that enter it.
    fn message_grad_x(
        &self,
        m: Message,
        r: MessageReduce,
        s: &EdgeShape,
        io: &MessagesBwd<'_>,
        degree: Option<View<'_>>,
        dx: &GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "message_passing_bwd";
        let (dt, out) = (io.dy.dtype(), dx.out.as_view());
        let parts = s.columns / io.x.and_then(|x| x.shape().last().copied()).unwrap_or(1).max(1);
        let needs_perm = matches!(m, Message::UMulE | Message::UDotV) || io.arg.is_some();
        let by_src =
            self.grouped(OP, s.others, &io.src, Some((&io.dst, s.nodes)), io.by_src.as_ref(), needs_perm)?;
        let leave = Aggregate::new(OP, dt, &by_src, s.nodes, s.columns);
        let leave = match (m, io.e, io.x) {
            (Message::UDotV, _, Some(x)) => leave.at_others(x).times(io.dy, parts, true),
            (Message::UMulE, Some(e), _) => leave.at_others(io.dy).times(e, s.parts, true),
            (Message::UMulV, _, Some(x)) => leave.at_others(io.dy).times(x, s.columns, false),
            _ => leave.at_others(io.dy),
        };
        let leave = Aggregate { degree, mask: io.arg.map(|a| (a, false)), ..leave };
        if !m.needs_v() {
            return self.aggregate(&leave, Red::Sum, To::Tensor(out, dx.accumulate));
        }
        let first = self.statistics(dt, out.numel())?;
        self.aggregate(&leave, Red::Sum, To::Stat(first.view()))?;
        let by_dst =
            self.grouped(OP, s.nodes, &io.dst, Some((&io.src, s.others)), io.by_dst.as_ref(), needs_perm)?;
        let enter = Aggregate::new(OP, dt, &by_dst, s.others, s.columns);
        let enter = match (m, io.x) {
            (Message::UDotV, Some(x)) => enter.at_others(x).times(io.dy, parts, true),
            (Message::UMulV, Some(x)) => {
                Aggregate { own: Some(io.dy), kind: Kind::TimesSelf, ..enter.at_others(x) }
            }
            _ => Aggregate { own: Some(io.dy), kind: Kind::TimesSelf, ..enter },
        };
        let alpha = if m == Message::USubV { -1.0 } else { 1.0 };
        let mask = io.arg.map(|a| (a, true));
        let enter = Aggregate { base: Some(first.view()), alpha, mask, ..enter };
        let red = if r == MessageReduce::Mean && m != Message::UDotV { Red::Mean } else { Red::Sum };
        self.aggregate(&enter, red, To::Tensor(out, dx.accumulate))
    }

    /// Per edge of a softmax, a standard deviation or a product.
    fn edge_apply(&self, p: &EdgeApply<'_>, out: &GradMut<'_>) -> Result<()> {
        let v = out.out.as_view();
        let (dt, (outer, nodes, inner)) = (v.dtype(), p.size);
        let wide = wide_rows(dt, inner, p.rows.into_iter().chain([Some(v)]).flatten());
        let w = NodeProblem { dtype: dt, columns: outer * inner, edges: 0, wide }.whole();
        let edges = p.node.numel();
        let [x, z, u, y] = p.rows.map(|v| self.arg_opt(v.as_ref()));
        let [s, t] = p.stats.map(|v| self.arg_opt(v.as_ref()));
        let args = EdgeApplyArgs {
            node: self.arg_in(&p.node),
            x,
            z,
            s,
            t,
            u,
            y,
            rowptr: self.arg_opt(p.rowptr.as_ref()),
            out: self.arg_in(&v),
            err: self.arg_error(),
            size: dims([edges, outer * inner, inner, nodes, w.lane_bits(), p.correction as usize]),
            what: p.what,
            wide_index: wide_index(&p.node),
            wide_rowptr: i32::from(p.rowptr.is_some_and(|r| r.dtype() == DType::I64)),
            wide: i32::from(wide),
            accumulate: i32::from(out.accumulate),
            code: code_of_op(p.op),
        };
        self.launch(&EDGE_APPLY, dt, "", w.grid(edges), &args)
    }

    fn group_std(&self, p: &Aggregate<'_>, correction: u32, eps: f64, y: &View<'_>) -> Result<()> {
        let mean = self.statistics(p.dtype, y.numel())?;
        self.aggregate(p, Red::Mean, To::Stat(mean.view()))?;
        let sum = self.statistics(p.dtype, y.numel())?;
        let squares = Aggregate { own_stat: Some(mean.view()), kind: Kind::Deviation, ..*p };
        self.aggregate(&squares, Red::Sum, To::Stat(sum.view()))?;
        let rowptr = p.edges.rowptr.view();
        let args = GroupStdArgs {
            rowptr: self.arg_in(&rowptr),
            sum: self.arg_in(&sum.view()),
            y: self.arg_in(y),
            n: y.numel() as i64,
            nodes: p.edges.nodes as i64,
            inner: p.inner as i64,
            wide_index: wide_index(&rowptr),
            correction: correction.min(i32::MAX as u32) as i32,
            eps,
        };
        self.launch(&GROUP_STD, p.dtype, "", Grid::Stride(y.numel()), &args)
    }
}

impl GraphOps for Engine {
    fn degree(&self, dst: View<'_>, degree: ViewMut<'_>) -> Result<()> {
        const OP: &str = "degree";
        check_degree(&dst, &degree)?;
        let v = degree.as_view();
        self.check_owner_all(OP, &[("dst", dst), ("degree", v)])?;
        let edges = self.grouped(OP, v.numel(), &dst, None, None, false)?;
        self.counts(&edges, &v)
    }

    fn sym_normalize(
        &self,
        rowptr: View<'_>,
        col: View<'_>,
        values: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "sym_normalize";
        let nodes = check_sym_normalize(&rowptr, &col, &values, &y)?;
        let v = y.as_view();
        self.own_graph(
            OP,
            &[("rowptr", Some(rowptr)), ("col", Some(col)), ("values", values), ("y", Some(v))],
            &[],
        )?;
        let (dt, n) = (v.dtype(), v.numel());
        let edges = Edges::given(&EdgeGroups::new(rowptr), nodes, n, true);
        let sums = self.statistics(dt, nodes)?;
        let p = Aggregate { a: values, a_at_edge: true, ..Aggregate::new(OP, dt, &edges, nodes, 1) };
        self.aggregate(&p, Red::Sum, To::Stat(sums.view()))?;
        let rows = self.entry_rows(OP, &rowptr, n)?;
        let args = SymScaleArgs {
            row: self.arg_in(&rows.view()),
            col: self.arg_in(&col),
            value: self.arg_opt(values.as_ref()),
            d: self.arg_in(&sums.view()),
            out: self.arg_in(&v),
            err: self.arg_error(),
            n: n as i64,
            nodes: nodes as i32,
            wide_index: wide_index(&col),
            code: code_of_op(OP),
        };
        self.launch(&SYM_SCALE, dt, "", Grid::Stride(n), &args)
    }

    fn spmm(&self, io: Spmm<'_>) -> Result<()> {
        const OP: &str = "spmm";
        let s = check_spmm(&io)?;
        let y = io.y.as_view();
        let views = [
            ("rowptr", Some(io.rowptr)),
            ("col", Some(io.col)),
            ("values", io.values),
            ("x", Some(io.x)),
            ("bias", io.bias),
            ("y", Some(y)),
        ];
        self.own_graph(OP, &views, &[])?;
        let edges = Edges::given(&EdgeGroups::new(io.rowptr).col(io.col), s.nodes, s.edges, true);
        let p = Aggregate::new(OP, y.dtype(), &edges, s.others, s.columns).at_others(io.x);
        let p = match io.values {
            Some(v) => p.times(v, s.parts, true),
            None => p,
        };
        let p = Aggregate { bias: io.bias, act: fused_act(OP, io.act)?, ..p };
        self.aggregate(&p, Red::Sum, To::Tensor(y, false))
    }

    fn spmm_bwd(&self, io: SpmmBwd<'_>) -> Result<()> {
        const OP: &str = "spmm_bwd";
        let s = check_spmm_bwd(&io)?;
        let dt = io.x.dtype();
        let views = [
            ("dy", Some(io.dy)),
            ("rowptr", Some(io.rowptr)),
            ("col", Some(io.col)),
            ("values", io.values),
            ("x", Some(io.x)),
            ("dx", grad_view(&io.dx)),
            ("dvalues", grad_view(&io.dvalues)),
            ("dbias", grad_view(&io.dbias)),
        ];
        self.own_graph(OP, &views, &[&io.transpose])?;
        let sorts = io.dx.is_some() && io.transpose.is_none();
        let rows = if io.dvalues.is_some() || sorts {
            Some(self.entry_rows(OP, &io.rowptr, s.edges)?)
        } else {
            None
        };
        if let Some(dx) = &io.dx {
            let row_list = rows.as_ref().map(|r| r.view());
            let others = row_list.as_ref().map(|r| (r, s.nodes));
            let edges = match &io.transpose {
                Some(t) => Edges::given(t, s.others, s.edges, true),
                None => self.grouped(OP, s.others, &io.col, others, None, true)?,
            };
            let p = Aggregate::new(OP, dt, &edges, s.nodes, s.columns).at_others(io.dy);
            let p = match io.values {
                Some(v) => p.times(v, s.parts, true),
                None => p,
            };
            self.aggregate(&p, Red::Sum, To::Tensor(dx.out.as_view(), dx.accumulate))?;
        }
        if let (Some(g), Some(rows)) = (&io.dvalues, &rows) {
            // Both lists of a pair have one type: the columns are brought to that of the rows.
            let narrow = self.narrow_list(OP, &io.col)?;
            let col = narrow.view();
            let right = Some((col, io.x, s.others));
            let p = Pair::new(OP, (rows.view(), io.dy, s.nodes), right);
            let out = g.out.as_view();
            if s.parts == s.columns {
                self.edge_map(&p, How::Mul, [1, s.columns], &out, g.accumulate)?;
            } else {
                self.edge_dot(&p, s.parts, s.columns, &out, g.accumulate)?;
            }
        }
        match io.dbias {
            Some(g) => self.sum_to_shape(io.dy, g),
            None => Ok(()),
        }
    }

    fn message_passing(&self, m: Message, r: MessageReduce, io: Messages<'_>) -> Result<()> {
        const OP: &str = "message_passing";
        let s = check_messages(m, r, &io)?;
        let y = io.y.as_view();
        let (arg, degree) = (out_view(&io.arg), out_view(&io.degree));
        let views = [
            ("src", Some(io.src)),
            ("dst", Some(io.dst)),
            ("x", io.x),
            ("e", io.e),
            ("y", Some(y)),
            ("arg", arg),
            ("degree", degree),
        ];
        self.own_graph(OP, &views, &[&io.by_dst])?;
        let dt = y.dtype();
        let extreme = matches!(r, MessageReduce::Max | MessageReduce::Min);
        let needs_perm = m.needs_e() || (extreme && m != Message::UDotV);
        if let (Message::UDotV, Some(x)) = (m, io.x) {
            let right = Some((io.dst, x, s.nodes));
            let p = Pair::new(OP, (io.src, x, s.others), right);
            let parts = y.numel() / s.edges.max(1);
            self.edge_dot(&p, parts, s.columns, &y, false)?;
            if degree.is_none() {
                return Ok(());
            }
        }
        let other = Some((&io.src, s.others)).filter(|_| m != Message::CopyE);
        let edges = self.grouped(OP, s.nodes, &io.dst, other, io.by_dst.as_ref(), needs_perm)?;
        if let Some(d) = &degree {
            self.counts(&edges, d)?;
        }
        let p = Aggregate::new(OP, dt, &edges, s.others, s.columns);
        let p = match (m, io.x, io.e) {
            (Message::UDotV, ..) => return Ok(()),
            (Message::CopyE, _, Some(e)) => {
                // Sources may be out of range too, though nothing is read from them.
                self.check_list(OP, &io.src, None)?;
                p.at_edges(e)
            }
            (Message::UMulE, Some(x), Some(e)) => p.at_others(x).times(e, s.parts, true),
            (Message::UAddE, Some(x), Some(e)) => {
                Aggregate { kind: Kind::PlusB, ..p.at_others(x).times(e, s.parts, true) }
            }
            (Message::UAddV, Some(x), _) => {
                Aggregate { own: Some(x), kind: Kind::PlusSelf, ..p.at_others(x) }
            }
            (Message::USubV, Some(x), _) => {
                Aggregate { own: Some(x), kind: Kind::MinusSelf, ..p.at_others(x) }
            }
            (Message::UMulV, Some(x), _) => {
                Aggregate { own: Some(x), kind: Kind::TimesSelf, ..p.at_others(x) }
            }
            (_, Some(x), _) => p.at_others(x),
            _ => p,
        };
        match r {
            MessageReduce::Sum => self.aggregate(&p, Red::Sum, To::Tensor(y, false)),
            MessageReduce::Mean => self.aggregate(&p, Red::Mean, To::Tensor(y, false)),
            _ => self.aggregate_best(&p, &Best { least: r == MessageReduce::Min, none: 0.0, y, arg }),
        }
    }

    fn message_passing_bwd(&self, m: Message, r: MessageReduce, io: MessagesBwd<'_>) -> Result<()> {
        const OP: &str = "message_passing_bwd";
        let s = check_messages_bwd(m, r, &io)?;
        let views = [
            ("dy", Some(io.dy)),
            ("src", Some(io.src)),
            ("dst", Some(io.dst)),
            ("x", io.x),
            ("e", io.e),
            ("arg", io.arg),
            ("degree", io.degree),
            ("dx", grad_view(&io.dx)),
            ("de", grad_view(&io.de)),
        ];
        self.own_graph(OP, &views, &[&io.by_src, &io.by_dst])?;
        let extreme = matches!(r, MessageReduce::Max | MessageReduce::Min) && m != Message::UDotV;
        let io = MessagesBwd { arg: io.arg.filter(|_| extreme), ..io };
        let counted;
        let degree = match (r, io.degree) {
            (MessageReduce::Mean, given) if m != Message::UDotV => match given {
                Some(d) => Some(d),
                None => {
                    let edges = self.grouped(OP, s.nodes, &io.dst, None, io.by_dst.as_ref(), false)?;
                    counted = self.scratch(DType::I32, s.nodes)?;
                    self.counts(&edges, &counted.view())?;
                    Some(counted.view())
                }
            },
            _ => None,
        };
        if let Some(dx) = &io.dx {
            self.message_grad_x(m, r, &s, &io, degree, dx)?;
        }
        match &io.de {
            Some(de) => self.message_grad_e(m, &s, &io, degree, de),
            None => Ok(()),
        }
    }

    fn sddmm(
        &self,
        op: EdgeOp,
        src: View<'_>,
        dst: View<'_>,
        x: View<'_>,
        y: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "sddmm";
        let s = check_sddmm(op, &src, &dst, &x, &y, &out)?;
        let v = out.as_view();
        self.check_owner_all(OP, &[("src", src), ("dst", dst), ("x", x), ("y", y), ("out", v)])?;
        let right = Some((dst, y, s.targets));
        let p = Pair::new(OP, (src, x, s.sources), right);
        let how = match op {
            EdgeOp::Dot => return self.edge_dot(&p, s.parts, s.columns, &v, false),
            EdgeOp::Add => How::Add,
            EdgeOp::Sub => How::Sub,
            EdgeOp::Mul => How::Mul,
        };
        self.edge_map(&p, how, [1, s.columns], &v, false)
    }

    fn sddmm_bwd(&self, op: EdgeOp, io: SddmmBwd<'_>) -> Result<()> {
        const OP: &str = "sddmm_bwd";
        let s = check_sddmm_bwd(op, &io)?;
        let views = [
            ("dout", Some(io.dout)),
            ("src", Some(io.src)),
            ("dst", Some(io.dst)),
            ("x", Some(io.x)),
            ("y", Some(io.y)),
            ("dx", grad_view(&io.dx)),
            ("dy", grad_view(&io.dy)),
        ];
        self.own_graph(OP, &views, &[&io.by_src, &io.by_dst])?;
        let sides = [
            (&io.dx, (&io.src, s.sources), (&io.dst, s.targets), io.y, &io.by_src, 1.0),
            (&io.dy, (&io.dst, s.targets), (&io.src, s.sources), io.x, &io.by_dst, -1.0),
        ];
        for (grad, (own, nodes), (other, others), rows, plan, sign) in sides {
            let Some(g) = grad else { continue };
            let edges = self.grouped(OP, nodes, own, Some((other, others)), plan.as_ref(), true)?;
            let p = Aggregate::new(OP, g.out.dtype(), &edges, others, s.columns);
            let p = match op {
                EdgeOp::Dot | EdgeOp::Mul => p.at_others(rows).times(io.dout, s.parts, true),
                EdgeOp::Add => p.at_edges(io.dout),
                EdgeOp::Sub => Aggregate { alpha: sign, ..p.at_edges(io.dout) },
            };
            self.aggregate(&p, Red::Sum, To::Tensor(g.out.as_view(), g.accumulate))?;
        }
        Ok(())
    }

    fn group_reduce(&self, how: GroupReduce, io: GroupIo<'_>) -> Result<()> {
        const OP: &str = "group_reduce";
        let s = check_group(how, &io)?;
        let y = io.y.out.as_view();
        let (arg, counts) = (out_view(&io.arg), out_view(&io.counts));
        let views = [
            ("src", Some(io.src)),
            ("index", Some(io.index)),
            ("y", Some(y)),
            ("arg", arg),
            ("counts", counts),
        ];
        self.own_graph(OP, &views, &[&io.groups])?;
        let edges = self.grouped(OP, s.nodes, &io.index, None, io.groups.as_ref(), true)?;
        if let Some(c) = &counts {
            self.counts(&edges, c)?;
        }
        let p = Aggregate::new(OP, y.dtype(), &edges, s.sources, s.inner).at_edges(io.src);
        let p = Aggregate { outer: s.outer, ..p };
        let to = To::Tensor(y, io.y.accumulate);
        match how {
            GroupReduce::Sum => self.aggregate(&p, Red::Sum, to),
            GroupReduce::Mean => self.aggregate(&p, Red::Mean, to),
            GroupReduce::Prod => self.aggregate(&p, Red::Prod, to),
            GroupReduce::Max { empty } => {
                self.aggregate_best(&p, &Best { least: false, none: empty, y, arg })
            }
            GroupReduce::Min { empty } => self.aggregate_best(&p, &Best { least: true, none: empty, y, arg }),
            GroupReduce::Std { correction, eps } => self.group_std(&p, correction, eps, &y),
        }
    }

    fn group_reduce_bwd(&self, how: GroupReduce, io: GroupBwd<'_>) -> Result<()> {
        const OP: &str = "group_reduce_bwd";
        let s = check_group_bwd(how, &io)?;
        let out = io.dsrc.out.as_view();
        let views = [
            ("dy", Some(io.dy)),
            ("index", io.index),
            ("src", io.src),
            ("y", io.y),
            ("arg", io.arg),
            ("counts", io.counts),
            ("dsrc", Some(out)),
        ];
        self.own_graph(OP, &views, &[&io.groups])?;
        let dt = out.dtype();
        let (Some(index), None) = (io.index, io.arg.filter(|_| io.index.is_none())) else {
            return self.arg_spread(&s, &io);
        };
        let extreme = matches!(how, GroupReduce::Max { .. } | GroupReduce::Min { .. });
        if matches!(how, GroupReduce::Sum | GroupReduce::Mean) || extreme {
            let p = Pair {
                degree: io.counts.filter(|_| how == GroupReduce::Mean),
                mask: io.arg.filter(|_| extreme),
                ..Pair::new(OP, (index, io.dy, s.nodes), None)
            };
            let wide = wide_rows(dt, s.inner, [io.dy, out]);
            let nodes = NodeProblem { dtype: dt, columns: s.outer * s.inner, edges: s.sources, wide };
            let problem = GroupBwdProblem { nodes, row: s.inner * dt.size(), grouped: io.groups.is_some() };
            return match (self.plan(OP, &problem)?, &io.groups) {
                (GroupBwdPlan::ByNode(w), Some(g)) => self.group_spread(&p, g, &w, &s, &io.dsrc),
                _ => self.edge_map(&p, How::Left, [s.outer, s.inner], &out, io.dsrc.accumulate),
            };
        }
        let Some(src) = io.src else { return Ok(()) };
        let edges = self.grouped(OP, s.nodes, &index, None, io.groups.as_ref(), true)?;
        // Statistics as the forward makes them.
        let p = Aggregate::new("group_reduce", dt, &edges, s.sources, s.inner).at_edges(src);
        let p = Aggregate { outer: s.outer, reports: OP, ..p };
        let first = self.statistics(dt, io.dy.numel())?;
        let each = EdgeApply {
            op: OP,
            what: 3,
            node: index,
            rows: [Some(src), None, Some(io.dy), None],
            stats: [Some(first.view()), None],
            rowptr: None,
            correction: 0,
            size: (s.outer, s.nodes, s.inner),
        };
        if let GroupReduce::Std { correction, .. } = how {
            self.aggregate(&p, Red::Mean, To::Stat(first.view()))?;
            let rows = [Some(src), None, Some(io.dy), io.y];
            let rowptr = Some(edges.rowptr.view());
            return self.edge_apply(&EdgeApply { what: 2, rows, rowptr, correction, ..each }, &io.dsrc);
        }
        let zeros = self.statistics(dt, io.dy.numel())?;
        self.aggregate(&Aggregate { kind: Kind::NonZero, ..p }, Red::Prod, To::Stat(first.view()))?;
        self.aggregate(&Aggregate { kind: Kind::IsZero, ..p }, Red::Sum, To::Stat(zeros.view()))?;
        let stats = [Some(first.view()), Some(zeros.view())];
        self.edge_apply(&EdgeApply { stats, ..each }, &io.dsrc)
    }
}

impl Engine {
    /// The gradient of a sum, mean or extreme by the edges of each node.
    fn group_spread(
        &self,
        p: &Pair<'_>,
        groups: &EdgeGroups<'_>,
        w: &NodePlan,
        s: &GroupShape,
        dsrc: &GradMut<'_>,
    ) -> Result<()> {
        let edges = Edges::given(groups, s.nodes, s.sources, true);
        let met = self.long_nodes(&edges, w)?;
        let out = dsrc.out.as_view();
        let saved = p.wide_saved();
        let flags = edges.flags()
            | (dsrc.accumulate as usize) << 2
            | ((w.cuts > 0) as usize) << 3
            | (saved as usize) << 4;
        let args = GroupSpreadArgs {
            rowptr: self.arg_in(&edges.rowptr.view()),
            met: self.arg_in(&met.view()),
            perm: self.arg_opt(edges.perm().as_ref()),
            dy: self.arg_in(&p.a),
            arg: self.arg_opt(p.mask.as_ref()),
            count: self.arg_opt(p.degree.as_ref()),
            out: self.arg_in(&out),
            err: self.arg_error(),
            size: dims([s.nodes, s.sources, s.outer * s.inner, s.inner, w.cut_bits(), w.lane_bits()]),
            flags: flags as i32,
            wide: i32::from(w.wide),
            code: code_of_op(p.op),
        };
        self.launch(&GROUP_SPREAD, out.dtype(), "", w.nodes(s.nodes), &args)
    }

    /// The gradient of an extreme where only the chosen sources are known: zeros, then one write per choice.
    fn arg_spread(&self, s: &GroupShape, io: &GroupBwd<'_>) -> Result<()> {
        let Some(arg) = io.arg else { return Ok(()) };
        let out = io.dsrc.out.as_view();
        if !io.dsrc.accumulate {
            self.fill_pattern(&[0; 8], &out)?;
        }
        let n = io.dy.numel();
        let args = ArgSpreadArgs {
            dy: self.arg_in(&io.dy),
            arg: self.arg_in(&arg),
            dsrc: self.arg_in(&out),
            err: self.arg_error(),
            n: n as i64,
            nodes: s.nodes as i64,
            inner: s.inner as i64,
            edges: s.sources as i64,
            wide_index: wide_index(&arg),
            accumulate: i32::from(io.dsrc.accumulate),
            code: code_of_op("group_reduce_bwd"),
        };
        self.launch(&ARG_SPREAD, out.dtype(), "", Grid::Stride(n), &args)
    }
}
