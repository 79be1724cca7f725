//! Interpolation and affine grids on the CPU: each axis is a list of cells and weights per output, applied one axis after the other.

pub(super) mod grid_sample;
mod roi_align;

use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use std::cmp::Ordering;

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pool::{PoolOps, Pooling};
use crate::ops::resample::*;

/// For each output of an axis the cells that it reads and their weights.
type Weights = Vec<Vec<(usize, f64)>>;

/// Cubic convolution.
pub(in crate::cpu) fn cubic(t: f64, a: f64) -> f64 {
    let t = t.abs();
    match t {
        _ if t <= 1.0 => (a + 2.0) * t.powi(3) - (a + 3.0) * t.powi(2) + 1.0,
        _ if t < 2.0 => a * t.powi(3) - 5.0 * a * t.powi(2) + 8.0 * a * t - 4.0 * a,
        _ => 0.0,
    }
}

/// Weights along an axis of n cells that becomes one of m. Positions are fractions num / den, so that none falls on the wrong side of a cell.
fn weights(p: Interpolate, n: usize, m: usize) -> Result<Weights> {
    let (cells, is_cubic) = (n as i64, p.mode == InterpolateMode::Cubic);
    let inside = |j: i64| j.clamp(0, cells - 1) as usize;
    // Cells per output.
    let (up, down) = match p.align_corners {
        true if m > 1 => (n as i64 - 1, m as i64 - 1),
        true => (0, 1),
        false => (n as i64, m as i64),
    };
    let of = |o: i64| -> Result<Vec<(usize, f64)>> {
        match p.mode {
            InterpolateMode::Nearest | InterpolateMode::Area => {
                [(inside(o * cells / m as i64), 1.0)].try_to_vec()
            }
            InterpolateMode::NearestExact => {
                [(inside((2 * o + 1) * cells / (2 * m as i64)), 1.0)].try_to_vec()
            }
            _ if p.antialias => {
                let widened = up.max(down);
                let (centre, radius) = ((2 * o + 1) * up, if is_cubic { 4 } else { 2 } * widened);
                let first = (centre - radius + down).div_euclid(2 * down).max(0);
                let end = (centre + radius + down).div_euclid(2 * down).min(cells);
                let mut list: Vec<(usize, f64)> = (first..end)
                    .map(|j| {
                        let t = ((2 * j + 1) * down - centre) as f64 / (2 * widened) as f64;
                        (j as usize, if is_cubic { cubic(t, -0.5) } else { (1.0 - t.abs()).max(0.0) })
                    })
                    .try_vec()?;
                let total: f64 = list.iter().map(|w| w.1).sum();
                list.iter_mut().for_each(|w| w.1 /= total);
                Ok(list)
            }
            _ => {
                let (num, den) = match p.align_corners {
                    true => (o * up, down),
                    false => ((2 * o + 1) * cells - m as i64, 2 * m as i64),
                };
                let num = if is_cubic { num } else { num.max(0) };
                let (base, t) = (num.div_euclid(den), num.rem_euclid(den) as f64 / den as f64);
                if is_cubic {
                    // The weights of a border that is repeated are one weight.
                    let mut list: Vec<(usize, f64)> = Vec::new();
                    for (cell, w) in (-1..3).map(|j| (inside(base + j), cubic(t - j as f64, -0.75))) {
                        match list.last_mut() {
                            Some(last) if last.0 == cell => last.1 += w,
                            _ => list.try_push((cell, w))?,
                        }
                    }
                    Ok(list)
                } else if base + 1 < cells {
                    [(inside(base), 1.0 - t), (inside(base + 1), t)].try_to_vec()
                } else {
                    [(inside(base), 1.0)].try_to_vec()
                }
            }
        }
    };
    (0..m as i64).map(of).try_vec_ok()
}

/// Replaces one axis of size `n` by its outputs; `outer` slices before it, `inner` elements behind it.
fn apply(x: &[f64], outer: usize, n: usize, inner: usize, w: &Weights) -> Result<Vec<f64>> {
    let mut y = filled(outer * w.len() * inner, 0.0)?;
    for s in 0..outer {
        for (o, list) in w.iter().enumerate() {
            let to = &mut y[(s * w.len() + o) * inner..][..inner];
            for &(cell, weight) in list {
                let from = &x[(s * n + cell) * inner..][..inner];
                to.iter_mut().zip(from).for_each(|(t, f)| *t += weight * f);
            }
        }
    }
    Ok(y)
}

