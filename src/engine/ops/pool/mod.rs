//! Pooling: validation and launch.

#[cfg(all(test, feature = "opencl"))]
mod tests;

use crate::spec::kernels::pool::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, dims, real};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::pool::*;
use crate::ops::reduce::{Reduce, ReduceOps};
use crate::spec::BLOCK;

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

/// The side of a square that holds the sliding windows of H and W, where it is 2 or 3 and taps are neighbours.
fn side(g: &PoolGeometry) -> Option<usize> {
    let side = g.kernel[1].max(g.kernel[2]);
    let whole_plane_fits = g.plane() <= i32::MAX as usize;
    (matches!(side, 2 | 3) && !g.adaptive && g.dilation == [1; 3] && whole_plane_fits).then_some(side)
}

/// What averages divide by where it is the same for all windows.
fn divisor(g: &PoolGeometry) -> Option<f64> {
    if let Some(d) = g.divisor {
        return Some(d as f64);
    }
    let whole = |a: usize| {
        let p = g.padding[a];
        let padded = if g.count_include_pad { g.input[a] + 2 * p } else { g.input[a] };
        (g.count_include_pad || p == 0) && (g.output[a] - 1) * g.stride[a] + g.kernel[a] <= padded
    };
    (!g.adaptive && (0..3).all(whole)).then(|| g.kernel.iter().map(|&k| k as f64).product())
}

/// Sizes, windows and padding as the kernels take them.
fn window_args(g: &PoolGeometry, items: [usize; 3]) -> [Arg; 4] {
    let six = |a: [usize; 3], b: [usize; 3]| a.into_iter().chain(b);
    [
        dims(six(g.input, g.output)),
        magic(six(items, g.stride)),
        dims(six(g.kernel, g.stride)),
        dims(six(g.padding, g.dilation)),
    ]
}

/// Whether windows are adaptive.
fn adaptive(g: &PoolGeometry) -> Arg {
    Arg::I32(g.adaptive as i32)
}

