//! Functions of two and three tensors, casts.

use trefoil::View;
use trefoil::ops::elementwise::{Binary, BinaryBwd, Ternary, TernaryBwd, Unary};

use crate::cases::Bound::{Derived, Exact, Function, Stored, Sum};
use crate::cases::{Bound, F32, INTS, Kernel, TRANS, ULP, broadcast, k};
use crate::device::{Cx, Fail, R};
use crate::oracle;
use crate::sampler::Dom::{self, Any, Nonzero, Positive, Range};
use crate::sampler::Sample;

fn forward(cx: &Cx<'_>, op: Binary) -> R {
    binary_of(cx, op, cx.x("a")?, cx.x("b")?)
}

fn binary_of(cx: &Cx<'_>, op: Binary, a: View<'_>, b: View<'_>) -> R {
    use Binary::*;
    let dtype = match op {
        Eq | Ne | Lt | Le | Gt | Ge => trefoil::DType::U8,
        _ => a.dtype(),
    };
    let y = cx.out("y", dtype, &broadcast(a.shape(), b.shape()))?;
    Ok(cx.gpu.binary(op, a, b, y.m())?)
}

fn backward(cx: &Cx<'_>, op: Binary) -> R {
    let (dy, a, b) = (cx.x("dy")?, cx.x("a")?, cx.x("b")?);
    let (da, db) = (cx.like("da", &a)?, cx.like("db", &b)?);
    Ok(cx.gpu.binary_bwd(op, BinaryBwd::new(dy, a, b).da(da.g()).db(db.g()))?)
}

/// Gradient of a sum: the operands' values do not matter, so zeros of their shapes take their place.
fn add_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let (sa, sb) = (cx.dims("a_shape")?, cx.dims("b_shape")?);
    let a = cx.scratch(dy.dtype(), sa.iter().product())?;
    let b = cx.scratch(dy.dtype(), sb.iter().product())?;
    let (da, db) = (cx.out("da", dy.dtype(), &sa)?, cx.out("db", dy.dtype(), &sb)?);
    let op = Binary::Add { alpha: cx.f("alpha")? };
    let io = BinaryBwd::new(dy, a.shaped(&sa)?, b.shaped(&sb)?).da(da.g()).db(db.g());
    Ok(cx.gpu.binary_bwd(op, io)?)
}

fn div(cx: &Cx<'_>) -> R {
    let op = match cx.s("mode")?.as_str() {
        "true" => Binary::Div,
        "floor" => Binary::DivFloor,
        "trunc" => Binary::DivTrunc,
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    };
    forward(cx, op)
}

fn ternary(cx: &Cx<'_>, op: Ternary, names: [&str; 3]) -> R {
    let [a, b, c] = [cx.x(names[0])?, cx.x(names[1])?, cx.x(names[2])?];
    let y = cx.out("y", b.dtype(), &broadcast(&broadcast(a.shape(), b.shape()), c.shape()))?;
    Ok(cx.gpu.ternary(op, a, b, c, y.m())?)
}

fn ternary_backward(cx: &Cx<'_>, op: Ternary, names: [&str; 3], grads: [&str; 3]) -> R {
    let [a, b, c] = [cx.x(names[0])?, cx.x(names[1])?, cx.x(names[2])?];
    let dy = cx.x("dy")?;
    let [da, db, dc] = [cx.like(grads[0], &a)?, cx.like(grads[1], &b)?, cx.like(grads[2], &c)?];
    Ok(cx.gpu.ternary_bwd(op, TernaryBwd::new(dy, a, b, c).da(da.g()).db(db.g()).dc(dc.g()))?)
}

fn lerp(cx: &Cx<'_>) -> R {
    match cx.opt("t") {
        Some(_) => ternary(cx, Ternary::Lerp, ["a", "b", "t"]),
        None => forward(cx, Binary::Lerp { t: cx.f("t")? }),
    }
}

fn lerp_backward(cx: &Cx<'_>) -> R {
    match cx.opt("t") {
        Some(_) => ternary_backward(cx, Ternary::Lerp, ["a", "b", "t"], ["da", "db", "dt"]),
        None => backward(cx, Binary::Lerp { t: cx.f("t")? }),
    }
}

fn ldexp_backward(cx: &Cx<'_>) -> R {
    let (dy, b) = (cx.x("dy")?, cx.x("b")?);
    let da = cx.like("da", &dy)?;
    let a = cx.scratch(dy.dtype(), dy.numel())?;
    let io = BinaryBwd::new(dy, a.shaped(dy.shape())?, b).da(da.g());
    Ok(cx.gpu.binary_bwd(Binary::Ldexp, io)?)
}

