//! Resampling and suppression of boxes.

use trefoil::DType;
use trefoil::ops::resample::{
    GridSample, GridSampleBwd, Interpolate, InterpolateMode, RoiAlign, SampleMode, SamplePadding,
};

use super::Bound::{Derived, Sum};
use super::{FLOATS, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

fn interpolate_params(cx: &Cx<'_>) -> R<Interpolate> {
    let mode = match cx.s("mode")?.as_str() {
        "nearest" => InterpolateMode::Nearest,
        "nearest-exact" => InterpolateMode::NearestExact,
        "linear" => InterpolateMode::Linear,
        "cubic" => InterpolateMode::Cubic,
        "area" => InterpolateMode::Area,
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    };
    Ok(Interpolate::new(mode).align_corners(cx.b("align_corners")?).antialias(cx.b("antialias")?))
}

/// [N, C, size...]
fn resized(x: &[usize], size: &[usize]) -> Vec<usize> {
    [&x[..2.min(x.len())], size].concat()
}

fn interpolate(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.out("y", x.dtype(), &resized(x.shape(), &cx.dims("size")?))?;
    Ok(cx.gpu.interpolate(interpolate_params(cx)?, x, y.m())?)
}

fn interpolate_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    Ok(cx.gpu.interpolate_bwd(interpolate_params(cx)?, dy, dx.g())?)
}

fn nearest(cx: &Cx<'_>) -> R<Interpolate> {
    let mode = if cx.b("exact")? { InterpolateMode::NearestExact } else { InterpolateMode::Nearest };
    Ok(Interpolate::new(mode))
}

fn upsample(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let size = match cx.dims("size") {
        Ok(size) => size,
        Err(_) => x.shape()[2..].iter().zip(cx.dims("scale")?).map(|(n, s)| n * s).collect(),
    };
    let y = cx.out("y", x.dtype(), &resized(x.shape(), &size))?;
    Ok(cx.gpu.interpolate(nearest(cx)?, x, y.m())?)
}

fn upsample_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    Ok(cx.gpu.interpolate_bwd(nearest(cx)?, dy, dx.g())?)
}

fn affine_grid(cx: &Cx<'_>) -> R {
    let (theta, size) = (cx.x("theta")?, cx.dims("size")?);
    let axes = size.len().saturating_sub(2);
    let shape = [&size[..1.min(size.len())], &size[2.min(size.len())..], &[axes]].concat();
    let grid = cx.out("grid", theta.dtype(), &shape)?;
    Ok(cx.gpu.affine_grid(cx.b("align_corners")?, theta, grid.m())?)
}

fn affine_grid_backward(cx: &Cx<'_>) -> R {
    let (dgrid, size) = (cx.x("dgrid")?, cx.dims("size")?);
    let axes = size.len().saturating_sub(2);
    let dtheta = cx.out("dtheta", dgrid.dtype(), &[size[0], axes, axes + 1])?;
    Ok(cx.gpu.affine_grid_bwd(cx.b("align_corners")?, dgrid, dtheta.g())?)
}

fn sample_params(cx: &Cx<'_>) -> R<GridSample> {
    let mode = match cx.s("mode")?.as_str() {
        "nearest" => SampleMode::Nearest,
        "linear" => SampleMode::Linear,
        "cubic" => SampleMode::Cubic,
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    };
    let padding = match cx.s("padding_mode")?.as_str() {
        "zeros" => SamplePadding::Zeros,
        "border" => SamplePadding::Border,
        "reflection" => SamplePadding::Reflection,
        p => return Err(Fail::Case(format!("padding_mode {p} is unknown"))),
    };
    Ok(GridSample::new(mode).padding(padding).align_corners(cx.b("align_corners")?))
}

fn grid_sample(cx: &Cx<'_>) -> R {
    let (x, grid) = (cx.x("x")?, cx.x("grid")?);
    let gs = grid.shape();
    let y = cx.out("y", x.dtype(), &resized(x.shape(), &gs[1.min(gs.len())..gs.len().max(2) - 1]))?;
    Ok(cx.gpu.grid_sample(sample_params(cx)?, x, grid, y.m())?)
}