/// Whether windows are adaptive, whether padding counts, and the divisor of all windows (0: there is none).
fn average_args(g: &PoolGeometry, v: &View<'_>) -> [Arg; 3] {
    [
        adaptive(g),
        Arg::I32((g.count_include_pad && !g.adaptive) as i32),
        real(v.dtype(), divisor(g).unwrap_or(0.0)),
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

/// Pooling that halves rows, as `pool_halve.c` takes it.
struct Halving {
    side: usize,
    /// Items of a row, and rows of x and y of a plane.
    runs: usize,
    rows: [usize; 2],
    planes: usize,
    size: Arg,
}

impl Halving {
    /// Rows of y that an item of the forward has (`GK_ROWS`).
    const ROWS: usize = 2;

    /// Where the kernels for it serve: square windows of one plane, with 16 bytes of x for half of them of y.
    fn of(g: &PoolGeometry, x: &View<'_>, views: &[&View<'_>]) -> Option<Halving> {
        let ([d, h, w], [od, oh, ow], side) = (g.input, g.output, g.kernel[2]);
        let windows = matches!(side, 2 | 3)
            && !g.adaptive
            && g.kernel == [1, side, side]
            && (g.stride[1], g.stride[2], g.padding) == (2, 2, [0, side - 2, side - 2])
            && g.dilation[1..] == [1, 1];
        let run = 16 / x.dtype().size();
        let fits =
            d == 1 && od == 1 && w == 2 * ow && w.is_multiple_of(run) && g.plane() <= i32::MAX as usize;
        let aligned = aligned16(x) && views.iter().all(|v| aligned16(v));
        let q = Halving { side, runs: w / run, rows: [h, oh], planes: g.planes, size: dims([h, w, oh, ow]) };
        (windows && fits && aligned && q.items(h) <= i32::MAX as usize).then_some(q)
    }

    fn items(&self, pairs: usize) -> usize {
        self.planes * pairs * self.runs
    }

    /// Number of items, and the arguments that describe them.
    fn args(&self, rows: usize, each: usize) -> (usize, [Arg; 4]) {
        let pairs = rows.div_ceil(each);
        let n = self.items(pairs);
        (n, [Arg::I64(n as i64), self.size, magic([self.runs, pairs]), Arg::I32(self.side as i32)])
    }

    fn forward(&self) -> (usize, [Arg; 4]) {
        self.args(self.rows[1], Self::ROWS)
    }

    fn backward(&self) -> (usize, [Arg; 4]) {
        self.args(self.rows[0], 2)
    }
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
        let halving = Halving::of(&g, &x, &[&v, index.as_ref().unwrap_or(&v)]);
        if let Some((n, tail)) = halving.map(|q| q.forward()) {
            let args = [self.arg_in(&x), self.arg_in(&v), self.arg_opt(index.as_ref())];
            let args: Vec<Arg> = args.into_iter().chain(tail).collect();
            return self.launch_list(&MAX_POOL_HALVE.spec, x.dtype(), "", Grid::Stride(n), &args);
        }
        let mut args =
            vec![self.arg_in(&x), self.arg_in(&v), self.arg_opt(index.as_ref()), Arg::I64(n as i64)];
        args.extend(window_args(&g, g.output));
        if let Some(side) = side(&g) {
            args.push(Arg::I32(side as i32));
            return self.launch_list(&MAX_POOL_PATCH.spec, x.dtype(), "", Grid::Stride(n), &args);
        }
        args.push(adaptive(&g));
        match lanes(&g) {
            1 => self.launch_list(&MAX_POOL.spec, x.dtype(), "", Grid::Stride(n), &args),
            lanes => {
                args.push(Arg::I32(lanes as i32));
                self.launch_list(&MAX_POOL_ROWS.spec, x.dtype(), "", blocks(n, lanes), &args)
            }
        }
    }

    fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = folded(check_max_pool_bwd(windows, &dy, &index, &dx)?);
        let v = dx.out.as_view();
        self.own_all(OP, &[("dy", dy), ("index", index), ("dx", v)])?;
        if let Some((n, tail)) = Halving::of(&g, &v, &[&dy, &index]).map(|q| q.backward()) {
            let args = [self.arg_in(&dy), self.arg_in(&index), self.arg_in(&v), self.arg_error()];
            let last = [Arg::I32(dx.accumulate as i32), Arg::I32(code_of_op(OP))];
            let args: Vec<Arg> = args.into_iter().chain(tail).chain(last).collect();
            return self.launch_list(&MAX_POOL_HALVE_BWD.spec, v.dtype(), "", Grid::Stride(n), &args);
        }
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let mut args = vec![
            self.arg_in(&dy),
            self.arg_in(&index),
            self.arg_in(&v),
            self.arg_error(),
            Arg::I64(n as i64),
        ];
        args.extend(window_args(&g, items));
        args.extend([
            adaptive(&g),
            Arg::I32(wide as i32),
            Arg::I32(dx.accumulate as i32),
            Arg::I32(code_of_op(OP)),
        ]);
        self.launch_list(&MAX_POOL_BWD.spec, v.dtype(), "", Grid::Stride(n), &args)
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
        if let (Some(q), Some(divisor)) = (Halving::of(&g, &x, &[&v]), divisor(&g)) {
            let (n, tail) = q.forward();
            let args = [self.arg_in(&x), self.arg_in(&v)].into_iter().chain(tail);
            let args: Vec<Arg> = args.chain([real(v.dtype(), divisor)]).collect();
            return self.launch_list(&AVG_POOL_HALVE.spec, x.dtype(), "", Grid::Stride(n), &args);
        }
        let mut args = vec![self.arg_in(&x), self.arg_in(&v), Arg::I64(n as i64)];
        args.extend(window_args(&g, g.output));
        if let (Some(side), Some(divisor)) = (side(&g), divisor(&g)) {
            args.extend([Arg::I32(side as i32), real(v.dtype(), divisor)]);
            return self.launch_list(&AVG_POOL_PATCH.spec, x.dtype(), "", Grid::Stride(n), &args);
        }
        args.extend(average_args(&g, &v));
        match lanes(&g) {
            1 => self.launch_list(&AVG_POOL.spec, x.dtype(), "", Grid::Stride(n), &args),
            lanes => {
                args.push(Arg::I32(lanes as i32));
                self.launch_list(&AVG_POOL_ROWS.spec, x.dtype(), "", blocks(n, lanes), &args)
            }
        }
    }

    fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        let g = folded(check_avg_pool_bwd(windows, &dy, &dx)?);
        let v = dx.out.as_view();
        self.own_all("avg_pool_bwd", &[("dy", dy), ("dx", v)])?;
        if let (Some(q), Some(divisor)) = (Halving::of(&g, &v, &[&dy]), divisor(&g)) {
            let (n, tail) = q.backward();
            let last = [real(v.dtype(), divisor), Arg::I32(dx.accumulate as i32)];
            let args = [self.arg_in(&dy), self.arg_in(&v)].into_iter().chain(tail);
            let args: Vec<Arg> = args.chain(last).collect();
            return self.launch_list(&AVG_POOL_HALVE_BWD.spec, v.dtype(), "", Grid::Stride(n), &args);
        }
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let mut args = vec![self.arg_in(&dy), self.arg_in(&v), Arg::I64(n as i64)];
        args.extend(window_args(&g, items));
        args.extend(average_args(&g, &v));
        args.extend([Arg::I32(wide as i32), Arg::I32(dx.accumulate as i32)]);
        self.launch_list(&AVG_POOL_BWD.spec, v.dtype(), "", Grid::Stride(n), &args)
    }
}
