//! Functions of one tensor.

use trefoil::DType;
use trefoil::ops::elementwise::Unary;

use crate::cases::Bound::{Derived, Exact, Function};
use crate::cases::{Bound, F32, INTS, Kernel, TRANS, ULP, k};
use crate::device::{Cx, R};
use crate::oracle;
use crate::sampler::Dom::{self, Any, Nonzero, Positive, Range};
use crate::sampler::Sample;

fn forward(cx: &Cx<'_>, op: Unary) -> R {
    let x = cx.x("x")?;
    let dtype = match op {
        Unary::IsNan | Unary::IsInf | Unary::IsFinite => DType::U8,
        _ => x.dtype(),
    };
    let y = cx.out("y", dtype, x.shape())?;
    Ok(cx.gpu.unary(op, x, y.m())?)
}

fn backward(cx: &Cx<'_>, op: Unary) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let dx = cx.like("dx", &x)?;
    Ok(cx.gpu.unary_bwd(op, dy, x, dx.g())?)
}

/// Only a forward.
macro_rules! one {
    ($name:literal, $row:literal, $op:expr, $bound:expr, $dom:expr) => {
        &[k($name, $row, "x", "-", "y", &["unary"], |cx| forward(cx, $op))
            .bound($bound)
            .sample(|s| draw(s, $dom))]
    };
}

/// A function and its gradient.
macro_rules! two {
    ($name:literal, $row:literal, $op:expr, $bound:expr, $dom:expr) => {
        two!($name, $row, $op, $bound, $dom, Derived)
    };
    ($name:literal, $row:literal, $op:expr, $bound:expr, $dom:expr, $grad:expr $(, $units:expr)?) => {
        &[
            k($name, $row, "x", "-", "y", &["unary"], |cx| forward(cx, $op))
                .bound($bound)
                .sample(|s| draw(s, $dom)),
            k(concat!($name, "_backward"), $row, "dy, x", "-", "dx", &["unary_bwd"], |cx| backward(cx, $op))
                .bound($grad)
                $(.units($units, "a difference of two functions that are approximated by polynomials"))?
                .grad_of($name),
        ]
    };
}

/// A function with one scalar `c`, and its gradient.
macro_rules! scalar {
    ($name:literal, $variant:ident, $bound:expr, $dom:expr) => {
        &[
            k($name, "T2.18", "x", "c", "y", &["unary"], |cx| forward(cx, Unary::$variant { c: cx.f("c")? }))
                .bound($bound)
                .sample(|s| {
                    draw(s, $dom);
                    s.arg("c", 1.75);
                }),
            k(concat!($name, "_backward"), "T2.18", "dy, x", "c", "dx", &["unary_bwd"], |cx| {
                backward(cx, Unary::$variant { c: cx.f("c")? })
            })
            .bound(Derived)
            .grad_of($name),
        ]
    };
}

fn draw(s: &mut Sample, dom: Dom) {
    let shape = s.shape();
    s.put("x", &shape, dom);
}

fn nan_to_num(cx: &Cx<'_>) -> R<Unary> {
    Ok(Unary::NanToNum { nan: cx.f("nan")?, posinf: cx.opt_f("posinf")?, neginf: cx.opt_f("neginf")? })
}

fn sincos(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (s, co) = (cx.like("s", &x)?, cx.like("co", &x)?);
    cx.gpu.unary(Unary::Sin, x, s.m())?;
    Ok(cx.gpu.unary(Unary::Cos, x, co.m())?)
}

const SPECIAL: Bound = Derived;
const INV: Dom = Range(-0.95, 0.95);

