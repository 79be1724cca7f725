//! Distances, and products of coded operands.

use super::*;
use trefoil::ops::distance::{CdistBwd, Metric, Similarity, SimilarityBwd};
use trefoil::ops::quantized::{Fp8, GemmFp8, GemmW8A8, QuantFormat, QuantWeight};

pub(super) fn distance(t: &mut Bed<'_>) {
    let (a, b, y, h) = (t.f32(12), t.f32(20), t.f32(15), t.buf(DType::F16, 20));
    let i = t.buf(DType::I32, 12);
    let (a34, b54) = (sh(&a, &[3, 4]), sh(&b, &[5, 4]));
    t.refuse("vectors of two lengths", &[&y], |g| g.cdist(2.0, a34, sh(&b, &[4, 5]), out(&y, &[3, 5])));
    t.refuse("distances into another shape", &[&y], |g| g.cdist(2.0, a34, b54, out(&y, &[5, 3])));
    t.refuse("distances of two dtypes", &[&y], |g| g.cdist(2.0, a34, sh(&h, &[5, 4]), out(&y, &[3, 5])));
    t.refuse("distances of integers", &[&i], |g| {
        g.cdist(2.0, sh(&i, &[3, 4]), sh(&i, &[3, 4]), out(&i, &[3, 4]))
    });
    t.refuse("a negative p", &[&y], |g| g.cdist(-1.0, a34, b54, out(&y, &[3, 5])));
    t.refuse("a p that is no number", &[&y], |g| g.cdist(f64::NAN, a34, b54, out(&y, &[3, 5])));
    t.refuse("pairs into another number", &[&y], |g| g.pdist(2.0, a34, out(&y, &[15])));
    t.refuse("a gradient of another shape", &[&b], |g| {
        let (dy, da) = (sh(&y, &[3, 5]), out(&b, &[5, 4]));
        g.cdist_bwd(2.0, CdistBwd::new(dy, a34, b54, dy).da(da))
    });
    let w = t.f32(24);
    t.refuse("both gradients in one place", &[&w], |g| {
        let g34 = || w.alias_mut().range(0, 12).and_then(|v| v.reshape(&[3, 4]));
        let (da, db) = (g34()?, g34()?);
        let dy = y.view().range(0, 3)?;
        g.similarity_bwd(Similarity::Cosine { eps: 1e-8 }, 1, SimilarityBwd::new(dy, a34, a34).da(da).db(db))
    });
    let cosine = Similarity::Cosine { eps: 1e-8 };
    t.refuse("similarity along axis 2 of rank 2", &[&y], |g| {
        g.similarity(cosine, 2, a34, a34, out(&y, &[15]).range(0, 3)?)
    });
    t.refuse("similarity of two shapes", &[&y], |g| {
        g.similarity(cosine, 1, a34, b54, out(&y, &[15]).range(0, 3)?)
    });
    t.refuse("similarity into another shape", &[&y], |g| {
        g.similarity(cosine, 1, a34, a34, out(&y, &[15]).range(0, 4)?)
    });
    t.refuse("a negative eps", &[&y], |g| {
        g.similarity(Similarity::Cosine { eps: -1.0 }, 1, a34, a34, out(&y, &[15]).range(0, 3)?)
    });
    coded(t);
    search(t);
}

/// Searches among vectors.
fn search(t: &mut Bed<'_>) {
    let (a, b, y, h) = (t.f32(12), t.f32(20), t.f32(15), t.buf(DType::F16, 20));
    let (i, codes, big) = (t.buf(DType::I64, 15), t.buf(DType::U8, 6), t.f32(1024));
    let (a34, b54, l2) = (sh(&a, &[3, 4]), sh(&b, &[5, 4]), Metric::SquaredEuclidean);
    let scores = || out(&y, &[15]).range(0, 6)?.reshape(&[3, 2]);
    let numbers = || out(&i, &[15]).range(0, 6)?.reshape(&[3, 2]);
    t.refuse("scores into another shape", &[&y], |g| g.distance_matrix(l2, a34, b54, out(&y, &[5, 3])));
    t.refuse("points of another dtype", &[&y], |g| {
        g.distance_matrix(l2, a34, sh(&h, &[5, 4]), out(&y, &[3, 5]))
    });
    t.refuse("points of another length", &[&y, &i], |g| {
        g.nearest(l2, a34, sh(&b, &[4, 5]), scores()?, numbers()?)
    });
    t.refuse("more of the nearest than there are points", &[&y, &i], |g| {
        g.nearest(l2, a34, a34, out(&y, &[3, 5]), out(&i, &[3, 5]))
    });
    t.refuse("numbers as floats", &[&y, &b], |g| {
        g.nearest(l2, a34, a34, scores()?, out(&b, &[20]).range(0, 6)?.reshape(&[3, 2])?)
    });
    t.refuse("scores into the queries", &[&a, &i], |g| {
        g.nearest(l2, a34, b54, out(&a, &[12]).range(0, 6)?.reshape(&[3, 2])?, numbers()?)
    });
    t.refuse("tables of cosines", &[&y], |g| {
        g.pq_tables(Metric::Cosine, a34, sh(&big, &[1, 256, 4]), out(&y, &[3, 5]))
    });
    t.refuse("tables of five centroids", &[&y], |g| {
        g.pq_tables(l2, a34, sh(&b, &[1, 5, 4]), out(&y, &[3, 5]))
    });
    t.refuse("codes of another number of parts", &[&y], |g| {
        let two = out(&y, &[15]).range(0, 4)?.reshape(&[2, 2])?;
        g.pq_scan(sh(&big, &[2, 2, 256]), sh(&codes, &[2, 3]), two)
    });
}

