//! Matrix products.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{
    BilinearRagged, BilinearRaggedBwd, Gemm, GemmAxis, GemmBwd, GemmIo, GemmRagged, GemmRaggedBwd,
};
use trefoil::{DType, View, ViewMut};

use super::Bound::{Derived, Product, Stored};
use super::activation::gelu;
use super::{Bound, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

/// Rows and columns of an operand after its transpose.
fn sides(x: &View<'_>, transposed: bool) -> (usize, usize) {
    let s = x.shape();
    let (r, c) = (s[s.len() - 2], s[s.len() - 1]);
    if transposed { (c, r) } else { (r, c) }
}

fn plan(cx: &Cx<'_>, flags: &[&str]) -> R<Gemm> {
    let on = |n: &str| if flags.contains(&n) { cx.b(n) } else { Ok(false) };
    let num = |n: &str, d: f64| if flags.contains(&n) { cx.f(n) } else { Ok(d) };
    Ok(Gemm::new().trans(on("trans_a")?, on("trans_b")?).scaled(num("alpha", 1.0)?, num("beta", 0.0)?))
}

fn gemm(cx: &Cx<'_>, batched: bool) -> R {
    let p = plan(cx, &["alpha", "beta", "trans_a", "trans_b"])?;
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let mut shape = vec![sides(&a, p.trans_a).0, sides(&b, p.trans_b).1];
    let mut dtype = a.dtype();
    if batched {
        shape.insert(0, a.shape()[0]);
    } else {
        dtype = cx.dtype_arg("out_dtype")?;
    }
    let y = cx.out("C", dtype, &shape)?;
    let mut io = GemmIo::new(a, b, y.m());
    io.c = cx.opt("C");
    Ok(cx.gpu.gemm(&p, io)?)
}

fn gemm_backward(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["alpha", "trans_a", "trans_b"])?;
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let (da, db) = (cx.like("dA", &a)?, cx.like("dB", &b)?);
    let io = GemmBwd::new(cx.x("dC")?, a, b).da(da.g()).db(db.g());
    Ok(cx.gpu.gemm_bwd(&p, io)?)
}

fn grouped(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?;
    let (a, b) = (cx.list("A"), cx.list("B"));
    let outs = a
        .iter()
        .zip(&b)
        .enumerate()
        .map(|(i, (a, b))| cx.out(&format!("C{i}"), a.dtype(), &[sides(a, false).0, sides(b, p.trans_b).1]))
        .collect::<R<Vec<_>>>()?;
    let mut y: Vec<ViewMut<'_>> = outs.iter().map(|t| t.m()).collect();
    Ok(cx.gpu.gemm_grouped(&p, &a, &b, &mut y)?)
}

fn ragged(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?;
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let y = cx.out("C", a.dtype(), &[a.shape()[0], sides(&b, p.trans_b).1])?;
    Ok(cx.gpu.gemm_ragged(&p, GemmRagged::new(a, b, cx.x("offsets")?, y.m()))?)
}

fn ragged_bias_act(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?.act(act(cx)?);
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let shape = [a.shape()[0], sides(&b, p.trans_b).1];
    let (y, z) = (cx.out("Y", a.dtype(), &shape)?, cx.out("Z", a.dtype(), &shape)?);
    let mut io = GemmRagged::new(a, b, cx.x("offsets")?, y.m());
    (io.bias, io.z) = (Some(cx.x("bias")?), Some(z.m()));
    Ok(cx.gpu.gemm_ragged(&p, io)?)
}

fn ragged_bias(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?;
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let y = cx.out("C", a.dtype(), &[a.shape()[0], sides(&b, p.trans_b).1])?;
    Ok(cx.gpu.gemm_ragged(&p, GemmRagged::new(a, b, cx.x("offsets")?, y.m()).bias(cx.x("bias")?))?)
}

fn ragged_gradients(cx: &Cx<'_>, bias: bool) -> R {
    let p = plan(cx, &["trans_b"])?;
    let (dz, a, offsets) = (cx.x("dC")?, cx.x("A")?, cx.x("offsets")?);
    let (k, n, groups) = (a.shape()[1], dz.shape()[1], offsets.shape()[0] - 1);
    let [r, c] = if p.trans_b { [n, k] } else { [k, n] };
    let db = cx.out("dB", a.dtype(), &[groups, r, c])?;
    let io = GemmRaggedBwd::new(dz, a, offsets, db.g());
    if !bias {
        return Ok(cx.gpu.gemm_ragged_bwd(&p, io)?);
    }
    let dbias = cx.out("dbias", a.dtype(), &[groups, n])?;
    Ok(cx.gpu.gemm_ragged_bwd(&p, io.dbias(dbias.g()))?)
}

