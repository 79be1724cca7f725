//! Constants, movement, padding, repetition.

use trefoil::ops::shape::{PadMode, Triangle};
use trefoil::{BackendExt, DType, Layout, Result};

use crate::case::{Operation, forward};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// A layout with these strides.
pub(crate) fn layout(shape: &[usize], strides: &[usize]) -> Result<Layout> {
    Layout::strided(shape, strides, 0).map_err(|e| trefoil::GpuError::Config(e.to_string().into()))
}

/// A tensor of `shape` copied into the order that `axes` gives its axes.
fn permute(cx: &Context<'_>, dt: DType, shape: &[usize], axes: &[usize]) -> Result<Prepared> {
    let (shape, axes, n) = (shape.to_vec(), axes.to_vec(), shape.iter().product::<usize>());
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    let to = *x.at(0).shaped(&shape)?.map("axes", |l| l.permute(&axes))?.layout();
    let out = to.shape().to_vec();
    prepared(moved, 0, move |g, i| {
        g.strided_copy(x.at(i).view().with_layout(to)?, y.shaped_mut(&out)?.into())
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("strided_copy", "transpose", F32_BF16, |cx, dt| permute(cx, dt, &cx.rows(), &[1, 0])),
    problem("strided_copy", "heads", F32_BF16, |cx, dt| {
        // [tokens, heads, 64] to [heads, tokens, 64], as attention wants it.
        let [r, c] = cx.rows();
        permute(cx, dt, &[r, c / 64, 64], &[1, 0, 2])
    }),
    problem("strided_copy", "accumulate", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.normal(dt, cx.n())?, cx.n());
        bytes(3 * n * dt.size(), move |g| g.strided_copy(x.view(), y.view_mut().accumulate()))
    }),
    problem("concat", "two_halves", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, w, mut y) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, 2 * r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            g.concat(1, &[x.shaped(&[r, c])?, w.shaped(&[r, c])?], y.shaped_mut(&[r, 2 * c])?)
        })
    }),
    problem("fill", "flat", F32, |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| g.fill(1.5, y.view_mut()))
    }),
    problem("fill", "columns", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (mut y, l) = (cx.empty(dt, r * c)?, layout(&[r, c / 2], &[c, 2])?);
        bytes(r * c / 2 * dt.size(), move |g| g.fill(1.5, y.view_mut().with_layout(l)?))
    }),
    problem("fill_bytes", "flat", F32, |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| g.fill_bytes(&[1, 2, 3, 4], y.view_mut()))
    }),
    problem("arange", "flat", F32, |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| g.arange(0.0, 0.5, y.view_mut()))
    }),
    problem("linspace", "flat", F32, |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| g.linspace(-1.0, 1.0, y.view_mut()))
    }),
    problem("pad", "constant", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, (r + 2) * (c + 2))?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.pad(
                PadMode::Constant(0.0),
                &[(1, 1), (1, 1)],
                x.shaped(&[r, c])?,
                y.shaped_mut(&[r + 2, c + 2])?,
            )
        })
    }),
    problem("pad_bwd", "reflect", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, mut dx) = (cx.normal(dt, (r + 2) * (c + 2))?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.pad_bwd(
                PadMode::Reflect,
                &[(1, 1), (1, 1)],
                dy.shaped(&[r + 2, c + 2])?,
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    problem("flip", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| g.flip(&[1], x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into()))
    }),
    problem("roll", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.roll(&[3], &[1], x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("triangle", "lower", F32, |cx, dt| {
        let s = cx.side();
        let (x, mut y) = (cx.normal(dt, s * s)?, cx.empty(dt, s * s)?);
        bytes(2 * s * s * dt.size(), move |g| {
            g.triangle(Triangle::Lower, 0, x.shaped(&[s, s])?, y.shaped_mut(&[s, s])?.into())
        })
    }),
    problem("repeat_interleave", "twice", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, 2 * r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.repeat_interleave(0, 2, None, x.shaped(&[r, c])?, y.shaped_mut(&[2 * r, c])?)
        })
    }),
    problem("repeat_interleave", "counts", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let counts: Vec<i32> = (0..r as i32).map(|i| 2 * (i % 2)).collect();
        let out: usize = counts.iter().map(|&k| k as usize).sum();
        let (counts, x, mut y) = (cx.gpu.upload(&counts)?, cx.normal(dt, r * c)?, cx.empty(dt, out * c)?);
        bytes((r + out) * c * dt.size(), move |g| {
            g.repeat_interleave(0, 1, Some(counts.view()), x.shaped(&[r, c])?, y.shaped_mut(&[out, c])?)
        })
    }),
    problem("repeat_interleave", "counts_of_a_vector", F32, |cx, dt| {
        let n = cx.n() / 4;
        let counts = cx.gpu.upload(&vec![2i32; n])?;
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, 2 * n)?);
        bytes(n * (3 * dt.size() + 4), move |g| {
            g.repeat_interleave(0, 1, Some(counts.view()), x.view(), y.view_mut())
        })
    }),
    problem("repeat_interleave_bwd", "twice", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, mut dx) = (cx.normal(dt, 2 * r * c)?, cx.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.repeat_interleave_bwd(0, 2, None, dy.shaped(&[2 * r, c])?, dx.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("unfold_bwd", "windows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (size, step) = (4, 2);
        let w = (c - size) / step + 1;
        let (dy, mut dx) = (cx.normal(dt, r * w * size)?, cx.empty(dt, r * c)?);
        bytes((r * w * size + r * c) * dt.size(), move |g| {
            g.unfold_bwd(1, size, step, dy.shaped(&[r, w, size])?, dx.shaped_mut(&[r, c])?.into())
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] =
    &[forward("permute", |cx, c| Ok(permute(cx, c.dtype()?, &c.list("shape")?, &c.list("perm")?)?))];
