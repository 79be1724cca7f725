//! Pooling: validation and launch.

mod plan;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::plan::{
    AvgPoolBwdProblem, AvgPoolProblem, MaxPoolBwdProblem, MaxPoolProblem, PoolBwdPlan, PoolPlan, Squares,
    Windows,
};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, code_of_op, dims, int, long};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::pool::*;
use crate::ops::reduce::{Reduce, ReduceOps};
use crate::spec::kernels::pool::*;

/// Sizes, windows and padding as the kernels take them.
struct WindowArgs {
    size: DimsArg,
    /// Multipliers that divide by the sizes of `items` and by the strides.
    magic: DimsArg,
    win: DimsArg,
    pad: DimsArg,
}

impl WindowArgs {
    fn new(g: &PoolGeometry, items: [usize; 3]) -> Self {
        let six = |a: [usize; 3], b: [usize; 3]| a.into_iter().chain(b);
        WindowArgs {
            size: dims(six(g.input, g.output)),
            magic: magic(six(items, g.stride)),
            win: dims(six(g.kernel, g.stride)),
            pad: dims(six(g.padding, g.dilation)),
        }
    }
}

/// Whether averages count padding.
fn include_pad(g: &PoolGeometry) -> i32 {
    i32::from(g.count_include_pad && !g.adaptive)
}

fn blocks(outputs: usize, lanes: usize) -> Grid {
    Grid::Blocks([outputs.div_ceil(LANES / lanes), 1, 1])
}

/// Multipliers that divide by the items of a row and the groups of rows of a plane.
fn magic_of_items(q: Squares) -> DimsArg {
    magic([q.runs, q.groups])
}

/// Pooling that halves rows, as the kernels for it take it.
struct HalvingArgs {
    items: usize,
    size: DimsArg,
    /// Multipliers that divide by the items of a row and the groups of rows of a plane.
    by: DimsArg,
    side: i32,
}

impl HalvingArgs {
    fn new(g: &PoolGeometry, q: Squares) -> Self {
        let ([_, h, w], [_, oh, ow]) = (g.input, g.output);
        let (size, by) = (dims([h, w, oh, ow]), magic_of_items(q));
        HalvingArgs { items: q.items, size, by, side: int(q.side) }
    }
}

/// What decides how pooling with that geometry runs; `x` is what is pooled, or its gradient.
fn windows(g: PoolGeometry, x: &View<'_>, others: &[&View<'_>]) -> Windows {
    let x_aligned = aligned16(x);
    let aligned = x_aligned && others.iter().all(|v| aligned16(v));
    Windows { g: Windows::folded(g), dtype: x.dtype(), x_aligned, aligned }
}

impl Engine {
    /// What serves pooling of 64 planes of 112 x 112 cells in f32 by windows of 3 x 3 every 2, or its gradient.
    pub(crate) fn explain_pool(&self, op: &'static str) -> Result<Choice> {
        let g = PoolGeometry {
            planes: 64,
            input: [1, 112, 112],
            output: [1, 56, 56],
            kernel: [1, 3, 3],
            stride: [1, 2, 2],
            padding: [0, 1, 1],
            dilation: [1; 3],
            adaptive: false,
            count_include_pad: true,
            divisor: None,
        };
        let windows = Windows { g, dtype: DType::F32, x_aligned: true, aligned: true };
        match op {
            "max_pool" => self.explain_problem(op, &MaxPoolProblem(windows)),
            "avg_pool" => self.explain_problem(op, &AvgPoolProblem(windows)),
            "max_pool_bwd" => self.explain_problem(op, &MaxPoolBwdProblem(windows)),
            _ => self.explain_problem(op, &AvgPoolBwdProblem(windows)),
        }
    }
}