fn coded(t: &mut Bed<'_>) {
    let (x, y, s) = (t.f32(24), t.f32(15), t.f32(20));
    let (q, i) = (t.buf(DType::U8, 40), t.buf(DType::U8, 24));
    let x38 = sh(&x, &[3, 8]);
    let q58 = sh(&q, &[5, 8]);
    let scale = |n| s.view().range(0, n);
    t.refuse("weights of another length", &[&y], |g| {
        let w = QuantWeight::Int8 { q: sh(&q, &[8, 5]), scale: scale(8)? };
        g.gemm_quantized(x38, w, out(&y, &[3, 5]))
    });
    t.refuse("a scale for another number of rows", &[&y], |g| {
        g.gemm_quantized(x38, QuantWeight::Int8 { q: q58, scale: scale(4)? }, out(&y, &[3, 5]))
    });
    t.refuse("groups that do not divide the products", &[&y], |g| {
        let q = q.view().range(0, 20)?.reshape(&[5, 4])?;
        let w = QuantWeight::Int4 { q, scale: scale(15)?.reshape(&[5, 3])?, zero: None };
        g.gemm_quantized(x38, w, out(&y, &[3, 5]))
    });
    t.refuse("8-bit weights in floats", &[&y], |g| {
        let w = QuantWeight::Int8 { q: x38, scale: scale(3)? };
        g.gemm_quantized(x38, w, out(&y, &[15]).range(0, 9)?.reshape(&[3, 3])?)
    });
    let io = |y, block, scale_a| {
        Ok::<_, GpuError>(
            GemmFp8::new(
                q.view().range(0, 24)?.reshape(&[3, 8])?,
                q58,
                Fp8::E4m3,
                Fp8::E5m2,
                scale_a,
                scale(1)?,
                y,
            )
            .block(block),
        )
    };
    t.refuse("scales for another number of rows", &[&y], |g| {
        g.gemm_fp8(io(out(&y, &[3, 5]), None, scale(2)?)?)
    });
    t.refuse("blocks that do not divide the products", &[&y], |g| {
        g.gemm_fp8(io(out(&y, &[3, 5]), Some(3), scale(1)?)?)
    });
    t.refuse("blocks of no products", &[&y], |g| g.gemm_fp8(io(out(&y, &[3, 5]), Some(0), scale(1)?)?));
    t.refuse("8-bit product into another shape", &[&y], |g| {
        let (xq, wq) = (q58, q58);
        g.gemm_w8a8(GemmW8A8::new(xq, wq, scale(5)?, scale(5)?, out(&y, &[3, 5])))
    });
    let (int8, int4) = (QuantFormat::Int8, QuantFormat::Int4);
    t.refuse("scales that do not divide the rows", &[&y, &i], |g| {
        g.quantize(int8, sh(&x, &[3, 8]), out(&i, &[3, 8]), out(&y, &[3, 5]))
    });
    t.refuse("4-bit codes of rows of an odd number", &[&y, &i], |g| {
        let codes = out(&i, &[24]).range(0, 8)?.reshape(&[8, 1])?;
        g.quantize(int4, sh(&x, &[8, 3]), codes, out(&y, &[15]).range(0, 8)?)
    });
    t.refuse("codes of another shape", &[&y, &i], |g| {
        g.dequantize(int4, sh(&i, &[3, 8]), scale(3)?, out(&y, &[3, 5]))
    });
    t.refuse("scales that are the values", &[&x], |g| {
        g.quantize(int8, sh(&x, &[4, 6]), out(&i, &[4, 6]), out(&x, &[24]).range(0, 4)?)
    });
    t.refuse("rows that are not groups of four", &[&y, &i], |g| {
        let (v, p) = (out(&y, &[15]).range(0, 12)?.reshape(&[4, 3])?, out(&i, &[24]).range(0, 4)?);
        g.sparse_compress(sh(&x, &[4, 6]), v, p.reshape(&[4, 1])?)
    });
    t.refuse("places of another matrix", &[&y], |g| {
        let v = x.view().range(0, 6)?.reshape(&[3, 2])?;
        g.sparse_decompress(v, sh(&i, &[3, 8]), out(&y, &[15]).range(0, 12)?.reshape(&[3, 4])?)
    });
}
