//! Scans and segments.

use trefoil::ops::*;

use super::*;

/// Rising offsets of `count` equal segments.
fn offsets(b: &Bed<'_>, rows: usize, count: usize) -> Result<Buffer> {
    let at: Vec<i64> = (0..=count).map(|s| (s * rows / count) as i64).collect();
    let mut buffer = b.empty(DType::I64, at.len())?;
    b.gpu.write_bytes(buffer.view_mut(), &at.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())?;
    Ok(buffer)
}

pub(super) const ROWS: &[Row] = &[
    row("cumsum", "rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.cumsum(CumSum::new(), 1, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    row("cumsum", "columns_reverse", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut y) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.cumsum(CumSum::new().reverse(true), 0, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    row("cumsum", "one_row", F32, |b, dt| {
        let (x, mut y) = (b.normal(dt, b.n())?, b.empty(dt, b.n())?);
        bytes(2 * b.n() * dt.size(), move |g| g.cumsum(CumSum::new(), 0, x.view(), y.view_mut().into()))
    }),
    row("segment_reduce", "mean", F32_BF16, |b, dt| {
        let ([r, c], f) = (b.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o, mut y) = (b.normal(dt, n * f)?, offsets(b, n, m)?, b.empty(dt, m * f)?);
        bytes((n + m) * f * dt.size(), move |g| {
            g.segment_reduce(SegmentReduce::Mean, x.shaped(&[n, f])?, o.view(), y.shaped_mut(&[m, f])?)
        })
    }),
    row("segment_reduce", "std", F32, |b, dt| {
        let ([r, c], f) = (b.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o, mut y) = (b.normal(dt, n * f)?, offsets(b, n, m)?, b.empty(dt, m * f)?);
        bytes((n + m) * f * dt.size(), move |g| {
            let op = SegmentReduce::Std { eps: 1e-5 };
            g.segment_reduce(op, x.shaped(&[n, f])?, o.view(), y.shaped_mut(&[m, f])?)
        })
    }),
    row("segment_reduce_bwd", "max", F32, |b, dt| {
        let ([r, c], f) = (b.rows(), 128);
        let (n, m) = (r * c / f, r * c / f / 16);
        let (x, o) = (b.normal(dt, n * f)?, offsets(b, n, m)?);
        let (dy, mut dx) = (b.normal(dt, m * f)?, b.empty(dt, n * f)?);
        bytes((2 * n + m) * f * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[m, f])?, Some(x.shaped(&[n, f])?));
            let dx = dx.shaped_mut(&[n, f])?.into();
            g.segment_reduce_bwd(SegmentReduce::Max, SegmentReduceBwd { dy, x, offsets: o.view(), dx })
        })
    }),
];
