//! Sorting, selection and search.

use trefoil::DType;
use trefoil::ops::sort::SortIo;

use crate::{F32, F32_BF16, Problem, bytes, problem};

pub(super) const PROBLEMS: &[Problem] = &[
    problem("sort", "one_row", F32_BF16, |cx, dt| {
        // More tiles than every block would sum the counts of.
        let n = cx.pick(1 << 12, 1 << 19, cx.n());
        let (x, mut y, mut i) = (cx.normal(dt, n)?, cx.empty(dt, n)?, cx.empty(DType::I64, n)?);
        bytes(n * (2 * dt.size() + 8), move |g| {
            g.sort(0, false, SortIo::new(x.view()).y(y.view_mut()).index(i.view_mut()))
        })
    }),
    problem("sort", "short_rows", F32, |cx, dt| {
        let [r, c] = [cx.rows()[0] * 4, cx.rows()[1] / 4];
        let (x, mut y, mut i) = (cx.normal(dt, r * c)?, cx.empty(dt, r * c)?, cx.empty(DType::I64, r * c)?);
        bytes(r * c * (2 * dt.size() + 8), move |g| {
            let (y, i) = (y.shaped_mut(&[r, c])?, i.shaped_mut(&[r, c])?);
            g.sort(1, true, SortIo::new(x.shaped(&[r, c])?).y(y).index(i))
        })
    }),
    problem("topk", "classes_50", F32_BF16, |cx, dt| {
        let [r, c] = cx.classes();
        let k = 50;
        let (x, mut y, mut i) = (cx.normal(dt, r * c)?, cx.empty(dt, r * k)?, cx.empty(DType::I64, r * k)?);
        bytes(r * c * dt.size(), move |g| {
            g.topk(1, true, x.shaped(&[r, c])?, y.shaped_mut(&[r, k])?, i.shaped_mut(&[r, k])?)
        })
    }),
    problem("topk", "experts_2", F32, |cx, dt| {
        let ([r, c], k) = ([cx.rows()[0] * 4, 64], 2);
        let (x, mut y, mut i) = (cx.normal(dt, r * c)?, cx.empty(dt, r * k)?, cx.empty(DType::I64, r * k)?);
        bytes(r * c * dt.size(), move |g| {
            g.topk(1, true, x.shaped(&[r, c])?, y.shaped_mut(&[r, k])?, i.shaped_mut(&[r, k])?)
        })
    }),
    problem("topk", "one_row_64", F32, |cx, dt| {
        let (n, k) = (cx.n(), 64);
        let (x, mut y, mut i) = (cx.normal(dt, n)?, cx.empty(dt, k)?, cx.empty(DType::I64, k)?);
        bytes(n * dt.size(), move |g| g.topk(0, true, x.view(), y.view_mut(), i.view_mut()))
    }),
    problem("sort_bwd", "one_row", F32, |cx, dt| {
        let n = cx.n();
        let (dy, i, mut dx) = (cx.normal(dt, n)?, cx.permutation(n)?, cx.empty(dt, n)?);
        bytes(n * (2 * dt.size() + 8), move |g| g.sort_bwd(0, dy.view(), i.view(), dx.view_mut().into()))
    }),
    problem("linear_assignment", "objects_and_queries", F32, |cx, dt| {
        let [images, objects, queries] = [cx.pick(1, 4, 64), cx.pick(4, 10, 40), cx.pick(8, 50, 300)];
        let (cost, mut column) =
            (cx.normal(dt, images * objects * queries)?, cx.empty(DType::I64, images * objects)?);
        bytes(images * objects * queries * dt.size(), move |g| {
            let cost = cost.shaped(&[images, objects, queries])?;
            g.linear_assignment(cost, None, column.shaped_mut(&[images, objects])?)
        })
    }),
    problem("search_sorted", "1024_edges", F32, |cx, dt| {
        let (n, edges) = (cx.n(), 1024);
        let (x, v) = (cx.normal(dt, edges)?, cx.normal(dt, n)?);
        let (mut e, mut i) = (cx.empty(dt, edges)?, cx.empty(DType::I64, n)?);
        cx.gpu.sort(0, false, SortIo::new(x.view()).y(e.view_mut()))?;
        bytes(n * (dt.size() + 8), move |g| g.search_sorted(false, e.view(), v.view(), i.view_mut()))
    }),
];
