//! Graphs: softmax over the edges of a node, and attention.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::engine::ops::graph::aggregate::{grad_view, out_view, wide_rows};
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::edge::EdgeApply;
use crate::engine::ops::graph::plan::{NodePlan, NodeProblem};
use crate::error::Result;
use crate::ops::graph::*;
use crate::spec::kernels::graph::*;

/// Flags of a pass over nodes.
fn flags(e: &Edges<'_>, w: &NodePlan) -> usize {
    e.flags() | ((w.cuts > 0) as usize) << 3
}

/// Edges that a thread of `edge_norm` loads at a time (`GK_U`).
const AT_ONCE: usize = 4;

impl Engine {
    /// Per node and column over the edges: the largest x and the sum of exponentials relative to it, or, with z, the sum of x * z.
    fn edge_norm(
        &self,
        op: &'static str,
        edges: &Edges<'_>,
        columns: usize,
        (x, z): (View<'_>, Option<View<'_>>),
        (top, sum): (Option<View<'_>>, View<'_>),
    ) -> Result<()> {
        let (dt, nodes, n) = (x.dtype(), edges.nodes, edges.edges);
        let wide = wide_rows(dt, columns, [Some(x), z].into_iter().flatten());
        let w = self.plan(op, &NodeProblem { dtype: dt, columns, edges: n, wide })?;
        // Threads that share a node: as many as its edges need, and fit in a group that exchanges without barriers.
        let room = (32 / w.lanes).max(1);
        let ways = (n / nodes.max(1)).div_ceil(AT_ONCE).next_power_of_two().min(room);
        let parts = self.statistics(dt, 4 * w.cuts * columns)?;
        let met = self.long_nodes(edges, &w)?;
        let (rowptr, met) = (self.arg_in(&edges.rowptr.view()), self.arg_in(&met.view()));
        let (parts, top, sum) = (self.arg_in(&parts.view()), self.arg_opt(top.as_ref()), self.arg_in(&sum));
        let size = dims([nodes, n, columns, w.cut_bits(), n, w.lane_bits(), ways.trailing_zeros() as usize]);
        let flags = flags(edges, &w) as i32;
        let args = EdgeNormArgs {
            rowptr,
            met,
            perm: self.arg_opt(edges.perm().as_ref()),
            x: self.arg_in(&x),
            z: self.arg_opt(z.as_ref()),
            top,
            sum,
            parts,
            err: self.arg_error(),
            size,
            flags,
            wide: i32::from(w.wide),
            code: code_of_op(op),
        };
        self.launch(&EDGE_NORM, dt, "", w.shared(nodes, ways), &args)?;
        if w.cuts == 0 || nodes == 0 {
            return Ok(());
        }
        let args = EdgeNormCombineArgs { rowptr, met, parts, top, sum, size, flags };
        self.launch(&EDGE_NORM_COMBINE, dt, "", w.combine_grid(), &args)
    }

    fn gat_size(s: &GatShape, e: &Edges<'_>, w: &NodePlan, others: usize) -> DimsArg {
        let columns = s.heads * s.features;
        dims([e.nodes, e.edges, columns, s.features.max(1), others, w.cut_bits(), w.lane_bits(), flags(e, w)])
    }

