//! Resampling and suppression of boxes.

use super::*;
use trefoil::ops::resample::{GridSample, GridSampleBwd, Interpolate, InterpolateMode, RoiAlign, SampleMode};

pub(super) fn resample(t: &mut Bed<'_>) {
    interpolation(t);
    affine(t);
    sampling(t);
    regions(t);
    boxes(t);
}

fn interpolation(t: &mut Bed<'_>) {
    let (x, y, h, i) = (t.f32(72), t.f32(128), t.buf(DType::F16, 128), t.buf(DType::I32, 72));
    let (xs, ys) = ([1, 2, 6, 6], [1, 2, 8, 8]);
    let linear = Interpolate::new(InterpolateMode::Linear);
    for mode in [InterpolateMode::Nearest, InterpolateMode::NearestExact, InterpolateMode::Area] {
        let p = Interpolate::new(mode);
        for (what, p) in [("aligned corners", p.align_corners(true)), ("antialiasing", p.antialias(true))] {
            t.refuse(&format!("{what} of {mode:?}"), &[&y], |g| g.interpolate(p, sh(&x, &xs), out(&y, &ys)));
            t.refuse(&format!("gradient of {what} of {mode:?}"), &[&x], |g| {
                g.interpolate_bwd(p, sh(&y, &ys), out(&x, &xs).into())
            });
        }
    }
    for mode in [InterpolateMode::Nearest, InterpolateMode::Cubic, InterpolateMode::Area] {
        let p = Interpolate::new(mode);
        t.refuse("other channels", &[&y], |g| g.interpolate(p, sh(&x, &xs), out(&y, &[1, 4, 8, 4])));
        t.refuse("another batch", &[&x], |g| {
            g.interpolate_bwd(p, sh(&y, &ys), out(&x, &[2, 1, 6, 6]).into())
        });
    }
    t.refuse("another rank", &[&y], |g| g.interpolate(linear, sh(&x, &xs), out(&y, &[1, 2, 64])));
    t.refuse("rank 2", &[&y], |g| g.interpolate(linear, sh(&x, &[12, 6]), out(&y, &[2, 64])));
    t.refuse("another dtype", &[&h], |g| g.interpolate(linear, sh(&x, &xs), out(&h, &ys)));
    t.refuse("integers", &[&i], |g| g.interpolate(linear, sh(&i, &xs), out(&i, &xs)));
    t.refuse("a transposed input", &[&y], |g| {
        g.interpolate(linear, sh(&x, &xs).map("x", |l| l.transpose(2, 3))?, out(&y, &ys))
    });
    let empty = t.f32(0);
    t.refuse("an empty axis", &[&y], |g| g.interpolate(linear, sh(&empty, &[1, 2, 0, 6]), out(&y, &ys)));
    t.refuse("a size of 0", &[], |g| g.interpolate(linear, sh(&x, &xs), out(&empty, &[1, 2, 0, 6])));
    t.refuse("output over the input", &[&x], |g| g.interpolate(linear, sh(&x, &xs), out(&x, &xs)));
    t.accept("planes without samples", |g| {
        g.interpolate(linear, sh(&empty, &[0, 2, 6, 6]), out(&empty, &[0, 2, 3, 3]))
    });
}

fn affine(t: &mut Bed<'_>) {
    let (theta, grid) = (t.f32(12), t.f32(48));
    t.refuse("theta of two rows and four columns", &[&grid], |g| {
        g.affine_grid(false, sh(&theta, &[1, 3, 4]), out(&grid, &[1, 4, 6, 2]))
    });
    t.refuse("theta of four rows", &[&grid], |g| {
        g.affine_grid(false, sh(&theta, &[1, 4, 3]), out(&grid, &[1, 4, 6, 2]))
    });
    t.refuse("a grid of another batch", &[&grid], |g| {
        g.affine_grid(false, sh(&theta, &[2, 2, 3]), out(&grid, &[1, 4, 6, 2]))
    });
    t.refuse("a volume's grid for images", &[&grid], |g| {
        g.affine_grid(true, sh(&theta, &[2, 2, 3]), out(&grid, &[2, 2, 3, 2, 2]))
    });
    t.refuse("gradient from another grid", &[&theta], |g| {
        g.affine_grid_bwd(false, sh(&grid, &[2, 4, 3, 2]), out(&theta, &[1, 3, 4]).into())
    });
}

