//! Neural fields.

use trefoil::DType;
use trefoil::ops::field::{
    CovarianceBwd, HarmonicsBwd, HashGrid, HashGridBwd, ProjectGaussians, ProjectGaussiansBwd, Projection,
    RasterizeGaussians, RasterizeGaussiansBwd, TrilinearBwd, VolumeRender, VolumeRenderBwd,
};
use trefoil::ops::random::Rng;

use super::Bound::Derived;
use super::{F32, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Nonzero, Positive, Range};
use crate::sampler::Sample;

fn levels(cx: &Cx<'_>) -> R<HashGrid> {
    Ok(HashGrid::new(cx.n("base")?, cx.f("growth")?))
}

fn hash_grid(cx: &Cx<'_>) -> R {
    let (x, table) = (cx.x("x")?, cx.x("table")?);
    let features = match table.shape() {
        [levels, _, width] => levels.saturating_mul(*width),
        _ => 0,
    };
    let y = cx.out("y", x.dtype(), &[x.shape().first().copied().unwrap_or(0), features])?;
    Ok(cx.gpu.hash_grid_encode(levels(cx)?, x, table, y.m())?)
}

fn hash_grid_backward(cx: &Cx<'_>) -> R {
    let (dy, x, table) = (cx.x("dy")?, cx.x("x")?, cx.x("table")?);
    let (dx, dtable) = (cx.like("dx", &x)?, cx.like("dtable", &table)?);
    let io = HashGridBwd::new(dy, x, table).dx(dx.g()).dtable(dtable.g());
    Ok(cx.gpu.hash_grid_encode_bwd(levels(cx)?, io)?)
}

fn trilinear(cx: &Cx<'_>) -> R {
    let (grid, points) = (cx.x("grid")?, cx.x("points")?);
    let size = |s: &[usize], at: usize| s.get(at).copied().unwrap_or(0);
    let y = cx.out("y", grid.dtype(), &[size(points.shape(), 0), size(grid.shape(), 3)])?;
    Ok(cx.gpu.trilinear_interpolate(grid, points, y.m())?)
}

fn trilinear_backward(cx: &Cx<'_>) -> R {
    let (dy, grid, points) = (cx.x("dy")?, cx.x("grid")?, cx.x("points")?);
    let (dgrid, dpoints) = (cx.like("dgrid", &grid)?, cx.like("dpoints", &points)?);
    let io = TrilinearBwd::new(dy, grid, points).dgrid(dgrid.g()).dpoints(dpoints.g());
    Ok(cx.gpu.trilinear_interpolate_bwd(io)?)
}

fn harmonics(cx: &Cx<'_>) -> R {
    let (directions, coefficients) = (cx.x("r")?, cx.x("coefficients")?);
    let s = coefficients.shape();
    let y = cx.out("y", directions.dtype(), &s[..s.len().saturating_sub(1)])?;
    Ok(cx.gpu.spherical_harmonics(directions, coefficients, y.m())?)
}

fn harmonics_backward(cx: &Cx<'_>) -> R {
    let (dy, directions, coefficients) = (cx.x("dy")?, cx.x("r")?, cx.x("coefficients")?);
    let (dr, dc) = (cx.like("dr", &directions)?, cx.like("dcoefficients", &coefficients)?);
    let io = HarmonicsBwd::new(dy, directions, coefficients).ddirections(dr.g()).dcoefficients(dc.g());
    Ok(cx.gpu.spherical_harmonics_bwd(io)?)
}

