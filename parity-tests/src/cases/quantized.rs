//! Products of operands in 8 and 4 bits, and of sparse ones.

use trefoil::DType;
use trefoil::ops::quantized::{Fp8, GemmFp8, GemmW8A8, QuantFormat, QuantWeight};

use super::Bound::Product;
use super::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::oracle;
use crate::sampler::Dom::{Any, Coarse, Range};
use crate::sampler::Sample;

fn quantized(cx: &Cx<'_>) -> R {
    let (x, q, scale, zero) = (cx.x("x")?, cx.x("q")?, cx.x("scale")?, cx.opt("zero"));
    let w = match cx.n("bits")? {
        8 => QuantWeight::Int8 { q, scale },
        4 => QuantWeight::Int4 { q, scale, zero },
        b => return Err(Fail::Case(format!("bits {b} is unknown"))),
    };
    if let Some(g) = cx.opt_n("group")?
        && scale.shape().get(1).is_none_or(|n| n * g != x.shape()[1])
    {
        return Err(Fail::Case(format!("groups of {g} do not fit the scales")));
    }
    let y = cx.out("y", x.dtype(), &[x.shape()[0], q.shape()[0]])?;
    Ok(cx.gpu.gemm_quantized(x, w, y.m())?)
}

fn w8a8(cx: &Cx<'_>) -> R {
    let (xq, wq) = (cx.x("xq")?, cx.x("wq")?);
    let y = cx.out("y", DType::F32, &[xq.shape()[0], wq.shape()[0]])?;
    let io = GemmW8A8::new(xq, wq, cx.x("xscale")?, cx.x("wscale")?, y.m());
    Ok(cx.gpu.gemm_w8a8(io)?)
}

fn format(cx: &Cx<'_>, name: &str) -> R<Fp8> {
    match cx.s(name)?.as_str() {
        "e4m3" => Ok(Fp8::E4m3),
        "e5m2" => Ok(Fp8::E5m2),
        f => Err(Fail::Case(format!("{name} {f} is unknown"))),
    }
}

fn fp8(cx: &Cx<'_>) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let y = cx.out("y", DType::F32, &[a.shape()[0], b.shape()[0]])?;
    let io = GemmFp8::new(
        a,
        b,
        format(cx, "fmt_a")?,
        format(cx, "fmt_b")?,
        cx.x("scale_a")?,
        cx.x("scale_b")?,
        y.m(),
    )
    .block(cx.opt_n("block")?);
    Ok(cx.gpu.gemm_fp8(io)?)
}

fn quantize(cx: &Cx<'_>, format: QuantFormat) -> R {
    let x = cx.x("x")?;
    let Some((&k, outer)) = x.shape().split_last() else {
        return Err(Fail::Case("a scalar has no rows".into()));
    };
    let scales = match (cx.s("per")?.as_str(), cx.opt_n("group")?) {
        ("tensor", _) => vec![1],
        ("row", _) => outer.to_vec(),
        ("group", Some(g)) if k.is_multiple_of(g) => [outer, &[k / g]].concat(),
        (per, g) => return Err(Fail::Case(format!("granularity {per} of {g:?}"))),
    };
    let q = cx.out("q", DType::U8, &[outer, &[k / format.per_byte()]].concat())?;
    let scale = cx.out("scale", DType::F32, &scales)?;
    Ok(cx.gpu.quantize(format, x, q.m(), scale.m())?)
}

fn dequantize(cx: &Cx<'_>) -> R {
    let format = match cx.s("format")?.as_str() {
        "int8" => QuantFormat::Int8,
        "int4" => QuantFormat::Int4,
        "fp8" => QuantFormat::Fp8(Fp8::E4m3),
        f => return Err(Fail::Case(format!("format {f} is unknown"))),
    };
    let (q, scale) = (cx.x("q")?, cx.x("scale")?);
    let Some((&bytes, outer)) = q.shape().split_last() else {
        return Err(Fail::Case("a scalar has no rows".into()));
    };
    let y = cx.out("y", cx.dtype, &[outer, &[bytes * format.per_byte()]].concat())?;
    Ok(cx.gpu.dequantize(format, q, scale, y.m())?)
}

fn halves(shape: &[usize], by: usize) -> R<Vec<usize>> {
    match shape {
        [m, k] => Ok(vec![*m, k / by]),
        s => Err(Fail::Case(format!("shape {s:?} is no matrix"))),
    }
}

fn compress(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let values = cx.out("values", x.dtype(), &halves(x.shape(), 2)?)?;
    let index = cx.out("index", DType::U8, &halves(x.shape(), 4)?)?;
    Ok(cx.gpu.sparse_compress(x, values.m(), index.m())?)
}

