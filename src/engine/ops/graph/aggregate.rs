//! Aggregation of messages over the edges of nodes: the launches of `graph/aggregate.c`.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{code_of_op, dims};
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::plan::{NodePlan, NodeProblem};
use crate::engine::ops::index::scatter::arithmetic;
use crate::engine::ops::shape::strided::common_power;
use crate::error::Result;
use crate::ops::graph::*;
use crate::spec::graph::AGGREGATES;
use crate::spec::kernels::graph::*;

/// Kinds of messages in `graph/aggregate.c`.
#[derive(Clone, Copy, PartialEq)]
#[repr(i32)]
pub(in crate::engine::ops) enum Kind {
    Plain = 0,
    TimesB = 1,
    PlusB = 2,
    PlusSelf = 3,
    MinusSelf = 4,
    TimesSelf = 5,
    Deviation = 6,
    IsZero = 7,
    NonZero = 8,
}

/// Reductions in `graph/aggregate.c`.
#[derive(Clone, Copy, PartialEq)]
#[repr(i32)]
pub(in crate::engine::ops) enum Red {
    Sum = 0,
    Mean = 1,
    Prod = 2,
}

/// Second factor or summand of a message.
#[derive(Clone, Copy)]
pub(in crate::engine::ops) struct Factor<'a> {
    pub(in crate::engine::ops) v: View<'a>,
    /// Elements per row.
    pub(in crate::engine::ops) parts: usize,
    /// Read at the edge, else at the other end.
    pub(in crate::engine::ops) at_edge: bool,
}

/// An aggregation: which messages, over which edges.
#[derive(Clone, Copy)]
pub(in crate::engine::ops) struct Aggregate<'a> {
    /// The operation whose pinned variant counts.
    pub(in crate::engine::ops) op: &'static str,
    /// The operation under which indices out of range are reported.
    pub(in crate::engine::ops) reports: &'static str,
    pub(in crate::engine::ops) dtype: DType,
    pub(in crate::engine::ops) edges: &'a Edges<'a>,
    /// Nodes at the other ends.
    pub(in crate::engine::ops) others: usize,
    pub(in crate::engine::ops) outer: usize,
    pub(in crate::engine::ops) inner: usize,
    /// Absent: 1.
    pub(in crate::engine::ops) a: Option<View<'a>>,
    pub(in crate::engine::ops) a_at_edge: bool,
    pub(in crate::engine::ops) b: Option<Factor<'a>>,
    pub(in crate::engine::ops) kind: Kind,
    pub(in crate::engine::ops) own: Option<View<'a>>,
    pub(in crate::engine::ops) own_stat: Option<View<'a>>,
    pub(in crate::engine::ops) degree: Option<View<'a>>,
    /// Chosen edges, and whether they are the node's own (else the other end's).
    pub(in crate::engine::ops) mask: Option<(View<'a>, bool)>,
    pub(in crate::engine::ops) base: Option<View<'a>>,
    pub(in crate::engine::ops) bias: Option<View<'a>>,
    pub(in crate::engine::ops) act: (i32, f64),
    pub(in crate::engine::ops) alpha: f64,
}

impl<'a> Aggregate<'a> {
    pub(in crate::engine::ops) fn new(
        op: &'static str,
        dtype: DType,
        edges: &'a Edges<'a>,
        others: usize,
        columns: usize,
    ) -> Self {
        Aggregate {
            op,
            reports: op,
            dtype,
            edges,
            others,
            outer: 1,
            inner: columns,
            a: None,
            a_at_edge: false,
            b: None,
            kind: Kind::Plain,
            own: None,
            own_stat: None,
            degree: None,
            mask: None,
            base: None,
            bias: None,
            act: (0, 0.0),
            alpha: 1.0,
        }
    }

    /// A read at the other ends.
    pub(in crate::engine::ops) fn at_others(self, a: View<'a>) -> Self {
        Aggregate { a: Some(a), ..self }
    }

    /// A read at the edges.
    pub(in crate::engine::ops) fn at_edges(self, a: View<'a>) -> Self {
        Aggregate { a: Some(a), a_at_edge: true, ..self }
    }

    pub(in crate::engine::ops) fn times(self, v: View<'a>, parts: usize, at_edge: bool) -> Self {
        Aggregate { b: Some(Factor { v, parts, at_edge }), kind: Kind::TimesB, ..self }
    }

    fn columns(&self) -> usize {
        self.outer * self.inner
    }

