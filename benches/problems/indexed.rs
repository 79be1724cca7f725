//! Gather and scatter.

use trefoil::DType;
use trefoil::ops::*;

use super::{F32, F32_BF16, Row, bytes, row};

pub(super) const ROWS: &[Row] = &[
    row("index_select", "rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.ids(r, r)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.index_select(0, x.shaped(&[r, c])?, i.view(), y.shaped_mut(&[r, c])?.into())
        })
    }),
    row("index_add", "rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.ids(r, r)?, b.zeros(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.index_add(0, 1.0, i.view(), x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("index_copy", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.permutation(r)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.index_copy(0, i.view(), x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("index_fill", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (i, mut y) = (b.permutation(r)?, b.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| g.index_fill(0, 1.0, i.view(), y.shaped_mut(&[r, c])?))
    }),
    row("gather", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.ids(r * c, c)?, b.empty(dt, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            g.gather(1, x.shaped(&[r, c])?, i.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    row("scatter", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.ids(r * c, c)?, b.zeros(dt, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            g.scatter(1, i.shaped(&[r, c])?, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("scatter_bwd", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, i) = (b.normal(dt, r * c)?, b.ids(r * c, c)?);
        let (mut dx, mut ds) = (b.empty(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(r * c * (3 * dt.size() + 8), move |g| {
            let (dx, ds) = (dx.shaped_mut(&[r, c])?.into(), ds.shaped_mut(&[r, c])?.into());
            g.scatter_bwd(1, dy.shaped(&[r, c])?, i.shaped(&[r, c])?, Some(dx), Some(ds))
        })
    }),
    row("scatter_reduce", "sum_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, i, mut y) = (b.normal(dt, r * c)?, b.ids(r * c, c)?, b.zeros(dt, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            g.scatter_reduce(
                ScatterReduce::Sum,
                1,
                true,
                i.shaped(&[r, c])?,
                x.shaped(&[r, c])?,
                y.shaped_mut(&[r, c])?,
            )
        })
    }),
    row("scatter_reduce_bwd", "amax_rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (dy, x, src, i) =
            (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.ids(r * c, c)?);
        let (mut y, mut dx, mut ds) = (b.empty(dt, r * c)?, b.empty(dt, r * c)?, b.empty(dt, r * c)?);
        b.gpu.copy(x.view(), y.view_mut())?;
        b.gpu.scatter_reduce(
            ScatterReduce::Amax,
            1,
            true,
            i.shaped(&[r, c])?,
            src.shaped(&[r, c])?,
            y.shaped_mut(&[r, c])?,
        )?;
        bytes(r * c * (6 * dt.size() + 8), move |g| {
            let s = [r, c];
            let io = ScatterReduceBwd {
                dy: dy.shaped(&s)?,
                x: x.shaped(&s)?,
                index: i.shaped(&s)?,
                src: src.shaped(&s)?,
                y: y.shaped(&s)?,
                dx: Some(dx.shaped_mut(&s)?.into()),
                dsrc: Some(ds.shaped_mut(&s)?.into()),
            };
            g.scatter_reduce_bwd(ScatterReduce::Amax, 1, true, io)
        })
    }),
    row("index_put", "accumulate", F32, |b, dt| {
        let [r, c] = b.rows();
        let (v, i, mut y) = (b.normal(dt, r * c)?, b.ids(r, r)?, b.zeros(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.index_put(true, &[i.view()], v.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("masked_scatter", "half", F32, |b, dt| {
        let n = b.n() / 4;
        let (m, x, mut y) = (b.mask(n)?, b.normal(dt, n)?, b.zeros(dt, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| g.masked_scatter(m.view(), x.view(), y.view_mut()))
    }),
    row("masked_select", "half", F32, |b, dt| {
        let n = b.n() / 4;
        let (m, x, mut y, mut k) = (b.mask(n)?, b.normal(dt, n)?, b.empty(dt, n)?, b.empty(DType::I64, 1)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.masked_select(m.view(), x.view(), y.view_mut(), k.view_mut())
        })
    }),
    row("masked_select_bwd", "half", F32, |b, dt| {
        let n = b.n() / 4;
        let (m, dy, mut dx) = (b.mask(n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.masked_select_bwd(m.view(), dy.view(), dx.view_mut().into())
        })
    }),
    row("nonzero", "half", &[DType::U8], |b, _| {
        let n = b.n() / 4;
        let (m, mut i, mut k) = (b.mask(n)?, b.empty(DType::I64, n)?, b.empty(DType::I64, 1)?);
        bytes(n * 5, move |g| g.nonzero(m.view(), i.shaped_mut(&[n, 1])?, k.view_mut()))
    }),
    row("one_hot", "classes", F32, |b, dt| {
        let [r, c] = b.classes();
        let (i, mut y) = (b.ids(r, c)?, b.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| g.one_hot(i.view(), y.shaped_mut(&[r, c])?))
    }),
];
