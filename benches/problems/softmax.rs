//! Softmax.

use trefoil::ops::softmax::Softmax;
use trefoil::{DType, Result};

use crate::case::{Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Softmax of a matrix along an axis.
fn softmax(cx: &Context<'_>, dt: DType, kind: Softmax, axis: usize, s: [usize; 2]) -> Result<Prepared> {
    let n = s[0] * s[1];
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.softmax(kind, axis, x.at(i).shaped(&s)?, y.shaped_mut(&s)?))
}

/// The gradient of [`softmax`].
fn softmax_bwd(cx: &Context<'_>, dt: DType, kind: Softmax, axis: usize, s: [usize; 2]) -> Result<Prepared> {
    let n = s[0] * s[1];
    let k = cx.sets(2 * n * dt.size());
    let y = cx.sets_of(k, |cx| {
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, n)?);
        cx.gpu.softmax(kind, axis, x.shaped(&s)?, y.shaped_mut(&s)?)?;
        Ok(y)
    })?;
    let (dy, mut dx) = (cx.normal_sets(dt, n, k)?, cx.empty(dt, n)?);
    prepared(3 * n * dt.size(), 0, move |g, i| {
        g.softmax_bwd(kind, axis, dy.at(i).shaped(&s)?, y.at(i).shaped(&s)?, dx.shaped_mut(&s)?.into())
    })
}

/// Rows of `cols` elements: their length decides on the kernel.
fn of_length(cx: &Context<'_>, cols: usize) -> [usize; 2] {
    /// The most elements of such a problem.
    const MAX: usize = 1 << 27;
    [cx.rows()[0].min(MAX / cols), cols]
}

/// Rows of an odd number of elements: most begin off a multiple of 16 bytes.
fn vocabulary(cx: &Context<'_>) -> [usize; 2] {
    [cx.classes()[0], cx.classes()[1] - 47]
}

const SOFTMAX: Softmax = Softmax::Softmax;
const LOG_SOFTMAX: Softmax = Softmax::LogSoftmax;

pub(super) const PROBLEMS: &[Problem] = &[
    problem("softmax", "rows", F32_BF16, |cx, dt| softmax(cx, dt, SOFTMAX, 1, cx.rows())),
    problem("softmax", "columns", F32, |cx, dt| softmax(cx, dt, LOG_SOFTMAX, 0, cx.rows())),
    problem("softmax", "vocabulary", F32, |cx, dt| softmax(cx, dt, LOG_SOFTMAX, 1, vocabulary(cx))),
    problem("softmax", "one_row", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, [1, cx.n()])),
    problem("softmax", "32_columns", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 32))),
    problem("softmax", "64_columns", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 64))),
    problem("softmax", "8k_columns", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 8192))),
    problem("softmax", "beyond_registers", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 8200))),
    problem("softmax", "32k_columns", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 32_768))),
    problem("softmax", "long_rows", F32, |cx, dt| softmax(cx, dt, SOFTMAX, 1, of_length(cx, 40_000))),
    problem("softmax_bwd", "rows", F32_BF16, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 1, cx.rows())),
    problem("softmax_bwd", "columns", F32, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 0, cx.rows())),
    problem("softmax_bwd", "vocabulary", F32, |cx, dt| softmax_bwd(cx, dt, LOG_SOFTMAX, 1, vocabulary(cx))),
    problem("softmax_bwd", "one_row", F32, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 1, [1, cx.n()])),
    problem("softmax_bwd", "32_columns", F32, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 1, of_length(cx, 32))),
    problem("softmax_bwd", "64_columns", F32, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 1, of_length(cx, 64))),
    problem("softmax_bwd", "beyond_registers", F32, |cx, dt| {
        softmax_bwd(cx, dt, SOFTMAX, 1, of_length(cx, 8200))
    }),
    problem("softmax_bwd", "32k_columns", F32, |cx, dt| {
        softmax_bwd(cx, dt, SOFTMAX, 1, of_length(cx, 32_768))
    }),
    problem("softmax_bwd", "long_rows", F32, |cx, dt| softmax_bwd(cx, dt, SOFTMAX, 1, of_length(cx, 40_000))),
    problem("masked_softmax", "rows", F32_BF16, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, mask, mut y) = (cx.normal(dt, r * k)?, cx.zeros(dt, k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.masked_softmax(0.125, x.shaped(&[r, k])?, Some(mask.view()), y.shaped_mut(&[r, k])?)
        })
    }),
    problem("masked_softmax_bwd", "rows", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (dy, y, mut dx) = (cx.normal(dt, r * k)?, cx.positive(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let out = dx.shaped_mut(&[r, k])?.into();
            g.masked_softmax_bwd(0.125, dy.shaped(&[r, k])?, y.shaped(&[r, k])?, out)
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "softmax",
    |cx, c| Ok(softmax(cx, c.dtype()?, SOFTMAX, 1, c.sizes(["rows", "cols"])?)?),
    |cx, c| Ok(softmax_bwd(cx, c.dtype()?, SOFTMAX, 1, c.sizes(["rows", "cols"])?)?),
)];