impl PoolOps for Engine {
    fn max_pool(
        &self,
        pooling: Pooling,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let g = check_max_pool(pooling, &x, &y, index.as_ref())?;
        let (v, index) = (y.as_view(), index.as_ref().map(ViewMut::as_view));
        self.check_owner_all(OP, &[("x", Some(x)), ("y", Some(v)), ("index", index)])?;
        let w = windows(g, &x, &[&v, index.as_ref().unwrap_or(&v)]);
        let plan = self.plan(OP, &MaxPoolProblem(w))?;
        let (g, outputs, dt) = (w.g, v.numel(), x.dtype());
        let (x, y, index) = (self.arg_in(&x), self.arg_in(&v), self.arg_opt(index.as_ref()));
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, g.output);
        let (n, adaptive) = (long(outputs), i32::from(g.adaptive));
        match plan {
            PoolPlan::Halving(q) => {
                let HalvingArgs { items, size, by, side } = HalvingArgs::new(&g, q);
                let args = MaxPoolHalveArgs { x, y, index, n: long(items), size, by, side };
                self.launch(&MAX_POOL_HALVE, dt, "", Grid::Stride(items), &args)
            }
            PoolPlan::Sliding(q) => {
                let (size, by, side) = (dims(g.input[1..].iter().copied()), magic_of_items(q), int(q.side));
                let args = MaxPoolHalveArgs { x, y, index, n: long(q.items), size, by, side };
                self.launch(&MAX_POOL_SLIDE, dt, "", Grid::Stride(q.items), &args)
            }
            PoolPlan::Patch { side } => {
                let args = MaxPoolPatchArgs { x, y, index, n, size, magic, win, pad, side: int(side) };
                self.launch(&MAX_POOL_PATCH, dt, "", Grid::Stride(outputs), &args)
            }
            PoolPlan::SharedWindow { lanes } => {
                let grid = blocks(outputs, lanes);
                let lanes = int(lanes);
                let args = MaxPoolRowsArgs { x, y, index, n, size, magic, win, pad, adaptive, lanes };
                self.launch(&MAX_POOL_ROWS, dt, "", grid, &args)
            }
            PoolPlan::Window | PoolPlan::Mean => {
                let args = MaxPoolArgs { x, y, index, n, size, magic, win, pad, adaptive };
                self.launch(&MAX_POOL, dt, "", Grid::Stride(outputs), &args)
            }
        }
    }

    fn max_pool_bwd(&self, pooling: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = check_max_pool_bwd(pooling, &dy, &index, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("index", index), ("dx", v)])?;
        let windows = windows(g, &v, &[&dy, &index]);
        let (g, dt) = (windows.g, v.dtype());
        let (accumulate, err, code) = (i32::from(dx.accumulate), self.arg_error(), code_of_op(OP));
        let plan = self.plan(OP, &MaxPoolBwdProblem(windows))?;
        let (dy, index, dx) = (self.arg_in(&dy), self.arg_in(&index), self.arg_in(&v));
        match plan {
            PoolBwdPlan::Halving(q) => {
                let HalvingArgs { items, size, by, side } = HalvingArgs::new(&g, q);
                let n = long(items);
                let args = MaxPoolHalveBwdArgs { dy, index, dx, err, n, size, by, side, accumulate, code };
                self.launch(&MAX_POOL_HALVE_BWD, dt, "", Grid::Stride(items), &args)
            }
            PoolBwdPlan::Mean => Err(self.no_variant(OP, "averages of planes alone are means".into())),
            PoolBwdPlan::Window { wide, items } => {
                let n = g.planes * items.iter().product::<usize>();
                let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, items);
                let args = MaxPoolBwdArgs {
                    dy,
                    index,
                    dx,
                    err,
                    n: long(n),
                    size,
                    magic,
                    win,
                    pad,
                    adaptive: i32::from(g.adaptive),
                    wide: i32::from(wide),
                    accumulate,
                    code,
                };
                self.launch(&MAX_POOL_BWD, dt, "", Grid::Stride(n), &args)
            }
        }
    }

    fn avg_pool(&self, pooling: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool";
        let g = check_avg_pool(pooling, &x, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("y", v)])?;
        let w = windows(g, &x, &[&v]);
        let (plan, rows) = (self.plan(OP, &AvgPoolProblem(w))?, x);
        let (g, outputs, dt, divisor) = (w.g, v.numel(), x.dtype(), w.divisor().unwrap_or(0.0));
        let (x, y_arg) = (self.arg_in(&x), self.arg_in(&v));
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, g.output);
        let (n, adaptive, include_pad) = (long(outputs), i32::from(g.adaptive), include_pad(&g));
        match plan {
            PoolPlan::Mean => {
                let rows = rows.reshape(&[outputs, g.plane()])?;
                self.reduce(Reduce::Mean, &[1], rows, y.reshape(&[outputs])?)
            }
            PoolPlan::Halving(q) => {
                let HalvingArgs { items, size, by, side } = HalvingArgs::new(&g, q);
                let args = AvgPoolHalveArgs { x, y: y_arg, n: long(items), size, by, side, divisor };
                self.launch(&AVG_POOL_HALVE, dt, "", Grid::Stride(items), &args)
            }
            PoolPlan::Sliding(q) => {
                let (size, by, side) = (dims(g.input[1..].iter().copied()), magic_of_items(q), int(q.side));
                let args = AvgPoolHalveArgs { x, y: y_arg, n: long(q.items), size, by, side, divisor };
                self.launch(&AVG_POOL_SLIDE, dt, "", Grid::Stride(q.items), &args)
            }
            PoolPlan::Patch { side } => {
                let side = int(side);
                let args = AvgPoolPatchArgs { x, y: y_arg, n, size, magic, win, pad, side, divisor };
                self.launch(&AVG_POOL_PATCH, dt, "", Grid::Stride(outputs), &args)
            }
            PoolPlan::SharedWindow { lanes } => {
                let args = AvgPoolRowsArgs {
                    x,
                    y: y_arg,
                    n,
                    size,
                    magic,
                    win,
                    pad,
                    adaptive,
                    include_pad,
                    divisor,
                    lanes: int(lanes),
                };
                self.launch(&AVG_POOL_ROWS, dt, "", blocks(outputs, lanes), &args)
            }
            PoolPlan::Window => {
                let args =
                    AvgPoolArgs { x, y: y_arg, n, size, magic, win, pad, adaptive, include_pad, divisor };
                self.launch(&AVG_POOL, dt, "", Grid::Stride(outputs), &args)
            }
        }
    }

    fn avg_pool_bwd(&self, pooling: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "avg_pool_bwd";
        let g = check_avg_pool_bwd(pooling, &dy, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("dx", v)])?;
        let windows = windows(g, &v, &[&dy]);
        let (g, dt, divisor) = (windows.g, v.dtype(), windows.divisor().unwrap_or(0.0));
        let accumulate = i32::from(dx.accumulate);
        let plan = self.plan(OP, &AvgPoolBwdProblem(windows))?;
        let (rows, out) = (dy, dx.out);
        let (dy, dx) = (self.arg_in(&dy), self.arg_in(&v));
        match plan {
            PoolBwdPlan::Mean => {
                let out = out.reshape(&[g.planes, g.plane()])?;
                let dx = GradMut { out, accumulate: accumulate != 0 };
                self.reduce_bwd(Reduce::Mean, &[1], rows.reshape(&[g.planes])?, None, None, dx)
            }
            PoolBwdPlan::Halving(q) => {
                let HalvingArgs { items, size, by, side } = HalvingArgs::new(&g, q);
                let n = long(items);
                let args = AvgPoolHalveBwdArgs { dy, dx, n, size, by, side, divisor, accumulate };
                self.launch(&AVG_POOL_HALVE_BWD, dt, "", Grid::Stride(items), &args)
            }
            PoolBwdPlan::Window { wide, items } => {
                let n = g.planes * items.iter().product::<usize>();
                let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, items);
                let args = AvgPoolBwdArgs {
                    dy,
                    dx,
                    n: long(n),
                    size,
                    magic,
                    win,
                    pad,
                    adaptive: i32::from(g.adaptive),
                    include_pad: include_pad(&g),
                    divisor,
                    wide: i32::from(wide),
                    accumulate,
                };
                self.launch(&AVG_POOL_BWD, dt, "", Grid::Stride(n), &args)
            }
        }
    }
}
