//! Interpolation, sampling, suppression of boxes.

use trefoil::ops::resample::{GridSample, GridSampleBwd, Interpolate, InterpolateMode, RoiAlign, SampleMode};
use trefoil::{BackendExt, DType, Result};

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

/// Feature maps of a detector, two images of 256 channels at a sixteenth of their size, and 7 x 7 bins of boxes all over them.
struct Regions {
    x: [usize; 4],
    y: [usize; 4],
    boxes: Vec<f32>,
    images: Vec<i32>,
}

const REGIONS: RoiAlign = RoiAlign::new().spatial_scale(0.0625).sampling_ratio(2).aligned(true);

fn regions(cx: &Context<'_>) -> Regions {
    let (count, channels, side) = (cx.pick(4, 32, 1_000), cx.pick(4, 16, 256), cx.pick(8, 16, 50));
    let corners = |k: usize| {
        let (a, b) = ((k * 37 % 101) as f32 / 101.0, (k * 61 % 97) as f32 / 97.0);
        let (w, h) = (0.05 + (k * 13 % 31) as f32 / 62.0, 0.05 + (k * 7 % 29) as f32 / 58.0);
        [a, b, a + w, b + h].map(|v| v * 16.0 * side as f32)
    };
    let boxes = (0..count).flat_map(corners).collect();
    Regions {
        x: [2, channels, side, side],
        y: [count, channels, 7, 7],
        boxes,
        images: (0..count as i32).map(|k| k % 2).collect(),
    }
}

const NEAREST: InterpolateMode = InterpolateMode::Nearest;
const LINEAR: InterpolateMode = InterpolateMode::Linear;

pub(super) const PROBLEMS: &[Problem] = &[
    problem("interpolate", "nearest", F32_BF16, |cx, dt| forward(cx, dt, NEAREST, larger(cx, 2))),
    problem("interpolate", "nearest_3", F32, |cx, dt| forward(cx, dt, NEAREST, larger(cx, 3))),
    problem("interpolate", "linear", F32_BF16, |cx, dt| forward(cx, dt, LINEAR, larger(cx, 2))),
    problem("interpolate", "linear_3", F32, |cx, dt| forward(cx, dt, LINEAR, larger(cx, 3))),
    problem("interpolate", "cubic", F32, |cx, dt| forward(cx, dt, InterpolateMode::Cubic, larger(cx, 2))),
    problem("interpolate_bwd", "nearest", F32_BF16, |cx, dt| backward(cx, dt, NEAREST, larger(cx, 2))),
    problem("interpolate_bwd", "nearest_3", F32, |cx, dt| backward(cx, dt, NEAREST, larger(cx, 3))),
    problem("interpolate_bwd", "linear", F32_BF16, |cx, dt| backward(cx, dt, LINEAR, larger(cx, 2))),
    problem("interpolate_bwd", "linear_3", F32, |cx, dt| backward(cx, dt, LINEAR, larger(cx, 3))),
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
    problem("roi_align", "boxes", F32_BF16, |cx, dt| {
        let r = regions(cx);
        let [n, m] = [&r.x, &r.y].map(|s| s.iter().product::<usize>());
        let (x, boxes, images) = (cx.normal(dt, n)?, cx.gpu.upload(&r.boxes)?, cx.gpu.upload(&r.images)?);
        let mut typed = cx.empty(dt, r.boxes.len())?;
        cx.gpu.cast(boxes.view(), typed.view_mut())?;
        let mut y = cx.empty(dt, m)?;
        bytes((n + m) * dt.size(), move |g| {
            let boxes = typed.shaped(&[r.images.len(), 4])?;
            g.roi_align(REGIONS, x.shaped(&r.x)?, boxes, images.view(), y.shaped_mut(&r.y)?)
        })
    }),
    problem("roi_align_bwd", "boxes", F32_BF16, |cx, dt| {
        let r = regions(cx);
        let [n, m] = [&r.x, &r.y].map(|s| s.iter().product::<usize>());
        let (dy, boxes, images) = (cx.normal(dt, m)?, cx.gpu.upload(&r.boxes)?, cx.gpu.upload(&r.images)?);
        let mut typed = cx.empty(dt, r.boxes.len())?;
        cx.gpu.cast(boxes.view(), typed.view_mut())?;
        let mut dx = cx.empty(dt, n)?;
        bytes((n + m) * dt.size(), move |g| {
            let boxes = typed.shaped(&[r.images.len(), 4])?;
            g.roi_align_bwd(REGIONS, dy.shaped(&r.y)?, boxes, images.view(), dx.shaped_mut(&r.x)?.into())
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
