//! Distances and similarities.

use trefoil::DType;
use trefoil::ops::distance::{CdistBwd, Metric, Similarity, SimilarityBwd};

use crate::{F32, F32_BF16, Problem, bytes, flops, problem};

pub(super) const PROBLEMS: &[Problem] = &[
    problem("cdist", "euclid", F32, |cx, dt| {
        let (n, m) = (cx.side(), 64);
        let (x, z, mut y) = (cx.normal(dt, n * m)?, cx.normal(dt, n * m)?, cx.empty(dt, n * n)?);
        flops(3 * n * n * m, move |g| {
            g.cdist(2.0, x.shaped(&[n, m])?, z.shaped(&[n, m])?, y.shaped_mut(&[n, n])?)
        })
    }),
    problem("cdist_bwd", "euclid", F32, |cx, dt| {
        let (n, m) = (cx.side(), 64);
        let (x, z, mut y) = (cx.normal(dt, n * m)?, cx.normal(dt, n * m)?, cx.empty(dt, n * n)?);
        cx.gpu.cdist(2.0, x.shaped(&[n, m])?, z.shaped(&[n, m])?, y.shaped_mut(&[n, n])?)?;
        let (dy, mut dx, mut dz) = (cx.normal(dt, n * n)?, cx.empty(dt, n * m)?, cx.empty(dt, n * m)?);
        flops(6 * n * n * m, move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[n, m])?.into()), Some(dz.shaped_mut(&[n, m])?.into()));
            let (dy, y) = (dy.shaped(&[n, n])?, y.shaped(&[n, n])?);
            g.cdist_bwd(2.0, CdistBwd::new(dy, x.shaped(&[n, m])?, z.shaped(&[n, m])?, y).da(da).db(db))
        })
    }),
    problem("cdist_bwd", "few_to_many", F32, |cx, dt| {
        let (p, r, m) = (4, cx.n() / 4, 3);
        let (x, z, y) = (cx.normal(dt, p * m)?, cx.normal(dt, r * m)?, cx.positive(dt, p * r)?);
        let (dy, mut dx, mut dz) = (cx.normal(dt, p * r)?, cx.empty(dt, p * m)?, cx.empty(dt, r * m)?);
        bytes((4 * p * r + 2 * r * m) * dt.size(), move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[p, m])?.into()), Some(dz.shaped_mut(&[r, m])?.into()));
            let (dy, y) = (dy.shaped(&[p, r])?, y.shaped(&[p, r])?);
            g.cdist_bwd(2.0, CdistBwd::new(dy, x.shaped(&[p, m])?, z.shaped(&[r, m])?, y).da(da).db(db))
        })
    }),
    problem("pdist", "euclid", F32, |cx, dt| {
        let (n, m) = (cx.side(), 64);
        let (x, mut y) = (cx.normal(dt, n * m)?, cx.empty(dt, n * (n - 1) / 2)?);
        flops(3 * n * (n - 1) / 2 * m, move |g| g.pdist(2.0, x.shaped(&[n, m])?, y.view_mut()))
    }),
    problem("pdist_bwd", "euclid", F32, |cx, dt| {
        let (n, m) = (cx.side(), 64);
        let pairs = n * (n - 1) / 2;
        let (x, mut y) = (cx.normal(dt, n * m)?, cx.empty(dt, pairs)?);
        cx.gpu.pdist(2.0, x.shaped(&[n, m])?, y.view_mut())?;
        let (dy, mut dx) = (cx.normal(dt, pairs)?, cx.empty(dt, n * m)?);
        flops(6 * pairs * m, move |g| {
            g.pdist_bwd(2.0, dy.view(), x.shaped(&[n, m])?, y.view(), dx.shaped_mut(&[n, m])?.into())
        })
    }),
    problem("similarity", "cosine_rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, z, mut y) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.empty(dt, r)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let op = Similarity::Cosine { eps: 1e-8 };
            g.similarity(op, 1, x.shaped(&[r, c])?, z.shaped(&[r, c])?, y.view_mut())
        })
    }),
    problem("similarity_bwd", "cosine_rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, z, dy) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?, cx.normal(dt, r)?);
        let (mut dx, mut dz) = (cx.empty(dt, r * c)?, cx.empty(dt, r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[r, c])?.into()), Some(dz.shaped_mut(&[r, c])?.into()));
            let (dy, a, b) = (dy.view(), x.shaped(&[r, c])?, z.shaped(&[r, c])?);
            g.similarity_bwd(Similarity::Cosine { eps: 1e-8 }, 1, SimilarityBwd::new(dy, a, b).da(da).db(db))
        })
    }),
    problem("distance_matrix", "euclid", F32_BF16, |cx, dt| {
        let (n, m) = (cx.side(), 64);
        let (q, x, mut y) = (cx.normal(dt, n * m)?, cx.normal(dt, n * m)?, cx.empty(dt, n * n)?);
        flops(3 * n * n * m, move |g| {
            let (q, x) = (q.shaped(&[n, m])?, x.shaped(&[n, m])?);
            g.distance_matrix(Metric::SquaredEuclidean, q, x, y.shaped_mut(&[n, n])?)
        })
    }),
    problem("nearest", "inner", F32_BF16, |cx, dt| {
        let (queries, n, m, k) = (cx.pick(3, 64, 1024), cx.pick(20, 10_000, 1_000_000), 128, 10);
        let (q, x) = (cx.normal(dt, queries * m)?, cx.normal(dt, n * m)?);
        let (mut y, mut index) = (cx.empty(dt, queries * k)?, cx.empty(DType::I64, queries * k)?);
        flops(2 * queries * n * m, move |g| {
            let (q, x) = (q.shaped(&[queries, m])?, x.shaped(&[n, m])?);
            let (y, index) = (y.shaped_mut(&[queries, k])?, index.shaped_mut(&[queries, k])?);
            g.nearest(Metric::InnerProduct, q, x, y, index)
        })
    }),
    problem("pq_tables", "euclid", F32, |cx, dt| {
        let (queries, m, d) = (cx.pick(2, 64, 1024), 16, 8);
        let (q, c) = (cx.normal(dt, queries * m * d)?, cx.normal(dt, m * 256 * d)?);
        let mut y = cx.empty(dt, queries * m * 256)?;
        flops(3 * queries * m * 256 * d, move |g| {
            let (q, c) = (q.shaped(&[queries, m * d])?, c.shaped(&[m, 256, d])?);
            g.pq_tables(Metric::SquaredEuclidean, q, c, y.shaped_mut(&[queries, m, 256])?)
        })
    }),
    problem("pq_scan", "sixteen_parts", F32, |cx, dt| {
        let (queries, n, m) = (cx.pick(2, 16, 64), cx.pick(20, 10_000, 1_000_000), 16);
        let (t, c) = (cx.normal(dt, queries * m * 256)?, cx.empty(DType::U8, n * m)?);
        let mut y = cx.empty(dt, queries * n)?;
        bytes(queries * n * (m + dt.size()), move |g| {
            g.pq_scan(t.shaped(&[queries, m, 256])?, c.shaped(&[n, m])?, y.shaped_mut(&[queries, n])?)
        })
    }),
];