fn grid_sample_backward(cx: &Cx<'_>) -> R {
    let (dy, x, grid) = (cx.x("dy")?, cx.x("x")?, cx.x("grid")?);
    let (dx, dgrid) = (cx.like("dx", &x)?, cx.like("dgrid", &grid)?);
    let io = GridSampleBwd::new(dy, x, grid).dx(dx.g()).dgrid(dgrid.g());
    Ok(cx.gpu.grid_sample_bwd(sample_params(cx)?, io)?)
}

fn region_params(cx: &Cx<'_>) -> R<RoiAlign> {
    let p = RoiAlign::new().spatial_scale(cx.f("spatial_scale")?);
    Ok(p.sampling_ratio(cx.n("sampling_ratio")?).aligned(cx.b("aligned")?))
}

fn roi_align(cx: &Cx<'_>) -> R {
    let (x, boxes, images) = (cx.x("x")?, cx.x("boxes")?, cx.x("images")?);
    let lead = [boxes.shape()[0], x.shape().get(1).copied().unwrap_or(0)];
    let y = cx.out("y", x.dtype(), &[&lead[..], &cx.dims("size")?].concat())?;
    Ok(cx.gpu.roi_align(region_params(cx)?, x, boxes, images, y.m())?)
}

fn roi_align_backward(cx: &Cx<'_>) -> R {
    let (dy, boxes, images) = (cx.x("dy")?, cx.x("boxes")?, cx.x("images")?);
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    Ok(cx.gpu.roi_align_bwd(region_params(cx)?, dy, boxes, images, dx.g())?)
}

fn nms(cx: &Cx<'_>) -> R {
    let (boxes, scores) = (cx.x("boxes")?, cx.x("scores")?);
    let (keep, count) = (cx.out("keep", DType::I64, scores.shape())?, cx.out("count", DType::I64, &[])?);
    cx.gpu.nms(cx.f("iou_threshold")?, boxes, scores, cx.opt("ids"), keep.m(), count.m())?;
    keep.show(vec![cx.read_count(&count)?]);
    Ok(())
}

/// Batch and channels: a few, or none.
fn batch(s: &mut Sample) -> Vec<usize> {
    let n = if !s.small && s.below(8) == 0 { 0 } else { 1 + s.below(2) };
    let c = 1 + s.below(if s.small { 2 } else { 5 });
    vec![n, c]
}

fn size(s: &mut Sample) -> usize {
    if s.small { 1 + s.below(4) } else { [1, 2, 3, 5, 8, 16, 19][s.below(7)] }
}

/// Images whose sides double linearly, which have a kernel of their own.
fn draw_linear_doubling(s: &mut Sample) {
    let (h, w) = (2 + s.below(20), 8 * (1 + s.below(9)));
    s.put("x", &[2, 3, h, w], Any);
    s.arg("size", vec![2 * h, 2 * w]);
    s.arg("mode", "linear");
    s.arg("align_corners", false);
    s.arg("antialias", false);
}

/// x and the size that it is brought to.
fn draw_interpolate(s: &mut Sample) {
    if s.aligned() == Some(1) {
        return draw_linear_doubling(s);
    }
    let nd = 1 + s.below(if s.small { 2 } else { 3 });
    let mode = ["nearest", "nearest-exact", "linear", "linear", "cubic", "area"][s.below(6)];
    let mut shape = batch(s);
    let mut to = vec![];
    for _ in 0..nd {
        let n = size(s);
        shape.push(n);
        to.push(match s.below(3) {
            0 => 2 * n,
            _ => size(s),
        });
    }
    if !s.small && nd == 1 {
        shape[2] = 1 + s.below(600);
        to[0] = 1 + s.below(600);
    }
    s.put("x", &shape, Any);
    s.arg("size", to);
    s.arg("mode", mode);
    if matches!(mode, "linear" | "cubic") {
        let (align, antialias) = (s.coin(), s.below(3) == 0);
        s.arg("align_corners", align);
        s.arg("antialias", antialias);
    }
}

