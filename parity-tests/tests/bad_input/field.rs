//! Neural fields.

use super::*;
use trefoil::ops::field::{
    CovarianceBwd, HarmonicsBwd, HashGrid, HashGridBwd, ProjectGaussians, ProjectGaussiansBwd, Projection,
    RasterizeGaussians, RasterizeGaussiansBwd, TrilinearBwd, VolumeRender, VolumeRenderBwd,
};

pub(super) fn field(t: &mut Bed<'_>) {
    hash_grids(t);
    volumes(t);
    harmonics(t);
    covariances(t);
    projections(t);
    splats(t);
    samples(t);
    rendering(t);
}

fn hash_grids(t: &mut Bed<'_>) {
    let (x, table, y) = (t.f32(6), t.f32(24), t.f32(12));
    let (half, p) = (t.buf(DType::F16, 24), HashGrid::new(2, 1.5));
    let (xs, ts, ys) = ([2, 3], [3, 4, 2], [2, 6]);
    let mut refuse = |what: &str, p: HashGrid, ts: &[usize], ys: &[usize]| {
        t.refuse(what, &[&y], |g| g.hash_grid_encode(p, sh(&x, &xs), sh(&table, ts), out(&y, ys)));
    };
    refuse("level 0 without cells", HashGrid::new(0, 1.5), &ts, &ys);
    refuse("levels that shrink", HashGrid::new(2, 0.5), &ts, &ys);
    refuse("growth without a number", HashGrid::new(2, f64::NAN), &ts, &ys);
    refuse("growth without end", HashGrid::new(2, f64::INFINITY), &ts, &ys);
    refuse("levels finer than f32 resolves", HashGrid::new(1 << 23, 2.0), &ts, &ys);
    refuse("level 0 finer than f32 resolves", HashGrid::new(usize::MAX, 1.0), &ts, &ys);
    refuse("a table of rank 2", p, &[6, 4], &ys);
    refuse("features of fewer levels", p, &ts, &[4, 3]);
    refuse("features of other points", p, &ts, &[3, 4]);
    t.refuse("positions of one axis", &[&y], |g| {
        g.hash_grid_encode(p, sh(&x, &[6, 1]), sh(&table, &ts), out(&y, &ys))
    });
    t.refuse("a table of f16", &[&y], |g| g.hash_grid_encode(p, sh(&x, &xs), sh(&half, &ts), out(&y, &ys)));
    t.refuse("a table without rows", &[], |g| {
        let none = nothing(g)?;
        g.hash_grid_encode(p, sh(&x, &xs), none.shaped(&[3, 0, 2])?, out(&y, &ys))
    });
    t.refuse("features over the table", &[&table], |g| {
        let to = out(&table, &[24]).range(0, 12).and_then(|v| v.reshape(&ys))?;
        g.hash_grid_encode(p, sh(&x, &xs), sh(&table, &ts), to)
    });
    let base = || HashGridBwd::new(sh(&y, &ys), sh(&x, &xs), sh(&table, &ts));
    t.refuse("a gradient over the positions", &[&x], |g| {
        g.hash_grid_encode_bwd(p, base().dx(Some(out(&x, &xs).into())))
    });
    t.refuse("a gradient of another table", &[&table], |g| {
        g.hash_grid_encode_bwd(p, base().dtable(Some(out(&table, &[4, 3, 2]).into())))
    });
    t.accept("no gradient", |g| g.hash_grid_encode_bwd(p, base()));
}

/// A buffer without elements.
fn nothing(g: &dyn IGpuBackend) -> Result<Buffer> {
    g.alloc(DType::F32, 0)
}