fn prune(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let mut values = cx.scratch(x.dtype(), x.numel() / 2)?;
    let mut index = cx.scratch(DType::U8, x.numel() / 4)?;
    let (vs, is) = (halves(x.shape(), 2)?, halves(x.shape(), 4)?);
    let y = cx.like("y", &x)?;
    cx.gpu.sparse_compress(x, values.shaped_mut(&vs)?, index.shaped_mut(&is)?)?;
    Ok(cx.gpu.sparse_decompress(values.shaped(&vs)?, index.shaped(&is)?, y.m())?)
}

fn sparse_product(cx: &Cx<'_>) -> R {
    let (values, index, b) = (cx.x("values")?, cx.x("index")?, cx.x("b")?);
    let y = cx.out("y", b.dtype(), &[values.shape()[0], b.shape()[1]])?;
    Ok(cx.gpu.gemm_2to4(values, index, b, y.m())?)
}

/// Any bytes.
fn codes(s: &mut Sample, name: &str, shape: &[usize]) {
    s.typed(name, DType::U8, shape, Any);
}

/// Few rows, which have a kernel of their own, or many.
fn sizes(s: &mut Sample) -> [usize; 3] {
    if s.small {
        return [2, 3, 32];
    }
    [[1, 5, 65, 8][s.below(4)], [1, 33, 70][s.below(3)], [32, 33, 256, 1000][s.below(4)]]
}

fn draw_quantized(s: &mut Sample) {
    let [m, n, mut k] = sizes(s);
    // 16 bits for the scales whatever the data is.
    let scales = if s.coin() { DType::F16 } else { DType::F32 };
    if s.coin() {
        s.put("x", &[m, k], Any);
        codes(s, "q", &[n, k]);
        s.typed("scale", scales, &[n], Range(0.002, 0.02));
        return;
    }
    let group = [8, 32, 64][s.below(3)];
    k = k.next_multiple_of(group);
    s.put("x", &[m, k], Any);
    codes(s, "q", &[n, k / 2]);
    s.typed("scale", scales, &[n, k / group], Range(0.01, 0.1));
    if s.coin() {
        s.typed("zero", scales, &[n, k / group], Range(4.0, 12.0));
    }
    s.arg("bits", 4);
    s.arg("group", group);
}

fn draw_fp8(s: &mut Sample) {
    let [m, mut n, mut k] = sizes(s);
    let how = s.below(3);
    if how == 2 {
        (n, k) = (n.next_multiple_of(16), k.next_multiple_of(16));
        s.arg("block", 16);
    }
    // One case in four has codes of NaN and infinities, after which hardly a sum is finite.
    let special = s.below(4) == 0;
    for (name, rows) in [("a", m), ("b", n)] {
        let format = if s.coin() { "e4m3" } else { "e5m2" };
        s.arg(&format!("fmt_{name}"), format);
        let finite = |b: usize| if format == "e4m3" { b & 127 != 127 } else { b & 124 != 124 };
        let mut values = Vec::with_capacity(rows * k);
        while values.len() < rows * k {
            let code = s.below(256);
            if special || finite(code) {
                values.push(code as i64);
            }
        }
        s.ints(name, DType::U8, &[rows, k], &values);
    }
    let shapes = [[vec![1], vec![1]], [vec![m], vec![n]], [vec![m, k / 16], vec![n / 16, k / 16]]];
    let [a, b] = &shapes[how];
    s.typed("scale_a", DType::F32, a, Range(0.5, 2.0));
    s.typed("scale_b", DType::F32, b, Range(0.5, 2.0));
}

/// Groups whose largest magnitude is `most` times a power of two, so that quotients, ties among them, are exact in f32.
fn draw_quantize(s: &mut Sample, most: f64) {
    let (rows, group) = ([1, 3, 17][s.below(3)], [8, 32, 6][s.below(3)]);
    let [per, count] = [["tensor", "row", "group"][s.below(3)], ["1", "3", "5"][s.below(3)]];
    let count = count.parse::<usize>().unwrap_or(1);
    let (k, n) = (group * count, rows * group * count);
    let size = match per {
        "tensor" => n,
        "row" => k,
        _ => group,
    };
    // Quarters of a code, half of them between codes; 16-bit storage holds them.
    let mut x: Vec<f64> = (0..n).map(|_| (s.below(2 * 25 + 1) as f64 - 25.0) / 4.0).collect();
    for part in x.chunks_mut(size) {
        let unit = [1.0, 0.25, 8.0][s.below(3)];
        part.iter_mut().for_each(|x| *x = x.clamp(-most, most) * unit);
        let at = s.below(part.len());
        part[at] = if s.coin() { most } else { -most } * unit;
    }
    if s.below(4) == 0 {
        x[..size].fill(0.0);
    }
    s.values("x", &[rows, k], &x);
    s.arg("per", per);
    if per == "group" {
        s.arg("group", group);
    }
}

