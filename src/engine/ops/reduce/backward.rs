//! The gradient of a reduction: which kernel, which statistics of the slices, and the launch.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, long};
use crate::engine::ops::elementwise::merged_axes;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::reduce::*;
use crate::spec::kernels::reduce::*;

/// How a gradient is computed.
pub(super) struct Gradient {
    op: &'static str,
    /// Reduction that makes its statistics.
    pub(super) stat: Option<&'static str>,
    pub(super) p_stat: f64,
    /// Numbers per slice in the second statistic.
    pub(super) per_slice: usize,
    pub(super) reads_x: bool,
    /// The only statistic is the forward's result.
    pub(super) reads_y: bool,
    p: f64,
    q: f64,
}

pub(super) fn gradient(op: Reduce, count: usize) -> Gradient {
    let g = |op, reads_x| Gradient {
        op,
        stat: None,
        p_stat: 0.0,
        per_slice: 1,
        reads_x,
        reads_y: false,
        p: 0.0,
        q: 0.0,
    };
    let with = |op, stat| Gradient { stat: Some(stat), ..g(op, true) };
    let saved = |op, stat, p| Gradient { reads_y: true, p, p_stat: p, ..with(op, stat) };
    let moments = |op, c: f64, q| Gradient {
        p_stat: c,
        per_slice: 2,
        p: (count as f64 - c).max(0.0),
        q,
        ..with(op, "gk_red_meanvar")
    };
    match op {
        Reduce::Mean => Gradient { p: count as f64, ..g("gk_redb_mean", false) },
        Reduce::SumSq => g("gk_redb_sumsq", true),
        Reduce::Prod => with("gk_redb_prod", "gk_red_factors"),
        Reduce::Max => with("gk_redb_extreme", "gk_red_max_ties"),
        Reduce::Min => with("gk_redb_extreme", "gk_red_min_ties"),
        Reduce::MaxAbs => with("gk_redb_magnitude", "gk_red_maxabs_ties"),
        Reduce::MinAbs => with("gk_redb_magnitude", "gk_red_minabs_ties"),
        Reduce::Norm { p } if p == f64::INFINITY => with("gk_redb_magnitude", "gk_red_maxabs_ties"),
        Reduce::Norm { p } if p == f64::NEG_INFINITY => with("gk_redb_magnitude", "gk_red_minabs_ties"),
        Reduce::Norm { p: 0.0 } => g("gk_redb_norm0", false),
        Reduce::Norm { p: 1.0 } => g("gk_redb_norm1", true),
        Reduce::Norm { p: 2.0 } => saved("gk_redb_norm2", "gk_red_norm2", 0.0),
        Reduce::Norm { p } => saved("gk_redb_normp", "gk_red_normp", p),
        Reduce::LogSumExp => saved("gk_redb_lse", "gk_red_lse", 0.0),
        Reduce::Var { correction } => moments("gk_redb_var", correction, 0.0),
        Reduce::Std { correction } => moments("gk_redb_std", correction, 0.0),
        Reduce::LogVar { correction, eps } => moments("gk_redb_logvar", correction, eps),
        Reduce::Sum | Reduce::Any | Reduce::All => g("gk_redb_sum", false),
    }
}

/// Whether operand `k` can be read 16 bytes at a time along the innermost axis (alignment of its start aside).
pub(super) fn in_16_bytes<const N: usize>(m: &Merged<N>, k: usize, w: usize) -> bool {
    let s = &m.strides[k];
    m.shape.last().is_some_and(|n| n % w == 0)
        && s.last() == Some(&1)
        && s.iter().rev().skip(1).all(|s| s % w == 0)
}

/// Counts the innermost axis in items of `w` elements.
pub(super) fn to_items<const N: usize>(m: &mut Merged<N>, w: usize) {
    if let Some(n) = m.shape.last_mut() {
        *n /= w;
    }
    m.strides.iter_mut().filter_map(|s| s.last_mut()).for_each(|s| *s *= w);
}

/// Operands of a gradient; those that it does not need are absent.
pub(super) struct GradientOperands<'a> {
    pub(super) dy: View<'a>,
    pub(super) x: Option<View<'a>>,
    pub(super) y: Option<View<'a>>,
    pub(super) stats: [Option<Buffer>; 2],
    pub(super) dx: GradMut<'a>,
}

impl GradientOperands<'_> {
    /// Layouts of dx, dy, x, y and the statistics over the shape of dx. Operands that are not there step like dx and stand in nobody's way.
    fn merged(&self, a: &Axes) -> Result<Merged<5>> {
        let own = *self.dx.out.layout();
        let shape = self.dx.out.shape();
        let stat = match self.stats[0] {
            Some(_) => check::layout(
                "reduce_bwd",
                "x",
                Layout::contiguous(&a.keepdim).and_then(|l| l.broadcast_to(shape)),
            )?,
            None => own,
        };
        let layouts = [
            own,
            spread(&self.dy, a, shape)?,
            self.x.map_or(own, |v| *v.layout()),
            self.y.as_ref().map_or(Ok(own), |v| spread(v, a, shape))?,
            stat,
        ];
        Ok(Merged::new(layouts.each_ref()))
    }

    /// Flags of the kernel: whether 16 bytes are moved at once, and then whether dy and y step along the innermost axis.
    fn wide(&self, m: &Merged<5>, w: usize) -> i32 {
        let dense = |k: usize, v: &View<'_>| in_16_bytes(m, k, w) && aligned16(v);
        let repeated = |k: usize| inner_step(m, k) == 0;
        let wide = dense(0, &self.dx.out.as_view())
            && self.x.as_ref().is_none_or(|x| dense(2, x))
            && (repeated(1) || dense(1, &self.dy))
            && self.y.as_ref().is_none_or(|y| repeated(3) || dense(3, y));
        if wide { 1 | i32::from(!repeated(1)) << 1 | i32::from(!repeated(3)) << 2 } else { 0 }
    }
}

/// Step of operand `k` along the innermost axis.
fn inner_step<const N: usize>(m: &Merged<N>, k: usize) -> usize {
    m.strides[k].last().copied().unwrap_or(0)
}

impl Engine {
    /// dx (+)= g of the repeated dy, x and the statistics; operands are checked.
    pub(super) fn run_gradient(&self, g: &Gradient, a: &Axes, io: &GradientOperands<'_>) -> Result<()> {
        let dt = io.dx.out.dtype();
        let w = 16 / dt.size();
        let mut m = io.merged(a)?;
        let (wide, step_s) = (io.wide(&m, w), inner_step(&m, 4));
        if wide != 0 {
            to_items(&mut m, w);
        }
        let n: usize = m.shape.iter().product();
        let (rank, shape, [sdx, sdy, sx, sy, ss]) = merged_axes(&m);
        let [s, t] = io.stats.each_ref().map(|b| b.as_ref().map_or(Ptr::NULL, |b| self.arg_in(&b.view())));
        let args = ReduceBwdArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_opt(io.x.as_ref()),
            y: self.arg_opt(io.y.as_ref()),
            s,
            t,
            dx: self.arg_out(&io.dx.out),
            n: long(n),
            rank,
            shape,
            sdx,
            sdy,
            sx,
            sy,
            ss,
            step_s: long(step_s),
            wide,
            accumulate: i32::from(io.dx.accumulate),
            p: g.p,
            q: g.q,
        };
        self.launch(&REDUCE_BWD, dt, g.op, Grid::Stride(n), &args)
    }
}