/// Rows in groups, a matrix for each, and where groups begin; the number of groups and of columns.
fn draw_ragged(s: &mut Sample) -> (usize, usize) {
    let mut rows = vec![s.below(40), 0, s.below(9), 1 + s.below(if s.small { 8 } else { 150 })];
    match if s.small { 7 } else { s.below(8) } {
        // More groups than a kernel looks for its own among.
        0 | 1 => rows = (0..70).map(|_| s.below(4)).collect(),
        // A group whose biases' gradients are added in parts.
        2 => rows = vec![2048 + s.below(300)],
        _ => {}
    }
    let (_, n, kk) = sizes(s);
    // Rows of 16 bytes for most cases: what matrix cores take.
    let (n, kk) = if s.below(4) > 0 { (n.next_multiple_of(8), kk.next_multiple_of(8)) } else { (n, kk) };
    let (total, groups, trans_b) = (rows.iter().sum(), rows.len(), s.coin());
    s.put("A", &[total, kk], Any);
    s.put("B", &if trans_b { [groups, n, kk] } else { [groups, kk, n] }, Any);
    s.arg("trans_b", trans_b);
    put_offsets(s, &rows);
    (groups, n)
}

/// Where groups of so many rows begin, and the last one ends.
fn put_offsets(s: &mut Sample, rows: &[usize]) {
    let mut offsets = vec![0];
    rows.iter().for_each(|r| offsets.push(offsets[offsets.len() - 1] + *r as i64));
    s.ints("offsets", DType::I32, &[offsets.len()], &offsets);
}

fn bilinear(cx: &Cx<'_>) -> R {
    let (a, b, offsets, w) = (cx.x("A")?, cx.x("B")?, cx.x("offsets")?, cx.x("W")?);
    let groups = offsets.shape()[0] - 1;
    let y = cx.out("y", a.dtype(), &[groups, w.shape()[0]])?;
    let sums = cx.out("sums", a.dtype(), &[groups, a.shape()[1], b.shape()[1]])?;
    Ok(cx.gpu.bilinear_ragged(BilinearRagged::new(a, b, offsets, w, sums.m(), y.m()))?)
}

fn bilinear_gradients(cx: &Cx<'_>) -> R {
    let (dy, a, b, w) = (cx.x("dy")?, cx.x("A")?, cx.x("B")?, cx.x("W")?);
    let (da, db) = (cx.out("dA", a.dtype(), a.shape())?, cx.out("dB", b.dtype(), b.shape())?);
    let dw = cx.out("dW", w.dtype(), w.shape())?;
    let io = BilinearRaggedBwd::new(dy, a, b, cx.x("offsets")?, w, cx.x("sums")?);
    Ok(cx.gpu.bilinear_ragged_bwd(io.da(da.g()).db(db.g()).dw(dw.g()))?)
}

/// Left and right rows in groups, and a matrix per output: mostly of sizes that one kernel serves.
fn draw_bilinear(s: &mut Sample) {
    let mut rows = vec![s.below(9), 0, s.below(4), 1 + s.below(if s.small { 4 } else { 90 })];
    if !s.small && s.below(3) == 0 {
        // More groups than that kernel has in local memory, most of them empty.
        rows = (0..150).map(|_| s.below(5).saturating_sub(2)).collect();
    }
    let most = if s.small { [4, 3, 3] } else { [64, 16, 16] };
    let [m, n, outputs] = most.map(|k| if s.below(3) == 0 { k } else { 1 + s.below(k) });
    let m = if !s.small && s.below(6) == 0 { m + 5 } else { m };
    let total: usize = rows.iter().sum();
    s.put("A", &[total, m], Any);
    s.put("B", &[total, n], Any);
    s.put("W", &[outputs, m, n], Any);
    put_offsets(s, &rows);
}

