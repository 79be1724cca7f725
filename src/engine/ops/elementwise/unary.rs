//! Functions of one operand, and their gradients.

use super::{Settled, map_problem, merged, merged_axes, vector};
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::error::Result;
use crate::spec::elementwise::{AIRY, SPECIAL};
use crate::spec::kernels::elementwise::*;

/// Grid of `unary_flat` and `unary_bwd_flat`, whose threads take `runs` vectors each of 16-bit values (`GK_RUNS`, `GK_BWD_RUNS`).
pub(crate) fn flat_grid(n: usize, dt: DType, wide: bool, runs: usize) -> Grid {
    let runs = if vector(dt) >= 8 { runs } else { 1 };
    Grid::Stride(if wide { n.div_ceil(vector(dt) * runs) } else { n })
}

/// Whether a function has the kernels of `elementwise/unary_special.c`.
fn is_special(function: &str) -> bool {
    SPECIAL.contains(&function)
}

/// Whether a function has the kernels of `elementwise/unary_airy.c`.
fn is_airy(function: &str) -> bool {
    AIRY.contains(&function)
}

impl Engine {
    /// y = f(x) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map(
        &self,
        op: &'static str,
        function: &'static str,
        x: &View<'_>,
        y: &ViewMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let count = x.numel();
        if count == 0 {
            return Ok(());
        }
        let (dt, v) = (x.dtype(), y.as_view());
        if v.dtype() != dt {
            let views = [*x, v];
            let m = merged(&views, 1);
            let problem = map_problem(&m, views.each_ref(), 1);
            let wide = problem.flat && problem.aligned;
            let (rank, shape, [sx, sy]) = merged_axes(&m);
            let (x, y, n) = (self.arg_in(x), self.arg_in(&v), long(count));
            let args = UnaryMaskArgs { x, y, n, wide: i32::from(wide), rank, shape, sx, sy, p, q, s };
            let grid = Grid::Stride(if wide { count.div_ceil(vector(dt)) } else { count });
            return self.launch(&UNARY_MASK, dt, function, grid, &args);
        }
        let mut homes = [const { None }; 2];
        let Settled { views, m, flat } = self.settle(op, [*x, v], 1, &mut homes)?;
        let ([x, y], n) = (views.each_ref().map(|v| self.arg_in(v)), long(count));
        match flat {
            Some(wide) => {
                let args = UnaryFlatArgs { x, y, n, wide: i32::from(wide), p, q, s };
                let kernel = match function {
                    f if is_special(f) => &SPECIAL_FLAT,
                    f if is_airy(f) => &AIRY_FLAT,
                    _ => &UNARY_FLAT,
                };
                self.launch(kernel, dt, function, flat_grid(count, dt, wide, 4), &args)
            }
            None => {
                let (rank, shape, [sx, sy]) = merged_axes(&m);
                let args = UnaryNdArgs { x, y, n, rank, shape, sx, sy, p, q, s };
                let kernel = match function {
                    f if is_special(f) => &SPECIAL_ND,
                    f if is_airy(f) => &AIRY_ND,
                    _ => &UNARY_ND,
                };
                self.launch(kernel, dt, function, Grid::Stride(count), &args)
            }
        }
    }

    /// dx (+)= g(dy, saved) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map_bwd(
        &self,
        op: &'static str,
        function: &'static str,
        [dy, saved]: [&View<'_>; 2],
        dx: &GradMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let count = dy.numel();
        if count == 0 {
            return Ok(());
        }
        let (dt, v) = (dy.dtype(), dx.out.as_view());
        let mut homes = [const { None }; 3];
        let Settled { views, m, flat } = self.settle(op, [*dy, *saved, v], 2, &mut homes)?;
        let [dy, x, out] = views.each_ref().map(|v| self.arg_in(v));
        let (accumulate, dx, n) = (i32::from(dx.accumulate), out, long(count));
        match flat {
            Some(wide) => {
                let args = UnaryBwdFlatArgs { dy, x, dx, n, wide: i32::from(wide), accumulate, p, q, s };
                let kernel = if is_special(function) { &SPECIAL_BWD_FLAT } else { &UNARY_BWD_FLAT };
                self.launch(kernel, dt, function, flat_grid(count, dt, wide, 2), &args)
            }
            None => {
                let (rank, shape, [sdy, sx, sdx]) = merged_axes(&m);
                let args = UnaryBwdNdArgs { dy, x, dx, n, rank, shape, sdy, sx, sdx, accumulate, p, q, s };
                let kernel = if is_special(function) { &SPECIAL_BWD_ND } else { &UNARY_BWD_ND };
                self.launch(kernel, dt, function, Grid::Stride(count), &args)
            }
        }
    }
}