/// Twice as many cells on two axes or on all, which has a kernel of its own.
fn draw_doubling(s: &mut Sample) {
    let shape = [2, 3, 1 + s.below(4), 1 + s.below(20), 8 * (1 + s.below(9))];
    s.put("x", &shape, Any);
    let (exact, depth) = (s.coin(), 1 + s.below(2));
    s.arg("exact", exact);
    s.arg("scale", vec![depth, 2, 2]);
}

fn draw_upsample(s: &mut Sample) {
    if s.aligned() == Some(1) {
        return draw_doubling(s);
    }
    let mut shape = batch(s);
    (0..3).for_each(|_| {
        let n = size(s);
        shape.push(n);
    });
    s.put("x", &shape, Any);
    let exact = s.coin();
    s.arg("exact", exact);
    if s.coin() {
        let scale: Vec<usize> = (0..3).map(|_| 1 + s.below(3)).collect();
        s.arg("scale", scale);
    } else {
        let to: Vec<usize> = (0..3).map(|_| size(s)).collect();
        s.arg("size", to);
    }
}

fn draw_affine(s: &mut Sample) {
    let axes = 2 + s.below(2);
    let mut shape = batch(s);
    for _ in 0..axes {
        let n = size(s);
        shape.push(n);
    }
    if !s.small && axes == 2 && s.below(3) == 0 {
        shape[3] = 3000;
    }
    s.put("theta", &[shape[0], axes, axes + 1], Any);
    s.arg("size", shape);
    let on = s.coin();
    s.arg("align_corners", on);
}

fn draw_sample(s: &mut Sample) {
    let axes = 2 + s.below(2);
    let mode = ["nearest", "linear", "cubic"][s.below(if axes == 2 { 3 } else { 2 })];
    let mut shape = batch(s);
    let mut grid = vec![shape[0]];
    for _ in 0..axes {
        // Slopes of cubic taps that all show one cell cancel, which leaves nothing to compare.
        let (n, m) = (size(s).max(if mode == "cubic" { 2 } else { 1 }), size(s));
        shape.push(n);
        grid.push(m);
    }
    grid.push(axes);
    s.put("x", &shape, Any);
    s.put("grid", &grid, Range(-1.7, 1.7));
    let padding = ["zeros", "border", "reflection"][s.below(3)];
    s.arg("mode", mode);
    s.arg("padding_mode", padding);
    let on = s.coin();
    s.arg("align_corners", on);
}

fn draw_boxes(s: &mut Sample, groups: bool) {
    let n = [0, 1, 31, 33, 70, 300, 64, 1500][s.below(8)];
    s.corners("boxes", n);
    // 16-bit scores repeat: of equal ones the first counts.
    s.put("scores", &[n], Range(0.0, 1.0));
    if groups {
        s.ids("ids", &[n], 3);
    }
    let threshold = [0.1, 0.37, 0.61, 0.93][s.below(4)];
    s.arg("iou_threshold", threshold);
}

/// Boxes of several images: inside, across the border, outside, and smaller than a cell. Their coordinates are such that no sample is close to
/// where it stops to count, and no length close to a whole number of cells per bin.
fn draw_regions(s: &mut Sample) {
    let mut shape = batch(s);
    shape[0] = shape[0].max(1);
    shape.extend([4 + s.below(if s.small { 3 } else { 14 }), 4 + s.below(if s.small { 3 } else { 14 })]);
    let count = if s.small { 2 } else { [0, 1, 5, 40][s.below(4)] };
    let mut corners = Vec::with_capacity(4 * count);
    for _ in 0..count {
        let (mut from, mut to) = ([0.0; 2], [0.0; 2]);
        for a in 0..2 {
            let n = shape[3 - a];
            // Eighths whose lengths are odd.
            let longest = if s.coin() { 4 } else { 4 * n };
            let (first, length) = (s.below(8 * n + 16), 2 * s.below(longest) + 1);
            from[a] = first as f64 / 8.0 - 1.0;
            to[a] = from[a] + length as f64 / 8.0;
        }
        corners.extend([from, to].concat());
    }
    let scale = [0.5, 1.0, 2.0][s.below(3)];
    s.put("x", &shape, Any);
    s.values("boxes", &[count, 4], &corners.iter().map(|c| c / scale).collect::<Vec<_>>());
    s.ids("images", &[count], shape[0]);
    let size = [[1, 1], [2, 4], [4, 2], [8, 8]][s.below(if s.small { 3 } else { 4 })];
    s.arg("size", size.to_vec());
    s.arg("spatial_scale", scale);
    let (ratio, aligned) = ([0, 0, 1, 2][s.below(4)], s.coin());
    s.arg("sampling_ratio", ratio);
    s.arg("aligned", aligned);
}