fn column(v: View<'_>) -> R<View<'_>> {
    Ok(v.map("column", |l| l.unsqueeze(1))?)
}

fn gemv(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["alpha", "beta", "trans_a"])?;
    let a = cx.x("A")?;
    let m = sides(&a, p.trans_a).0;
    let y = cx.out("y", a.dtype(), &[m])?;
    let mut io = GemmIo::new(a, column(cx.x("x")?)?, y.m().map("column", |l| l.unsqueeze(1))?);
    io.c = cx.opt("y").map(column).transpose()?;
    Ok(cx.gpu.gemm(&p, io)?)
}

fn ger(cx: &Cx<'_>) -> R {
    let p = Gemm::new().scaled(cx.f("alpha")?, 1.0);
    let a = cx.inout("A", "A")?;
    let row = cx.x("y")?.map("row", |l| l.unsqueeze(0))?;
    let mut io = GemmIo::new(column(cx.x("x")?)?, row, a.m());
    io.c = Some(a.v());
    Ok(cx.gpu.gemm(&p, io)?)
}

fn syrk(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["alpha", "beta"])?.trans(false, true);
    let a = cx.x("A")?;
    let m = a.shape()[0];
    let y = cx.out("C", a.dtype(), &[m, m])?;
    let mut io = GemmIo::new(a, a, y.m());
    io.c = cx.opt("C");
    Ok(cx.gpu.gemm(&p, io)?)
}