    /// The unit that serves it: the general one, or one that knows the message (see `GK_GRAPH_LOW_REGISTER`). `sums`: not a product.
    fn unit(&self, w: &NodePlan, sums: bool) -> &'static str {
        let extras = [self.own, self.own_stat, self.mask.map(|m| m.0), self.base];
        // Those kernels hold the distance between rows, in bytes, in 32 bits.
        let near = self.inner * self.dtype.size() <= i32::MAX as usize;
        let lean = near && w.wide && sums && self.a.is_some() && extras.iter().all(Option::is_none);
        match (self.kind, self.b, self.degree) {
            (Kind::Plain, None, None) if lean => AGGREGATES[1],
            (Kind::TimesB, Some(b), None) if lean && b.parts < self.columns() => AGGREGATES[2],
            (Kind::Plain, None, Some(_)) if lean => AGGREGATES[3],
            _ => AGGREGATES[0],
        }
    }
}

/// Where sums go.
#[derive(Clone, Copy)]
pub(in crate::engine::ops) enum To<'a> {
    Tensor(View<'a>, bool),
    Stat(View<'a>),
}

/// Where extremes go.
pub(in crate::engine::ops) struct Best<'a> {
    pub(in crate::engine::ops) least: bool,
    pub(in crate::engine::ops) none: f64,
    pub(in crate::engine::ops) y: View<'a>,
    pub(in crate::engine::ops) arg: Option<View<'a>>,
}

/// Whether rows of `inner` elements can be moved in 16 bytes.
pub(in crate::engine::ops) fn wide_rows<'a>(
    dtype: DType,
    inner: usize,
    views: impl IntoIterator<Item = View<'a>>,
) -> bool {
    let starts = views.into_iter().map(|v| v.layout().offset() * dtype.size());
    common_power(16, starts.chain([inner * dtype.size()])) == 16
}

impl Engine {
    fn size_and_how(
        &self,
        p: &Aggregate<'_>,
        w: &NodePlan,
        red: i32,
        accumulate: bool,
    ) -> (DimsArg, DimsArg) {
        let e = p.edges;
        let a_rows = if p.a_at_edge { e.edges } else { p.others };
        let size = [e.nodes, e.edges, p.columns(), p.inner, a_rows, w.cut_bits(), e.edges, p.others];
        let saved = p.degree.or(p.mask.map(|m| m.0)).is_some_and(|v| v.dtype() == DType::I64);
        let flags =
            e.flags() | (accumulate as usize) << 2 | ((w.cuts > 0) as usize) << 3 | (saved as usize) << 4;
        let how = [
            w.wide as usize,
            p.kind as usize,
            red as usize,
            p.a_at_edge as usize,
            p.b.is_some_and(|b| b.at_edge) as usize,
            p.mask.is_some_and(|m| m.1) as usize,
            w.lane_bits(),
            flags,
        ];
        (dims(size), dims(how))
    }

    /// Columns per element of B (1 also without B), and B's elements per row.
    fn spans(p: &Aggregate<'_>) -> (usize, usize) {
        p.b.map_or((1, 0), |b| ((p.columns() / b.parts.max(1)).max(1), b.parts))
    }

    fn plan_aggregate(&self, p: &Aggregate<'_>, y: Option<View<'_>>) -> Result<NodePlan> {
        let (span, _) = Self::spans(p);
        let full = p.b.filter(|_| span == 1).map(|b| b.v);
        let views = [p.a, full, p.own, y].into_iter().flatten();
        let w = 16 / p.dtype.size();
        let wide = wide_rows(p.dtype, p.inner, views) && (span == 1 || span.is_multiple_of(w));
        self.plan(p.op, &NodeProblem { dtype: p.dtype, columns: p.columns(), edges: p.edges.edges, wide })
    }

    /// Sums, means or products of the messages of each node.
    pub(in crate::engine::ops) fn aggregate(&self, p: &Aggregate<'_>, red: Red, to: To<'_>) -> Result<()> {
        let (y, stat, accumulate) = match to {
            To::Tensor(y, accumulate) => (Some(y), None, accumulate),
            To::Stat(s) => (None, Some(s), false),
        };
        let w = self.plan_aggregate(p, y)?;
        let (size, how) = self.size_and_how(p, &w, red as i32, accumulate);
        let (span, row) = Self::spans(p);
        let parts = self.scratch(arithmetic(p.dtype), 2 * w.cuts * p.columns())?;
        let parts = self.arg_in(&parts.view());
        let e = p.edges;
        let met = self.long_nodes(e, &w)?;
        let met = self.arg_in(&met.view());
        let bias_span = p.bias.map_or(1, |b| b.numel().max(1));
        let (bias_span, (act, slope), alpha) = (bias_span as i64, p.act, p.alpha);
        let (rowptr, base, bias) =
            (self.arg_in(&e.rowptr.view()), self.arg_opt(p.base.as_ref()), self.arg_opt(p.bias.as_ref()));
        let (y, stat) = (self.arg_opt(y.as_ref()), self.arg_opt(stat.as_ref()));
        let args = AggregateArgs {
            rowptr,
            met,
            col: self.arg_opt(e.col().as_ref()),
            perm: self.arg_opt(e.perm().as_ref()),
            a: self.arg_opt(p.a.as_ref()),
            b: self.arg_opt(p.b.map(|b| b.v).as_ref()),
            own: self.arg_opt(p.own.as_ref()),
            own_stat: self.arg_opt(p.own_stat.as_ref()),
            degree: self.arg_opt(p.degree.as_ref()),
            mask: self.arg_opt(p.mask.map(|m| m.0).as_ref()),
            base,
            bias,
            y,
            stat,
            parts,
            err: self.arg_error(),
            size,
            how,
            b_span: span as i64,
            b_row: row as i64,
            bias_span,
            act,
            slope,
            alpha,
            code: code_of_op(p.reports),
        };
        self.launch(&AGGREGATE, p.dtype, p.unit(&w, red != Red::Prod), w.nodes(e.nodes), &args)?;
        if w.cuts == 0 || e.nodes == 0 {
            return Ok(());
        }
        let args = AggregateCombineArgs {
            rowptr,
            met,
            parts,
            base,
            bias,
            y,
            stat,
            size,
            how,
            bias_span,
            act,
            slope,
            alpha,
        };
        self.launch(&AGGREGATE_COMBINE, p.dtype, AGGREGATES[0], w.combine_grid(), &args)
    }