fn igamma_backward(cx: &Cx<'_>, op: Binary) -> R {
    let (dy, a, b) = (cx.x("dy")?, cx.x("a")?, cx.x("b")?);
    let db = cx.like("db", &b)?;
    Ok(cx.gpu.binary_bwd(op, BinaryBwd::new(dy, a, b).db(db.g()))?)
}

fn clamp(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    match (cx.opt("lo"), cx.opt("hi")) {
        (None, None) => cx.gpu.unary(Unary::Clamp { lo: cx.opt_f("lo")?, hi: cx.opt_f("hi")? }, x, y.m())?,
        (Some(lo), None) => cx.gpu.binary(Binary::ClampMin, x, lo, y.m())?,
        (None, Some(hi)) => cx.gpu.binary(Binary::ClampMax, x, hi, y.m())?,
        (Some(lo), Some(hi)) => cx.gpu.ternary(Ternary::Clamp, x, lo, hi, y.m())?,
    }
    Ok(())
}

fn clamp_backward(cx: &Cx<'_>) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let dx = cx.like("dx", &x)?;
    match (cx.opt("lo"), cx.opt("hi")) {
        (None, None) => {
            let op = Unary::Clamp { lo: cx.opt_f("lo")?, hi: cx.opt_f("hi")? };
            cx.gpu.unary_bwd(op, dy, x, dx.g())?;
        }
        (Some(lo), None) => {
            let dlo = cx.like("dlo", &lo)?;
            let io = BinaryBwd::new(dy, x, lo).da(dx.g()).db(dlo.g());
            cx.gpu.binary_bwd(Binary::ClampMin, io)?;
        }
        (None, Some(hi)) => {
            let dhi = cx.like("dhi", &hi)?;
            let io = BinaryBwd::new(dy, x, hi).da(dx.g()).db(dhi.g());
            cx.gpu.binary_bwd(Binary::ClampMax, io)?;
        }
        (Some(lo), Some(hi)) => {
            let (dlo, dhi) = (cx.like("dlo", &lo)?, cx.like("dhi", &hi)?);
            let (da, db, dc) = (Some(dx.g()), Some(dlo.g()), Some(dhi.g()));
            cx.gpu.ternary_bwd(Ternary::Clamp, TernaryBwd::new(dy, x, lo, hi).da(da).db(db).dc(dc))?;
        }
    }
    Ok(())
}

fn where_backward(cx: &Cx<'_>) -> R {
    let (dy, c) = (cx.x("dy")?, cx.x("c")?);
    let (sa, sb) = (cx.dims("a_shape")?, cx.dims("b_shape")?);
    let a = cx.scratch(dy.dtype(), sa.iter().product())?;
    let b = cx.scratch(dy.dtype(), sb.iter().product())?;
    let (da, db) = (cx.out("da", dy.dtype(), &sa)?, cx.out("db", dy.dtype(), &sb)?);
    let io = TernaryBwd::new(dy, c, a.shaped(&sa)?, b.shaped(&sb)?).db(da.g()).dc(db.g());
    Ok(cx.gpu.ternary_bwd(Ternary::Where, io)?)
}

fn cast(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.out("y", cx.dtype_arg("to")?, x.shape())?;
    Ok(cx.gpu.cast(x, y.m())?)
}

/// Two operands of one shape, or broadcast against each other.
fn pair(s: &mut Sample, a: Dom, b: Dom) {
    let (sa, sb) = pair_shapes(s);
    s.put("a", &sa, a);
    s.put("b", &sb, b);
}

fn pair_shapes(s: &mut Sample) -> (Vec<usize>, Vec<usize>) {
    let shape = s.shape();
    let (mut sa, mut sb) = (shape.clone(), shape);
    match s.below(4) {
        0 => sb = sb[sb.len() - 1..].to_vec(),
        1 => *sa.last_mut().expect("rank is at least 1") = 1,
        2 => sb[0] = 1,
        _ => {}
    }
    (sa, sb)
}

fn triple(s: &mut Sample, names: [&str; 3], last: Dom) {
    let (sa, sb) = pair_shapes(s);
    s.put(names[0], &sa, Any);
    s.put(names[1], &sb, Any);
    let sc = broadcast(&sa, &sb);
    s.put(names[2], &sc, last);
}

