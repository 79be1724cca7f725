//! Products of quantized and of sparse operands.

use trefoil::DType;
use trefoil::ops::quantized::{Fp8, GemmFp8, GemmW8A8, QuantFormat, QuantWeight};

use crate::{BF16, Context, F32, F32_BF16, Problem, bytes, flops, problem};

/// Rows, columns and length of a product.
fn sides(cx: &Context<'_>) -> [usize; 3] {
    [cx.side(); 3]
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("gemm_quantized", "int4_one_row", BF16, |cx, dt| {
        let [_, n, k] = sides(cx);
        let (x, q) = (cx.normal(dt, k)?, cx.mask(n * k / 2)?);
        let (s, mut y) = (cx.positive(DType::F16, n * k / 32)?, cx.empty(dt, n)?);
        bytes(n * k / 2 + n * k / 16, move |g| {
            let w =
                QuantWeight::Int4 { q: q.shaped(&[n, k / 2])?, scale: s.shaped(&[n, k / 32])?, zero: None };
            g.gemm_quantized(x.shaped(&[1, k])?, w, y.shaped_mut(&[1, n])?)
        })
    }),
    problem("gemm_quantized", "int8", BF16, |cx, dt| {
        let [m, n, k] = sides(cx);
        let (x, q) = (cx.normal(dt, m * k)?, cx.mask(n * k)?);
        let (s, mut y) = (cx.positive(DType::F16, n)?, cx.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let w = QuantWeight::Int8 { q: q.shaped(&[n, k])?, scale: s.view() };
            g.gemm_quantized(x.shaped(&[m, k])?, w, y.shaped_mut(&[m, n])?)
        })
    }),
    problem("gemm_w8a8", "square", F32, |cx, dt| {
        let [m, n, k] = sides(cx);
        let (x, w) = (cx.mask(m * k)?, cx.mask(n * k)?);
        let (xs, ws, mut y) = (cx.positive(dt, m)?, cx.positive(dt, n)?, cx.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let (xq, wq, y) = (x.shaped(&[m, k])?, w.shaped(&[n, k])?, y.shaped_mut(&[m, n])?);
            g.gemm_w8a8(GemmW8A8::new(xq, wq, xs.view(), ws.view(), y))
        })
    }),
    problem("gemm_fp8", "square", F32, |cx, dt| {
        let [m, n, k] = sides(cx);
        let (x, w) = (cx.mask(m * k)?, cx.mask(n * k)?);
        let (s, mut y) = (cx.positive(dt, 1)?, cx.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            g.gemm_fp8(GemmFp8::new(
                x.shaped(&[m, k])?,
                w.shaped(&[n, k])?,
                Fp8::E4m3,
                Fp8::E4m3,
                s.view(),
                s.view(),
                y.shaped_mut(&[m, n])?,
            ))
        })
    }),
    problem("quantize", "int8_rows", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut q, mut s) =
            (cx.normal(dt, r * c)?, cx.empty(DType::U8, r * c)?, cx.empty(DType::F32, r)?);
        bytes(r * c * (dt.size() + 1) + r * 4, move |g| {
            g.quantize(QuantFormat::Int8, x.shaped(&[r, c])?, q.shaped_mut(&[r, c])?, s.view_mut())
        })
    }),
    problem("quantize", "int8_odd_rows", F32, |cx, dt| {
        let [r, c] = cx.rows().map(|n| n - 1);
        let (x, mut q, mut s) =
            (cx.normal(dt, r * c)?, cx.empty(DType::U8, r * c)?, cx.empty(DType::F32, r)?);
        bytes(r * c * (dt.size() + 1) + r * 4, move |g| {
            g.quantize(QuantFormat::Int8, x.shaped(&[r, c])?, q.shaped_mut(&[r, c])?, s.view_mut())
        })
    }),
    problem("quantize", "int4_groups", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut q) = (cx.normal(dt, r * c)?, cx.empty(DType::U8, r * c / 2)?);
        let mut s = cx.empty(DType::F32, r * c / 32)?;
        bytes(r * c * dt.size() + r * c / 2 + r * c / 8, move |g| {
            let (q, s) = (q.shaped_mut(&[r, c / 2])?, s.shaped_mut(&[r, c / 32])?);
            g.quantize(QuantFormat::Int4, x.shaped(&[r, c])?, q, s)
        })
    }),
    problem("dequantize", "fp8", F32_BF16, |cx, dt| {
        let [r, c] = cx.rows();
        let (q, s, mut y) = (cx.mask(r * c)?, cx.positive(DType::F32, 1)?, cx.empty(dt, r * c)?);
        bytes(r * c * (dt.size() + 1), move |g| {
            g.dequantize(QuantFormat::Fp8(Fp8::E4m3), q.shaped(&[r, c])?, s.view(), y.shaped_mut(&[r, c])?)
        })
    }),
    problem("sparse_compress", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (x, mut v, mut i) =
            (cx.normal(dt, r * c)?, cx.empty(dt, r * c / 2)?, cx.empty(DType::U8, r * c / 4)?);
        bytes(r * c * (dt.size() + dt.size() / 2) + r * c / 4, move |g| {
            g.sparse_compress(x.shaped(&[r, c])?, v.shaped_mut(&[r, c / 2])?, i.shaped_mut(&[r, c / 4])?)
        })
    }),
    problem("sparse_decompress", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (v, i, mut y) =
            (cx.normal(dt, r * c / 2)?, cx.zeros(DType::U8, r * c / 4)?, cx.empty(dt, r * c)?);
        bytes(r * c * (dt.size() + dt.size() / 2) + r * c / 4, move |g| {
            g.sparse_decompress(v.shaped(&[r, c / 2])?, i.shaped(&[r, c / 4])?, y.shaped_mut(&[r, c])?)
        })
    }),
    problem("gemm_2to4", "square", F32_BF16, |cx, dt| {
        let [m, n, k] = sides(cx);
        let (v, i) = (cx.normal(dt, m * k / 2)?, cx.zeros(DType::U8, m * k / 4)?);
        let (w, mut y) = (cx.normal(dt, k * n)?, cx.empty(dt, m * n)?);
        flops(2 * m * n * k, move |g| {
            let (v, i) = (v.shaped(&[m, k / 2])?, i.shaped(&[m, k / 4])?);
            g.gemm_2to4(v, i, w.shaped(&[k, n])?, y.shaped_mut(&[m, n])?)
        })
    }),
];