fn volumes(t: &mut Bed<'_>) {
    let (grid, points, y) = (t.f32(24), t.f32(6), t.f32(8));
    let (gs, ps, ys) = ([1, 2, 3, 4], [2, 3], [2, 4]);
    t.refuse("a grid of rank 3", &[&y], |g| {
        g.trilinear_interpolate(sh(&grid, &[2, 3, 4]), sh(&points, &ps), out(&y, &ys))
    });
    t.refuse("points of two axes", &[&y], |g| {
        g.trilinear_interpolate(sh(&grid, &gs), sh(&points, &[3, 2]), out(&y, &ys))
    });
    t.refuse("other channels", &[&y], |g| {
        g.trilinear_interpolate(sh(&grid, &gs), sh(&points, &ps), out(&y, &[4, 2]))
    });
    t.refuse("a transposed grid", &[&y], |g| {
        let turned = sh(&grid, &[1, 3, 2, 4]).map("grid", |l| l.transpose(1, 2))?;
        g.trilinear_interpolate(turned, sh(&points, &ps), out(&y, &ys))
    });
    t.refuse("a grid without cells", &[&y], |g| {
        let none = nothing(g)?;
        g.trilinear_interpolate(none.shaped(&[1, 0, 3, 4])?, sh(&points, &ps), out(&y, &ys))
    });
    t.refuse("a gradient over a part of the grid", &[&grid], |g| {
        let part = out(&grid, &[24]).range(0, 6).and_then(|v| v.reshape(&ps))?;
        let base = TrilinearBwd::new(sh(&y, &ys), sh(&grid, &gs), sh(&points, &ps));
        g.trilinear_interpolate_bwd(base.dpoints(Some(part.into())))
    });
}

fn harmonics(t: &mut Bed<'_>) {
    let (r, k, y) = (t.f32(6), t.f32(24), t.f32(6));
    let (rs, ks, ys) = ([2, 3], [2, 3, 4], [2, 3]);
    let mut refuse = |what: &str, rs: &[usize], ks: &[usize], ys: &[usize]| {
        t.refuse(what, &[&y], |g| g.spherical_harmonics(sh(&r, rs), sh(&k, ks), out(&y, ys)));
    };
    refuse("directions of two axes", &[3, 2], &ks, &ys);
    refuse("six functions", &rs, &[2, 2, 6], &[2, 3]);
    refuse("coefficients of other points", &rs, &[6, 1, 4], &[6, 1]);
    refuse("other channels", &rs, &ks, &[3, 2]);
    t.refuse("a gradient over the directions", &[&r], |g| {
        let base = HarmonicsBwd::new(sh(&y, &ys), sh(&r, &rs), sh(&k, &ks));
        g.spherical_harmonics_bwd(base.ddirections(Some(out(&r, &rs).into())))
    });
}

fn covariances(t: &mut Bed<'_>) {
    let (q, s, y, half) = (t.f32(12), t.f32(9), t.f32(27), t.buf(DType::F16, 9));
    let (qs, ss, ys) = ([3, 4], [3, 3], [3, 3, 3]);
    t.refuse("rotations of three numbers", &[&y], |g| {
        g.gaussian_covariance(sh(&q, &[4, 3]), sh(&s, &ss), out(&y, &ys))
    });
    t.refuse("scales as a list", &[&y], |g| g.gaussian_covariance(sh(&q, &qs), sh(&s, &[9]), out(&y, &ys)));
    t.refuse("scales of f16", &[&y], |g| g.gaussian_covariance(sh(&q, &qs), sh(&half, &ss), out(&y, &ys)));
    t.refuse("covariances as rows", &[&y], |g| {
        g.gaussian_covariance(sh(&q, &qs), sh(&s, &ss), out(&y, &[3, 9]))
    });
    t.refuse("a gradient over the scales", &[&s], |g| {
        let io = CovarianceBwd::new(sh(&y, &ys), sh(&q, &qs), sh(&s, &ss));
        g.gaussian_covariance_bwd(io.dscale(Some(out(&s, &ss).into())))
    });
}

