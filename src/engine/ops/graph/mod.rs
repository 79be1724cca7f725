//! Graphs: messages, their gradients, and reductions of groups.

pub(super) mod aggregate;
pub(super) mod attention;
pub(super) mod csr;
mod edge;
mod group;
mod message;
pub(super) mod plan;

use self::edge::{EdgeApply, How, Pair};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op};
use crate::engine::ops::graph::aggregate::*;
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::plan::*;
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::fused_act;
use crate::ops::graph::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::kernels::graph::*;

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