macro_rules! one {
    ($name:literal, $row:literal, $op:expr, $bound:expr, $a:expr, $b:expr) => {
        &[k($name, $row, "a, b", "-", "y", &["binary"], |cx| forward(cx, $op))
            .bound($bound)
            .sample(|s| pair(s, $a, $b))]
    };
}

/// An incomplete gamma function and its gradient by the second operand.
macro_rules! igamma {
    ($name:literal, $op:expr) => {
        &[
            k($name, "T2.20", "a, b", "-", "y", &["binary"], |cx| forward(cx, $op))
                .bound(Derived)
                .sample(|s| pair(s, Range(0.05, 12.0), Range(0.01, 15.0))),
            k(concat!($name, "_backward"), "T2.20", "dy, a, b", "-", "db", &["binary_bwd"], |cx| {
                igamma_backward(cx, $op)
            })
            .bound(BROADCAST)
            .grad_of($name),
        ]
    };
}

macro_rules! two {
    ($name:literal, $row:literal, $op:expr, $bound:expr, $a:expr, $b:expr) => {
        two!($name, $row, $op, $bound, $a, $b, BROADCAST)
    };
    ($name:literal, $row:literal, $op:expr, $bound:expr, $a:expr, $b:expr, $grad:expr $(, $cancels:ident)?) => {
        &[
            k($name, $row, "a, b", "-", "y", &["binary"], |cx| forward(cx, $op))
                .bound($bound)
                .sample(|s| pair(s, $a, $b)),
            k(concat!($name, "_backward"), $row, "dy, a, b", "-", "da, db", &["binary_bwd"], |cx| {
                backward(cx, $op)
            })
            .bound($grad)
            $(.$cancels())?
            .grad_of($name),
        ]
    };
}

macro_rules! compare {
    ($name:literal, $op:expr) => {
        &[k($name, "T1.16", "a, b", "-", "y:u8", &["binary"], |cx| forward(cx, $op))
            .sample(|s| pair(s, Dom::Coarse, Dom::Coarse))]
    };
}

macro_rules! logic {
    ($name:literal, $op:expr, $table:expr) => {
        &[k($name, "T1.17", "a:u8, b:u8", "-", "y:u8", &["binary"], |cx| forward(cx, $op))
            .dtypes(F32)
            .by(|q| oracle::logic(q, $table))
            .sample(|s| {
                let (a, b) = pair_shapes(s);
                s.mask("a", &a);
                s.mask("b", &b);
            })]
    };
}

macro_rules! bits {
    ($name:literal, $op:expr, $bits:expr) => {
        &[k($name, "T1.17", "a, b", "-", "y", &["binary"], |cx| forward(cx, $op))
            .dtypes(INTS)
            .by(|q| oracle::bits(q, $bits))
            .sample(|s| pair(s, Any, Dom::Count))]
    };
}

macro_rules! three {
    ($name:literal, $variant:ident, $c:expr) => {
        &[
            k($name, "T1.20", "a, b, c", "v=1.0", "y", &["ternary"], |cx| {
                ternary(cx, Ternary::$variant { v: cx.f("v")? }, ["a", "b", "c"])
            })
            .bound(Derived)
            .sample(|s| {
                triple(s, ["a", "b", "c"], $c);
                s.arg("v", 1.5);
            }),
            k(
                concat!($name, "_backward"),
                "T1.20",
                "dy, a, b, c",
                "v=1.0",
                "da, db, dc",
                &["ternary_bwd"],
                |cx| {
                    ternary_backward(
                        cx,
                        Ternary::$variant { v: cx.f("v")? },
                        ["a", "b", "c"],
                        ["da", "db", "dc"],
                    )
                },
            )
            .bound(BROADCAST)
            .grad_of($name),
        ]
    };
}