fn sampling(t: &mut Bed<'_>) {
    let (x, grid, y, h) = (t.f32(72), t.f32(48), t.f32(48), t.buf(DType::F16, 48));
    let (xs, gs, ys) = ([1, 2, 6, 6], [1, 4, 6, 2], [1, 2, 4, 6]);
    let p = GridSample::new(SampleMode::Linear);
    t.refuse("a cubic volume", &[&y], |g| {
        let p = GridSample::new(SampleMode::Cubic);
        g.grid_sample(p, sh(&x, &[1, 2, 1, 6, 6]), sh(&grid, &[1, 2, 4, 2, 3]), out(&y, &[1, 3, 1, 4, 4]))
    });
    t.refuse("positions of three coordinates in an image", &[&y], |g| {
        g.grid_sample(p, sh(&x, &xs), sh(&grid, &[1, 4, 4, 3]), out(&y, &[1, 3, 4, 4]))
    });
    t.refuse("a grid of another batch", &[&y], |g| {
        g.grid_sample(p, sh(&x, &xs), sh(&grid, &[2, 2, 6, 2]), out(&y, &ys))
    });
    t.refuse("an output of another size", &[&y], |g| {
        g.grid_sample(p, sh(&x, &xs), sh(&grid, &gs), out(&y, &[1, 2, 6, 4]))
    });
    t.refuse("a grid of another dtype", &[&y], |g| g.grid_sample(p, sh(&x, &xs), sh(&h, &gs), out(&y, &ys)));
    t.refuse("a vector per channel", &[&y], |g| {
        g.grid_sample(p, sh(&x, &[2, 6, 6]), sh(&grid, &gs), out(&y, &ys))
    });
    let (dx, dgrid, short) = (t.f32(72), t.f32(48), t.f32(36));
    t.refuse("a smaller gradient of the input", &[&short, &dgrid], |g| {
        let (dx, dgrid) = (out(&short, &[1, 1, 6, 6]), out(&dgrid, &gs));
        let (dy, x, grid) = (sh(&y, &ys), sh(&x, &xs), sh(&grid, &gs));
        g.grid_sample_bwd(p, GridSampleBwd::new(dy, x, grid).dx(dx).dgrid(dgrid))
    });
    t.refuse("both gradients in one place", &[&dx], |g| {
        let (a, b) = (out(&dx, &xs), dx.alias_mut().range(0, 48)?.reshape(&gs)?);
        let (dy, x, grid) = (sh(&y, &ys), sh(&x, &xs), sh(&grid, &gs));
        g.grid_sample_bwd(p, GridSampleBwd::new(dy, x, grid).dx(a).dgrid(b))
    });
    t.accept("no gradient asked for", |g| {
        let (dy, x, grid) = (sh(&y, &ys), sh(&x, &xs), sh(&grid, &gs));
        g.grid_sample_bwd(p, GridSampleBwd::new(dy, x, grid))
    });
}