/// The generator, where there is a seed.
fn rng(cx: &Cx<'_>) -> R<Option<Rng<'static>>> {
    let Some(seed) = cx.opt_n("seed")? else { return Ok(None) };
    Ok(Some(Rng::new(seed as u64).at(cx.bits("stream")?, cx.bits("offset")?)))
}

fn ray_sampling(cx: &Cx<'_>) -> R {
    let (near, far) = (cx.x("near")?, cx.x("far")?);
    let t = cx.out("t", near.dtype(), &[near.numel(), cx.n("samples")?])?;
    Ok(cx.gpu.ray_sampling(rng(cx)?, near, far, t.m())?)
}

fn importance_sampling(cx: &Cx<'_>) -> R {
    let (edges, weights) = (cx.x("edges")?, cx.x("weights")?);
    let rays = weights.shape().first().copied().unwrap_or(0);
    let t = cx.out("t", edges.dtype(), &[rays, cx.n("samples")?])?;
    Ok(cx.gpu.importance_sampling(cx.f("padding")?, rng(cx)?, edges, weights, t.m())?)
}

fn render(cx: &Cx<'_>) -> R {
    let (density, color, delta) = (cx.x("density")?, cx.x("color")?, cx.x("delta")?);
    let t = cx.opt("t");
    let (rays, dtype) = (density.shape().first().copied().unwrap_or(0), density.dtype());
    let channels = color.shape().get(2).copied().unwrap_or(0);
    let y = cx.out("y", dtype, &[rays, channels])?;
    let (opacity, w) = (cx.out("opacity", dtype, &[rays])?, cx.like("w", &density)?);
    let depth = t.map(|_| cx.out("depth", dtype, &[rays])).transpose()?;
    let io = VolumeRender::new(density, color, delta, y.m()).opacity(opacity.m()).weights(w.m()).t(t);
    Ok(cx.gpu.volume_render(io.depth(depth.as_ref().map(|d| d.m())))?)
}

fn render_backward(cx: &Cx<'_>) -> R {
    let (density, color, delta, t) = (cx.x("density")?, cx.x("color")?, cx.x("delta")?, cx.opt("t"));
    let (dp, dc, dl) =
        (cx.like("ddensity", &density)?, cx.like("dcolor", &color)?, cx.like("ddelta", &delta)?);
    let dt = t.map(|t| cx.like("dt", &t)).transpose()?;
    let io = VolumeRenderBwd::new(density, color, delta).t(t).dt(dt.as_ref().map(|d| d.g()));
    let io = io.dy(cx.opt("dy")).dopacity(cx.opt("dopacity")).dweights(cx.opt("dw")).ddepth(cx.opt("ddepth"));
    Ok(cx.gpu.volume_render_bwd(io.ddensity(dp.g()).dcolor(dc.g()).ddelta(dl.g()))?)
}

fn covariance(cx: &Cx<'_>) -> R {
    let (rotation, scale) = (cx.x("rotation")?, cx.x("scale")?);
    let y = cx.out("y", scale.dtype(), &[rotation.shape().first().copied().unwrap_or(0), 3, 3])?;
    Ok(cx.gpu.gaussian_covariance(rotation, scale, y.m())?)
}

fn covariance_backward(cx: &Cx<'_>) -> R {
    let (dy, rotation, scale) = (cx.x("dy")?, cx.x("rotation")?, cx.x("scale")?);
    let (dq, ds) = (cx.like("drotation", &rotation)?, cx.like("dscale", &scale)?);
    let io = CovarianceBwd::new(dy, rotation, scale).drotation(dq.g()).dscale(ds.g());
    Ok(cx.gpu.gaussian_covariance_bwd(io)?)
}

fn projection(cx: &Cx<'_>) -> R<Projection> {
    Ok(Projection::new(cx.n("width")?, cx.n("height")?).near(cx.f("near")?).blur(cx.f("blur")?))
}

fn project(cx: &Cx<'_>) -> R {
    let (means, covariance) = (cx.x("means")?, cx.x("covariance")?);
    let (n, dtype) = (means.shape().first().copied().unwrap_or(0), means.dtype());
    let (centers, conics) = (cx.out("centers", dtype, &[n, 2])?, cx.out("conics", dtype, &[n, 3])?);
    let (depths, radii) = (cx.out("depths", dtype, &[n])?, cx.out("radii", DType::I32, &[n])?);
    let (view, intrinsics) = (cx.x("view")?, cx.x("intrinsics")?);
    let outputs = (centers.m(), conics.m(), depths.m(), radii.m());
    let io = ProjectGaussians::new(
        means, covariance, view, intrinsics, outputs.0, outputs.1, outputs.2, outputs.3,
    );
    Ok(cx.gpu.project_gaussians(projection(cx)?, io)?)
}

fn project_backward(cx: &Cx<'_>) -> R {
    let (means, covariance) = (cx.x("means")?, cx.x("covariance")?);
    let (dmeans, dcovariance) = (cx.like("dmeans", &means)?, cx.like("dcovariance", &covariance)?);
    let (view, intrinsics, radii) = (cx.x("view")?, cx.x("intrinsics")?, cx.x("radii")?);
    let io = ProjectGaussiansBwd::new(means, covariance, view, intrinsics, radii);
    let io = io.dcenters(cx.opt("dcenters")).dconics(cx.opt("dconics")).ddepths(cx.opt("ddepths"));
    Ok(cx.gpu.project_gaussians_bwd(projection(cx)?, io.dmeans(dmeans.g()).dcovariance(dcovariance.g()))?)
}

fn rasterize(cx: &Cx<'_>) -> R {
    let (centers, conics, colors) = (cx.x("centers")?, cx.x("conics")?, cx.x("colors")?);
    let size = [cx.n("height")?, cx.n("width")?];
    let channels = colors.shape().get(1).copied().unwrap_or(0);
    let image = cx.out("image", centers.dtype(), &[size[0], size[1], channels])?;
    let left = cx.out("transmittance", centers.dtype(), &size)?;
    let (opacities, depths, radii) = (cx.x("opacities")?, cx.x("depths")?, cx.x("radii")?);
    let io = RasterizeGaussians::new(centers, conics, colors, opacities, depths, radii, image.m(), left.m());
    Ok(cx.gpu.rasterize_gaussians(io)?)
}

fn rasterize_backward(cx: &Cx<'_>) -> R {
    let (centers, conics, colors) = (cx.x("centers")?, cx.x("conics")?, cx.x("colors")?);
    let (opacities, depths, radii) = (cx.x("opacities")?, cx.x("depths")?, cx.x("radii")?);
    let (dcenters, dconics) = (cx.like("dcenters", &centers)?, cx.like("dconics", &conics)?);
    let (dcolors, dopacities) = (cx.like("dcolors", &colors)?, cx.like("dopacities", &opacities)?);
    let io = RasterizeGaussiansBwd::new(cx.x("dimage")?, centers, conics, colors, opacities, depths, radii);
    let io = io.dtransmittance(cx.opt("dtransmittance")).dcenters(dcenters.g()).dconics(dconics.g());
    Ok(cx.gpu.rasterize_gaussians_bwd(io.dcolors(dcolors.g()).dopacities(dopacities.g()))?)
}

/// Positions: mostly inside, some beyond the border.
fn points(s: &mut Sample) -> usize {
    if s.small { 3 } else { [1, 33, 300, 0, 1000, 70][s.below(6)] }
}

/// Few levels: all dense, all hashed, and both. Slopes between corners that share a row cancel, so that few rows leave nothing to compare.
fn draw_hash_grid(s: &mut Sample) {
    let axes = 2 + s.below(2);
    let count = if s.small { 2 } else { 1 + s.below(5) };
    let rows = if s.small { [6, 40][s.below(2)] } else { [300, 17, 64, 4096][s.below(4)] };
    let width = if s.small { 2 } else { [1, 2, 4, 7, 8][s.below(5)] };
    let n = points(s);
    s.put("x", &[n, axes], Range(-0.1, 1.1));
    s.put("table", &[count, rows, width], Any);
    let base = [1, 2, 5, 16][s.below(if s.small { 2 } else { 4 })];
    s.arg("base", base);
    let growth = [1.0, 1.5, 2.0][s.below(3)];
    s.arg("growth", growth);
}

fn draw_trilinear(s: &mut Sample) {
    let size = |s: &mut Sample| if s.small { 2 + s.below(2) } else { [1, 2, 5, 9, 16][s.below(5)] };
    let mut shape = [0; 4].map(|_| size(s));
    shape[3] = if s.small { 2 } else { [1, 3, 8, 33][s.below(4)] };
    s.put("grid", &shape, Any);
    let n = points(s);
    s.put("points", &[n, 3], Range(-0.1, 1.1));
}

fn draw_harmonics(s: &mut Sample) {
    let n = points(s);
    let mut r = s.normals(3 * n);
    for r in r.chunks_mut(3) {
        let length = r.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
        r.iter_mut().for_each(|x| *x /= length);
    }
    s.values("r", &[n, 3], &r);
    let (channels, degree) = (1 + s.below(4), s.below(5));
    s.put("coefficients", &[n, channels, (degree + 1) * (degree + 1)], Any);
}

fn draw_covariance(s: &mut Sample) {
    let n = points(s);
    s.put("rotation", &[n, 4], Nonzero);
    s.put("scale", &[n, 3], Positive);
}

/// Numbers from 0 to 1.
fn units(s: &mut Sample, n: usize) -> Vec<f64> {
    (0..n).map(|_| s.below(1 << 20) as f64 / f64::from(1 << 20)).collect()
}

/// An image of a few tiles, or less than one.
fn image(s: &mut Sample) -> [usize; 2] {
    if s.small { [4, 3] } else { [[33, 20], [16, 16], [1, 70], [50, 41]][s.below(4)] }
}

/// Gaussians about 4 before a camera that is turned a little; some behind it.
fn draw_projection(s: &mut Sample) {
    let (n, [width, height]) = (points(s), image(s));
    let mut means = s.normals(3 * n);
    means.iter_mut().for_each(|m| *m *= 1.5);
    s.values("means", &[n, 3], &means);
    let mut covariance = Vec::new();
    for _ in 0..n {
        let m = s.normals(9);
        for (i, j) in (0..9).map(|e| (e / 3, e % 3)) {
            let dot: f64 = (0..3).map(|k| m[3 * i + k] * m[3 * j + k]).sum();
            covariance.push(0.02 * dot + if i == j { 0.01 } else { 0.0 });
        }
    }
    s.values("covariance", &[n, 3, 3], &covariance);
    let (c, d) = (0.96, 0.28);
    let view = [c, 0.0, d, 0.1, 0.0, 1.0, 0.0, -0.2, -d, 0.0, c, 4.0, 0.0, 0.0, 0.0, 1.0];
    s.values("view", &[4, 4], &view);
    let (w, h) = (width as f64, height as f64);
    s.values("intrinsics", &[3, 3], &[0.9 * w, 0.0, 0.5 * w, 0.0, 1.1 * w, 0.45 * h, 0.0, 0.0, 1.0]);
    s.arg("width", width);
    s.arg("height", height);
}

/// Gaussians of a few pixels, opaque and faint ones; some left out.
fn draw_splats(s: &mut Sample) {
    let (n, [width, height]) = (points(s), image(s));
    let spots = units(s, 2 * n);
    let sides = [width as f64, height as f64];
    let centers: Vec<f64> = spots.iter().enumerate().map(|(i, u)| (1.4 * u - 0.2) * sides[i % 2]).collect();
    s.values("centers", &[n, 2], &centers);
    let mut conics = Vec::new();
    for _ in 0..n {
        // Of L L^T.
        let l = units(s, 3);
        let (a, b, c) = (0.2 + 0.8 * l[0], 0.6 * l[1] - 0.3, 0.2 + 0.8 * l[2]);
        conics.extend([a * a, a * b, b * b + c * c]);
    }
    s.values("conics", &[n, 3], &conics);
    let channels = if s.small { 2 } else { [1, 3, 4, 9][s.below(4)] };
    s.put("colors", &[n, channels], Any);
    s.put("opacities", &[n], Range(0.05, 0.95));
    s.put("depths", &[n], Range(0.5, 9.0));
    let radii: Vec<i64> = (0..n).map(|_| if s.below(9) == 0 { 0 } else { 7 }).collect();
    s.ints("radii", DType::I32, &[n], &radii);
    s.arg("width", width);
    s.arg("height", height);
}

/// A generator, or none.
fn seed(s: &mut Sample) {
    if s.coin() {
        let seed = s.below(1 << 30);
        s.arg("seed", seed);
        let offset = s.below(100);
        s.arg("offset", offset);
    }
}

/// Rays, and samples of each: a few, or more than a block has threads.
fn rays(s: &mut Sample) -> [usize; 2] {
    if s.small {
        return [2, 4];
    }
    [[1, 1], [3, 33], [70, 5], [0, 4], [2, 700], [300, 64]][s.below(6)]
}

fn draw_rays(s: &mut Sample) {
    let [n, samples] = rays(s);
    s.put("near", &[n], Range(0.0, 1.0));
    s.put("far", &[n], Range(2.0, 6.0));
    s.arg("samples", samples);
    seed(s);
}

fn draw_importance(s: &mut Sample) {
    let [n, intervals] = rays(s);
    // Rising edges.
    let mut edges = s.normals(n * (intervals + 1));
    for row in edges.chunks_mut(intervals + 1) {
        let mut sum = 1.0;
        row.iter_mut().for_each(|e| {
            sum += 0.05 + e.abs() / intervals as f64;
            *e = sum;
        });
    }
    s.values("edges", &[n, intervals + 1], &edges);
    s.put("weights", &[n, intervals], Range(0.1, 1.0));
    let samples = [1, 5, 64, 130][s.below(4)];
    s.arg("samples", samples);
    let padding = [0.0, 1e-5, 0.25][s.below(3)];
    s.arg("padding", padding);
    seed(s);
}

fn draw_render(s: &mut Sample) {
    let [n, samples] = rays(s);
    let channels = if s.small { 2 } else { [1, 3, 4, 9][s.below(4)] };
    s.put("density", &[n, samples], Range(0.0, 3.0));
    s.put("color", &[n, samples, channels], Any);
    // Some light is left behind the last sample.
    s.put("delta", &[n, samples], Range(0.01, 0.02 + 2.0 / samples as f64));
    if s.coin() {
        s.put("t", &[n, samples], Range(1.0, 5.0));
    }
}

const LEVELS: &str = "base=16, growth=2.0";
const IMAGE: &str = "width, height, near=0.01, blur=0.3";
const SPLATS: &str = "centers, conics, colors, opacities, depths, radii:i32";
/// Inputs of the gradient of a rendering.
const RENDERED: &str = "dy, density, color, delta, [t], dopacity, dw, [ddepth]";

/// Arguments before those of a generator.
macro_rules! drawn {
    ($first:literal) => {
        concat!($first, ", seed=null, stream=0, offset=0")
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("hash_grid_encode", "B11.1", "x, table", LEVELS, "y", &["hash_grid_encode"], hash_grid)
        .bound(Derived)
        .sample(draw_hash_grid),
    k(
        "hash_grid_encode_backward",
        "B11.1",
        "dy, x, table",
        LEVELS,
        "dx, dtable",
        &["hash_grid_encode_bwd"],
        hash_grid_backward,
    )
    .bound(Derived)
    .grad_of("hash_grid_encode"),
    k("trilinear_interpolate", "B11.2", "grid, points", "-", "y", &["trilinear_interpolate"], trilinear)
        .bound(Derived)
        .sample(draw_trilinear),
    k(
        "trilinear_interpolate_backward",
        "B11.2",
        "dy, grid, points",
        "-",
        "dgrid, dpoints",
        &["trilinear_interpolate_bwd"],
        trilinear_backward,
    )
    .bound(Derived)
    .grad_of("trilinear_interpolate"),
    k("gaussian_covariance", "B11.3", "rotation, scale", "-", "y", &["gaussian_covariance"], covariance)
        .bound(Derived)
        .sample(draw_covariance),
    k(
        "gaussian_covariance_backward",
        "B11.3",
        "dy, rotation, scale",
        "-",
        "drotation, dscale",
        &["gaussian_covariance_bwd"],
        covariance_backward,
    )
    .bound(Derived)
    .grad_of("gaussian_covariance"),
    k(
        "project_gaussians",
        "B11.3",
        "means, covariance, view, intrinsics",
        IMAGE,
        "centers, conics, depths, radii:i32",
        &["project_gaussians"],
        project,
    )
    .dtypes(F32)
    .bound(Derived)
    .sample(draw_projection),
    k(
        "project_gaussians_backward",
        "B11.3",
        "dcenters, dconics, ddepths, means, covariance, view, intrinsics, radii:i32",
        IMAGE,
        "dmeans, dcovariance",
        &["project_gaussians_bwd"],
        project_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .grad_of("project_gaussians"),
    k(
        "rasterize_gaussians",
        "B11.3",
        SPLATS,
        "width, height",
        "image, transmittance",
        &["rasterize_gaussians"],
        rasterize,
    )
    .dtypes(F32)
    .bound(Derived)
    .sample(draw_splats),
    k(
        "rasterize_gaussians_backward",
        "B11.3",
        "dimage, dtransmittance, centers, conics, colors, opacities, depths, radii:i32",
        "width, height",
        "dcenters, dconics, dcolors, dopacities",
        &["rasterize_gaussians_bwd"],
        rasterize_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .grad_of("rasterize_gaussians"),
    k("spherical_harmonics", "B11.4", "r, coefficients", "-", "y", &["spherical_harmonics"], harmonics)
        .bound(Derived)
        .sample(draw_harmonics),
    k(
        "spherical_harmonics_backward",
        "B11.4",
        "dy, r, coefficients",
        "-",
        "dr, dcoefficients",
        &["spherical_harmonics_bwd"],
        harmonics_backward,
    )
    .bound(Derived)
    .grad_of("spherical_harmonics"),
    k("ray_sampling", "B11.5", "near, far", drawn!("samples"), "t", &["ray_sampling"], ray_sampling)
        .bound(Derived)
        .sample(draw_rays),
    k(
        "importance_sampling",
        "B11.5",
        "edges, weights",
        drawn!("samples, padding=0.0"),
        "t",
        &["importance_sampling"],
        importance_sampling,
    )
    .bound(Derived)
    .sample(draw_importance),
    k(
        "volume_render",
        "B11.5",
        "density, color, delta, [t]",
        "-",
        "y, opacity, w, [depth]",
        &["volume_render"],
        render,
    )
    .bound(Derived)
    .sample(draw_render),
    k(
        "volume_render_backward",
        "B11.5",
        RENDERED,
        "-",
        "ddensity, dcolor, ddelta, [dt]",
        &["volume_render_bwd"],
        render_backward,
    )
    .bound(Derived)
    .grad_of("volume_render"),
]];
