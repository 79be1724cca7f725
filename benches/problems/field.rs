//! Neural fields: hash grids of Instant-NGP's sizes, volumes, view-dependent colours, rays of NeRF's.

use trefoil::ops::elementwise::Unary;
use trefoil::ops::field::{
    CovarianceBwd, HarmonicsBwd, HashGrid, HashGridBwd, ProjectGaussians, ProjectGaussiansBwd, Projection,
    RasterizeGaussians, RasterizeGaussiansBwd, TrilinearBwd, VolumeRender, VolumeRenderBwd,
};
use trefoil::ops::random::Rng;
use trefoil::{Buffer, DType, Result};

use crate::{Context, F32, Prepared, Problem, bytes, problem};

/// A hash grid of 16 levels: points, rows per level.
fn hash_grid(cx: &Context<'_>) -> (HashGrid, [usize; 2], [usize; 3]) {
    let (points, rows) = (cx.pick(33, 2_000, 1 << 18), cx.pick(64, 1 << 12, 1 << 19));
    (HashGrid::new(16, 1.5), [points, 3], [cx.pick(3, 16, 16), rows, 2])
}

/// Rays, samples, channels.
fn rays(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(3, 64, 8_192), cx.pick(5, 64, 128), 3]
}

fn render(cx: &Context<'_>, dt: DType, [r, s, c]: [usize; 3]) -> Result<Prepared> {
    let (density, color) = (cx.positive(dt, r * s)?, cx.normal(dt, r * s * c)?);
    let (delta, mut y) = (cx.positive(dt, r * s)?, cx.empty(dt, r * c)?);
    bytes(r * s * (c + 2) * dt.size(), move |g| {
        let [p, d] = [density.shaped(&[r, s])?, delta.shaped(&[r, s])?];
        g.volume_render(VolumeRender::new(p, color.shaped(&[r, s, c])?, d, y.shaped_mut(&[r, c])?))
    })
}

fn render_bwd(cx: &Context<'_>, dt: DType, [r, s, c]: [usize; 3]) -> Result<Prepared> {
    let (density, color) = (cx.positive(dt, r * s)?, cx.normal(dt, r * s * c)?);
    let (delta, dy) = (cx.positive(dt, r * s)?, cx.normal(dt, r * c)?);
    let (mut dp, mut dc) = (cx.empty(dt, r * s)?, cx.empty(dt, r * s * c)?);
    bytes(r * s * (2 * c + 3) * dt.size(), move |g| {
        let [p, d] = [density.shaped(&[r, s])?, delta.shaped(&[r, s])?];
        let io = VolumeRenderBwd::new(p, color.shaped(&[r, s, c])?, d).dy(dy.shaped(&[r, c])?);
        let (dp, dc) = (dp.shaped_mut(&[r, s])?, dc.shaped_mut(&[r, s, c])?);
        g.volume_render_bwd(io.ddensity(Some(dp.into())).dcolor(Some(dc.into())))
    })
}

/// A buffer of f32 that repeats these.
fn repeated(cx: &Context<'_>, pattern: &[f32], times: usize) -> Result<Buffer> {
    let mut buffer = cx.empty(DType::F32, pattern.len() * times)?;
    let bytes: Vec<u8> = pattern.iter().flat_map(|v| v.to_le_bytes()).collect();
    cx.gpu.write_bytes(buffer.view_mut(), &bytes.repeat(times))?;
    Ok(buffer)
}

/// A camera that looks along z from (0, 0, 4), 800 pixels wide.
fn camera(cx: &Context<'_>) -> Result<(Projection, [Buffer; 2])> {
    let side = cx.pick(20, 100, 800);
    let s = side as f32;
    let view = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 4.0, 0.0, 0.0, 0.0, 1.0];
    let intrinsics = [s, 0.0, s / 2.0, 0.0, s, s / 2.0, 0.0, 0.0, 1.0];
    Ok((Projection::new(side, side), [repeated(cx, &view, 1)?, repeated(cx, &intrinsics, 1)?]))
}

const ROUND: [f32; 9] = [1e-3, 0.0, 0.0, 0.0, 1e-3, 0.0, 0.0, 0.0, 1e-3];