/// The activations of epilogues, by the names of [`act`].
const ACTIVATIONS: [&str; 9] =
    ["none", "relu", "leaky_relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "swish", "hardswish"];

pub(super) fn act(cx: &Cx<'_>) -> R<Activation> {
    Ok(match cx.s("act")?.as_str() {
        "none" => Activation::Identity,
        "relu" => Activation::Relu,
        "leaky_relu" => Activation::LeakyRelu { slope: 0.01 },
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "swish" => Activation::Swish { beta: 1.0 },
        "hardswish" => Activation::Hardswish,
        a => return Err(Fail::Case(format!("act {a} is unknown"))),
    })
}

fn side(cx: &Cx<'_>, name: &str) -> R<GemmAxis> {
    match cx.s(name)?.as_str() {
        "col" => Ok(GemmAxis::Col),
        "row" => Ok(GemmAxis::Row),
        a => Err(Fail::Case(format!("{name} {a} is unknown"))),
    }
}

fn epilogue(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?.act(act(cx)?).axes(side(cx, "bias_axis")?, side(cx, "scale_axis")?);
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let (m, n) = (sides(&a, false).0, sides(&b, p.trans_b).1);
    let y = cx.out("Y", a.dtype(), &[m, n])?;
    let z = cx.b("preact")?.then(|| cx.out("Z", a.dtype(), &[m, n])).transpose()?;
    let sums = cx.b("colsum")?.then(|| cx.out("dbias", a.dtype(), &[n])).transpose()?;
    let mut io = GemmIo::new(a, b, y.m());
    (io.bias, io.residual, io.scale) = (cx.opt("bias"), cx.opt("residual"), cx.opt("scale"));
    (io.z, io.colsum) = (z.as_ref().map(|t| t.m()), sums.as_ref().map(|t| t.m()));
    Ok(cx.gpu.gemm(&p, io)?)
}

fn epilogue_backward(cx: &Cx<'_>) -> R {
    let p = plan(cx, &["trans_b"])?.act(act(cx)?);
    backward(cx, p, "dY", cx.opt("Z").or(cx.opt("Y")))
}

/// Gradients of a product with activation. Leading axes of A are folded into its rows.
fn backward(cx: &Cx<'_>, p: Gemm, dy: &str, saved: Option<View<'_>>) -> R {
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let rows: usize = a.shape()[..a.shape().len() - 1].iter().product();
    let cols = a.shape()[a.shape().len() - 1];
    let dy = cx.x(dy)?;
    let n = dy.shape()[dy.shape().len() - 1];
    let bias = if p.bias_axis == GemmAxis::Row { rows } else { n };
    let saved = if p.act == Activation::Identity { None } else { saved };
    let (da, db, dbias) = (cx.like("dA", &a)?, cx.like("dB", &b)?, cx.out("dbias", a.dtype(), &[bias])?);
    let mut g = da.g();
    g.out = g.out.reshape(&[rows, cols])?;
    let io = GemmBwd::new(dy.reshape(&[rows, n])?, a.reshape(&[rows, cols])?, b)
        .saved(saved.map(|v| v.reshape(&[rows, n])).transpose()?)
        .da(g)
        .db(db.g())
        .dbias(dbias.g());
    Ok(cx.gpu.gemm_bwd(&p, io)?)
}

fn with_bias(cx: &Cx<'_>, act: Activation, axis: GemmAxis, preact: bool) -> R {
    let p = plan(cx, &["trans_b"])?.act(act).axes(axis, GemmAxis::Col);
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let mut shape = a.shape().to_vec();
    let cols = shape.pop().unwrap_or(1);
    let rows: usize = shape.iter().product();
    let n = sides(&b, p.trans_b).1;
    shape.push(n);
    let y = cx.out("Y", a.dtype(), &shape)?;
    let z = preact.then(|| cx.out("Z", a.dtype(), &shape)).transpose()?;
    let mut io = GemmIo::new(a.reshape(&[rows, cols])?, b, y.m().reshape(&[rows, n])?);
    io.bias = Some(cx.x("bias")?);
    io.z = z.as_ref().map(|z| z.m().reshape(&[rows, n])).transpose()?;
    Ok(cx.gpu.gemm(&p, io)?)
}

fn per_row(cx: &Cx<'_>) -> R<GemmAxis> {
    Ok(if cx.b("bias_per_row")? { GemmAxis::Row } else { GemmAxis::Col })
}

/// M, N, K with a few sizes beyond one tile, whole 16-byte items and not. Most of 16-bit types are whole items: what matrix cores take.
fn sizes(s: &mut Sample) -> (usize, usize, usize) {
    // Layers of few inputs and outputs have a kernel for all gradients.
    if s.dtype == DType::F32 && !s.small && s.below(4) == 0 {
        return (1 + s.below(300), 4 * (1 + s.below(16)), 1 + s.below(16));
    }
    // Whole items of f32, and terms for two or eight blocks, of the product or of a gradient: what six products in bf16 take.
    if s.dtype == DType::F32 && !s.small && s.below(4) > 0 {
        let (a, b) = (4 * (1 + s.below(40)), 4 * (1 + s.below(40)));
        let long = [132, 520, 520, 520][s.below(4)];
        return [(a, b, long), (a, b, long), (a, long, b), (long, a, b), (long, a, b)][s.below(5)];
    }
    let big: [usize; 8] = [1, 7, 16, 33, 64, 65, 131, 136];
    let items = s.dtype.size() == 2 && !s.small && s.below(4) > 0;
    let pick = |s: &mut Sample| {
        if s.small {
            1 + s.below(4)
        } else if s.below(9) == 0 {
            0
        } else if items {
            big[s.below(big.len())].next_multiple_of(8)
        } else {
            big[s.below(big.len())]
        }
    };
    (pick(s), pick(s), pick(s))
}

fn operands(s: &mut Sample, names: [&str; 2], batch: &[usize], ta: bool, tb: bool) -> (usize, usize) {
    let (m, n, kk) = sizes(s);
    let shape = |r, c, t: bool| [batch, &if t { [c, r] } else { [r, c] }].concat();
    let (sa, sb) = (shape(m, kk, ta), shape(kk, n, tb));
    s.put(names[0], &sa, Any);
    // Scaled so that the products stay near 1 whatever K is.
    let r = (kk.max(1) as f64).sqrt().recip() * 2.0;
    s.put(names[1], &sb, Range(-r, r));
    (m, n)
}

fn draw_fused(s: &mut Sample) {
    let tb = s.coin();
    let (_, n) = operands(s, ["A", "B"], &[], false, tb);
    s.put("bias", &[n], Any);
    s.arg("trans_b", tb);
}

fn draw_flags(s: &mut Sample, batch: &[usize]) -> (usize, usize) {
    let (ta, tb) = (s.coin(), s.coin());
    let r = operands(s, ["A", "B"], batch, ta, tb);
    s.arg("trans_a", ta);
    s.arg("trans_b", tb);
    s.arg("alpha", -0.75);
    r
}

macro_rules! fused {
    ($name:literal, $row:literal, $args:literal, $outs:literal, $saved:literal, $act:expr, $pre:expr) => {
        &[
            k($name, $row, "A, B, bias", $args, $outs, &["gemm"], |cx| {
                with_bias(cx, $act(cx)?, GemmAxis::Col, $pre)
            })
            .bound(FUSED)
            .sample(draw_fused),
            k(
                concat!($name, "_backward"),
                $row,
                concat!("dY, A, B, ", $saved),
                $args,
                "dA, dB, dbias",
                &["gemm_bwd"],
                |cx| backward(cx, plan(cx, &["trans_b"])?.act($act(cx)?), "dY", cx.opt($saved)),
            )
            .bound(FUSED_GRAD)
            .grad_of($name),
        ]
    };
}

macro_rules! fixed {
    ($act:expr) => {
        |_: &Cx<'_>| -> R<Activation> { Ok($act) }
    };
}

/// Products near 1 of up to 136 terms, then an activation of slope about 1.
const FUSED: Bound = Stored;
/// Sums over up to 136 rows or columns.
const FUSED_GRAD: Bound = Stored;

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "gemm",
            "G1",
            "A, B, [C]",
            "alpha=1.0, beta=0.0, trans_a=false, trans_b=false, out_dtype=null",
            "C",
            &["gemm"],
            |cx| gemm(cx, false),
        )
        .bound(Product)
        .sample(|s| {
            let (m, n) = draw_flags(s, &[]);
            if !s.small && s.coin() {
                s.put("C", &[m, n], Any);
                s.arg("beta", 0.5);
            }
        }),
        k(
            "gemm_backward",
            "G1",
            "dC, A, B",
            "alpha=1.0, trans_a=false, trans_b=false",
            "dA, dB",
            &["gemm_bwd"],
            gemm_backward,
        )
        .bound(Product)
        .grad_of("gemm"),
        k(
            "gemm_strided_batched",
            "G2",
            "A, B, [C]",
            "alpha=1.0, beta=0.0, trans_a=false, trans_b=false",
            "C",
            &["gemm"],
            |cx| gemm(cx, true),
        )
        .bound(Product)
        .sample(|s| {
            draw_flags(s, &[3]);
        }),
    ],
    &[
        k(
            "gemm_grouped",
            "G3",
            "A0, A1, ..., B0, B1, ...",
            "trans_b=false",
            "C0, C1, ...",
            &["gemm_grouped"],
            grouped,
        )
        .bound(Product)
        .sample(|s| {
            for i in 0..3 {
                operands(s, [&format!("A{i}"), &format!("B{i}")], &[], false, false);
            }
        }),
        k("gemm_grouped_ragged", "G3", "A, B, offsets:i32", "trans_b=false", "C", &["gemm_ragged"], ragged)
            .bound(Product)
            .sample(|s| {
                draw_ragged(s);
            }),
        k(
            "gemm_grouped_ragged_backward",
            "G3",
            "dC, A, offsets:i32",
            "trans_b=false",
            "dB",
            &["gemm_ragged_bwd"],
            |cx| ragged_gradients(cx, false),
        )
        .bound(Product)
        .grad_of("gemm_grouped_ragged"),
        k(
            "gemm_ragged_bias",
            "G3",
            "A, B, bias, offsets:i32",
            "trans_b=false",
            "C",
            &["gemm_ragged"],
            ragged_bias,
        )
        .bound(Product)
        .sample(|s| {
            let (groups, n) = draw_ragged(s);
            s.put("bias", &[groups, n], Any);
        }),
        k(
            "gemm_ragged_bias_backward",
            "G3",
            "dC, A, offsets:i32",
            "trans_b=false",
            "dB, dbias",
            &["gemm_ragged_bwd"],
            |cx| ragged_gradients(cx, true),
        )
        .bound(Product)
        .grad_of("gemm_ragged_bias"),
        k(
            "gemm_ragged_bias_act",
            "G3",
            "A, B, bias, offsets:i32",
            "act=\"gelu\", trans_b=false",
            "Y, Z",
            &["gemm_ragged"],
            ragged_bias_act,
        )
        .bound(Derived)
        .sample(|s| {
            let (groups, n) = draw_ragged(s);
            s.put("bias", &[groups, n], Any);
            let act = ACTIVATIONS[s.below(ACTIVATIONS.len())];
            s.arg("act", act);
        }),
        k("bilinear_ragged", "G3", "A, B, W, offsets:i32", "", "y, sums", &["bilinear_ragged"], bilinear)
            .bound(Stored)
            .sample(draw_bilinear),
        k(
            "bilinear_ragged_backward",
            "G3",
            "dy, A, B, W, offsets:i32, sums",
            "",
            "dA, dB, dW",
            &["bilinear_ragged_bwd"],
            bilinear_gradients,
        )
        .bound(Stored)
        .grad_of("bilinear_ragged"),
        k("gemv", "G4", "A, x, [y]", "alpha=1.0, beta=0.0, trans_a=false", "y", &["gemm"], gemv)
            .bound(Product)
            .sample(|s| {
                let (m, n, _) = sizes(s);
                s.put("A", &[m, n], Any);
                let t = s.coin();
                s.put("x", &[if t { m } else { n }], Any);
                s.arg("trans_a", t);
            }),
        k("ger", "G4", "A, x, y", "alpha=1.0", "A", &["gemm"], ger).bound(Product).sample(|s| {
            let (m, n, _) = sizes(s);
            s.put("A", &[m, n], Any);
            s.put("x", &[m], Any);
            s.put("y", &[n], Any);
            s.arg("alpha", 1.25);
        }),
        k("syrk_gram", "G7", "A, [C]", "alpha=1.0, beta=0.0", "C", &["gemm"], syrk).bound(Product).sample(
            |s| {
                let (m, _, kk) = sizes(s);
                s.put("A", &[m, kk], Any);
            },
        ),
    ],
    &[
        k(
            "gemm_epilogue",
            "G5",
            "A, B, [bias], [residual], [scale]",
            "act=\"none\", trans_b=false, bias_axis=\"col\", scale_axis=\"col\", preact=false, colsum=false",
            "Y, [Z], [dbias]",
            &["gemm"],
            epilogue,
        )
        .bound(Derived)
        .sample(|s| {
            let tb = s.coin();
            let (m, n) = operands(s, ["A", "B"], &[], false, tb);
            s.put("bias", &[n], Any);
            if !s.small {
                s.put("residual", &[m, n], Any);
                s.put("scale", &[n], Range(0.5, 1.5));
                // In 16 bits the sum of rounded values is another one than the reference's.
                let f32 = s.dtype == trefoil::DType::F32;
                s.arg("colsum", f32);
            }
            s.arg("trans_b", tb);
            s.arg("preact", true);
            let act = ACTIVATIONS[s.below(ACTIVATIONS.len())];
            s.arg("act", act);
        }),
        k(
            "gemm_backward_epilogue",
            "G6",
            "dY, A, B, [Z], [Y]",
            "act=\"gelu\", trans_b=false",
            "dA, dB, dbias",
            &["gemm_bwd"],
            epilogue_backward,
        )
        .bound(FUSED_GRAD)
        .grad_of("gemm_epilogue"),
    ],
    fused!("gemm_bias_relu", "S12.1", "trans_b=false", "Y", "Y", fixed!(Activation::Relu), false),
    fused!("gemm_bias_gelu", "S12.2", "trans_b=false, approx=\"none\"", "Y, Z", "Z", gelu, true),
    fused!("gemm_bias_sigmoid", "S12.3", "trans_b=false", "Y", "Y", fixed!(Activation::Sigmoid), false),
    fused!("gemm_bias_tanh", "S12.4", "trans_b=false", "Y", "Y", fixed!(Activation::Tanh), false),
    fused!(
        "gemm_bias_swish",
        "S12.6",
        "trans_b=false",
        "Y, Z",
        "Z",
        fixed!(Activation::Swish { beta: 1.0 }),
        true
    ),
    &[
        k("gemm_bias", "S12.5", "A, B, bias", "trans_b=false, bias_per_row=false", "Y", &["gemm"], |cx| {
            with_bias(cx, Activation::Identity, per_row(cx)?, false)
        })
        .bound(FUSED)
        .sample(draw_fused),
        k(
            "gemm_bias_backward",
            "S12.5",
            "dY, A, B",
            "trans_b=false, bias_per_row=false",
            "dA, dB, dbias",
            &["gemm_bwd"],
            |cx| backward(cx, plan(cx, &["trans_b"])?.axes(per_row(cx)?, GemmAxis::Col), "dY", None),
        )
        .bound(FUSED_GRAD)
        .grad_of("gemm_bias"),
    ],
];