const SAMPLED: &str = "mode=\"linear\", padding_mode=\"zeros\", align_corners=false";

/// The arguments of an interpolation behind the size.
macro_rules! sized {
    ($first:literal) => {
        concat!($first, ", mode=\"linear\", align_corners=false, antialias=false")
    };
}

/// The arguments of a region pooling behind the size.
macro_rules! regions {
    ($first:literal) => {
        concat!($first, ", spatial_scale=1.0, sampling_ratio=0, aligned=false")
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("interpolate", "B6.1", "x", sized!("size"), "y", &["interpolate"], interpolate)
        .bound(Derived)
        .units(67.0, "coordinates are rounded at the size of the axis")
        .sample(draw_interpolate),
    k(
        "interpolate_backward",
        "B6.1",
        "dy",
        sized!("input_size"),
        "dx",
        &["interpolate_bwd"],
        interpolate_backward,
    )
    .bound(Derived)
    .units(67.0, "coordinates are rounded at the size of the axis")
    .grad_of("interpolate"),
    k("affine_grid", "B6.2", "theta", "size, align_corners=false", "grid", &["affine_grid"], affine_grid)
        .bound(Derived)
        .sample(draw_affine),
    k(
        "affine_grid_backward",
        "B6.2",
        "dgrid",
        "size, align_corners=false",
        "dtheta",
        &["affine_grid_bwd"],
        affine_grid_backward,
    )
    .bound(Derived)
    .grad_of("affine_grid"),
    k("grid_sample", "B6.3", "x, grid", SAMPLED, "y", &["grid_sample"], grid_sample)
        .bound(Derived)
        .sample(draw_sample),
    k(
        "grid_sample_backward",
        "B6.3",
        "dy, x, grid",
        SAMPLED,
        "dx, dgrid",
        &["grid_sample_bwd"],
        grid_sample_backward,
    )
    .bound(Derived)
    .grad_of("grid_sample"),
    k("roi_align", "B6.8", "x, boxes, images:idx", regions!("size"), "y", &["roi_align"], roi_align)
        .bound(Derived)
        .units(67.0, "coordinates are rounded at the size of the axis")
        .sample(draw_regions),
    k(
        "roi_align_backward",
        "B6.8",
        "dy, boxes, images:idx",
        regions!("input_size"),
        "dx",
        &["roi_align_bwd"],
        roi_align_backward,
    )
    .bound(Derived)
    .units(67.0, "coordinates are rounded at the size of the axis")
    .grad_of("roi_align"),
    k("nms", "B6.11", "boxes, scores", "iou_threshold=0.5", "keep:i64, count:i64", &["nms"], nms)
        .dtypes(FLOATS)
        .sample(|s| draw_boxes(s, false)),
    k(
        "batched_nms",
        "B6.11",
        "boxes, scores, ids:idx",
        "iou_threshold=0.5",
        "keep:i64, count:i64",
        &["nms"],
        nms,
    )
    .dtypes(FLOATS)
    .sample(|s| draw_boxes(s, true)),
    k(
        "upsample3d_nearest",
        "S14.1",
        "x",
        "size=null, scale=null, exact=false",
        "y",
        &["interpolate"],
        upsample,
    )
    .sample(draw_upsample),
    k(
        "upsample3d_nearest_backward",
        "S14.2",
        "dy",
        "input_size, exact=false",
        "dx",
        &["interpolate_bwd"],
        upsample_backward,
    )
    .bound(Sum)
    .grad_of("upsample3d_nearest"),
]];