/// The transpose of [`apply`].
fn apply_transposed(dy: &[f64], outer: usize, n: usize, inner: usize, w: &Weights) -> Result<Vec<f64>> {
    let mut dx = filled(outer * n * inner, 0.0)?;
    for s in 0..outer {
        for (o, list) in w.iter().enumerate() {
            let from = &dy[(s * w.len() + o) * inner..][..inner];
            for &(cell, weight) in list {
                let to = &mut dx[(s * n + cell) * inner..][..inner];
                to.iter_mut().zip(from).for_each(|(t, f)| *t += weight * f);
            }
        }
    }
    Ok(dx)
}

/// Base points of an axis of n.
fn base(i: usize, n: usize, align: bool) -> f64 {
    if n == 1 {
        return 0.0;
    }
    let t = -1.0 + 2.0 * i as f64 / (n - 1) as f64;
    if align { t } else { t * (n - 1) as f64 / n as f64 }
}

/// Calls `f(point, [x, y, (z,) 1])` for the points of a sample in row-major order.
fn each_point(s: &AffineSizes, align: bool, mut f: impl FnMut(usize, &[f64]) -> Result<()>) -> Result<()> {
    let [nd, nh, nw] = s.points;
    let mut point = 0;
    for d in 0..nd {
        for h in 0..nh {
            for w in 0..nw {
                let (x, y, z) = (base(w, nw, align), base(h, nh, align), base(d, nd, align));
                if s.axes == 3 {
                    f(point, &[x, y, z, 1.0])?;
                } else {
                    f(point, &[x, y, 1.0])?;
                }
                point += 1;
            }
        }
    }
    Ok(())
}

impl ResampleOps for Kernels {
    fn interpolate(&self, p: Interpolate, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "interpolate";
        let s = check_interpolate(p, &x, &y)?;
        if p.mode == InterpolateMode::Area {
            return self.avg_pool(Pooling::Adaptive, x, y);
        }
        let _timed = self.count("interpolate");
        let ([a, b, c], [_, e, f]) = (s.input, s.output);
        let along = |k: usize| weights(p, s.input[k], s.output[k]);
        let w = [along(0)?, along(1)?, along(2)?];
        let v = apply(&gather_f64(OP, x)?, s.planes * a * b, c, 1, &w[2])?;
        let v = apply(&v, s.planes * a, b, f, &w[1])?;
        store_f64(OP, &y, &apply(&v, s.planes, a, e * f, &w[0])?)
    }

    fn interpolate_bwd(&self, p: Interpolate, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "interpolate_bwd";
        let s = check_interpolate_bwd(p, &dy, &dx)?;
        if p.mode == InterpolateMode::Area {
            return self.avg_pool_bwd(Pooling::Adaptive, dy, dx);
        }
        let _timed = self.count("interpolate_bwd");
        let ([a, b, c], [_, e, f]) = (s.input, s.output);
        let along = |k: usize| weights(p, s.input[k], s.output[k]);
        let w = [along(0)?, along(1)?, along(2)?];
        let v = apply_transposed(&gather_f64(OP, dy)?, s.planes, a, e * f, &w[0])?;
        let v = apply_transposed(&v, s.planes * a, b, f, &w[1])?;
        store_grad(OP, &dx, &apply_transposed(&v, s.planes * a * b, c, 1, &w[2])?)
    }

    fn affine_grid(&self, align_corners: bool, theta: View<'_>, grid: ViewMut<'_>) -> Result<()> {
        const OP: &str = "affine_grid";
        let s = check_affine_grid(&theta, &grid)?;
        let _timed = self.count("affine_grid");
        let from = gather_f64(OP, theta)?;
        let mut to = with_capacity(grid.numel())?;
        for sample in from.chunks(s.axes * (s.axes + 1)) {
            each_point(&s, align_corners, |_, p| {
                let rows = sample.chunks(s.axes + 1);
                to.try_extend(rows.map(|r| r.iter().zip(p).map(|(a, b)| a * b).sum::<f64>()))
            })?;
        }
        store_f64(OP, &grid, &to)
    }

