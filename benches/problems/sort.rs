//! Sorting, selection and search.

use trefoil::ops::*;

use super::*;

pub(super) const ROWS: &[Row] = &[
    row("sort", "one_row", F32_BF16, |b, dt| {
        let n = b.n();
        let (x, mut y, mut i) = (b.normal(dt, n)?, b.empty(dt, n)?, b.empty(DType::I64, n)?);
        bytes(n * (2 * dt.size() + 8), move |g| {
            g.sort(0, false, SortIo { x: x.view(), y: Some(y.view_mut()), index: Some(i.view_mut()) })
        })
    }),
    row("sort", "short_rows", F32, |b, dt| {
        let [r, c] = [b.rows()[0] * 4, b.rows()[1] / 4];
        let (x, mut y, mut i) = (b.normal(dt, r * c)?, b.empty(dt, r * c)?, b.empty(DType::I64, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            let (y, i) = (y.shaped_mut(&[r, c])?, i.shaped_mut(&[r, c])?);
            g.sort(1, true, SortIo { x: x.shaped(&[r, c])?, y: Some(y), index: Some(i) })
        })
    }),
    row("topk", "classes_50", F32_BF16, |b, dt| {
        let [r, c] = b.classes();
        let k = 50;
        let (x, mut y, mut i) = (b.normal(dt, r * c)?, b.empty(dt, r * k)?, b.empty(DType::I64, r * k)?);
        bytes(r * c * dt.size(), move |g| {
            g.topk(1, true, x.shaped(&[r, c])?, y.shaped_mut(&[r, k])?, i.shaped_mut(&[r, k])?)
        })
    }),
    row("topk", "experts_2", F32, |b, dt| {
        let ([r, c], k) = ([b.rows()[0] * 4, 64], 2);
        let (x, mut y, mut i) = (b.normal(dt, r * c)?, b.empty(dt, r * k)?, b.empty(DType::I64, r * k)?);
        bytes(r * c * dt.size(), move |g| {
            g.topk(1, true, x.shaped(&[r, c])?, y.shaped_mut(&[r, k])?, i.shaped_mut(&[r, k])?)
        })
    }),
    row("topk", "one_row_64", F32, |b, dt| {
        let (n, k) = (b.n(), 64);
        let (x, mut y, mut i) = (b.normal(dt, n)?, b.empty(dt, k)?, b.empty(DType::I64, k)?);
        bytes(n * dt.size(), move |g| g.topk(0, true, x.view(), y.view_mut(), i.view_mut()))
    }),
    row("sort_bwd", "one_row", F32, |b, dt| {
        let n = b.n();
        let (dy, i, mut dx) = (b.normal(dt, n)?, b.permutation(n)?, b.empty(dt, n)?);
        bytes(n * (2 * dt.size() + 8), move |g| g.sort_bwd(0, dy.view(), i.view(), dx.view_mut().into()))
    }),
    row("search_sorted", "1024_edges", F32, |b, dt| {
        let (n, edges) = (b.n(), 1024);
        let (x, v) = (b.normal(dt, edges)?, b.normal(dt, n)?);
        let (mut e, mut i) = (b.empty(dt, edges)?, b.empty(DType::I64, n)?);
        b.gpu.sort(0, false, SortIo { x: x.view(), y: Some(e.view_mut()), index: None })?;
        bytes(n * (dt.size() + 8), move |g| g.search_sorted(false, e.view(), v.view(), i.view_mut()))
    }),
];