    /// The extreme message of each node and its edge.
    pub(in crate::engine::ops) fn aggregate_best(&self, p: &Aggregate<'_>, to: &Best<'_>) -> Result<()> {
        let w = self.plan_aggregate(p, Some(to.y))?;
        let (size, how) = self.size_and_how(p, &w, 0, false);
        let (span, row) = Self::spans(p);
        let room = 2 * w.cuts * p.columns();
        let (parts, ids) = (self.scratch(arithmetic(p.dtype), room)?, self.scratch(DType::I32, room)?);
        let (parts, ids) = (self.arg_in(&parts.view()), self.arg_in(&ids.view()));
        let e = p.edges;
        let met = self.long_nodes(e, &w)?;
        let met = self.arg_in(&met.view());
        let wide_arg = i32::from(to.arg.is_some_and(|v| v.dtype() == DType::I64));
        let (least, none) = (i32::from(to.least), to.none);
        let (rowptr, y, arg) =
            (self.arg_in(&e.rowptr.view()), self.arg_in(&to.y), self.arg_opt(to.arg.as_ref()));
        let args = AggregateExtremeArgs {
            rowptr,
            met,
            col: self.arg_opt(e.col().as_ref()),
            perm: self.arg_opt(e.perm().as_ref()),
            a: self.arg_opt(p.a.as_ref()),
            b: self.arg_opt(p.b.map(|b| b.v).as_ref()),
            own: self.arg_opt(p.own.as_ref()),
            y,
            arg,
            parts,
            ids,
            err: self.arg_error(),
            size,
            how,
            b_span: span as i64,
            b_row: row as i64,
            least,
            wide_arg,
            none,
            code: code_of_op(p.reports),
        };
        self.launch(&AGGREGATE_EXTREME, p.dtype, p.unit(&w, true), w.nodes(e.nodes), &args)?;
        if w.cuts == 0 || e.nodes == 0 {
            return Ok(());
        }
        let args =
            AggregateExtremeCombineArgs { rowptr, met, parts, ids, y, arg, size, how, least, wide_arg, none };
        self.launch(&AGGREGATE_EXTREME_COMBINE, p.dtype, AGGREGATES[0], w.combine_grid(), &args)
    }

    /// Scratch for a statistic of this many elements.
    pub(in crate::engine::ops) fn statistics(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.scratch(arithmetic(dtype), n)
    }

    fn own_groups(&self, op: &'static str, g: &Option<EdgeGroups<'_>>) -> Result<()> {
        let Some(g) = g else { return Ok(()) };
        self.check_owner_all(op, &[("rowptr", Some(g.rowptr)), ("col", g.col), ("perm", g.perm)])
    }

    /// All operands of a call: inputs, plans, outputs.
    pub(in crate::engine::ops) fn own_graph(
        &self,
        op: &'static str,
        views: &[(&'static str, Option<View<'_>>)],
        plans: &[&Option<EdgeGroups<'_>>],
    ) -> Result<()> {
        self.check_owner_all(op, views)?;
        plans.iter().try_for_each(|g| self.own_groups(op, g))
    }
}

pub(in crate::engine::ops) fn grad_view<'a>(g: &Option<GradMut<'a>>) -> Option<View<'a>> {
    g.as_ref().map(|g| g.out.as_view())
}

pub(in crate::engine::ops) fn out_view<'a>(v: &Option<ViewMut<'a>>) -> Option<View<'a>> {
    v.as_ref().map(ViewMut::as_view)
}
