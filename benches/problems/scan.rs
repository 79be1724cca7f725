//! Scans and segments.

use trefoil::ops::scan::{CumSum, SegmentReduce, SegmentReduceBwd};
use trefoil::{Buffer, DType, Result};

use crate::{Context, F32, F32_BF16, Problem, bytes, problem};

/// Rising offsets of `count` equal segments.
fn offsets(cx: &Context<'_>, rows: usize, count: usize) -> Result<Buffer> {
    let at: Vec<i64> = (0..=count).map(|s| (s * rows / count) as i64).collect();
    let mut buffer = cx.empty(DType::I64, at.len())?;
    cx.gpu.write_bytes(buffer.view_mut(), &at.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())?;
    Ok(buffer)
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("cumsum", "rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.cumsum(CumSum::new(), 1, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("cumsum", "columns_reverse", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.cumsum(CumSum::new().reverse(true), 0, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("cumsum", "one_row", F32, |cx, dt| {
        let (x, mut y) = (cx.normal(dt, cx.n())?, cx.empty(dt, cx.n())?);
        bytes(2 * cx.n() * dt.size(), move |g| g.cumsum(CumSum::new(), 0, x.view(), y.view_mut().into()))
    }),
    problem("segment_reduce", "mean", F32_BF16, |cx, dt| {
        let ([r, c], f) = (cx.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o, mut y) = (cx.normal(dt, n * f)?, offsets(cx, n, m)?, cx.empty(dt, m * f)?);
        bytes((n + m) * f * dt.size(), move |g| {
            g.segment_reduce(SegmentReduce::Mean, x.shaped(&[n, f])?, o.view(), y.shaped_mut(&[m, f])?)
        })
    }),
    problem("segment_reduce", "std", F32, |cx, dt| {
        let ([r, c], f) = (cx.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o, mut y) = (cx.normal(dt, n * f)?, offsets(cx, n, m)?, cx.empty(dt, m * f)?);
        bytes((n + m) * f * dt.size(), move |g| {
            let op = SegmentReduce::Std { eps: 1e-5 };
            g.segment_reduce(op, x.shaped(&[n, f])?, o.view(), y.shaped_mut(&[m, f])?)
        })
    }),
    problem("segment_reduce_bwd", "max", F32, |cx, dt| {
        let ([r, c], f) = (cx.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o) = (cx.normal(dt, n * f)?, offsets(cx, n, m)?);
        let (dy, mut dx) = (cx.normal(dt, m * f)?, cx.empty(dt, n * f)?);
        bytes((2 * n + m) * f * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[m, f])?, Some(x.shaped(&[n, f])?));
            let dx = dx.shaped_mut(&[n, f])?.into();
            g.segment_reduce_bwd(SegmentReduce::Max, SegmentReduceBwd::new(dy, o.view(), dx).x(x))
        })
    }),
];
