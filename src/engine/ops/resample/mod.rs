//! Resampling: validation and launch.

pub(super) mod grid_sample;
mod plan;
mod roi_align;

use self::plan::{InterpolatePlan, InterpolateProblem, Weights};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, aligned16, dims, int, long};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::pool::{PoolOps, Pooling};
use crate::ops::resample::*;
use crate::spec::BLOCK;
use crate::spec::kernels::resample::*;

fn sizes(s: &Sizes) -> DimsArg {
    dims(s.input.into_iter().chain(s.output))
}

/// Whether the products of positions fit 31 bits.
fn small(s: &Sizes) -> bool {
    s.input.iter().zip(s.output).all(|(&n, m)| 2 * n.max(m) * (n.min(m) + 1) < 1 << 31)
}

/// Cells that an output of an axis reads at most.
fn reach(p: Interpolate, n: usize, m: usize) -> usize {
    let radius = if p.mode == InterpolateMode::Cubic { 2 } else { 1 };
    if !p.antialias {
        return 2 * radius;
    }
    let (up, down) = match p.align_corners {
        true if m > 1 => (n - 1, m - 1),
        true => (0, 1),
        false => (n, m),
    };
    ((2 * radius * up.max(down)).div_ceil(down) + 2).min(n)
}

/// What decides how interpolation runs; `y` is the output, or its gradient.
fn problem(p: Interpolate, s: Sizes, x: &View<'_>, y: &View<'_>) -> InterpolateProblem {
    let weights = match p.mode {
        InterpolateMode::Nearest | InterpolateMode::NearestExact => Weights::Nearest,
        InterpolateMode::Linear if !p.align_corners && !p.antialias => Weights::Linear,
        _ => Weights::Tables,
    };
    InterpolateProblem { s, weights, dtype: x.dtype(), x_aligned: aligned16(x), y_aligned: aligned16(y) }
}

/// Bounds and weights of the three axes; see `resample/resample.c`.
struct Tables {
    bounds: Buffer,
    weights: Buffer,
    taps: DimsArg,
}

/// Planes per thread (`GK_PLANES`).
const PLANES: usize = 4;

impl Engine {
    /// Items of `per_plane` for each group of planes, and the planes of a group: several where the device is full anyway.
    fn plane_groups(&self, planes: usize, per_plane: usize) -> (usize, usize) {
        let enough = planes.div_ceil(PLANES) * per_plane >= 2 * self.target_blocks() * BLOCK as usize;
        let group = if enough { PLANES } else { 1 };
        (planes.div_ceil(group) * per_plane, group)
    }

    fn tables(&self, p: Interpolate, s: &Sizes, dt: DType) -> Result<Tables> {
        let taps: [usize; 3] = std::array::from_fn(|a| reach(p, s.input[a], s.output[a]));
        let (n, m) = (s.input.iter().sum::<usize>(), s.output.iter().sum::<usize>());
        let bounds = self.scratch(DType::I32, 2 * (n + m))?;
        let weights = self.scratch(dt.accumulator(), taps.iter().zip(s.output).map(|(k, m)| k * m).sum())?;
        let t = Tables { bounds, weights, taps: dims(taps) };
        let args = ResampleTapsArgs {
            bounds: self.arg_in(&t.bounds.view()),
            weights: self.arg_in(&t.weights.view()),
            n: m as i64,
            size: sizes(s),
            taps: t.taps,
            cubic: i32::from(p.mode == InterpolateMode::Cubic),
            align: i32::from(p.align_corners),
            antialias: i32::from(p.antialias),
        };
        self.launch(&RESAMPLE_TAPS, dt, "", Grid::Stride(m), &args)?;
        Ok(t)
    }

    /// What serves 64 planes of 32 x 32 cells in f32 whose sides double.
    pub(crate) fn explain_interpolate(&self, op: &'static str) -> Result<Choice> {
        let s = Sizes { planes: 64, input: [1, 32, 32], output: [1, 64, 64] };
        let (weights, dtype) = (Weights::Nearest, DType::F32);
        let p = InterpolateProblem { s, weights, dtype, x_aligned: true, y_aligned: true };
        self.explain_problem(op, &p)
    }