    fn gat_pass(&self, slope: f64, s: &GatShape, p: &Pass<'_>) -> Result<()> {
        let (dt, columns, e) = (p.row.dtype(), s.heads * s.features, p.edges);
        let dx = p.dx.map(|g| g.out.as_view());
        let wide = wide_rows(dt, s.features, [Some(p.row), Some(p.own), dx].into_iter().flatten());
        let w = self.plan("gat_bwd", &NodeProblem { dtype: dt, columns, edges: e.edges, wide })?;
        let stat = |n| self.statistics(dt, n);
        let vecs = e.nodes * w.vecs;
        let (pa, pb, ps) = (stat(if p.by_source { 0 } else { vecs })?, stat(vecs)?, stat(vecs)?);
        let (parts, sums) = (stat(4 * w.cuts * columns)?, stat(2 * w.cuts * w.vecs)?);
        let size = Self::gat_size(s, e, &w, p.others);
        let given = |v: &View<'_>, on: bool| if on { self.arg_in(v) } else { Ptr::NULL };
        let met = self.long_nodes(e, &w)?;
        let met = self.arg_in(&met.view());
        let (rowptr, own, dx) =
            (self.arg_in(&e.rowptr.view()), self.arg_in(&p.own), self.arg_opt(dx.as_ref()));
        let (pa, pb, ps) =
            (given(&pa.view(), !p.by_source), self.arg_in(&pb.view()), self.arg_in(&ps.view()));
        let (parts, sums) = (self.arg_in(&parts.view()), self.arg_in(&sums.view()));
        let (wide, accumulate) = (i32::from(wide), i32::from(p.dx.is_some_and(|g| g.accumulate)));
        let args = GatBwdArgs {
            rowptr,
            met,
            col: self.arg_opt(e.col().as_ref()),
            row: self.arg_in(&p.row),
            own,
            score_own: self.arg_in(&p.score_own),
            score_other: self.arg_in(&p.score_other),
            lse: self.arg_in(&p.lse),
            delta: given(&p.delta, p.by_source),
            dx,
            pa,
            pb,
            ps,
            parts,
            sums,
            err: self.arg_error(),
            size,
            slope,
            wide,
            accumulate,
            code: code_of_op("gat_bwd"),
        };
        self.launch(&GAT_BWD, dt, "", w.nodes(e.nodes), &args)?;
        if w.cuts > 0 && e.nodes > 0 {
            let args =
                GatBwdCombineArgs { rowptr, met, own, parts, sums, dx, pa, pb, ps, size, wide, accumulate };
            self.launch(&GAT_BWD_COMBINE, dt, "", w.combine_grid(), &args)?;
        }
        let n = e.nodes * s.heads;
        let dscore = p.dscore.map(|g| g.out.as_view());
        let args = GatScoresArgs {
            pa,
            pb,
            ps,
            delta: given(&p.delta, !p.by_source),
            dscore: self.arg_opt(dscore.as_ref()),
            n: n as i64,
            run: (w.vecs / s.heads.max(1)) as i64,
            accumulate: i32::from(p.dscore.is_some_and(|g| g.accumulate)),
        };
        if p.by_source && dscore.is_none() {
            return Ok(());
        }
        self.launch(&GAT_SCORES, dt, "", Grid::Stride(n), &args)
    }
}

/// One pass of the gradient of attention: over the edges of the destinations, which also makes `delta`, or of the sources, which reads it.
#[derive(Clone, Copy)]
struct Pass<'a> {
    edges: &'a Edges<'a>,
    others: usize,
    row: View<'a>,
    own: View<'a>,
    score_own: View<'a>,
    score_other: View<'a>,
    lse: View<'a>,
    delta: View<'a>,
    by_source: bool,
    dx: Option<&'a GradMut<'a>>,
    dscore: Option<&'a GradMut<'a>>,
}

impl GraphAttentionOps for Engine {
    fn edge_softmax(
        &self,
        nodes: usize,
        dst: View<'_>,
        groups: Option<EdgeGroups<'_>>,
        logits: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "edge_softmax";
        let (_, columns) = check_edge_softmax(OP, nodes, &dst, &groups, &[("logits", logits)], ("y", &y))?;
        let v = y.as_view();
        self.own_graph(OP, &[("dst", Some(dst)), ("logits", Some(logits)), ("y", Some(v))], &[&groups])?;
        let dt = v.dtype();
        let edges = self.grouped(OP, nodes, &dst, None, groups.as_ref(), true)?;
        let (top, sum) = (self.statistics(dt, nodes * columns)?, self.statistics(dt, nodes * columns)?);
        self.edge_norm(OP, &edges, columns, (logits, None), (Some(top.view()), sum.view()))?;
        let stats = [Some(top.view()), Some(sum.view())];
        let rows = [Some(logits), None, None, None];
        let size = (1, nodes, columns);
        let each = EdgeApply { op: OP, what: 0, node: dst, rows, stats, rowptr: None, correction: 0, size };
        self.edge_apply(&each, &y.into())
    }

    fn edge_softmax_bwd(
        &self,
        nodes: usize,
        dst: View<'_>,
        groups: Option<EdgeGroups<'_>>,
        dy: View<'_>,
        y: View<'_>,
        dlogits: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "edge_softmax_bwd";
        let given = [("dy", dy), ("y", y)];
        let (_, columns) = check_edge_softmax(OP, nodes, &dst, &groups, &given, ("dlogits", &dlogits.out))?;
        let v = dlogits.out.as_view();
        let views = [("dst", Some(dst)), ("dy", Some(dy)), ("y", Some(y)), ("dlogits", Some(v))];
        self.own_graph(OP, &views, &[&groups])?;
        let dt = v.dtype();
        let edges = self.grouped(OP, nodes, &dst, None, groups.as_ref(), true)?;
        let sums = self.statistics(dt, nodes * columns)?;
        self.edge_norm(OP, &edges, columns, (y, Some(dy)), (None, sums.view()))?;
        let (rows, stats) = ([Some(y), Some(dy), None, None], [Some(sums.view()), None]);
        let size = (1, nodes, columns);
        let each = EdgeApply { op: OP, what: 1, node: dst, rows, stats, rowptr: None, correction: 0, size };
        self.edge_apply(&each, &dlogits)
    }

