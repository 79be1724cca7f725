//! Reductions of groups that are more than one sum, and their gradients spread over the edges of a node.

use super::edge::Pair;
use crate::buffer::{GradMut, View};
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::engine::ops::graph::aggregate::*;
use crate::engine::ops::graph::csr::Edges;
use crate::engine::ops::graph::plan::*;
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::graph::*;
use crate::spec::kernels::graph::*;

impl Engine {
    pub(super) fn group_std(&self, p: &Aggregate<'_>, correction: u32, eps: f64, y: &View<'_>) -> Result<()> {
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

impl Engine {
    /// The gradient of a sum, mean or extreme by the edges of each node.
    pub(super) fn group_spread(
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
    pub(super) fn arg_spread(&self, s: &GroupShape, io: &GroupBwd<'_>) -> Result<()> {
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