fn projections(t: &mut Bed<'_>) {
    let (m, v, w, k) = (t.f32(6), t.f32(18), t.f32(16), t.f32(9));
    let (x, c, z, r, f) = (t.f32(4), t.f32(6), t.f32(2), t.buf(DType::I32, 2), t.f32(2));
    let base = || {
        ProjectGaussians::new(
            sh(&m, &[2, 3]),
            sh(&v, &[2, 3, 3]),
            sh(&w, &[4, 4]),
            sh(&k, &[3, 3]),
            out(&x, &[2, 2]),
            out(&c, &[2, 3]),
            z.alias_mut(),
            r.alias_mut(),
        )
    };
    let p = Projection::new(8, 6);
    let mut refuse =
        |what: &str, p: Projection| t.refuse(what, &[&x, &c], |g| g.project_gaussians(p, base()));
    refuse("an image without pixels", Projection::new(0, 6));
    refuse("an image of a million rows and more", Projection::new(8, usize::MAX));
    refuse("a depth below 0", p.near(-1.0));
    refuse("a blur without a number", p.blur(f64::NAN));
    t.refuse("places of two numbers", &[&x], |g| {
        g.project_gaussians(p, with!(base(), means = sh(&m, &[3, 2])))
    });
    t.refuse("covariances of other Gaussians", &[&x], |g| {
        g.project_gaussians(p, with!(base(), covariance = sh(&v, &[1, 3, 6])))
    });
    t.refuse("a view of nine numbers", &[&x], |g| {
        g.project_gaussians(p, with!(base(), view = sh(&k, &[3, 3])))
    });
    t.refuse("radii of floats", &[&x], |g| g.project_gaussians(p, with!(base(), radii = f.alias_mut())));
    t.refuse("centres over the places", &[&m], |g| {
        let over = out(&m, &[6]).range(0, 4).and_then(|v| v.reshape(&[2, 2]))?;
        g.project_gaussians(p, with!(base(), centers = over))
    });
    let back = || {
        let (m, v) = (sh(&m, &[2, 3]), sh(&v, &[2, 3, 3]));
        ProjectGaussiansBwd::new(m, v, sh(&w, &[4, 4]), sh(&k, &[3, 3]), r.view())
    };
    t.refuse("a gradient over the covariances", &[&v], |g| {
        g.project_gaussians_bwd(p, with!(back(), dcovariance = Some(out(&v, &[2, 3, 3]).into())))
    });
    t.refuse("an upstream gradient of three numbers", &[&c], |g| {
        let io = with!(back(), dmeans = Some(out(&c, &[2, 3]).into()));
        g.project_gaussians_bwd(p, with!(io, dcenters = Some(sh(&m, &[2, 3]))))
    });
    t.accept("no gradient of a projection", |g| g.project_gaussians_bwd(p, back()));
}

fn splats(t: &mut Bed<'_>) {
    let (x, c, f, o, z, r) = (t.f32(4), t.f32(6), t.f32(6), t.f32(2), t.f32(2), t.buf(DType::I32, 2));
    let (y, left, half) = (t.f32(36), t.f32(12), t.buf(DType::F16, 2));
    let base = || {
        let (x, c, f) = (sh(&x, &[2, 2]), sh(&c, &[2, 3]), sh(&f, &[2, 3]));
        let (o, z, r) = (o.view(), z.view(), r.view());
        RasterizeGaussians::new(x, c, f, o, z, r, out(&y, &[3, 4, 3]), out(&left, &[3, 4]))
    };
    t.refuse("colours as a list", &[&y], |g| g.rasterize_gaussians(with!(base(), colors = sh(&f, &[6]))));
    t.refuse("an image of other channels", &[&y], |g| {
        g.rasterize_gaussians(with!(base(), image = out(&y, &[3, 6, 2])))
    });
    t.refuse("opacities of f16", &[&y], |g| g.rasterize_gaussians(with!(base(), opacities = half.view())));
    t.refuse("radii of floats in an image", &[&y], |g| {
        g.rasterize_gaussians(with!(base(), radii = z.view()))
    });
    t.refuse("light of another image", &[&left], |g| {
        g.rasterize_gaussians(with!(base(), transmittance = out(&left, &[4, 3])))
    });
    let back = || {
        let (x, c, f) = (sh(&x, &[2, 2]), sh(&c, &[2, 3]), sh(&f, &[2, 3]));
        RasterizeGaussiansBwd::new(sh(&y, &[3, 4, 3]), x, c, f, o.view(), z.view(), r.view())
    };
    t.refuse("a gradient over the colours", &[&f], |g| {
        g.rasterize_gaussians_bwd(with!(back(), dcolors = Some(out(&f, &[2, 3]).into())))
    });
    t.refuse("a gradient of the light of rows", &[&left], |g| {
        let io = with!(back(), dtransmittance = Some(sh(&left, &[12])));
        g.rasterize_gaussians_bwd(io)
    });
    t.accept("no gradient of an image", |g| g.rasterize_gaussians_bwd(back()));
}