fn regions(t: &mut Bed<'_>) {
    let (x, boxes, y, h) = (t.f32(72), t.f32(12), t.f32(24), t.buf(DType::F16, 12));
    let (xs, ys, ids, far) = ([1, 2, 6, 6], [3, 2, 2, 2], t.ids(&[0, 0, 0]), t.ids(&[0, 0, 0, 0]));
    let (b, i, p) = (sh(&boxes, &[3, 4]), ids.view(), RoiAlign::new());
    t.refuse("boxes of three numbers", &[&y], |g| {
        g.roi_align(p, sh(&x, &xs), sh(&boxes, &[4, 3]), far.view(), out(&y, &ys))
    });
    t.refuse("boxes of another dtype", &[&y], |g| {
        g.roi_align(p, sh(&x, &xs), sh(&h, &[3, 4]), i, out(&y, &ys))
    });
    t.refuse("more images than boxes", &[&y], |g| g.roi_align(p, sh(&x, &xs), b, far.view(), out(&y, &ys)));
    t.refuse("images as floats", &[&y], |g| {
        g.roi_align(p, sh(&x, &xs), b, boxes.view().range(0, 3)?, out(&y, &ys))
    });
    t.refuse("an output of other channels", &[&y], |g| {
        g.roi_align(p, sh(&x, &xs), b, i, out(&y, &[3, 1, 4, 2]))
    });
    t.refuse("a volume", &[&y], |g| g.roi_align(p, sh(&x, &[1, 2, 1, 6, 6]), b, i, out(&y, &ys)));
    t.refuse("a transposed input", &[&y], |g| {
        g.roi_align(p, sh(&x, &xs).map("x", |l| l.transpose(2, 3))?, b, i, out(&y, &ys))
    });
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        t.refuse("a scale that is no positive number", &[&y], |g| {
            g.roi_align(p.spatial_scale(scale), sh(&x, &xs), b, i, out(&y, &ys))
        });
    }
    t.refuse("too many samples", &[&y], |g| {
        g.roi_align(p.sampling_ratio(1 << 22), sh(&x, &xs), b, i, out(&y, &ys))
    });
    t.refuse("output over the input", &[&x], |g| {
        g.roi_align(p, sh(&x, &xs), b, i, x.alias_mut().range(0, 24)?.reshape(&ys)?)
    });
    t.refuse("a gradient of other channels", &[&x], |g| {
        g.roi_align_bwd(p, sh(&y, &ys), b, i, out(&x, &[2, 1, 6, 6]).into())
    });
    t.refuse("a gradient over the boxes", &[&boxes], |g| {
        g.roi_align_bwd(p, sh(&y, &ys), b, i, out(&boxes, &[1, 2, 2, 3]).into())
    });
    let none = t.f32(0);
    let nobody = t.ids(&[]);
    t.accept("no boxes", |g| {
        g.roi_align(p, sh(&x, &xs), sh(&none, &[0, 4]), nobody.view(), out(&none, &[0, 2, 2, 2]))?;
        g.roi_align_bwd(p, sh(&none, &[0, 2, 2, 2]), sh(&none, &[0, 4]), nobody.view(), out(&x, &xs).into())
    });
}

fn boxes(t: &mut Bed<'_>) {
    let (boxes, scores, keep, count) = (t.f32(20), t.f32(5), t.buf(DType::I64, 5), t.buf(DType::I64, 1));
    let (two, short, ids) = (t.buf(DType::I64, 2), t.buf(DType::I64, 4), t.ids(&[0, 0, 1, 1]));
    let b = sh(&boxes, &[5, 4]);
    t.refuse("boxes of five numbers", &[&keep, &count], |g| {
        g.nms(0.5, sh(&boxes, &[4, 5]), scores.view(), None, keep.alias_mut(), count.alias_mut())
    });
    t.refuse("fewer scores", &[&keep, &count], |g| {
        g.nms(0.5, b, scores.view().range(0, 4)?, None, keep.alias_mut(), count.alias_mut())
    });
    t.refuse("fewer groups", &[&keep, &count], |g| {
        g.nms(0.5, b, scores.view(), Some(ids.view()), keep.alias_mut(), count.alias_mut())
    });
    t.refuse("groups as floats", &[&keep, &count], |g| {
        g.nms(0.5, b, scores.view(), Some(scores.view()), keep.alias_mut(), count.alias_mut())
    });
    t.refuse("less room", &[&short, &count], |g| {
        g.nms(0.5, b, scores.view(), None, short.alias_mut(), count.alias_mut())
    });
    t.refuse("two counts", &[&keep, &two], |g| {
        g.nms(0.5, b, scores.view(), None, keep.alias_mut(), two.alias_mut())
    });
    t.refuse("a threshold that is no number", &[&keep, &count], |g| {
        g.nms(f64::NAN, b, scores.view(), None, keep.alias_mut(), count.alias_mut())
    });
    t.refuse("the count among the boxes kept", &[&keep], |g| {
        g.nms(0.5, b, scores.view(), None, keep.alias_mut(), keep.alias_mut().range(4, 1)?)
    });
}
