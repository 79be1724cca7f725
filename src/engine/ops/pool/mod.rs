//! Pooling: validation and launch.

#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, dims};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::pool::*;
use crate::ops::reduce::{Reduce, ReduceOps};
use crate::spec::BLOCK;
use crate::spec::kernels::pool::*;

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

/// What averages divide by where it is the same for all windows; the kernels take 0 where it is not.
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
    Grid::Blocks([outputs.div_ceil(BLOCK as usize / lanes), 1, 1])
}

/// Whether rows are moved in runs of 16 bytes, and the sizes of a plane with rows counted in runs.
fn runs(g: &PoolGeometry, dx: &View<'_>) -> (bool, [usize; 3]) {
    let w = 16 / dx.dtype().size();
    let wide = g.input[2].is_multiple_of(w) && aligned16(dx);
    (wide, [g.input[0], g.input[1], if wide { g.input[2] / w } else { g.input[2] }])
}

/// Pooling that halves rows, as `halving.c` takes it.
struct Halving {
    side: usize,
    /// Items of a row, and rows of x and y of a plane.
    runs: usize,
    rows: [usize; 2],
    planes: usize,
    size: DimsArg,
}

impl Halving {
    /// Rows of y that an item of the forward has (`GK_ROWS`).
    const ROWS: usize = 2;

    /// `Some` where the kernels for it apply: square windows of one plane, and rows of x of whole 16-byte items.
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

    /// Arguments for `rows` rows per plane, `each` of them per item.
    fn args(&self, rows: usize, each: usize) -> HalvingArgs {
        let pairs = rows.div_ceil(each);
        let (size, by) = (self.size, magic([self.runs, pairs]));
        HalvingArgs { items: self.items(pairs), size, by, side: self.side as i32 }
    }

    fn forward(&self) -> HalvingArgs {
        self.args(self.rows[1], Self::ROWS)
    }

    fn backward(&self) -> HalvingArgs {
        self.args(self.rows[0], 2)
    }
}