fn draw_dequantize(s: &mut Sample) {
    let (rows, group, count) = ([1, 3, 17][s.below(3)], [8, 32, 6][s.below(3)], 1 + s.below(4));
    let format = ["int8", "int4", "fp8"][s.below(3)];
    let bytes = group * count / if format == "int4" { 2 } else { 1 };
    codes(s, "q", &[rows, bytes]);
    s.typed("scale", DType::F32, &[rows, count], Range(0.01, 0.2));
    s.arg("format", format);
    s.arg("group", group);
}

fn draw_sparse(s: &mut Sample) -> usize {
    let [m, _, k] = sizes(s);
    let k = k.next_multiple_of(4);
    let dom = if s.coin() { Any } else { Coarse };
    s.put("x", &[m, k], dom);
    k
}

const F32: &[DType] = &[DType::F32];
const NARROW: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

/// Inputs, arguments and outputs of a quantization.
const QUANTIZE: [&str; 3] = ["x", "per=\"tensor\", group=null", "q:i8/u8, scale:f32"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "gemm_quantized",
            "G8",
            "x, q:i8/u8, scale, [zero]",
            "bits=8, group=null",
            "y",
            &["gemm_quantized"],
            quantized,
        )
        .by(oracle::quantized)
        .sample(draw_quantized),
        k("gemm_w8a8", "G8", "xq:i8, wq:i8, xscale:f32, wscale:f32", "-", "y:f32", &["gemm_w8a8"], w8a8)
            .dtypes(F32)
            .by(oracle::w8a8)
            .sample(|s| {
                let [m, n, k] = sizes(s);
                codes(s, "xq", &[m, k]);
                codes(s, "wq", &[n, k]);
                s.typed("xscale", DType::F32, &[m], Range(0.001, 0.02));
                s.typed("wscale", DType::F32, &[n], Range(0.001, 0.02));
            }),
        k(
            "gemm_fp8",
            "G9",
            "a:u8, b:u8, scale_a:f32, scale_b:f32",
            "fmt_a=\"e4m3\", fmt_b=\"e4m3\", block=null",
            "y:f32",
            &["gemm_fp8"],
            fp8,
        )
        .dtypes(F32)
        .by(oracle::fp8)
        .sample(draw_fp8),
    ],
    &[
        k("quantize_int8", "B7.11", QUANTIZE[0], QUANTIZE[1], QUANTIZE[2], &["quantize"], |cx| {
            quantize(cx, QuantFormat::Int8)
        })
        .dtypes(NARROW)
        .by(oracle::quantize_int8)
        .sample(|s| draw_quantize(s, 127.0)),
        k("quantize_int4", "B7.11", QUANTIZE[0], QUANTIZE[1], QUANTIZE[2], &["quantize"], |cx| {
            quantize(cx, QuantFormat::Int4)
        })
        .dtypes(NARROW)
        .by(oracle::quantize_int4)
        .sample(|s| draw_quantize(s, 7.0)),
        k("quantize_fp8", "B7.11", QUANTIZE[0], QUANTIZE[1], QUANTIZE[2], &["quantize"], |cx| {
            quantize(cx, QuantFormat::Fp8(Fp8::E4m3))
        })
        .dtypes(NARROW)
        .by(oracle::quantize_fp8)
        .sample(|s| draw_quantize(s, 448.0)),
        k(
            "dequantize",
            "B7.11",
            "q:i8/u8, scale:f32",
            "format=\"int8\", group=null",
            "y",
            &["dequantize"],
            dequantize,
        )
        .dtypes(NARROW)
        .by(oracle::dequantize)
        .sample(draw_dequantize),
    ],
    &[
        k("sparse_2to4_compress", "G10", "x", "-", "values, index:u8", &["sparse_compress"], compress)
            .sample(|s| {
                draw_sparse(s);
            }),
        k("sparse_2to4_prune", "G10", "x", "-", "y", &["sparse_compress", "sparse_decompress"], prune)
            .sample(|s| {
                draw_sparse(s);
            }),
        k("gemm_2to4", "G10", "values, index:u8, b", "-", "y", &["gemm_2to4"], sparse_product)
            .bound(Product)
            .sample(|s| {
                let [m, n, k] = sizes(s);
                let k = k.next_multiple_of(4);
                s.put("values", &[m, k / 2], Any);
                // Any two places of four, the first below the second.
                let index: Vec<i64> = (0..m * k / 4).map(|_| [4, 8, 12, 9, 13, 14][s.below(6)]).collect();
                s.ints("index", DType::U8, &[m, k / 4], &index);
                s.put("b", &[k, n], Any);
            }),
    ],
];