fn samples(t: &mut Bed<'_>) {
    let (near, far, s, ids) = (t.f32(2), t.f32(2), t.f32(8), t.buf(DType::I32, 2));
    let position = t.f32(1);
    t.refuse("ends of other rays", &[&s], |g| {
        g.ray_sampling(None, near.view(), far.view(), out(&s, &[4, 2]))
    });
    t.refuse("ends of integers", &[&s], |g| g.ray_sampling(None, near.view(), ids.view(), out(&s, &[2, 4])));
    t.refuse("a place of floats in the stream", &[&s], |g| {
        let rng = Rng::new(1).device_offset(Some(position.view()));
        g.ray_sampling(Some(rng), near.view(), far.view(), out(&s, &[2, 4]))
    });
    let (edges, weights) = (t.f32(8), t.f32(6));
    let mut refuse = |what: &str, padding: f64, es: &[usize], ws: &[usize], ts: &[usize]| {
        t.refuse(what, &[&s], |g| {
            g.importance_sampling(padding, None, sh(&edges, es), sh(&weights, ws), out(&s, ts))
        });
    };
    refuse("a padding below 0", -1e-9, &[2, 4], &[2, 3], &[2, 4]);
    refuse("a padding without a number", f64::NAN, &[2, 4], &[2, 3], &[2, 4]);
    refuse("as many edges as intervals", 0.0, &[2, 4], &[3, 2], &[2, 4]);
    refuse("samples of other rays", 0.0, &[2, 4], &[2, 3], &[4, 2]);
    t.refuse("no intervals", &[&s], |g| {
        let none = nothing(g)?;
        g.importance_sampling(0.0, None, sh(&edges, &[8, 1]), none.shaped(&[8, 0])?, out(&s, &[8, 1]))
    });
}

fn rendering(t: &mut Bed<'_>) {
    let (p, c, d, y, w) = (t.f32(6), t.f32(18), t.f32(6), t.f32(6), t.f32(6));
    let one = t.f32(2);
    let (s, cs, ys) = ([2, 3], [2, 3, 3], [2, 3]);
    let base = || VolumeRender::new(sh(&p, &s), sh(&c, &cs), sh(&d, &s), out(&y, &ys));
    t.refuse("depth without distances", &[&one], |g| {
        g.volume_render(with!(base(), depth = Some(out(&one, &[2]))))
    });
    t.refuse("colours of other samples", &[&y], |g| {
        g.volume_render(with!(base(), color = sh(&c, &[3, 2, 3])))
    });
    t.refuse("lengths of other samples", &[&y], |g| g.volume_render(with!(base(), delta = sh(&d, &[3, 2]))));
    t.refuse("opacity of samples", &[&w], |g| g.volume_render(with!(base(), opacity = Some(out(&w, &s)))));
    t.refuse("weights over the densities", &[&p], |g| {
        g.volume_render(with!(base(), weights = Some(out(&p, &s))))
    });
    let back = || VolumeRenderBwd::new(sh(&p, &s), sh(&c, &cs), sh(&d, &s)).dy(sh(&y, &ys));
    t.refuse("a gradient of depth without distances", &[&w], |g| {
        g.volume_render_bwd(with!(back(), ddepth = Some(one.view()), ddensity = Some(out(&w, &s).into())))
    });
    t.refuse("a gradient of distances without them", &[&w], |g| {
        g.volume_render_bwd(with!(back(), dt = Some(out(&w, &s).into())))
    });
    t.refuse("two gradients in one place", &[&w], |g| {
        let (a, b) = (Some(out(&w, &s).into()), Some(out(&w, &s).into()));
        g.volume_render_bwd(with!(back(), ddensity = a, ddelta = b))
    });
    t.accept("no gradient", |g| g.volume_render_bwd(back()));
}