/// Halving as a kernel takes it.
struct HalvingArgs {
    items: usize,
    size: DimsArg,
    /// Multipliers that divide by the items of a row and the groups of rows of a plane.
    by: DimsArg,
    side: i32,
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
        self.check_owner_all(OP, &[("x", Some(x)), ("y", Some(v)), ("index", index)])?;
        let n = v.numel();
        let halving = Halving::of(&g, &x, &[&v, index.as_ref().unwrap_or(&v)]);
        let (dt, index) = (x.dtype(), self.arg_opt(index.as_ref()));
        let (x, y) = (self.arg_in(&x), self.arg_in(&v));
        if let Some(HalvingArgs { items, size, by, side }) = halving.map(|q| q.forward()) {
            let args = MaxPoolHalveArgs { x, y, index, n: items as i64, size, by, side };
            return self.launch(&MAX_POOL_HALVE, dt, "", Grid::Stride(items), &args);
        }
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, g.output);
        let (count, adaptive) = (n as i64, i32::from(g.adaptive));
        if let Some(side) = side(&g) {
            let side = side as i32;
            let args = MaxPoolPatchArgs { x, y, index, n: count, size, magic, win, pad, side };
            return self.launch(&MAX_POOL_PATCH, dt, "", Grid::Stride(n), &args);
        }
        match lanes(&g) {
            1 => {
                let args = MaxPoolArgs { x, y, index, n: count, size, magic, win, pad, adaptive };
                self.launch(&MAX_POOL, dt, "", Grid::Stride(n), &args)
            }
            lanes => {
                let args = MaxPoolRowsArgs {
                    x,
                    y,
                    index,
                    n: count,
                    size,
                    magic,
                    win,
                    pad,
                    adaptive,
                    lanes: lanes as i32,
                };
                self.launch(&MAX_POOL_ROWS, dt, "", blocks(n, lanes), &args)
            }
        }
    }

    fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "max_pool_bwd";
        let g = folded(check_max_pool_bwd(windows, &dy, &index, &dx)?);
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("index", index), ("dx", v)])?;
        if let Some(h) = Halving::of(&g, &v, &[&dy, &index]).map(|q| q.backward()) {
            let HalvingArgs { items, size, by, side } = h;
            let args = MaxPoolHalveBwdArgs {
                dy: self.arg_in(&dy),
                index: self.arg_in(&index),
                dx: self.arg_in(&v),
                err: self.arg_error(),
                n: items as i64,
                size,
                by,
                side,
                accumulate: i32::from(dx.accumulate),
                code: code_of_op(OP),
            };
            return self.launch(&MAX_POOL_HALVE_BWD, v.dtype(), "", Grid::Stride(items), &args);
        }
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, items);
        let args = MaxPoolBwdArgs {
            dy: self.arg_in(&dy),
            index: self.arg_in(&index),
            dx: self.arg_in(&v),
            err: self.arg_error(),
            n: n as i64,
            size,
            magic,
            win,
            pad,
            adaptive: i32::from(g.adaptive),
            wide: i32::from(wide),
            accumulate: i32::from(dx.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&MAX_POOL_BWD, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn avg_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let g = folded(check_avg_pool(windows, &x, &y)?);
        let v = y.as_view();
        self.check_owner_all("avg_pool", &[("x", x), ("y", v)])?;
        let n = v.numel();
        if g.adaptive && g.output == [1; 3] && g.plane() >= LONG && n > 0 {
            // Global: the mean of rows.
            return self.reduce(Reduce::Mean, &[1], x.reshape(&[n, g.plane()])?, y.reshape(&[n])?);
        }
        let (dt, halving) = (x.dtype(), Halving::of(&g, &x, &[&v]));
        let (x, y) = (self.arg_in(&x), self.arg_in(&v));
        if let (Some(q), Some(divisor)) = (halving, divisor(&g)) {
            let HalvingArgs { items, size, by, side } = q.forward();
            let args = AvgPoolHalveArgs { x, y, n: items as i64, size, by, side, divisor };
            return self.launch(&AVG_POOL_HALVE, dt, "", Grid::Stride(items), &args);
        }
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, g.output);
        let count = n as i64;
        if let (Some(side), Some(divisor)) = (side(&g), divisor(&g)) {
            let side = side as i32;
            let args = AvgPoolPatchArgs { x, y, n: count, size, magic, win, pad, side, divisor };
            return self.launch(&AVG_POOL_PATCH, dt, "", Grid::Stride(n), &args);
        }
        let (adaptive, include_pad) = (i32::from(g.adaptive), include_pad(&g));
        let divisor = divisor(&g).unwrap_or(0.0);
        match lanes(&g) {
            1 => {
                let args =
                    AvgPoolArgs { x, y, n: count, size, magic, win, pad, adaptive, include_pad, divisor };
                self.launch(&AVG_POOL, dt, "", Grid::Stride(n), &args)
            }
            lanes => {
                let args = AvgPoolRowsArgs {
                    x,
                    y,
                    n: count,
                    size,
                    magic,
                    win,
                    pad,
                    adaptive,
                    include_pad,
                    divisor,
                    lanes: lanes as i32,
                };
                self.launch(&AVG_POOL_ROWS, dt, "", blocks(n, lanes), &args)
            }
        }
    }

    fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        let g = folded(check_avg_pool_bwd(windows, &dy, &dx)?);
        let v = dx.out.as_view();
        self.check_owner_all("avg_pool_bwd", &[("dy", dy), ("dx", v)])?;
        if let (Some(q), Some(divisor)) = (Halving::of(&g, &v, &[&dy]), divisor(&g)) {
            let HalvingArgs { items, size, by, side } = q.backward();
            let args = AvgPoolHalveBwdArgs {
                dy: self.arg_in(&dy),
                dx: self.arg_in(&v),
                n: items as i64,
                size,
                by,
                side,
                divisor,
                accumulate: i32::from(dx.accumulate),
            };
            return self.launch(&AVG_POOL_HALVE_BWD, v.dtype(), "", Grid::Stride(items), &args);
        }
        let (wide, items) = runs(&g, &v);
        let n = g.planes * items.iter().product::<usize>();
        let WindowArgs { size, magic, win, pad } = WindowArgs::new(&g, items);
        let args = AvgPoolBwdArgs {
            dy: self.arg_in(&dy),
            dx: self.arg_in(&v),
            n: n as i64,
            size,
            magic,
            win,
            pad,
            adaptive: i32::from(g.adaptive),
            include_pad: include_pad(&g),
            divisor: divisor(&g).unwrap_or(0.0),
            wide: i32::from(wide),
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&AVG_POOL_BWD, v.dtype(), "", Grid::Stride(n), &args)
    }
}
