//! Reductions.

use trefoil::ops::reduce::{ArgReduce, Reduce};
use trefoil::{DType, Result};

use crate::case::{Operation, forward};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// A matrix reduced along one axis.
fn reduce(cx: &Context<'_>, dt: DType, op: Reduce, axis: usize, [r, c]: [usize; 2]) -> Result<Prepared> {
    let moved = r * c * dt.size();
    let x = cx.normal_sets(dt, r * c, cx.sets(moved))?;
    let mut y = cx.empty(dt, if axis == 0 { c } else { r })?;
    prepared(moved, 0, move |g, i| g.reduce(op, &[axis], x.at(i).shaped(&[r, c])?, y.view_mut()))
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("reduce", "sum_rows", F32_BF16, |cx, dt| reduce(cx, dt, Reduce::Sum, 1, cx.rows())),
    problem("reduce", "sum_columns", F32_BF16, |cx, dt| reduce(cx, dt, Reduce::Sum, 0, cx.rows())),
    problem("reduce", "var_rows", F32, |cx, dt| {
        reduce(cx, dt, Reduce::Var { correction: 1.0 }, 1, cx.rows())
    }),
    problem("reduce", "max_columns", F32, |cx, dt| reduce(cx, dt, Reduce::Max, 0, cx.rows())),
    problem("reduce", "logsumexp_rows", F32, |cx, dt| reduce(cx, dt, Reduce::LogSumExp, 1, cx.rows())),
    problem("reduce", "mean_all", F32, |cx, dt| {
        let (x, mut y, n) = (cx.normal(dt, cx.n())?, cx.empty(dt, 1)?, cx.n());
        bytes(n * dt.size(), move |g| g.reduce(Reduce::Mean, &[0], x.view(), y.view_mut()))
    }),
    problem("reduce_bwd", "sum_rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, mut dx) = (cx.normal(dt, r)?, cx.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| {
            g.reduce_bwd(Reduce::Sum, &[1], dy.view(), None, None, dx.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("reduce_bwd", "max_rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, x, mut y, mut dx) =
            (cx.normal(dt, r)?, cx.normal(dt, r * c)?, cx.empty(dt, r)?, cx.empty(dt, r * c)?);
        cx.gpu.reduce(Reduce::Max, &[1], x.shaped(&[r, c])?, y.view_mut())?;
        bytes(2 * r * c * dt.size(), move |g| {
            let x = x.shaped(&[r, c])?;
            g.reduce_bwd(
                Reduce::Max,
                &[1],
                dy.view(),
                Some(x),
                Some(y.view()),
                dx.shaped_mut(&[r, c])?.into(),
            )
        })
    }),
    problem("arg_reduce", "max_rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut i, mut v) = (cx.normal(dt, r * c)?, cx.empty(DType::I64, r)?, cx.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.arg_reduce(ArgReduce::Max, 1, x.shaped(&[r, c])?, i.view_mut(), Some(v.view_mut()))
        })
    }),
    problem("arg_reduce_bwd", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, i, mut dx) = (cx.normal(dt, r)?, cx.ids(r, c)?, cx.empty(dt, r * c)?);
        bytes(r * c * dt.size(), move |g| {
            g.arg_reduce_bwd(1, dy.view(), i.view(), dx.shaped_mut(&[r, c])?.into())
        })
    }),
    problem("mean_var", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut m, mut v) = (cx.normal(dt, r * c)?, cx.empty(dt, r)?, cx.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.mean_var(&[1], 0.0, x.shaped(&[r, c])?, m.view_mut(), v.view_mut())
        })
    }),
    problem("min_max", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut lo, mut hi) = (cx.normal(dt, r * c)?, cx.empty(dt, r)?, cx.empty(dt, r)?);
        bytes(r * c * dt.size(), move |g| g.min_max(&[1], x.shaped(&[r, c])?, lo.view_mut(), hi.view_mut()))
    }),
    problem("dot", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, w, mut y) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, r)?);
        bytes(2 * r * c * dt.size(), move |g| g.dot(x.shaped(&[r, c])?, w.shaped(&[r, c])?, y.view_mut()))
    }),
    problem("dot_bwd", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (dy, x, w) = (cx.normal(dt, r)?, cx.normal(dt, r * c)?, cx.normal(dt, r * c)?);
        let (mut da, mut db) = (cx.empty(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            let (da, db) = (Some(da.shaped_mut(&[r, c])?.into()), Some(db.shaped_mut(&[r, c])?.into()));
            g.dot_bwd(dy.view(), x.shaped(&[r, c])?, w.shaped(&[r, c])?, da, db)
        })
    }),
    problem("sum_to_shape", "bias", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * c)?, cx.empty(dt, c)?);
        bytes(r * c * dt.size(), move |g| g.sum_to_shape(x.shaped(&[r, c])?, y.view_mut().into()))
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[forward("reduce_sum", |cx, c| {
    let axis = c.whole("axis")?;
    if axis > 1 {
        return Err(c.unexpected("axis", "0 or 1"));
    }
    Ok(reduce(cx, c.dtype()?, Reduce::Sum, axis, c.sizes(["rows", "cols"])?)?)
})];