pub(super) const ROWS: &[&[Kernel]] = &[
    two!("neg", "T2.1", Unary::Neg, Exact, Any, Exact),
    two!("abs", "T2.2", Unary::Abs, Exact, Any, Exact),
    two!("sign", "T2.3", Unary::Sign, Exact, Any, Exact),
    two!("exp", "T2.4", Unary::Exp, TRANS, Any),
    two!("exp2", "T2.4", Unary::Exp2, TRANS, Any),
    two!("exp10", "T2.4", Unary::Exp10, Function { ulps: 8.0, units: 2.0 }, Range(-4.0, 4.0), Derived),
    two!("expm1", "T2.5", Unary::Expm1, TRANS, Any),
    two!("log1p", "T2.5", Unary::Log1p, TRANS, Range(-0.7, 5.0)),
    two!("log", "T2.6", Unary::Log, TRANS, Positive),
    two!("log2", "T2.6", Unary::Log2, TRANS, Positive),
    two!("log10", "T2.6", Unary::Log10, TRANS, Positive),
    two!("sqrt", "T2.7", Unary::Sqrt, ULP, Positive),
    two!("rsqrt", "T2.7", Unary::Rsqrt, TRANS, Positive),
    two!("cbrt", "T2.7", Unary::Cbrt, Function { ulps: 6.0, units: 2.0 }, Nonzero),
    two!("square", "T2.8", Unary::Square, ULP, Any),
    two!("reciprocal", "T2.8", Unary::Reciprocal, ULP, Nonzero),
    two!("sin", "T2.9", Unary::Sin, TRANS, Any),
    two!("cos", "T2.9", Unary::Cos, TRANS, Any),
    two!("tan", "T2.9", Unary::Tan, Function { ulps: 6.0, units: 2.0 }, Range(-1.4, 1.4)),
    &[k("sincos", "T2.9", "x", "-", "s, co", &["unary"], sincos).bound(TRANS).sample(|s| draw(s, Any))],
    two!("asin", "T2.10", Unary::Asin, TRANS, INV, Derived),
    two!("acos", "T2.10", Unary::Acos, TRANS, INV, Derived),
    two!("atan", "T2.10", Unary::Atan, TRANS, Any),
    two!("sinh", "T2.11", Unary::Sinh, TRANS, Any),
    two!("cosh", "T2.11", Unary::Cosh, TRANS, Any),
    two!("asinh", "T2.12", Unary::Asinh, TRANS, Any),
    two!("acosh", "T2.12", Unary::Acosh, TRANS, Range(1.05, 6.0), Derived),
    two!("atanh", "T2.12", Unary::Atanh, TRANS, INV, Derived),
    two!("erf", "T2.13", Unary::Erf, TRANS, Any),
    two!("erfc", "T2.13", Unary::Erfc, Function { ulps: 8.0, units: 2.0 }, Any),
    two!("erfinv", "T2.13", Unary::Erfinv, Derived, INV, Derived),
    one!("floor", "T2.14", Unary::Floor, Exact, Range(-9.0, 9.0)),
    one!("ceil", "T2.14", Unary::Ceil, Exact, Range(-9.0, 9.0)),
    one!("trunc", "T2.14", Unary::Trunc, Exact, Range(-9.0, 9.0)),
    two!("frac", "T2.14", Unary::Frac, Exact, Any, Exact),
    &[k("round", "T2.14", "x", "decimals=0", "y", &["unary"], |cx| {
        forward(cx, Unary::Round { decimals: cx.i("decimals")? as i32 })
    })
    .sample(|s| draw(s, Range(-9.0, 9.0)))],
    &[k("isnan", "T2.15", "x", "-", "y:u8", &["unary"], |cx| forward(cx, Unary::IsNan))
        .sample(|s| draw(s, Any))],
    &[k("isinf", "T2.15", "x", "-", "y:u8", &["unary"], |cx| forward(cx, Unary::IsInf))
        .sample(|s| draw(s, Any))],
    &[k("isfinite", "T2.15", "x", "-", "y:u8", &["unary"], |cx| forward(cx, Unary::IsFinite))
        .sample(|s| draw(s, Any))],
    &[
        k("nan_to_num", "T2.16", "x", "nan=0.0, posinf=null, neginf=null", "y", &["unary"], |cx| {
            forward(cx, nan_to_num(cx)?)
        })
        .sample(|s| draw(s, Any))
        .by(oracle::nan_to_num),
        k("nan_to_num_backward", "T2.16", "dy, x", "-", "dx", &["unary_bwd"], |cx| {
            backward(cx, Unary::NanToNum { nan: 0.0, posinf: None, neginf: None })
        })
        .grad_of("nan_to_num"),
    ],
    &[k("logical_not", "T2.17", "x:u8", "-", "y:u8", &["unary"], |cx| forward(cx, Unary::LogicalNot))
        .dtypes(F32)
        .by(|q| oracle::logic(q, |a, _| !a))
        .sample(|s| {
            let shape = s.shape();
            s.mask("x", &shape);
        })],
    &[k("bitwise_not", "T2.17", "x", "-", "y", &["unary"], |cx| forward(cx, Unary::BitwiseNot))
        .dtypes(INTS)
        .by(|q| oracle::bits(q, |a, _| !a))
        .sample(|s| draw(s, Any))],
    scalar!("scale", Scale, ULP, Any),
    scalar!("add_scalar", AddScalar, ULP, Any),
    scalar!("rsub_scalar", RsubScalar, ULP, Any),
    scalar!("pow_scalar", PowScalar, Function { ulps: 6.0, units: 2.0 }, Positive),
    two!("lgamma", "T2.20", Unary::Lgamma, SPECIAL, Range(0.3, 9.0), SPECIAL),
    two!("digamma", "T2.20", Unary::Digamma, SPECIAL, Range(0.3, 9.0), Derived),
    &[k("polygamma", "T2.20", "x", "n", "y", &["unary"], |cx| {
        forward(cx, Unary::Polygamma { n: cx.i("n")? as i32 })
    })
    .bound(Derived)
    .sample(|s| {
        draw(s, Range(0.5, 9.0));
        s.arg("n", 1);
    })],
    two!("i0", "T2.20", Unary::I0, SPECIAL, Range(-5.0, 5.0), SPECIAL),
    two!("i0e", "T2.20", Unary::I0e, SPECIAL, Range(-9.0, 9.0), SPECIAL, 17.0),
    two!("i1", "T2.20", Unary::I1, SPECIAL, Range(-5.0, 5.0), SPECIAL),
    two!("i1e", "T2.20", Unary::I1e, SPECIAL, Range(-9.0, 9.0), SPECIAL, 17.0),
    two!("sinc", "T2.21", Unary::Sinc, TRANS, Any, Derived, 8.0),
    two!("erfcx", "T2.20", Unary::Erfcx, Derived, Range(-3.0, 9.0), Derived, 17.0),
    two!("log_ndtr", "T2.20", Unary::LogNdtr, Derived, Range(-9.0, 5.0), Derived, 17.0),
    two!("ndtri", "T2.20", Unary::Ndtri, Derived, Range(0.001, 0.999), Derived, 17.0),
    two!("bessel_j0", "T2.20", Unary::BesselJ0, Derived, Range(-20.0, 20.0), Derived, 17.0),
    two!("bessel_j1", "T2.20", Unary::BesselJ1, Derived, Range(-20.0, 20.0), Derived, 17.0),
    two!("bessel_y0", "T2.20", Unary::BesselY0, Derived, Range(0.2, 20.0), Derived, 17.0),
    two!("bessel_y1", "T2.20", Unary::BesselY1, Derived, Range(0.2, 20.0), Derived, 17.0),
    two!("modified_bessel_k0", "T2.20", Unary::K0, Derived, Range(0.2, 9.0), Derived, 17.0),
    two!("modified_bessel_k1", "T2.20", Unary::K1, Derived, Range(0.2, 9.0), Derived, 17.0),
    two!("scaled_modified_bessel_k0", "T2.20", Unary::K0e, Derived, Range(0.2, 9.0), Derived, 17.0),
    two!("scaled_modified_bessel_k1", "T2.20", Unary::K1e, Derived, Range(0.2, 9.0), Derived, 17.0),
    one!("airy_ai", "T2.20", Unary::AiryAi, Derived, Range(-20.0, 9.0)),
];