/// Gaussians of a few pixels all over an image: number, side, centres, conics, colours, opacities, depths, radii.
fn splats(cx: &Context<'_>, dt: DType) -> Result<(usize, usize, [Buffer; 6])> {
    let (n, side) = (cx.pick(33, 500, 20_000), cx.pick(20, 100, 800));
    let (mut centers, unit) = (cx.empty(dt, 2 * n)?, cx.unit(dt, 2 * n)?);
    cx.gpu.unary(Unary::Scale { c: side as f64 }, unit.view(), centers.view_mut())?;
    let mut radii = cx.empty(DType::I32, n)?;
    cx.gpu.write_bytes(radii.view_mut(), &7i32.to_le_bytes().repeat(n))?;
    let conics = repeated(cx, &[0.3, 0.05, 0.2], n)?;
    let (colors, opacities, depths) = (cx.unit(dt, 3 * n)?, cx.unit(dt, n)?, cx.positive(dt, n)?);
    Ok((n, side, [centers, conics, colors, opacities, depths, radii]))
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("hash_grid_encode", "levels", F32, |cx, dt| {
        let (p, xs, ts) = hash_grid(cx);
        let [n, width] = [xs[0], ts[0] * ts[2]];
        let (x, table) = (cx.unit(dt, 3 * n)?, cx.normal(dt, ts.iter().product())?);
        let mut y = cx.empty(dt, n * width)?;
        bytes((3 * n + 9 * n * width) * dt.size(), move |g| {
            g.hash_grid_encode(p, x.shaped(&xs)?, table.shaped(&ts)?, y.shaped_mut(&[n, width])?)
        })
    }),
    problem("hash_grid_encode_bwd", "levels", F32, |cx, dt| {
        let (p, xs, ts) = hash_grid(cx);
        let [n, width] = [xs[0], ts[0] * ts[2]];
        let (x, table) = (cx.unit(dt, 3 * n)?, cx.normal(dt, ts.iter().product())?);
        let (dy, mut dtable) = (cx.normal(dt, n * width)?, cx.empty(dt, ts.iter().product())?);
        bytes((3 * n + 9 * n * width + ts.iter().product::<usize>()) * dt.size(), move |g| {
            let io = HashGridBwd::new(dy.shaped(&[n, width])?, x.shaped(&xs)?, table.shaped(&ts)?);
            g.hash_grid_encode_bwd(p, io.dtable(Some(dtable.shaped_mut(&ts)?.into())))
        })
    }),
    problem("trilinear_interpolate", "volume", F32, |cx, dt| {
        let (n, side, c) = (cx.pick(33, 2_000, 1 << 20), cx.pick(3, 16, 128), cx.pick(2, 8, 16));
        let gs = [side, side, side, c];
        let (grid, x) = (cx.normal(dt, gs.iter().product())?, cx.unit(dt, 3 * n)?);
        let mut y = cx.empty(dt, n * c)?;
        bytes(n * (3 + 9 * c) * dt.size(), move |g| {
            g.trilinear_interpolate(grid.shaped(&gs)?, x.shaped(&[n, 3])?, y.shaped_mut(&[n, c])?)
        })
    }),
    problem("trilinear_interpolate_bwd", "volume", F32, |cx, dt| {
        let (n, side, c) = (cx.pick(33, 2_000, 1 << 18), cx.pick(3, 16, 64), cx.pick(2, 8, 16));
        let gs = [side, side, side, c];
        let (grid, x) = (cx.normal(dt, gs.iter().product())?, cx.unit(dt, 3 * n)?);
        let (dy, mut dpoints) = (cx.normal(dt, n * c)?, cx.empty(dt, 3 * n)?);
        let mut dgrid = cx.empty(dt, gs.iter().product())?;
        bytes((n * (6 + 17 * c) + gs.iter().product::<usize>()) * dt.size(), move |g| {
            let io = TrilinearBwd::new(dy.shaped(&[n, c])?, grid.shaped(&gs)?, x.shaped(&[n, 3])?);
            let (dgrid, dpoints) = (dgrid.shaped_mut(&gs)?, dpoints.shaped_mut(&[n, 3])?);
            g.trilinear_interpolate_bwd(io.dgrid(Some(dgrid.into())).dpoints(Some(dpoints.into())))
        })
    }),
    problem("spherical_harmonics", "degree_3", F32, |cx, dt| {
        let n = cx.pick(33, 2_000, 1 << 20);
        let (r, k, mut y) = (cx.normal(dt, 3 * n)?, cx.normal(dt, 48 * n)?, cx.empty(dt, 3 * n)?);
        bytes(54 * n * dt.size(), move |g| {
            g.spherical_harmonics(r.shaped(&[n, 3])?, k.shaped(&[n, 3, 16])?, y.shaped_mut(&[n, 3])?)
        })
    }),
    problem("spherical_harmonics_bwd", "degree_3", F32, |cx, dt| {
        let n = cx.pick(33, 2_000, 1 << 20);
        let (r, k, dy) = (cx.normal(dt, 3 * n)?, cx.normal(dt, 48 * n)?, cx.normal(dt, 3 * n)?);
        let (mut dr, mut dk) = (cx.empty(dt, 3 * n)?, cx.empty(dt, 48 * n)?);
        bytes(105 * n * dt.size(), move |g| {
            let io = HarmonicsBwd::new(dy.shaped(&[n, 3])?, r.shaped(&[n, 3])?, k.shaped(&[n, 3, 16])?);
            let (dr, dk) = (dr.shaped_mut(&[n, 3])?, dk.shaped_mut(&[n, 3, 16])?);
            g.spherical_harmonics_bwd(io.ddirections(Some(dr.into())).dcoefficients(Some(dk.into())))
        })
    }),
    problem("gaussian_covariance", "scene", F32, |cx, dt| {
        let n = cx.pick(33, 2_000, 1 << 20);
        let (q, s, mut y) = (cx.normal(dt, 4 * n)?, cx.positive(dt, 3 * n)?, cx.empty(dt, 9 * n)?);
        bytes(16 * n * dt.size(), move |g| {
            g.gaussian_covariance(q.shaped(&[n, 4])?, s.shaped(&[n, 3])?, y.shaped_mut(&[n, 3, 3])?)
        })
    }),
    problem("gaussian_covariance_bwd", "scene", F32, |cx, dt| {
        let n = cx.pick(33, 2_000, 1 << 20);
        let (q, s, dy) = (cx.normal(dt, 4 * n)?, cx.positive(dt, 3 * n)?, cx.normal(dt, 9 * n)?);
        let (mut dq, mut ds) = (cx.empty(dt, 4 * n)?, cx.empty(dt, 3 * n)?);
        bytes(23 * n * dt.size(), move |g| {
            let io = CovarianceBwd::new(dy.shaped(&[n, 3, 3])?, q.shaped(&[n, 4])?, s.shaped(&[n, 3])?);
            let (dq, ds) = (dq.shaped_mut(&[n, 4])?, ds.shaped_mut(&[n, 3])?);
            g.gaussian_covariance_bwd(io.drotation(Some(dq.into())).dscale(Some(ds.into())))
        })
    }),
    problem("project_gaussians", "scene", F32, |cx, dt| {
        let (n, (p, [view, intrinsics])) = (cx.pick(33, 2_000, 1 << 20), camera(cx)?);
        let (means, cov) = (cx.normal(dt, 3 * n)?, repeated(cx, &ROUND, n)?);
        let (mut x, mut c, mut z) = (cx.empty(dt, 2 * n)?, cx.empty(dt, 3 * n)?, cx.empty(dt, n)?);
        let mut r = cx.empty(DType::I32, n)?;
        bytes(19 * n * dt.size(), move |g| {
            let (means, cov) = (means.shaped(&[n, 3])?, cov.shaped(&[n, 3, 3])?);
            let (view, intrinsics) = (view.shaped(&[4, 4])?, intrinsics.shaped(&[3, 3])?);
            let (x, c) = (x.shaped_mut(&[n, 2])?, c.shaped_mut(&[n, 3])?);
            let (z, r) = (z.view_mut(), r.view_mut());
            g.project_gaussians(p, ProjectGaussians::new(means, cov, view, intrinsics, x, c, z, r))
        })
    }),
    problem("project_gaussians_bwd", "scene", F32, |cx, dt| {
        let (n, (p, [view, intrinsics])) = (cx.pick(33, 2_000, 1 << 20), camera(cx)?);
        let (means, cov) = (cx.normal(dt, 3 * n)?, repeated(cx, &ROUND, n)?);
        let (x, c, r) = (cx.normal(dt, 2 * n)?, cx.normal(dt, 3 * n)?, cx.zeros(DType::I32, n)?);
        let (mut dm, mut dv) = (cx.empty(dt, 3 * n)?, cx.empty(dt, 9 * n)?);
        bytes(30 * n * dt.size(), move |g| {
            let (means, cov) = (means.shaped(&[n, 3])?, cov.shaped(&[n, 3, 3])?);
            let (view, intrinsics) = (view.shaped(&[4, 4])?, intrinsics.shaped(&[3, 3])?);
            let io = ProjectGaussiansBwd::new(means, cov, view, intrinsics, r.view());
            let io = io.dcenters(x.shaped(&[n, 2])?).dconics(c.shaped(&[n, 3])?);
            let (dm, dv) = (dm.shaped_mut(&[n, 3])?.into(), dv.shaped_mut(&[n, 3, 3])?.into());
            g.project_gaussians_bwd(p, io.dmeans(Some(dm)).dcovariance(Some(dv)))
        })
    }),
    problem("rasterize_gaussians", "image", F32, |cx, dt| {
        let (n, side, [x, c, f, o, z, r]) = splats(cx, dt)?;
        let (mut image, mut left) = (cx.empty(dt, 3 * side * side)?, cx.empty(dt, side * side)?);
        bytes((10 * n + 4 * side * side) * dt.size(), move |g| {
            let (x, c, f) = (x.shaped(&[n, 2])?, c.shaped(&[n, 3])?, f.shaped(&[n, 3])?);
            let (image, left) = (image.shaped_mut(&[side, side, 3])?, left.shaped_mut(&[side, side])?);
            let (o, z, r) = (o.view(), z.view(), r.view());
            g.rasterize_gaussians(RasterizeGaussians::new(x, c, f, o, z, r, image, left))
        })
    }),
    problem("rasterize_gaussians_bwd", "image", F32, |cx, dt| {
        let (n, side, [x, c, f, o, z, r]) = splats(cx, dt)?;
        let (dy, mut dx, mut dc) =
            (cx.normal(dt, 3 * side * side)?, cx.empty(dt, 2 * n)?, cx.empty(dt, 3 * n)?);
        let (mut df, mut d) = (cx.empty(dt, 3 * n)?, cx.empty(dt, n)?);
        bytes((19 * n + 4 * side * side) * dt.size(), move |g| {
            let (x, c, f) = (x.shaped(&[n, 2])?, c.shaped(&[n, 3])?, f.shaped(&[n, 3])?);
            let (dy, o, z, r) = (dy.shaped(&[side, side, 3])?, o.view(), z.view(), r.view());
            let io = RasterizeGaussiansBwd::new(dy, x, c, f, o, z, r);
            let (dx, dc) = (dx.shaped_mut(&[n, 2])?.into(), dc.shaped_mut(&[n, 3])?.into());
            let (df, d) = (df.shaped_mut(&[n, 3])?.into(), d.view_mut().into());
            let io = io.dcenters(Some(dx)).dconics(Some(dc));
            g.rasterize_gaussians_bwd(io.dcolors(Some(df)).dopacities(Some(d)))
        })
    }),
    problem("ray_sampling", "stratified", F32, |cx, dt| {
        let [r, s, _] = rays(cx);
        let (near, far, mut t) = (cx.zeros(dt, r)?, cx.positive(dt, r)?, cx.empty(dt, r * s)?);
        bytes(r * (s + 2) * dt.size(), move |g| {
            g.ray_sampling(Some(Rng::new(1)), near.view(), far.view(), t.shaped_mut(&[r, s])?)
        })
    }),
    problem("importance_sampling", "stratified", F32, |cx, dt| {
        let [r, s, _] = rays(cx);
        let (edges, weights) = (cx.positive(dt, r * (s + 1))?, cx.positive(dt, r * s)?);
        let mut t = cx.empty(dt, r * s)?;
        bytes(r * (3 * s + 1) * dt.size(), move |g| {
            let (edges, weights) = (edges.shaped(&[r, s + 1])?, weights.shaped(&[r, s])?);
            g.importance_sampling(1e-5, Some(Rng::new(1)), edges, weights, t.shaped_mut(&[r, s])?)
        })
    }),
    problem("volume_render", "rays", F32, |cx, dt| render(cx, dt, rays(cx))),
    problem("volume_render_bwd", "rays", F32, |cx, dt| render_bwd(cx, dt, rays(cx))),
];
