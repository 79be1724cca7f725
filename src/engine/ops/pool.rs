//! Pooling: validation and launch.

use super::strided::magic;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, dims, real};
use crate::error::Result;
use crate::ops::*;
use crate::spec::BLOCK;
use crate::spec::pool::*;

/// Inner window width from which several work-items share an output.
const LONG: usize = 32;

/// One window over two axes is one window over both together: planes of global pooling become rows.
fn folded(mut g: PoolGeometry) -> PoolGeometry {
    let whole = |g: &PoolGeometry, a: usize| g.adaptive && g.output[a] == 1;
    while whole(&g, 2) && whole(&g, 1) && g.input[..2] != [1, 1] && g.plane() < 1 << 30 {
        g.input = [1, g.input[0], g.input[1] * g.input[2]];
        g.output = [1, g.output[0], 1];
    }
    if g.adaptive {
        // The longest window, which decides how windows are read.
        g.kernel = std::array::from_fn(|a| (g.input[a].div_ceil(g.output[a]) + 1).min(g.input[a]));
    }
    g
}

/// How many work-items share an output; 1 for short windows.
fn lanes(g: &PoolGeometry) -> usize {
    if g.kernel[2] < LONG { 1 } else { (g.kernel[2] / 4).next_power_of_two().min(BLOCK as usize) }
}

/// Sizes, windows and padding as the kernels take them, and whether windows are adaptive.
fn geometry_args(g: &PoolGeometry, items: [usize; 3]) -> [Arg; 5] {
    let six = |a: [usize; 3], b: [usize; 3]| a.into_iter().chain(b);
    [
        dims(six(g.input, g.output)),
        magic(six(items, g.stride)),
        dims(six(g.kernel, g.stride)),
        dims(six(g.padding, g.dilation)),
        Arg::I32(g.adaptive as i32),
    ]
}

/// Whether padding counts, and the fixed divisor (0: none).
fn divisor_args(g: &PoolGeometry, v: &View<'_>) -> [Arg; 2] {
    [
        Arg::I32((g.count_include_pad && !g.adaptive) as i32),
        real(v.dtype(), g.divisor.map_or(0.0, |d| d as f64)),
    ]
}

fn blocks(outputs: usize, lanes: usize) -> Grid {
    Grid::Blocks([outputs.div_ceil(BLOCK as usize / lanes), 1, 1])
}

/// Runs of 16 bytes where rows allow it: their length, and the cells of a plane counted in runs.
fn runs(g: &PoolGeometry, dx: &View<'_>) -> (bool, [usize; 3]) {
    let w = 16 / dx.dtype().size();
    let wide = g.input[2].is_multiple_of(w) && aligned16(dx);
    (wide, [g.input[0], g.input[1], if wide { g.input[2] / w } else { g.input[2] }])
}

impl PoolOps for Engine {
    fn max_pool(
        &self,
        windows: Pooling,
        x: View<'_>,
        y: ViewMut<'_>,
        index: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "max_pool";
        let g = folded(check_max_pool(windows, &x, &y, index.as_ref())?);
        let (v, index) = (y.as_view(), index.as_ref().map(ViewMut::as_view));
        self.own_all(OP, &[("x", Some(x)), ("y", Some(v)), ("index", index)])?;
        let n = v.numel();
        let mut args =
            vec![self.arg_in(&x), self.arg_in(&v), self.arg_opt(index.as_ref()), Arg::I64(n as i64)];
        args.extend(geometry_args(&g, g.output));
        match lanes(&g) {
            1 => self.launch(&MAX_POOL, x.dtype(), "", Grid::Stride(n), &args),
            lanes => {
                args.push(Arg::I32(lanes as i32));
                self.launch(&MAX_POOL_ROWS, x.dtype(), "", blocks(n, lanes), &args)
            }
        }
    }

    fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = folded(check_max_pool_bwd(windows, &dy, &index, &dx)?);
        let v = dx.out.as_view();
        self.own_all(OP, &[("dy", dy), ("index", index), ("dx", v)])?;
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let mut args = vec![
            self.arg_in(&dy),
            self.arg_in(&index),
            self.arg_in(&v),
            self.arg_error(),
            Arg::I64(n as i64),
        ];
        args.extend(geometry_args(&g, items));
        args.extend([Arg::I32(wide as i32), Arg::I32(dx.accumulate as i32), Arg::I32(code_of_op(OP))]);
        self.launch(&MAX_POOL_BWD, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn avg_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let g = folded(check_avg_pool(windows, &x, &y)?);
        let v = y.as_view();
        self.own_all("avg_pool", &[("x", x), ("y", v)])?;
        let n = v.numel();
        if g.adaptive && g.output == [1; 3] && g.plane() >= LONG && n > 0 {
            // Global: the mean of rows.
            return self.reduce(Reduce::Mean, &[1], x.reshape(&[n, g.plane()])?, y.reshape(&[n])?);
        }
        let mut args = vec![self.arg_in(&x), self.arg_in(&v), Arg::I64(n as i64)];
        args.extend(geometry_args(&g, g.output));
        args.extend(divisor_args(&g, &v));
        match lanes(&g) {
            1 => self.launch(&AVG_POOL, x.dtype(), "", Grid::Stride(n), &args),
            lanes => {
                args.push(Arg::I32(lanes as i32));
                self.launch(&AVG_POOL_ROWS, x.dtype(), "", blocks(n, lanes), &args)
            }
        }
    }

    fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        let g = folded(check_avg_pool_bwd(windows, &dy, &dx)?);
        let v = dx.out.as_view();
        self.own_all("avg_pool_bwd", &[("dy", dy), ("dx", v)])?;
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let mut args = vec![self.arg_in(&dy), self.arg_in(&v), Arg::I64(n as i64)];
        args.extend(geometry_args(&g, items));
        args.extend(divisor_args(&g, &v));
        args.extend([Arg::I32(wide as i32), Arg::I32(dx.accumulate as i32)]);
        self.launch(&AVG_POOL_BWD, v.dtype(), "", Grid::Stride(n), &args)
    }
}
