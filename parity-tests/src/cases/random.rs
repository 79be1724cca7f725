//! Random numbers and dropout.

use trefoil::DType;
use trefoil::ops::random::{BiasDropout, Distribution, DropoutMask, Rng, Weights};

use super::{F32, FLOATS, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::oracle;
use crate::sampler::Dom::{Any, Positive, Range};
use crate::sampler::Sample;

fn rng(cx: &Cx<'_>) -> R<Rng<'static>> {
    Ok(Rng::new(cx.bits("seed")?).at(cx.bits("stream")?, cx.bits("offset")?))
}

fn fill(cx: &Cx<'_>, dist: Distribution, dtype: DType, shape: &[usize]) -> R {
    let y = cx.out("y", dtype, shape)?;
    Ok(cx.gpu.random(dist, rng(cx)?, y.m())?)
}

fn floats(cx: &Cx<'_>, dist: Distribution) -> R {
    fill(cx, dist, cx.dtype, &cx.dims("shape")?)
}

fn bernoulli(cx: &Cx<'_>) -> R {
    let shape = cx.dims("shape")?;
    match cx.opt("p") {
        None => fill(cx, Distribution::Bernoulli { p: cx.f("p")? }, DType::U8, &shape),
        Some(p) => {
            let y = cx.out("y", DType::U8, &shape)?;
            Ok(cx.gpu.bernoulli(p, rng(cx)?, y.m())?)
        }
    }
}

fn integers(cx: &Cx<'_>) -> R {
    fill(
        cx,
        Distribution::Int { lo: cx.i("lo")?, hi: cx.i("hi")? },
        cx.dtype_arg("index")?,
        &cx.dims("shape")?,
    )
}

fn permutation(cx: &Cx<'_>) -> R {
    let y = cx.out("y", DType::I64, &[cx.n("n")?])?;
    Ok(cx.gpu.permutation(rng(cx)?, y.m())?)
}

fn categorical(cx: &Cx<'_>) -> R {
    let (weights, rows) = match (cx.opt("p"), cx.opt("logits")) {
        (Some(p), None) => (Weights::Probs(p), p.shape()[0]),
        (None, Some(l)) => (Weights::Logits(l), l.shape()[0]),
        _ => return Err(Fail::Case("either p or logits".into())),
    };
    let y = cx.out("y", DType::I64, &[rows, cx.n("n")?])?;
    Ok(cx.gpu.categorical(weights, rng(cx)?, y.m())?)
}

fn dropout(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let mask = cx.wants("mask").then(|| cx.out("mask", DType::U8, x.shape())).transpose()?;
    Ok(cx.gpu.dropout(cx.f("p")?, rng(cx)?, x, y.m(), mask.as_ref().map(|t| t.m()))?)
}

fn dropout_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.like("dx", &dy)?;
    let mask = match cx.opt("mask") {
        Some(m) => DropoutMask::Saved(m),
        None => DropoutMask::Regenerate(rng(cx)?),
    };
    Ok(cx.gpu.dropout_bwd(cx.f("p")?, mask, dy, dx.g())?)
}

fn bias_dropout(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let mask = cx.wants("mask").then(|| cx.out("mask", DType::U8, x.shape())).transpose()?;
    let io =
        BiasDropout::new(x, cx.x("bias")?, y.m()).residual(cx.opt("r")).mask(mask.as_ref().map(|t| t.m()));
    Ok(cx.gpu.bias_dropout(cx.f("p")?, rng(cx)?, io)?)
}

fn bias_dropout_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let n = *dy.shape().last().unwrap_or(&1);
    let (dx, dbias) = (cx.like("dx", &dy)?, cx.out("dbias", dy.dtype(), &[n])?);
    let mask = DropoutMask::Regenerate(rng(cx)?);
    Ok(cx.gpu.bias_dropout_bwd(cx.f("p")?, mask, dy, Some(dx.g()), Some(dbias.g()))?)
}

fn seed(s: &mut Sample) {
    let seed = s.below(1 << 30);
    s.arg("seed", seed);
    s.arg("stream", 3);
    // Close to the end of the counter, so that the block number wraps.
    let offset = if s.coin() { u64::MAX - 5 } else { 17 };
    s.arg("offset", offset);
}

fn draw(s: &mut Sample) {
    let shape = s.shape();
    s.arg("shape", shape);
    seed(s);
}

