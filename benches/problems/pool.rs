//! Pooling.

use trefoil::DType;
use trefoil::ops::*;

use super::{Bed, F32, F32_BF16, Row, bytes, row};

/// Planes and side of images as in the first half of a convolutional network.
fn images(b: &Bed<'_>) -> ([usize; 4], usize) {
    let (planes, side) = (b.pick(4, 16, 4_096), b.pick(16, 32, 112));
    ([1, planes, side, side], planes * side * side)
}

/// Images, and how many cells remain of them.
fn pooled(b: &Bed<'_>, w: &Window) -> ([usize; 4], [usize; 4], [usize; 2]) {
    let (x, n) = images(b);
    let out = w.output_size(&x[2..]).map_or([1, 1], |d| [d[0], d[1]]);
    (x, [1, x[1], out[0], out[1]], [n, x[1] * out[0] * out[1]])
}

fn max_fwd(b: &Bed<'_>, dt: DType, w: Window) -> trefoil::Result<super::Problem> {
    let (xs, ys, [n, m]) = pooled(b, &w);
    let (x, mut y, mut i) = (b.normal(dt, n)?, b.empty(dt, m)?, b.empty(DType::I32, m)?);
    bytes((n + m) * dt.size() + 4 * m, move |g| {
        g.max_pool(w.into(), x.shaped(&xs)?, y.shaped_mut(&ys)?, Some(i.shaped_mut(&ys)?))
    })
}

fn max_bwd(b: &Bed<'_>, dt: DType, w: Window) -> trefoil::Result<super::Problem> {
    let (xs, ys, [n, m]) = pooled(b, &w);
    let (x, mut y, mut i) = (b.normal(dt, n)?, b.empty(dt, m)?, b.empty(DType::I32, m)?);
    b.gpu.max_pool(w.into(), x.shaped(&xs)?, y.shaped_mut(&ys)?, Some(i.shaped_mut(&ys)?))?;
    let (dy, mut dx) = (b.normal(dt, m)?, b.empty(dt, n)?);
    bytes((n + m) * dt.size() + 4 * m, move |g| {
        g.max_pool_bwd(w.into(), dy.shaped(&ys)?, i.shaped(&ys)?, dx.shaped_mut(&xs)?.into())
    })
}

fn avg_fwd(b: &Bed<'_>, dt: DType, w: Window) -> trefoil::Result<super::Problem> {
    let (xs, ys, [n, m]) = pooled(b, &w);
    let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, m)?);
    bytes((n + m) * dt.size(), move |g| g.avg_pool(w.into(), x.shaped(&xs)?, y.shaped_mut(&ys)?))
}

pub(super) const ROWS: &[Row] = &[
    row("max_pool", "3x3s2", F32_BF16, |b, dt| max_fwd(b, dt, Window::new(&[3]).stride(&[2]).padding(&[1]))),
    row("max_pool", "2x2", F32, |b, dt| max_fwd(b, dt, Window::new(&[2]))),
    row("max_pool", "3x3s1", F32_BF16, |b, dt| max_fwd(b, dt, Window::new(&[3]).stride(&[1]).padding(&[1]))),
    row("max_pool", "5x5s1", F32, |b, dt| max_fwd(b, dt, Window::new(&[5]).stride(&[1]).padding(&[2]))),
    row("max_pool", "global", F32, |b, dt| {
        let (xs, n) = images(b);
        let (x, mut y, mut i) = (b.normal(dt, n)?, b.empty(dt, xs[1])?, b.empty(DType::I32, xs[1])?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| {
            g.max_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?, Some(i.shaped_mut(&ys)?))
        })
    }),
    row("max_pool_bwd", "3x3s2", F32_BF16, |b, dt| {
        max_bwd(b, dt, Window::new(&[3]).stride(&[2]).padding(&[1]))
    }),
    row("max_pool_bwd", "3x3s1", F32, |b, dt| max_bwd(b, dt, Window::new(&[3]).stride(&[1]).padding(&[1]))),
    row("avg_pool", "2x2", F32_BF16, |b, dt| avg_fwd(b, dt, Window::new(&[2]))),
    row("avg_pool", "3x3s2", F32, |b, dt| avg_fwd(b, dt, Window::new(&[3]).stride(&[2]).padding(&[1]))),
    row("avg_pool", "3x3s1", F32, |b, dt| avg_fwd(b, dt, Window::new(&[3]).stride(&[1]).padding(&[1]))),
    row("avg_pool", "3x3s2_inside", F32, |b, dt| {
        let w = Window::new(&[3]).stride(&[2]).padding(&[1]);
        avg_fwd(b, dt, w.count_include_pad(false))
    }),
    row("avg_pool", "1d_long", F32, |b, dt| {
        let (xs, n) = images(b);
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, xs[1] * 2)?);
        let (xs, ys) = ([1, xs[1], xs[2] * xs[3]], [1, xs[1], 2]);
        bytes(n * dt.size(), move |g| g.avg_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?))
    }),
    row("avg_pool", "global", F32_BF16, |b, dt| {
        let (xs, n) = images(b);
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, xs[1])?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| g.avg_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?))
    }),
    row("avg_pool_bwd", "2x2", F32_BF16, |b, dt| {
        let w = Window::new(&[2]);
        let (xs, ys, [n, m]) = pooled(b, &w);
        let (dy, mut dx) = (b.normal(dt, m)?, b.empty(dt, n)?);
        bytes((n + m) * dt.size(), move |g| {
            g.avg_pool_bwd(w.into(), dy.shaped(&ys)?, dx.shaped_mut(&xs)?.into())
        })
    }),
    row("avg_pool_bwd", "global", F32, |b, dt| {
        let (xs, n) = images(b);
        let (dy, mut dx) = (b.normal(dt, xs[1])?, b.empty(dt, n)?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| {
            g.avg_pool_bwd(Pooling::Adaptive, dy.shaped(&ys)?, dx.shaped_mut(&xs)?.into())
        })
    }),
];
