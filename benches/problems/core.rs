//! Memory: copies, transfers, allocation.

use trefoil::{DType, Result};

use crate::case::{Operation, forward};
use crate::{Context, F32, Prepared, Problem, bytes, prepared, problem};

/// A copy of `n` elements.
pub(crate) fn copy(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.copy(x.at(i).view(), y.view_mut()))
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("copy", "flat", F32, |cx, dt| copy(cx, dt, cx.n())),
    problem("write_bytes", "16MiB", F32, |cx, dt| {
        let n = cx.n().min(1 << 22);
        let (data, mut y) = (vec![1u8; n * dt.size()], cx.empty(dt, n)?);
        bytes(n * dt.size(), move |g| g.write_bytes(y.view_mut(), &data))
    }),
    problem("read_bytes", "16MiB", F32, |cx, dt| {
        let n = cx.n().min(1 << 22);
        let (mut data, x) = (vec![0u8; n * dt.size()], cx.normal(dt, n)?);
        bytes(n * dt.size(), move |g| g.read_bytes(x.view(), &mut data))
    }),
    problem("alloc", "pooled", F32, |cx, dt| {
        let n = cx.n();
        bytes(n * dt.size(), move |g| g.alloc(dt, n).map(drop))
    }),
];

pub(super) const OPERATIONS: &[Operation] =
    &[forward("copy", |cx, c| Ok(copy(cx, c.dtype()?, c.size("n")?)?))];
