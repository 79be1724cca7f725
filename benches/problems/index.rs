//! Gather and scatter.

use trefoil::DType;
use trefoil::ops::index::{ScatterReduce, ScatterReduceBwd};

use crate::{F32, F32_BF16, Problem, bytes, problem};

pub(super) const PROBLEMS: &[Problem] = &[
    problem("index_select", "rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r, r)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.index_select(0, x.shaped(&[r, c])?, i.view(), y.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("index_add", "rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r, r)?, cx.zeros(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.index_add(0, 1.0, i.view(), x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("index_copy", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.permutation(r)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            g.index_copy(0, i.view(), x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("index_fill", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (i, mut y) = (cx.permutation(r)?, cx.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| g.index_fill(0, 1.0, i.view(), y.shaped_mut(&[r, c])?))
    }),
    problem("gather", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r * c, c)?, cx.empty(dt, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            g.gather(1, x.shaped(&[r, c])?, i.shaped(&[r, c])?, y.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("scatter", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r * c, c)?, cx.zeros(dt, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            g.scatter(1, i.shaped(&[r, c])?, x.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("scatter_bwd", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, i) = (cx.normal(dt, r * c)?, cx.ids(r * c, c)?);
        let (mut dx, mut ds) = (cx.empty(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(r * c * (3 * dt.size() + 8), move |g| {
            let (dx, ds) = (dx.shaped_mut(&[r, c])?.into(), ds.shaped_mut(&[r, c])?.into());
            g.scatter_bwd(1, dy.shaped(&[r, c])?, i.shaped(&[r, c])?, Some(dx), Some(ds))
        })
    }),
    problem("scatter_reduce", "sum_rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r * c, c)?, cx.zeros(dt, r * c)?);
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
    problem("scatter_reduce_bwd", "amax_rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, x, src, i) =
            (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.ids(r * c, c)?);
        let (mut y, mut dx, mut ds) = (cx.empty(dt, r * c)?, cx.empty(dt, r * c)?, cx.empty(dt, r * c)?);
        cx.gpu.copy(x.view(), y.view_mut())?;
        cx.gpu.scatter_reduce(
            ScatterReduce::Amax,
            1,
            true,
            i.shaped(&[r, c])?,
            src.shaped(&[r, c])?,
            y.shaped_mut(&[r, c])?,
        )?;
        bytes(r * c * (6 * dt.size() + 8), move |g| {
            let s = [r, c];
            let io = ScatterReduceBwd::new(
                dy.shaped(&s)?,
                x.shaped(&s)?,
                i.shaped(&s)?,
                src.shaped(&s)?,
                y.shaped(&s)?,
            )
            .dx(dx.shaped_mut(&s)?)
            .dsrc(ds.shaped_mut(&s)?);
            g.scatter_reduce_bwd(ScatterReduce::Amax, 1, true, io)
        })
    }),
    problem("index_put", "accumulate", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (v, i, mut y) = (cx.normal(dt, r * c)?, cx.ids(r, r)?, cx.zeros(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            g.index_put(true, &[i.view()], v.shaped(&[r, c])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("masked_scatter", "half", F32, |cx, dt| {
        let n = cx.n() / 4;
        let (m, x, mut y) = (cx.mask(n)?, cx.normal(dt, n)?, cx.zeros(dt, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| g.masked_scatter(m.view(), x.view(), y.view_mut()))
    }),
    problem("masked_select", "half", F32, |cx, dt| {
        let n = cx.n() / 4;
        let (m, x, mut y, mut k) =
            (cx.mask(n)?, cx.normal(dt, n)?, cx.empty(dt, n)?, cx.empty(DType::I64, 1)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.masked_select(m.view(), x.view(), y.view_mut(), k.view_mut())
        })
    }),
    problem("masked_select_bwd", "half", F32, |cx, dt| {
        let n = cx.n() / 4;
        let (m, dy, mut dx) = (cx.mask(n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.masked_select_bwd(m.view(), dy.view(), dx.view_mut().into())
        })
    }),
    problem("nonzero", "half", &[DType::U8], |cx, _| {
        let n = cx.n() / 4;
        let (m, mut i, mut k) = (cx.mask(n)?, cx.empty(DType::I64, n)?, cx.empty(DType::I64, 1)?);
        bytes(n * 5, move |g| g.nonzero(m.view(), i.shaped_mut(&[n, 1])?, k.view_mut()))
    }),
    problem("one_hot", "classes", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let (i, mut y) = (cx.ids(r, c)?, cx.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| g.one_hot(i.view(), y.shaped_mut(&[r, c])?))
    }),
];