/// Element-wise factors times dy, summed over the repeated axes.
/// Where magnitudes of the operands do not give the factors' (a logarithm has either sign), rows say that they cancel.
const BROADCAST: Bound = Stored;
const MIX: Bound = Function { ulps: 1.0, units: 34.0 };

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("add", "T1.1", "a, b", "alpha=1", "y", &["binary"], |cx| {
            forward(cx, Binary::Add { alpha: cx.f("alpha")? })
        })
        .bound(MIX)
        .sample(|s| {
            pair(s, Any, Any);
            s.arg("alpha", -2.5);
        }),
        k("add_backward", "T1.1", "dy", "alpha=1, a_shape, b_shape", "da, db", &["binary_bwd"], add_backward)
            .bound(BROADCAST)
            .grad_of("add"),
    ],
    two!("sub", "T1.2", Binary::Sub, ULP, Any, Any),
    two!("mul", "T1.3", Binary::Mul, ULP, Any, Any),
    &[
        k("div", "T1.4", "a, b", "mode=\"true\"", "y", &["binary"], div)
            .bound(ULP)
            .sample(|s| pair(s, Any, Nonzero)),
        k("div_backward", "T1.4", "dy, a, b", "-", "da, db", &["binary_bwd"], |cx| backward(cx, Binary::Div))
            .bound(BROADCAST)
            .grad_of("div"),
    ],
    &[k("integer_div", "T1.4", "a, b", "mode", "y", &["binary"], div)
        .dtypes(INTS)
        .by(|q| {
            let floor = q.s("mode")? == "floor";
            oracle::bits(q, if floor { |a, b| (a - a.rem_euclid(b)) / b } else { |a, b| a / b })
        })
        .sample(|s| {
            pair(s, Any, Range(1.0, 90.0));
            let mode = ["floor", "trunc"][s.below(2)];
            s.arg("mode", mode);
        })],
    two!("pow", "T1.5", Binary::Pow, Function { ulps: 8.0, units: 2.0 }, Positive, Any, Stored),
    two!("maximum", "T1.6", Binary::Maximum, Exact, Dom::Coarse, Dom::Coarse),
    two!("minimum", "T1.7", Binary::Minimum, Exact, Dom::Coarse, Dom::Coarse),
    two!("fmax", "T1.8", Binary::Fmax, Exact, Any, Any),
    two!("fmin", "T1.8", Binary::Fmin, Exact, Any, Any),
    two!("remainder", "T1.9", Binary::Remainder, MIX, Any, Nonzero, Derived),
    two!("fmod", "T1.10", Binary::Fmod, Exact, Any, Nonzero, Derived),
    two!("atan2", "T1.11", Binary::Atan2, TRANS, Any, Nonzero),
    two!("hypot", "T1.12", Binary::Hypot, TRANS, Any, Nonzero),
    two!("copysign", "T1.13", Binary::Copysign, Exact, Nonzero, Nonzero),
    two!("logaddexp", "T1.14", Binary::Logaddexp, Function { ulps: 4.0, units: 3.0 }, Any, Any, BROADCAST),
    two!("logaddexp2", "T1.14", Binary::Logaddexp2, Function { ulps: 4.0, units: 3.0 }, Any, Any, BROADCAST),
    two!("xlogy", "T1.15", Binary::Xlogy, Function { ulps: 6.0, units: 2.0 }, Any, Positive, BROADCAST),
    two!("xlog1py", "T1.15", Binary::Xlog1py, Function { ulps: 6.0, units: 2.0 }, Any, Positive, BROADCAST),
    compare!("eq", Binary::Eq),
    compare!("ne", Binary::Ne),
    compare!("lt", Binary::Lt),
    compare!("le", Binary::Le),
    compare!("gt", Binary::Gt),
    compare!("ge", Binary::Ge),
    logic!("logical_and", Binary::LogicalAnd, |a, b| a && b),
    logic!("logical_or", Binary::LogicalOr, |a, b| a || b),
    logic!("logical_xor", Binary::LogicalXor, |a, b| a != b),
    bits!("bitwise_and", Binary::BitwiseAnd, |a, b| a & b),
    bits!("bitwise_or", Binary::BitwiseOr, |a, b| a | b),
    bits!("bitwise_xor", Binary::BitwiseXor, |a, b| a ^ b),
    bits!("bitwise_shl", Binary::Shl, |a, b| a << b),
    bits!("bitwise_shr", Binary::Shr, |a, b| a >> b),
    &[
        k("lerp", "T1.18", "a, b, [t]", "t=null", "y", &["binary", "ternary"], lerp).bound(MIX).sample(|s| {
            if s.coin() {
                triple(s, ["a", "b", "t"], Range(0.0, 1.0));
            } else {
                pair(s, Any, Any);
                s.arg("t", 0.3);
            }
        }),
        k(
            "lerp_backward",
            "T1.18",
            "dy, a, b, [t]",
            "t=null",
            "da, db, [dt]",
            &["binary_bwd", "ternary_bwd"],
            lerp_backward,
        )
        .bound(BROADCAST)
        .grad_of("lerp"),
    ],
    &[k("add_scaled", "T1.19", "a, b", "ca=1.0, cb=1.0", "y", &["binary"], |cx| {
        forward(cx, Binary::AddScaled { ca: cx.f("ca")?, cb: cx.f("cb")? })
    })
    .bound(MIX)
    .sample(|s| {
        pair(s, Any, Any);
        s.arg("ca", 0.5);
        s.arg("cb", -1.25);
    })],
    &[k("fma", "T1.20", "a, b, c", "-", "y", &["ternary"], |cx| ternary(cx, Ternary::Fma, ["a", "b", "c"]))
        .bound(ULP)
        .sample(|s| triple(s, ["a", "b", "c"], Any))],
    three!("addcmul", Addcmul, Any),
    three!("addcdiv", Addcdiv, Nonzero),
    &[k("nextafter", "T1.21", "a, b", "-", "y", &["binary"], |cx| forward(cx, Binary::Nextafter))
        .by(oracle::nextafter)
        .sample(|s| pair(s, Any, Any))],
    &[
        k("ldexp", "T1.21", "a, b:i32", "-", "y", &["binary"], |cx| forward(cx, Binary::Ldexp)).sample(|s| {
            let (shape, _) = pair_shapes(s);
            s.put("a", &shape, Any);
            s.typed("b", trefoil::DType::I32, &shape, Range(-6.0, 6.0));
        }),
        k("ldexp_backward", "T1.21", "dy, b:i32", "-", "da", &["binary_bwd"], ldexp_backward)
            .grad_of("ldexp"),
    ],
    one!("add_relu", "T1.22", Binary::AddRelu, ULP, Any, Any),
    one!("add_sigmoid", "T1.22", Binary::AddSigmoid, Function { ulps: 6.0, units: 3.0 }, Any, Any),
    one!("add_gelu", "T1.22", Binary::AddGelu, Function { ulps: 6.0, units: 7.0 }, Any, Any),
    &[k("zeta", "T2.20", "x, q", "-", "y", &["binary"], |cx| {
        binary_of(cx, Binary::Zeta, cx.x("x")?, cx.x("q")?)
    })
    .bound(Derived)
    .sample(|s| {
        let shape = s.shape();
        s.put("x", &shape, Range(1.5, 6.0));
        s.put("q", &shape, Range(0.5, 6.0));
    })],
    igamma!("igamma", Binary::Igamma),
    igamma!("igammac", Binary::Igammac),
    &[k("cast", "T2.19", "x", "to", "y", &["cast"], cast).by(oracle::cast).sample(|s| {
        let shape = s.shape();
        s.put("x", &shape, Range(-300.0, 300.0));
        let to = ["f32", "f16", "bf16", "i32", "i64", "u8"][s.below(6)];
        s.arg("to", to);
    })],
    &[
        k("clamp", "S11.8", "x, [lo], [hi]", "lo=null, hi=null", "y", &["unary", "binary", "ternary"], clamp)
            .sample(|s| {
                let shape = s.shape();
                s.put("x", &shape, Any);
                match s.below(4) {
                    0 => s.arg("lo", -0.5),
                    1 => s.put("lo", &shape, Range(-1.0, 0.0)),
                    2 => s.put("hi", &shape, Range(0.0, 1.0)),
                    _ => {
                        s.put("lo", &shape, Range(-1.0, 0.0));
                        s.put("hi", &shape, Range(0.0, 1.0));
                    }
                }
            }),
        k(
            "clamp_backward",
            "S11.8",
            "dy, x, [lo], [hi]",
            "lo=null, hi=null",
            "dx, [dlo], [dhi]",
            &["unary_bwd", "binary_bwd", "ternary_bwd"],
            clamp_backward,
        )
        .grad_of("clamp"),
    ],
    &[
        k("where_cond", "S11.9", "c:u8, a, b", "-", "y", &["ternary"], |cx| {
            ternary(cx, Ternary::Where, ["c", "a", "b"])
        })
        .sample(|s| {
            let (a, b) = pair_shapes(s);
            let c = broadcast(&a, &b);
            s.mask("c", &c);
            s.put("a", &a, Any);
            s.put("b", &b, Any);
        }),
        k(
            "where_cond_backward",
            "S11.9",
            "dy, c:u8",
            "a_shape, b_shape",
            "da, db",
            &["ternary_bwd"],
            where_backward,
        )
        .bound(Sum)
        .grad_of("where_cond"),
    ],
];