macro_rules! row {
    ($name:literal, $row:literal, $args:literal, $dist:expr, $definition:expr) => {
        k($name, $row, "-", $args, "y", &["random"], |cx| floats(cx, $dist(cx)?))
            .by($definition)
            .dtypes(FLOATS)
            .sample(draw)
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("philox_u32", "T6.3", "-", "n, seed, stream=0, offset=0", "y:i32", &["random"], |cx| {
            fill(cx, Distribution::Bits, DType::I32, &[cx.n("n")?])
        })
        .by(oracle::words)
        .dtypes(F32)
        .sample(|s| {
            let n = s.size();
            s.arg("n", n);
            seed(s);
        }),
        row!(
            "rand_uniform",
            "T6.4",
            "shape, lo=0.0, hi=1.0, seed, stream=0, offset=0",
            |cx: &Cx<'_>| -> R<Distribution> {
                Ok(Distribution::Uniform { lo: cx.f("lo")?, hi: cx.f("hi")? })
            },
            oracle::uniform
        ),
        row!(
            "rand_normal",
            "T6.5",
            "shape, mean=0.0, std=1.0, seed, stream=0, offset=0",
            |cx: &Cx<'_>| -> R<Distribution> {
                Ok(Distribution::Normal { mean: cx.f("mean")?, std: cx.f("std")? })
            },
            oracle::normal
        ),
        row!(
            "rand_exponential",
            "T6.8",
            "shape, rate=1.0, seed, stream=0, offset=0",
            |cx: &Cx<'_>| -> R<Distribution> { Ok(Distribution::Exponential { rate: cx.f("rate")? }) },
            oracle::exponential
        ),
        row!(
            "rand_gumbel",
            "T6.8",
            "shape, seed, stream=0, offset=0",
            |_: &Cx<'_>| -> R<Distribution> { Ok(Distribution::Gumbel) },
            oracle::gumbel
        ),
        k(
            "rand_bernoulli",
            "T6.6",
            "[p]",
            "shape, p=null, seed, stream=0, offset=0",
            "y:u8",
            &["random", "bernoulli"],
            bernoulli,
        )
        .by(oracle::bernoulli)
        .sample(|s| {
            let shape = s.shape();
            if s.coin() {
                s.put("p", &shape, Range(0.0, 1.0));
            } else {
                s.arg("p", 0.3);
            }
            s.arg("shape", shape);
            seed(s);
        }),
        k(
            "rand_int",
            "T6.7",
            "-",
            "shape, lo=0, hi, index=\"i64\", seed, stream=0, offset=0",
            "y:i64",
            &["random"],
            integers,
        )
        .by(oracle::integers)
        .dtypes(F32)
        .sample(|s| {
            draw(s);
            s.arg("lo", -7);
            s.arg("hi", 1000);
            let index = ["i64", "i32"][s.below(2)];
            s.arg("index", index);
        }),
    ],
    &[
        k("rand_perm", "T6.9", "-", "n, seed, stream=0, offset=0", "y:i64", &["permutation"], permutation)
            .by(oracle::permutation)
            .dtypes(F32)
            .sample(|s| {
                let n = s.size().min(5000);
                s.arg("n", n);
                seed(s);
            }),
        k(
            "rand_categorical",
            "T6.10",
            "[p], [logits]",
            "n=1, seed, stream=0, offset=0",
            "y:i64",
            &["categorical"],
            categorical,
        )
        .dtypes(F32)
        .by(oracle::categorical)
        .sample(|s| {
            let shape = [1 + s.below(40), 1 + s.below(300)];
            if s.coin() {
                s.put("p", &shape, Positive);
                s.arg("n", 5);
            } else {
                s.put("logits", &shape, Any);
            }
            seed(s);
        }),
    ],
    &[
        k(
            "dropout_forward",
            "S11.6",
            "x",
            "p, seed, stream=0, offset=0",
            "y, [mask:u8]",
            &["dropout"],
            dropout,
        )
        .by(oracle::dropout)
        .sample(|s| {
            let shape = s.shape();
            s.put("x", &shape, Any);
            s.arg("p", 0.3);
            seed(s);
        }),
        k(
            "dropout_backward",
            "S11.7",
            "dy, [mask:u8]",
            "p, seed=null, stream=0, offset=0",
            "dx",
            &["dropout_bwd"],
            dropout_backward,
        )
        .by(oracle::dropout_backward)
        .grad_of("dropout_forward"),
    ],
    &[
        k(
            "bias_dropout",
            "S12.10",
            "x, bias, [r]",
            "p, seed, stream=0, offset=0",
            "y, [mask:u8]",
            &["bias_dropout"],
            bias_dropout,
        )
        .by(oracle::bias_dropout)
        .sample(|s| {
            let shape = s.shape();
            let n = shape[shape.len() - 1];
            s.put("x", &shape, Any);
            s.put("bias", &[n], Any);
            if s.coin() {
                s.put("r", &shape, Any);
            }
            s.arg("p", 0.3);
            seed(s);
        }),
        k(
            "bias_dropout_backward",
            "S12.10",
            "dy",
            "p, seed, stream=0, offset=0",
            "dx, dbias",
            &["bias_dropout_bwd"],
            bias_dropout_backward,
        )
        .by(oracle::bias_dropout_backward)
        .grad_of("bias_dropout"),
    ],
];
