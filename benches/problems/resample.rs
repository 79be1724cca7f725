//! Interpolation, sampling, suppression of boxes.

use trefoil::ops::resample::{GridSample, GridSampleBwd, Interpolate, InterpolateMode, SampleMode};
use trefoil::{DType, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Shapes of an interpolation: input and output.
type Shapes = [Vec<usize>; 2];

/// Images, and the same with sides `by` times as long.
fn larger(cx: &Context<'_>, by: usize) -> Shapes {
    let (planes, side) = (cx.pick(4, 16, 1_024), cx.pick(16, 32, 128));
    [vec![1, planes, side, side], vec![1, planes, by * side, by * side]]
}

/// Volumes of a case, and the same with sides `scale` times as long.
fn volumes(c: &Case) -> Result<Shapes, CaseError> {
    let ([n, channels, d, h, w], by) = (c.sizes(["n", "c", "d", "h", "w"])?, c.size("scale")?);
    Ok([vec![n, channels, d, h, w], vec![n, channels, by * d, by * h, by * w]])
}

fn forward(cx: &Context<'_>, dt: DType, mode: InterpolateMode, [xs, ys]: Shapes) -> Result<Prepared> {
    let [n, m] = [&xs, &ys].map(|s| s.iter().product::<usize>());
    let (p, moved) = (Interpolate::new(mode), (n + m) * dt.size());
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, m)?);
    prepared(moved, 0, move |g, i| g.interpolate(p, x.at(i).shaped(&xs)?, y.shaped_mut(&ys)?))
}

fn backward(cx: &Context<'_>, dt: DType, mode: InterpolateMode, [xs, ys]: Shapes) -> Result<Prepared> {
    let [n, m] = [&xs, &ys].map(|s| s.iter().product::<usize>());
    let (p, moved) = (Interpolate::new(mode), (n + m) * dt.size());
    let (dy, mut dx) = (cx.normal_sets(dt, m, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.interpolate_bwd(p, dy.at(i).shaped(&ys)?, dx.shaped_mut(&xs)?.into()))
}

/// Images and as many positions as they have cells.
fn sampled(cx: &Context<'_>) -> ([usize; 4], [usize; 4], usize) {
    let (samples, side) = (cx.pick(1, 2, 16), cx.pick(16, 32, 256));
    ([samples, 16, side, side], [samples, side, side, 2], samples * side * side)
}

const NEAREST: InterpolateMode = InterpolateMode::Nearest;
const LINEAR: InterpolateMode = InterpolateMode::Linear;

pub(super) const PROBLEMS: &[Problem] = &[
    problem("interpolate", "nearest", F32_BF16, |cx, dt| forward(cx, dt, NEAREST, larger(cx, 2))),
    problem("interpolate", "nearest_3", F32, |cx, dt| forward(cx, dt, NEAREST, larger(cx, 3))),
    problem("interpolate", "linear", F32_BF16, |cx, dt| forward(cx, dt, LINEAR, larger(cx, 2))),
    problem("interpolate", "cubic", F32, |cx, dt| forward(cx, dt, InterpolateMode::Cubic, larger(cx, 2))),
    problem("interpolate_bwd", "nearest", F32_BF16, |cx, dt| backward(cx, dt, NEAREST, larger(cx, 2))),
    problem("interpolate_bwd", "nearest_3", F32, |cx, dt| backward(cx, dt, NEAREST, larger(cx, 3))),
    problem("interpolate_bwd", "linear", F32_BF16, |cx, dt| backward(cx, dt, LINEAR, larger(cx, 2))),
    problem("affine_grid", "images", F32, |cx, dt| {
        let (_, gs, n) = sampled(cx);
        let (theta, mut grid) = (cx.normal(dt, gs[0] * 6)?, cx.empty(dt, 2 * n)?);
        bytes(2 * n * dt.size(), move |g| {
            g.affine_grid(false, theta.shaped(&[gs[0], 2, 3])?, grid.shaped_mut(&gs)?)
        })
    }),
    problem("affine_grid_bwd", "images", F32, |cx, dt| {
        let (_, gs, n) = sampled(cx);
        let (dgrid, mut dtheta) = (cx.normal(dt, 2 * n)?, cx.empty(dt, gs[0] * 6)?);
        bytes(2 * n * dt.size(), move |g| {
            g.affine_grid_bwd(false, dgrid.shaped(&gs)?, dtheta.shaped_mut(&[gs[0], 2, 3])?.into())
        })
    }),
    problem("grid_sample", "linear", F32_BF16, |cx, dt| {
        let (xs, gs, n) = sampled(cx);
        let (x, grid, mut y) = (cx.normal(dt, 16 * n)?, cx.normal(dt, 2 * n)?, cx.empty(dt, 16 * n)?);
        let p = GridSample::new(SampleMode::Linear);
        bytes(34 * n * dt.size(), move |g| {
            g.grid_sample(p, x.shaped(&xs)?, grid.shaped(&gs)?, y.shaped_mut(&xs)?)
        })
    }),
    problem("grid_sample_bwd", "linear", F32, |cx, dt| {
        let (xs, gs, n) = sampled(cx);
        let (dy, x, grid) = (cx.normal(dt, 16 * n)?, cx.normal(dt, 16 * n)?, cx.normal(dt, 2 * n)?);
        let (mut dx, mut dgrid) = (cx.empty(dt, 16 * n)?, cx.empty(dt, 2 * n)?);
        let p = GridSample::new(SampleMode::Linear);
        bytes(52 * n * dt.size(), move |g| {
            let (dx, dgrid) = (dx.shaped_mut(&xs)?, dgrid.shaped_mut(&gs)?);
            let (dy, x, grid) = (dy.shaped(&xs)?, x.shaped(&xs)?, grid.shaped(&gs)?);
            g.grid_sample_bwd(p, GridSampleBwd::new(dy, x, grid).dx(dx).dgrid(dgrid))
        })
    }),
    problem("nms", "boxes", F32, |cx, dt| {
        let n = cx.pick(64, 1_000, 10_000);
        let (boxes, scores) = (cx.positive(dt, 4 * n)?, cx.normal(dt, n)?);
        let (mut keep, mut count) = (cx.empty(DType::I64, n)?, cx.empty(DType::I64, 1)?);
        bytes(n * (5 * dt.size() + 8), move |g| {
            g.nms(0.5, boxes.shaped(&[n, 4])?, scores.view(), None, keep.view_mut(), count.view_mut())
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "upsample3d_nearest",
    |cx, c| Ok(forward(cx, c.dtype()?, NEAREST, volumes(c)?)?),
    |cx, c| Ok(backward(cx, c.dtype()?, NEAREST, volumes(c)?)?),
)];