    fn interpolate_as(
        &self,
        plan: InterpolatePlan,
        p: Interpolate,
        s: Sizes,
        from: &View<'_>,
        to: &View<'_>,
    ) -> Result<()> {
        let (dt, [d, h, w]) = (to.dtype(), s.output);
        let (x, cells, y) = (self.arg_in(from), to.numel(), self.arg_in(to));
        match plan {
            InterpolatePlan::Doubling { runs, items, depth, height } => {
                let rows = s.input[1];
                let (by, fd, fh) = (magic([runs, rows]), int(depth), int(height));
                let args =
                    NearestTwiceArgs { x, y, n: long(items), runs: int(runs), rows: int(rows), by, fd, fh };
                self.launch(&NEAREST_TWICE, dt, "", Grid::Stride(items), &args)
            }
            InterpolatePlan::LinearDoubling { runs, pairs, items } => {
                let (size, by) = (dims(s.input[1..].iter().copied()), magic([runs, pairs]));
                let args = LinearTwiceArgs { x, y, n: long(items), size, by };
                self.launch(&LINEAR_TWICE, dt, "", Grid::Stride(items), &args)
            }
            InterpolatePlan::Cells { wide } => {
                let run = if wide { 16 / dt.size() } else { 1 };
                let items = cells / run;
                let args = NearestArgs {
                    x,
                    y,
                    n: long(items),
                    size: sizes(&s),
                    magic: magic([d, h, w / run, 2 * d, 2 * h, 2 * w]),
                    half_cell: i32::from(p.mode == InterpolateMode::NearestExact),
                    small: i32::from(small(&s)),
                    wide: i32::from(wide),
                };
                self.launch(&NEAREST, dt, "", Grid::Stride(items), &args)
            }
            InterpolatePlan::Tables => self.resample(p, &s, from, to),
        }
    }

    /// The gradient of [`Engine::interpolate_as`].
    fn interpolate_bwd_as(
        &self,
        plan: InterpolatePlan,
        p: Interpolate,
        s: Sizes,
        from: &View<'_>,
        to: &GradMut<'_>,
    ) -> Result<()> {
        let (v, accumulate) = (to.out.as_view(), i32::from(to.accumulate));
        let (dt, cells) = (v.dtype(), v.numel());
        let (dy, dx) = (self.arg_in(from), self.arg_in(&v));
        match plan {
            InterpolatePlan::Doubling { runs, items, depth, height } => {
                let rows = s.input[1];
                let (n, by, fd, fh) = (long(items), magic([runs, rows]), int(depth), int(height));
                let (runs, rows) = (int(runs), int(rows));
                let args = NearestTwiceBwdArgs { dy, dx, n, runs, rows, by, fd, fh, accumulate };
                self.launch(&NEAREST_TWICE_BWD, dt, "", Grid::Stride(items), &args)
            }
            InterpolatePlan::LinearDoubling { runs, pairs, items } => {
                let (size, by) = (dims(s.input[1..].iter().copied()), magic([runs, pairs]));
                let args = LinearTwiceBwdArgs { dy, dx, n: long(items), size, by, accumulate };
                self.launch(&LINEAR_TWICE_BWD, dt, "", Grid::Stride(items), &args)
            }
            InterpolatePlan::Cells { .. } => {
                let args = NearestBwdArgs {
                    dy,
                    dx,
                    n: long(cells),
                    size: sizes(&s),
                    magic: magic(s.input.into_iter().chain(s.input.map(|n| 2 * n))),
                    half_cell: i32::from(p.mode == InterpolateMode::NearestExact),
                    small: i32::from(small(&s)),
                    accumulate,
                };
                self.launch(&NEAREST_BWD, dt, "", Grid::Stride(cells), &args)
            }
            InterpolatePlan::Tables => self.resample_bwd(p, &s, from, &v, accumulate),
        }
    }