    fn gat(&self, slope: f64, io: Gat<'_>) -> Result<()> {
        const OP: &str = "gat";
        let s = check_gat(slope, &io)?;
        let (y, lse) = (io.y.as_view(), out_view(&io.lse));
        let views = [
            ("src", Some(io.src)),
            ("dst", Some(io.dst)),
            ("x", Some(io.x)),
            ("score_src", Some(io.score_src)),
            ("score_dst", Some(io.score_dst)),
            ("y", Some(y)),
            ("lse", lse),
        ];
        self.own_graph(OP, &views, &[&io.by_dst])?;
        let (dt, columns) = (y.dtype(), s.heads * s.features);
        let edges =
            self.grouped(OP, s.targets, &io.dst, Some((&io.src, s.sources)), io.by_dst.as_ref(), false)?;
        let wide = wide_rows(dt, s.features, [io.x, y]);
        let w = self.plan(OP, &NodeProblem { dtype: dt, columns, edges: s.edges, wide })?;
        let parts = self.statistics(dt, 2 * w.cuts * columns)?;
        let norms = self.statistics(dt, 4 * w.cuts * w.vecs)?;
        let size = Self::gat_size(&s, &edges, &w, s.sources);
        let met = self.long_nodes(&edges, &w)?;
        let met = self.arg_in(&met.view());
        let (rowptr, parts, norms) =
            (self.arg_in(&edges.rowptr.view()), self.arg_in(&parts.view()), self.arg_in(&norms.view()));
        let (y, lse, wide) = (self.arg_in(&y), self.arg_opt(lse.as_ref()), i32::from(w.wide));
        let args = GatArgs {
            rowptr,
            met,
            col: self.arg_opt(edges.col().as_ref()),
            x: self.arg_in(&io.x),
            score_src: self.arg_in(&io.score_src),
            score_dst: self.arg_in(&io.score_dst),
            y,
            lse,
            parts,
            norms,
            err: self.arg_error(),
            size,
            slope,
            wide,
            code: code_of_op(OP),
        };
        self.launch(&GAT, dt, "", w.nodes(s.targets), &args)?;
        if w.cuts == 0 || s.targets == 0 {
            return Ok(());
        }
        let args = GatCombineArgs { rowptr, met, parts, norms, y, lse, size, wide };
        self.launch(&GAT_COMBINE, dt, "", w.combine_grid(), &args)
    }

    fn gat_bwd(&self, slope: f64, io: GatBwd<'_>) -> Result<()> {
        const OP: &str = "gat_bwd";
        let s = check_gat_bwd(slope, &io)?;
        let views = [
            ("dy", Some(io.dy)),
            ("src", Some(io.src)),
            ("dst", Some(io.dst)),
            ("x", Some(io.x)),
            ("score_src", Some(io.score_src)),
            ("score_dst", Some(io.score_dst)),
            ("lse", Some(io.lse)),
            ("dx", grad_view(&io.dx)),
            ("dscore_src", grad_view(&io.dscore_src)),
            ("dscore_dst", grad_view(&io.dscore_dst)),
        ];
        self.own_graph(OP, &views, &[&io.by_src, &io.by_dst])?;
        let dt = io.x.dtype();
        let delta = self.statistics(dt, s.targets * s.heads)?;
        let by_dst =
            self.grouped(OP, s.targets, &io.dst, Some((&io.src, s.sources)), io.by_dst.as_ref(), false)?;
        let pass = Pass {
            edges: &by_dst,
            others: s.sources,
            row: io.x,
            own: io.dy,
            score_own: io.score_dst,
            score_other: io.score_src,
            lse: io.lse,
            delta: delta.view(),
            by_source: false,
            dx: None,
            dscore: io.dscore_dst.as_ref(),
        };
        self.gat_pass(slope, &s, &pass)?;
        if io.dx.is_none() && io.dscore_src.is_none() {
            return Ok(());
        }
        let by_src =
            self.grouped(OP, s.sources, &io.src, Some((&io.dst, s.targets)), io.by_src.as_ref(), false)?;
        let pass = Pass {
            edges: &by_src,
            others: s.targets,
            row: io.dy,
            own: io.x,
            score_own: io.score_src,
            score_other: io.score_dst,
            by_source: true,
            dx: io.dx.as_ref(),
            dscore: io.dscore_src.as_ref(),
            ..pass
        };
        self.gat_pass(slope, &s, &pass)
    }
}