    fn affine_grid_bwd(&self, align_corners: bool, dgrid: View<'_>, dtheta: GradMut<'_>) -> Result<()> {
        const OP: &str = "affine_grid_bwd";
        let s = check_affine_grid_bwd(&dgrid, &dtheta)?;
        let _timed = self.count("affine_grid_bwd");
        let from = gather_f64(OP, dgrid)?;
        let mut to = filled(dtheta.out.numel(), 0.0)?;
        let points = s.points.iter().product::<usize>();
        for (sample, to) in to.chunks_mut(s.axes * (s.axes + 1)).enumerate() {
            each_point(&s, align_corners, |point, p| {
                let g = &from[(sample * points + point) * s.axes..][..s.axes];
                for (row, g) in to.chunks_mut(s.axes + 1).zip(g) {
                    row.iter_mut().zip(p).for_each(|(t, b)| *t += g * b);
                }
                Ok(())
            })?;
        }
        store_grad(OP, &dtheta, &to)
    }

    fn grid_sample(&self, p: GridSample, x: View<'_>, grid: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "grid_sample";
        let s = check_grid_sample(p, &x, &grid, &y)?;
        let _timed = self.count("grid_sample");
        store_f64(OP, &y, &grid_sample::forward(p, &s, &gather_f64(OP, x)?, &gather_f64(OP, grid)?)?)
    }

    fn grid_sample_bwd(&self, p: GridSample, io: GridSampleBwd<'_>) -> Result<()> {
        const OP: &str = "grid_sample_bwd";
        let s = check_grid_sample_bwd(p, &io)?;
        let _timed = self.count("grid_sample_bwd");
        let (dy, x, grid) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.x)?, gather_f64(OP, io.grid)?);
        let (dx, dgrid) = grid_sample::backward(p, &s, &dy, &x, &grid)?;
        for (to, values) in [(&io.dx, dx), (&io.dgrid, dgrid)] {
            if let Some(to) = to {
                store_grad(OP, to, &values)?;
            }
        }
        Ok(())
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
        let _timed = self.count("roi_align");
        let images = self.lookup(OP, images, s.batch)?;
        let found = roi_align::forward(p, &s, &gather_f64(OP, x)?, &gather_f64(OP, boxes)?, &images)?;
        store_f64(OP, &y, &found)
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
        let _timed = self.count("roi_align_bwd");
        let images = self.lookup(OP, images, s.batch)?;
        let found = roi_align::backward(p, &s, &gather_f64(OP, dy)?, &gather_f64(OP, boxes)?, &images)?;
        store_grad(OP, &dx, &found)
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
        let n = check_nms(iou_threshold, &boxes, &scores, groups.as_ref(), &keep, &count)?;
        let _timed = self.count("nms");
        let (boxes, scores) = (gather_f64(OP, boxes)?, gather_f64(OP, scores)?);
        let numbers = |g: View<'_>| match g.dtype() {
            DType::I32 => gather::<i32>(OP, g)?.into_iter().map(i64::from).try_vec(),
            _ => gather::<i64>(OP, g),
        };
        let groups = groups.map(numbers).transpose()?;
        let mut order: Vec<usize> = (0..n).try_vec()?;
        // NaN first, then by falling score, equals in their order.
        sort_positions(&mut order, &|i, j| {
            let (a, b) = (scores[i], scores[j]);
            let by_score = b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal));
            by_score.then(i.cmp(&j))
        });
        let corner = |i: usize| &boxes[4 * i..4 * i + 4];
        let mut kept: Vec<i64> = Vec::new();
        for i in order {
            let excluded = kept.iter().any(|&k| {
                let k = k as usize;
                groups.as_ref().is_none_or(|g| g[i] == g[k]) && iou(corner(i), corner(k)) > iou_threshold
            });
            if !excluded {
                kept.try_push(i as i64)?;
            }
        }
        let found = kept.len();
        store::<i64>(OP, &keep.map("keep", |l| l.narrow(0, 0, found))?, &kept)?;
        store::<i64>(OP, &count, &[found as i64])
    }
}

/// Intersection over union; 0 where nothing is shared.
fn iou(a: &[f64], b: &[f64]) -> f64 {
    let (w, h) = (a[2].min(b[2]) - a[0].max(b[0]), a[3].min(b[3]) - a[1].max(b[1]));
    let area = |c: &[f64]| (c[2] - c[0]) * (c[3] - c[1]);
    if w > 0.0 && h > 0.0 { w * h / (area(a) + area(b) - w * h) } else { 0.0 }
}