    /// Interpolation by tables of weights.
    fn resample(&self, p: Interpolate, s: &Sizes, x: &View<'_>, y: &View<'_>) -> Result<()> {
        let t = self.tables(p, s, y.dtype())?;
        let (n, group) = self.plane_groups(s.planes, s.output.iter().product());
        let args = ResampleArgs {
            x: self.arg_in(x),
            bounds: self.arg_in(&t.bounds.view()),
            weights: self.arg_in(&t.weights.view()),
            y: self.arg_in(y),
            n: n as i64,
            planes: s.planes as i64,
            group: group as i32,
            size: sizes(s),
            magic: magic(s.output),
            taps: t.taps,
        };
        self.launch(&RESAMPLE, y.dtype(), "", Grid::Stride(n), &args)
    }

    /// The gradient of [`Engine::resample`].
    fn resample_bwd(
        &self,
        p: Interpolate,
        s: &Sizes,
        dy: &View<'_>,
        dx: &View<'_>,
        accumulate: i32,
    ) -> Result<()> {
        let (t, dt) = (self.tables(p, s, dx.dtype())?, dx.dtype());
        let cells: usize = s.input.iter().sum();
        let args =
            ResampleSpansArgs { bounds: self.arg_in(&t.bounds.view()), n: cells as i64, size: sizes(s) };
        self.launch(&RESAMPLE_SPANS, dt, "", Grid::Stride(cells), &args)?;
        let (n, group) = self.plane_groups(s.planes, s.input.iter().product());
        let args = ResampleBwdArgs {
            dy: self.arg_in(dy),
            bounds: self.arg_in(&t.bounds.view()),
            weights: self.arg_in(&t.weights.view()),
            dx: self.arg_in(dx),
            n: n as i64,
            planes: s.planes as i64,
            group: group as i32,
            size: sizes(s),
            magic: magic(s.input),
            taps: t.taps,
            accumulate,
        };
        self.launch(&RESAMPLE_BWD, dt, "", Grid::Stride(n), &args)
    }
}

