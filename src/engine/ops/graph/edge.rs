//! What is computed for each edge by itself: maps and inner products of the rows at its ends, and functions of the sums at its node.

use crate::buffer::{GradMut, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, code_of_op, dims};
use crate::engine::ops::graph::aggregate::*;
use crate::engine::ops::graph::plan::*;
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::spec::BLOCK;
use crate::spec::kernels::graph::*;

/// Rows of a per-edge computation: A by one list of ends, B by another.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) op: &'static str,
    pub(super) left: View<'a>,
    pub(super) a: View<'a>,
    pub(super) a_rows: usize,
    pub(super) right: Option<(View<'a>, View<'a>, usize)>,
    pub(super) degree: Option<View<'a>>,
    pub(super) mask: Option<View<'a>>,
}

impl<'a> Pair<'a> {
    /// A by one list, B by another: index, rows and their number.
    pub(super) fn new(
        op: &'static str,
        (left, a, a_rows): (View<'a>, View<'a>, usize),
        right: Option<(View<'a>, View<'a>, usize)>,
    ) -> Self {
        Pair { op, left, a, a_rows, right, degree: None, mask: None }
    }

    /// Whether the degree or the mask is 64-bit.
    pub(super) fn wide_saved(&self) -> bool {
        self.degree.or(self.mask).is_some_and(|v| v.dtype() == DType::I64)
    }
}

/// How the rows of a pair become one (`op` of the kernel).
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum How {
    /// A alone.
    Left = 0,
    Add = 1,
    Sub = 2,
    Mul = 3,
}

/// A function per edge: operands of the kernel, for `inner` columns of `nodes` nodes, `outer` times.
pub(super) struct EdgeApply<'a> {
    pub(super) op: &'static str,
    /// Softmax, its gradient, and those of a standard deviation and a product, as in the kernel.
    pub(super) what: i32,
    pub(super) node: View<'a>,
    pub(super) rows: [Option<View<'a>>; 4],
    pub(super) stats: [Option<View<'a>>; 2],
    /// Only of a standard deviation.
    pub(super) rowptr: Option<View<'a>>,
    pub(super) correction: u32,
    pub(super) size: (usize, usize, usize),
}

impl Engine {
    /// `out[o, e, c] (+)= A[left[e]] how B[right[e]]`; `size`: outer, inner.
    pub(super) fn edge_map(
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
    pub(super) fn edge_dot(
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

    /// Per edge of a softmax, a standard deviation or a product.
    pub(super) fn edge_apply(&self, p: &EdgeApply<'_>, out: &GradMut<'_>) -> Result<()> {
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
}
