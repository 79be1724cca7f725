//! Distances and similarities; products of coded operands.

use trefoil::ops::*;

use super::*;

const LOW: &[DType] = &[DType::Bf16];

/// Rows, columns and length of a product.
fn sides(b: &Bed<'_>) -> [usize; 3] {
    [b.side(); 3]
}

pub(super) const ROWS: &[Row] = &[
    row("cdist", "euclid", F32, |b, dt| {
        let (n, m) = (b.side(), 64);
        let (x, z, mut y) = (b.normal(dt, n * m)?, b.normal(dt, n * m)?, b.empty(dt, n * n)?);
        flops(3 * n * n * m, move |g| {
            g.cdist(2.0, x.shaped(&[n, m])?, z.shaped(&[n, m])?, y.shaped_mut(&[n, n])?)
        })
    }),
    row("cdist_bwd", "euclid", F32, |b, dt| {
        let (n, m) = (b.side(), 64);
        let (x, z, mut y) = (b.normal(dt, n * m)?, b.normal(dt, n * m)?, b.empty(dt, n * n)?);
        b.gpu.cdist(2.0, x.shaped(&[n, m])?, z.shaped(&[n, m])?, y.shaped_mut(&[n, n])?)?;
        let (dy, mut dx, mut dz) = (b.normal(dt, n * n)?, b.empty(dt, n * m)?, b.empty(dt, n * m)?);
        flops(6 * n * n * m, move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[n, m])?.into()), Some(dz.shaped_mut(&[n, m])?.into()));
            let (dy, y) = (dy.shaped(&[n, n])?, y.shaped(&[n, n])?);
            g.cdist_bwd(2.0, CdistBwd { dy, a: x.shaped(&[n, m])?, b: z.shaped(&[n, m])?, y, da, db })
        })
    }),
    row("cdist_bwd", "few_to_many", F32, |b, dt| {
        let (p, r, m) = (4, b.n() / 4, 3);
        let (x, z, y) = (b.normal(dt, p * m)?, b.normal(dt, r * m)?, b.positive(dt, p * r)?);
        let (dy, mut dx, mut dz) = (b.normal(dt, p * r)?, b.empty(dt, p * m)?, b.empty(dt, r * m)?);
        bytes((4 * p * r + 2 * r * m) * dt.size(), move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[p, m])?.into()), Some(dz.shaped_mut(&[r, m])?.into()));
            let (dy, y) = (dy.shaped(&[p, r])?, y.shaped(&[p, r])?);
            g.cdist_bwd(2.0, CdistBwd { dy, a: x.shaped(&[p, m])?, b: z.shaped(&[r, m])?, y, da, db })
        })
    }),
    row("pdist", "euclid", F32, |b, dt| {
        let (n, m) = (b.side(), 64);
        let (x, mut y) = (b.normal(dt, n * m)?, b.empty(dt, n * (n - 1) / 2)?);
        flops(3 * n * (n - 1) / 2 * m, move |g| g.pdist(2.0, x.shaped(&[n, m])?, y.view_mut()))
    }),
    row("pdist_bwd", "euclid", F32, |b, dt| {
        let (n, m) = (b.side(), 64);
        let pairs = n * (n - 1) / 2;
        let (x, mut y) = (b.normal(dt, n * m)?, b.empty(dt, pairs)?);
        b.gpu.pdist(2.0, x.shaped(&[n, m])?, y.view_mut())?;
        let (dy, mut dx) = (b.normal(dt, pairs)?, b.empty(dt, n * m)?);
        flops(6 * pairs * m, move |g| {
            g.pdist_bwd(2.0, dy.view(), x.shaped(&[n, m])?, y.view(), dx.shaped_mut(&[n, m])?.into())
        })
    }),
    row("similarity", "cosine_rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, z, mut y) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.empty(dt, r)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let op = Similarity::Cosine { eps: 1e-8 };
            g.similarity(op, 1, x.shaped(&[r, c])?, z.shaped(&[r, c])?, y.view_mut())
        })
    }),
    row("similarity_bwd", "cosine_rows", F32_BF16, |b, dt| {
        let [r, c] = b.rows();
        let (x, z, dy) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?, b.normal(dt, r)?);
        let (mut dx, mut dz) = (b.empty(dt, r * c)?, b.empty(dt, r * c)?);
        bytes(4 * r * c * dt.size(), move |g| {
            let (da, db) = (Some(dx.shaped_mut(&[r, c])?.into()), Some(dz.shaped_mut(&[r, c])?.into()));
            let (dy, a, b) = (dy.view(), x.shaped(&[r, c])?, z.shaped(&[r, c])?);
            g.similarity_bwd(Similarity::Cosine { eps: 1e-8 }, 1, SimilarityBwd { dy, a, b, da, db })
        })
    }),
    row("gemm_quantized", "int4_one_row", LOW, |b, dt| {
        let [_, n, k] = sides(b);
        let (x, q) = (b.normal(dt, k)?, b.mask(n * k / 2)?);
        let (s, mut y) = (b.positive(DType::F16, n * k / 32)?, b.empty(dt, n)?);
        bytes(n * k / 2 + n * k / 16, move |g| {
            let w =
                QuantWeight::Int4 { q: q.shaped(&[n, k / 2])?, scale: s.shaped(&[n, k / 32])?, zero: None };
            g.gemm_quantized(x.shaped(&[1, k])?, w, y.shaped_mut(&[1, n])?)
        })
    }),
    row("gemm_quantized", "int8", LOW, |b, dt| {
        let [m, n, k] = sides(b);
        let (x, q) = (b.normal(dt, m * k)?, b.mask(n * k)?);
        let (s, mut y) = (b.positive(DType::F16, n)?, b.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let w = QuantWeight::Int8 { q: q.shaped(&[n, k])?, scale: s.view() };
            g.gemm_quantized(x.shaped(&[m, k])?, w, y.shaped_mut(&[m, n])?)
        })
    }),
    row("gemm_w8a8", "square", F32, |b, dt| {
        let [m, n, k] = sides(b);
        let (x, w) = (b.mask(m * k)?, b.mask(n * k)?);
        let (xs, ws, mut y) = (b.positive(dt, m)?, b.positive(dt, n)?, b.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let (xq, wq, y) = (x.shaped(&[m, k])?, w.shaped(&[n, k])?, y.shaped_mut(&[m, n])?);
            g.gemm_w8a8(GemmW8A8 { xq, wq, x_scale: xs.view(), w_scale: ws.view(), y })
        })
    }),
    row("gemm_fp8", "square", F32, |b, dt| {
        let [m, n, k] = sides(b);
        let (x, w) = (b.mask(m * k)?, b.mask(n * k)?);
        let (s, mut y) = (b.positive(dt, 1)?, b.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            g.gemm_fp8(GemmFp8 {
                a: x.shaped(&[m, k])?,
                b: w.shaped(&[n, k])?,
                fmt_a: Fp8::E4m3,
                fmt_b: Fp8::E4m3,
                scale_a: s.view(),
                scale_b: s.view(),
                block: None,
                y: y.shaped_mut(&[m, n])?,
            })
        })
    }),
    row("sparse_compress", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (x, mut v, mut i) =
            (b.normal(dt, r * c)?, b.empty(dt, r * c / 2)?, b.empty(DType::U8, r * c / 4)?);
        bytes(r * c * (dt.size() + dt.size() / 2) + r * c / 4, move |g| {
            g.sparse_compress(x.shaped(&[r, c])?, v.shaped_mut(&[r, c / 2])?, i.shaped_mut(&[r, c / 4])?)
        })
    }),
    row("sparse_decompress", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (v, i, mut y) = (b.normal(dt, r * c / 2)?, b.zeros(DType::U8, r * c / 4)?, b.empty(dt, r * c)?);
        bytes(r * c * (dt.size() + dt.size() / 2) + r * c / 4, move |g| {
            g.sparse_decompress(v.shaped(&[r, c / 2])?, i.shaped(&[r, c / 4])?, y.shaped_mut(&[r, c])?)
        })
    }),
    row("gemm_2to4", "square", F32_BF16, |b, dt| {
        let [m, n, k] = sides(b);
        let (v, i) = (b.normal(dt, m * k / 2)?, b.zeros(DType::U8, m * k / 4)?);
        let (w, mut y) = (b.normal(dt, k * n)?, b.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let (v, i) = (v.shaped(&[m, k / 2])?, i.shaped(&[m, k / 4])?);
            g.gemm_2to4(v, i, w.shaped(&[k, n])?, y.shaped_mut(&[m, n])?)
        })
    }),
];