impl ResampleOps for Engine {
    fn interpolate(&self, p: Interpolate, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "interpolate";
        let s = check_interpolate(p, &x, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        if p.mode == InterpolateMode::Area {
            return self.avg_pool(Pooling::Adaptive, x, y);
        }
        let plan = self.plan(OP, &problem(p, s, &x, &v))?;
        self.interpolate_as(plan, p, s, &x, &v)
    }

    fn interpolate_bwd(&self, p: Interpolate, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "interpolate_bwd";
        let s = check_interpolate_bwd(p, &dy, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("dx", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        if p.mode == InterpolateMode::Area {
            return self.avg_pool_bwd(Pooling::Adaptive, dy, dx);
        }
        let plan = self.plan(OP, &problem(p, s, &v, &dy))?;
        self.interpolate_bwd_as(plan, p, s, &dy, &dx)
    }

    fn affine_grid(&self, align_corners: bool, theta: View<'_>, grid: ViewMut<'_>) -> Result<()> {
        let s = check_affine_grid(&theta, &grid)?;
        let v = grid.as_view();
        self.check_owner_all("affine_grid", &[("theta", theta), ("grid", v)])?;
        let n = v.numel() / s.axes;
        let args = AffineGridArgs {
            theta: self.arg_in(&theta),
            grid: self.arg_in(&v),
            n: n as i64,
            axes: s.axes as i32,
            size: dims(s.points),
            magic: magic(s.points),
            align: i32::from(align_corners),
        };
        self.launch(&AFFINE_GRID, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn affine_grid_bwd(&self, align_corners: bool, dgrid: View<'_>, dtheta: GradMut<'_>) -> Result<()> {
        let s = check_affine_grid_bwd(&dgrid, &dtheta)?;
        let v = dtheta.out.as_view();
        self.check_owner_all("affine_grid_bwd", &[("dgrid", dgrid), ("dtheta", v)])?;
        if s.batch == 0 {
            return Ok(());
        }
        let (points, dt) = (s.points.iter().product::<usize>(), v.dtype());
        let chunk = points.div_ceil(64).next_multiple_of(4 * BLOCK as usize);
        let chunks = points.div_ceil(chunk);
        let part = self.scratch(dt.accumulator(), s.batch * chunks * 12)?;
        let grid = Grid::Blocks([chunks, s.batch.min(MAX_GRID_YZ), 1]);
        let args = AffineGridSumsArgs {
            dgrid: self.arg_in(&dgrid),
            part: self.arg_in(&part.view()),
            samples: s.batch as i64,
            points: points as i64,
            chunk: chunk as i64,
            axes: s.axes as i32,
            size: dims(s.points),
            magic: magic(s.points),
            align: i32::from(align_corners),
        };
        self.launch(&AFFINE_GRID_SUMS, dt, "", grid, &args)?;
        let n = v.numel();
        let args = AffineGridCombineArgs {
            part: self.arg_in(&part.view()),
            dtheta: self.arg_in(&v),
            n: n as i64,
            axes: s.axes as i32,
            chunks: chunks as i32,
            accumulate: i32::from(dtheta.accumulate),
        };
        self.launch(&AFFINE_GRID_COMBINE, dt, "", Grid::Stride(n), &args)
    }

    fn grid_sample(&self, p: GridSample, x: View<'_>, grid: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let s = check_grid_sample(p, &x, &grid, &y)?;
        let v = y.as_view();
        self.check_owner_all("grid_sample", &[("x", x), ("grid", grid), ("y", v)])?;
        self.sample(p, &s, &x, &grid, &v)
    }

    fn grid_sample_bwd(&self, p: GridSample, io: GridSampleBwd<'_>) -> Result<()> {
        const OP: &str = "grid_sample_bwd";
        let s = check_grid_sample_bwd(p, &io)?;
        let dx = io.dx.as_ref().map(|g| (g.out.as_view(), g.accumulate));
        let dgrid = io.dgrid.as_ref().map(|g| (g.out.as_view(), g.accumulate));
        self.check_owner_all(OP, &[("dy", io.dy), ("x", io.x), ("grid", io.grid)])?;
        self.check_owner_all(OP, &[("dx", dx.map(|d| d.0)), ("dgrid", dgrid.map(|d| d.0))])?;
        if let Some((dgrid, accumulate)) = dgrid {
            self.sample_dgrid(p, &s, &io, &dgrid, accumulate)?;
        }
        match dx {
            Some((dx, accumulate)) => self.sample_dx(OP, p, &s, &io, &dx, accumulate),
            None => Ok(()),
        }
    }

    fn roi_align(
        &self,
        p: RoiAlign,
        x: View<'_>,
        boxes: View<'_>,
        images: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "roi_align";
        let s = check_roi_align(p, &x, &boxes, &images, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("boxes", boxes), ("images", images), ("y", v)])?;
        self.regions(OP, p, &s, [&x, &boxes, &images], &v)
    }

    fn roi_align_bwd(
        &self,
        p: RoiAlign,
        dy: View<'_>,
        boxes: View<'_>,
        images: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "roi_align_bwd";
        let s = check_roi_align_bwd(p, &dy, &boxes, &images, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("boxes", boxes), ("images", images), ("dx", v)])?;
        self.regions_bwd(OP, p, &s, [&dy, &boxes, &images], &dx)
    }

    fn nms(
        &self,
        iou_threshold: f64,
        boxes: View<'_>,
        scores: View<'_>,
        groups: Option<View<'_>>,
        keep: ViewMut<'_>,
        count: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "nms";
        check_nms(iou_threshold, &boxes, &scores, groups.as_ref(), &keep, &count)?;
        let (keep, count) = (keep.as_view(), count.as_view());
        self.check_owner_all(OP, &[("boxes", boxes), ("scores", scores), ("keep", keep), ("count", count)])?;
        self.check_owner_all(OP, &[("groups", groups)])?;
        self.suppress(OP, iou_threshold, [&boxes, &scores], groups.as_ref(), [&keep, &count])
    }
}
