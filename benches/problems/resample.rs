//! Interpolation, sampling, suppression of boxes.

use trefoil::DType;
use trefoil::ops::*;

use super::{Bed, F32, F32_BF16, Problem, Row, bytes, row};

/// Images, and the same with sides `by` times as long.
fn larger(b: &Bed<'_>, by: usize) -> ([usize; 4], [usize; 4], [usize; 2]) {
    let (planes, side) = (b.pick(4, 16, 1_024), b.pick(16, 32, 128));
    let n = planes * side * side;
    ([1, planes, side, side], [1, planes, by * side, by * side], [n, n * by * by])
}

fn forward(b: &Bed<'_>, dt: DType, p: Interpolate, by: usize) -> trefoil::Result<Problem> {
    let (xs, ys, [n, m]) = larger(b, by);
    let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, m)?);
    bytes((n + m) * dt.size(), move |g| g.interpolate(p, x.shaped(&xs)?, y.shaped_mut(&ys)?))
}

fn backward(b: &Bed<'_>, dt: DType, p: Interpolate, by: usize) -> trefoil::Result<Problem> {
    let (xs, ys, [n, m]) = larger(b, by);
    let (dy, mut dx) = (b.normal(dt, m)?, b.empty(dt, n)?);
    bytes((n + m) * dt.size(), move |g| g.interpolate_bwd(p, dy.shaped(&ys)?, dx.shaped_mut(&xs)?.into()))
}

/// Images and as many positions as they have cells.
fn sampled(b: &Bed<'_>) -> ([usize; 4], [usize; 4], usize) {
    let (samples, side) = (b.pick(1, 2, 16), b.pick(16, 32, 256));
    ([samples, 16, side, side], [samples, side, side, 2], samples * side * side)
}

fn mode(mode: InterpolateMode) -> Interpolate {
    Interpolate::new(mode)
}

pub(super) const ROWS: &[Row] = &[
    row("interpolate", "nearest", F32_BF16, |b, dt| forward(b, dt, mode(InterpolateMode::Nearest), 2)),
    row("interpolate", "nearest_3", F32, |b, dt| forward(b, dt, mode(InterpolateMode::Nearest), 3)),
    row("interpolate", "linear", F32_BF16, |b, dt| forward(b, dt, mode(InterpolateMode::Linear), 2)),
    row("interpolate", "cubic", F32, |b, dt| forward(b, dt, mode(InterpolateMode::Cubic), 2)),
    row("interpolate_bwd", "nearest", F32_BF16, |b, dt| backward(b, dt, mode(InterpolateMode::Nearest), 2)),
    row("interpolate_bwd", "nearest_3", F32, |b, dt| backward(b, dt, mode(InterpolateMode::Nearest), 3)),
    row("interpolate_bwd", "linear", F32_BF16, |b, dt| backward(b, dt, mode(InterpolateMode::Linear), 2)),
    row("affine_grid", "images", F32, |b, dt| {
        let (_, gs, n) = sampled(b);
        let (theta, mut grid) = (b.normal(dt, gs[0] * 6)?, b.empty(dt, 2 * n)?);
        bytes(2 * n * dt.size(), move |g| {
            g.affine_grid(false, theta.shaped(&[gs[0], 2, 3])?, grid.shaped_mut(&gs)?)
        })
    }),
    row("affine_grid_bwd", "images", F32, |b, dt| {
        let (_, gs, n) = sampled(b);
        let (dgrid, mut dtheta) = (b.normal(dt, 2 * n)?, b.empty(dt, gs[0] * 6)?);
        bytes(2 * n * dt.size(), move |g| {
            g.affine_grid_bwd(false, dgrid.shaped(&gs)?, dtheta.shaped_mut(&[gs[0], 2, 3])?.into())
        })
    }),
    row("grid_sample", "linear", F32_BF16, |b, dt| {
        let (xs, gs, n) = sampled(b);
        let (x, grid, mut y) = (b.normal(dt, 16 * n)?, b.normal(dt, 2 * n)?, b.empty(dt, 16 * n)?);
        let p = GridSample::new(SampleMode::Linear);
        bytes(34 * n * dt.size(), move |g| {
            g.grid_sample(p, x.shaped(&xs)?, grid.shaped(&gs)?, y.shaped_mut(&xs)?)
        })
    }),
    row("grid_sample_bwd", "linear", F32, |b, dt| {
        let (xs, gs, n) = sampled(b);
        let (dy, x, grid) = (b.normal(dt, 16 * n)?, b.normal(dt, 16 * n)?, b.normal(dt, 2 * n)?);
        let (mut dx, mut dgrid) = (b.empty(dt, 16 * n)?, b.empty(dt, 2 * n)?);
        let p = GridSample::new(SampleMode::Linear);
        bytes(52 * n * dt.size(), move |g| {
            let (dx, dgrid) = (dx.shaped_mut(&xs)?.into(), dgrid.shaped_mut(&gs)?.into());
            let (dy, x, grid) = (dy.shaped(&xs)?, x.shaped(&xs)?, grid.shaped(&gs)?);
            g.grid_sample_bwd(p, GridSampleBwd { dy, x, grid, dx: Some(dx), dgrid: Some(dgrid) })
        })
    }),
    row("nms", "boxes", F32, |b, dt| {
        let n = b.pick(64, 1_000, 10_000);
        let (boxes, scores) = (b.positive(dt, 4 * n)?, b.normal(dt, n)?);
        let (mut keep, mut count) = (b.empty(DType::I64, n)?, b.empty(DType::I64, 1)?);
        bytes(n * (5 * dt.size() + 8), move |g| {
            g.nms(0.5, boxes.shaped(&[n, 4])?, scores.view(), None, keep.view_mut(), count.view_mut())
        })
    }),
];
