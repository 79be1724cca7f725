//! Pooling.

use trefoil::ops::pool::{Pooling, Window};
use trefoil::{DType, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Planes and side of images as in the first half of a convolutional network.
fn images(cx: &Context<'_>) -> ([usize; 4], usize) {
    let (planes, side) = (cx.pick(4, 16, 4_096), cx.pick(16, 32, 112));
    ([1, planes, side, side], planes * side * side)
}

/// Windows that are pooled: input shape, output shape and their elements.
struct Pooled {
    window: Window,
    xs: [usize; 4],
    ys: [usize; 4],
    n: usize,
    m: usize,
}

impl Pooled {
    /// `None` if no window fits into the images.
    fn new(xs: [usize; 4], window: Window) -> Option<Self> {
        let out = window.output_size(&xs[2..]).ok()?;
        let ys = [xs[0], xs[1], out[0], out[1]];
        Some(Pooled { window, xs, ys, n: xs.iter().product(), m: ys.iter().product() })
    }

    /// The images of the table.
    fn of_images(cx: &Context<'_>, window: Window) -> Result<Self> {
        let no = || trefoil::GpuError::Config("a window larger than the images".into());
        Pooled::new(images(cx).0, window).ok_or_else(no)
    }

    fn of_case(c: &Case) -> Result<Self, CaseError> {
        let ([n, channels, h, w], r) = (c.sizes(["n", "c", "h", "w"])?, c.size("r")?);
        let window = Window::new(&[r]).stride(&[c.size_or("stride", r)?]).padding(&[c.whole_or("pad", 0)?]);
        Pooled::new([n, channels, h, w], window).ok_or_else(|| {
            c.unexpected("r", "a window that fits into the padded image, padded by half at most")
        })
    }

    /// Bytes of images and results, and of one index for each result.
    fn indexed(&self, dt: DType) -> usize {
        (self.n + self.m) * dt.size() + 4 * self.m
    }

    fn max(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let moved = self.indexed(dt);
        let (x, mut y) = (cx.normal_sets(dt, self.n, cx.sets(moved))?, cx.empty(dt, self.m)?);
        let mut index = cx.empty(DType::I32, self.m)?;
        let Pooled { window, xs, ys, .. } = self;
        prepared(moved, 0, move |g, i| {
            let index = Some(index.shaped_mut(&ys)?);
            g.max_pool(window.into(), x.at(i).shaped(&xs)?, y.shaped_mut(&ys)?, index)
        })
    }

    fn max_bwd(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let moved = self.indexed(dt);
        let k = cx.sets(moved);
        let Pooled { window, xs, ys, n, m } = self;
        let index = cx.sets_of(k, |cx| {
            let (x, mut y, mut index) = (cx.normal(dt, n)?, cx.empty(dt, m)?, cx.empty(DType::I32, m)?);
            let (x, y, to) = (x.shaped(&xs)?, y.shaped_mut(&ys)?, index.shaped_mut(&ys)?);
            cx.gpu.max_pool(window.into(), x, y, Some(to))?;
            Ok(index)
        })?;
        let (dy, mut dx) = (cx.normal_sets(dt, m, k)?, cx.empty(dt, n)?);
        prepared(moved, 0, move |g, i| {
            let (dy, index) = (dy.at(i).shaped(&ys)?, index.at(i).shaped(&ys)?);
            g.max_pool_bwd(window.into(), dy, index, dx.shaped_mut(&xs)?.into())
        })
    }

    fn avg(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let moved = (self.n + self.m) * dt.size();
        let (x, mut y) = (cx.normal_sets(dt, self.n, cx.sets(moved))?, cx.empty(dt, self.m)?);
        let Pooled { window, xs, ys, .. } = self;
        prepared(moved, 0, move |g, i| g.avg_pool(window.into(), x.at(i).shaped(&xs)?, y.shaped_mut(&ys)?))
    }

    fn avg_bwd(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let moved = (self.n + self.m) * dt.size();
        let (dy, mut dx) = (cx.normal_sets(dt, self.m, cx.sets(moved))?, cx.empty(dt, self.n)?);
        let Pooled { window, xs, ys, .. } = self;
        prepared(moved, 0, move |g, i| {
            g.avg_pool_bwd(window.into(), dy.at(i).shaped(&ys)?, dx.shaped_mut(&xs)?.into())
        })
    }
}

/// Square windows that overlap their neighbours: side, stride and padding.
fn window(r: usize, stride: usize, pad: usize) -> Window {
    Window::new(&[r]).stride(&[stride]).padding(&[pad])
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("max_pool", "3x3s2", F32_BF16, |cx, dt| Pooled::of_images(cx, window(3, 2, 1))?.max(cx, dt)),
    problem("max_pool", "2x2", F32, |cx, dt| Pooled::of_images(cx, window(2, 2, 0))?.max(cx, dt)),
    problem("max_pool", "3x3s1", F32_BF16, |cx, dt| Pooled::of_images(cx, window(3, 1, 1))?.max(cx, dt)),
    problem("max_pool", "5x5s1", F32, |cx, dt| Pooled::of_images(cx, window(5, 1, 2))?.max(cx, dt)),
    problem("max_pool", "2x2s3", F32, |cx, dt| Pooled::of_images(cx, window(2, 3, 0))?.max(cx, dt)),
    problem("max_pool", "4x4", F32, |cx, dt| Pooled::of_images(cx, window(4, 4, 0))?.max(cx, dt)),
    problem("max_pool", "global", F32, |cx, dt| {
        let (xs, n) = images(cx);
        let (x, mut y, mut i) = (cx.normal(dt, n)?, cx.empty(dt, xs[1])?, cx.empty(DType::I32, xs[1])?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| {
            g.max_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?, Some(i.shaped_mut(&ys)?))
        })
    }),
    problem("max_pool_bwd", "3x3s2", F32_BF16, |cx, dt| {
        Pooled::of_images(cx, window(3, 2, 1))?.max_bwd(cx, dt)
    }),
    problem("max_pool_bwd", "3x3s1", F32, |cx, dt| Pooled::of_images(cx, window(3, 1, 1))?.max_bwd(cx, dt)),
    problem("avg_pool", "2x2", F32_BF16, |cx, dt| Pooled::of_images(cx, window(2, 2, 0))?.avg(cx, dt)),
    problem("avg_pool", "3x3s2", F32, |cx, dt| Pooled::of_images(cx, window(3, 2, 1))?.avg(cx, dt)),
    problem("avg_pool", "3x3s1", F32, |cx, dt| Pooled::of_images(cx, window(3, 1, 1))?.avg(cx, dt)),
    problem("avg_pool", "3x3s2_inside", F32, |cx, dt| {
        Pooled::of_images(cx, window(3, 2, 1).count_include_pad(false))?.avg(cx, dt)
    }),
    problem("avg_pool", "2x2s3", F32, |cx, dt| Pooled::of_images(cx, window(2, 3, 0))?.avg(cx, dt)),
    problem("avg_pool", "4x4", F32, |cx, dt| Pooled::of_images(cx, window(4, 4, 0))?.avg(cx, dt)),
    problem("avg_pool_bwd", "4x4", F32, |cx, dt| Pooled::of_images(cx, window(4, 4, 0))?.avg_bwd(cx, dt)),
    problem("avg_pool_bwd", "2x2", F32_BF16, |cx, dt| {
        Pooled::of_images(cx, window(2, 2, 0))?.avg_bwd(cx, dt)
    }),
    problem("avg_pool", "1d_long", F32, |cx, dt| {
        let (xs, n) = images(cx);
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, xs[1] * 2)?);
        let (xs, ys) = ([1, xs[1], xs[2] * xs[3]], [1, xs[1], 2]);
        bytes(n * dt.size(), move |g| g.avg_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?))
    }),
    problem("avg_pool", "global", F32_BF16, |cx, dt| {
        let (xs, n) = images(cx);
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, xs[1])?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| g.avg_pool(Pooling::Adaptive, x.shaped(&xs)?, y.shaped_mut(&ys)?))
    }),
    problem("avg_pool_bwd", "global", F32, |cx, dt| {
        let (xs, n) = images(cx);
        let (dy, mut dx) = (cx.normal(dt, xs[1])?, cx.empty(dt, n)?);
        let ys = [1, xs[1], 1, 1];
        bytes(n * dt.size(), move |g| {
            g.avg_pool_bwd(Pooling::Adaptive, dy.shaped(&ys)?, dx.shaped_mut(&xs)?.into())
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[
    both(
        "maxpool2d",
        |cx, c| Ok(Pooled::of_case(c)?.max(cx, c.dtype()?)?),
        |cx, c| Ok(Pooled::of_case(c)?.max_bwd(cx, c.dtype()?)?),
    ),
    both(
        "avgpool2d",
        |cx, c| Ok(Pooled::of_case(c)?.avg(cx, c.dtype()?)?),
        |cx, c| Ok(Pooled::of_case(c)?.avg_bwd(cx, c.dtype()?)?),
    ),
];
