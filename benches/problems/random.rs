//! Random numbers and dropout.

use trefoil::ops::random::{BiasDropout, Distribution, DropoutMask, Rng, Weights};
use trefoil::{DType, Result};

use crate::case::{Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Probability of dropping an element.
const P: f64 = 0.1;

/// Dropout whose mask is not kept.
fn dropout(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.dropout(P, Rng::new(1), x.at(i).view(), y.view_mut(), None))
}

/// The gradient of [`dropout`], which generates the mask again.
fn dropout_bwd(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let (dy, mut dx) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| {
        g.dropout_bwd(P, DropoutMask::Regenerate(Rng::new(1)), dy.at(i).view(), dx.view_mut().into())
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("random", "normal", F32_BF16, |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| {
            g.random(Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(1), y.view_mut())
        })
    }),
    problem("random", "int", &[DType::I64], |cx, dt| {
        let (mut y, n) = (cx.empty(dt, cx.n())?, cx.n());
        bytes(n * dt.size(), move |g| {
            g.random(Distribution::Int { lo: 0, hi: 1000 }, Rng::new(1), y.view_mut())
        })
    }),
    problem("bernoulli", "tensor", F32, |cx, dt| {
        let n = cx.n();
        let (p, mut y) = (cx.positive(dt, n)?, cx.empty(DType::U8, n)?);
        bytes(n * (dt.size() + 1), move |g| g.bernoulli(p.view(), Rng::new(1), y.view_mut()))
    }),
    problem("permutation", "flat", &[DType::I64], |cx, dt| {
        let n = (cx.n() >> 4).max(256);
        let mut y = cx.empty(dt, n)?;
        bytes(n * dt.size(), move |g| g.permutation(Rng::new(1), y.view_mut()))
    }),
    problem("categorical", "probs", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let (p, mut y) = (cx.positive(dt, r * c)?, cx.empty(DType::I64, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.categorical(Weights::Probs(p.shaped(&[r, c])?), Rng::new(1), y.view_mut())
        })
    }),
    problem("categorical", "logits", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let (p, mut y) = (cx.normal(dt, r * c)?, cx.empty(DType::I64, r)?);
        bytes(r * c * dt.size(), move |g| {
            g.categorical(Weights::Logits(p.shaped(&[r, c])?), Rng::new(1), y.view_mut())
        })
    }),
    problem("dropout", "no_mask", F32_BF16, |cx, dt| dropout(cx, dt, cx.n())),
    problem("dropout_bwd", "regenerated", F32, |cx, dt| dropout_bwd(cx, dt, cx.n())),
    problem("dropout_bwd", "saved_mask", F32, |cx, dt| {
        let (dy, m, mut dx, n) = (cx.normal(dt, cx.n())?, cx.mask(cx.n())?, cx.empty(dt, cx.n())?, cx.n());
        bytes(n * (2 * dt.size() + 1), move |g| {
            g.dropout_bwd(0.1, DropoutMask::Saved(m.view()), dy.view(), dx.view_mut().into())
        })
    }),
    problem("bias_dropout", "residual", F32_BF16, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, bias, res) = (cx.normal(dt, r * k)?, cx.normal(dt, k)?, cx.normal(dt, r * k)?);
        let mut y = cx.empty(dt, r * k)?;
        bytes(3 * r * k * dt.size(), move |g| {
            let io = BiasDropout::new(x.shaped(&[r, k])?, bias.view(), y.shaped_mut(&[r, k])?)
                .residual(res.shaped(&[r, k])?);
            g.bias_dropout(0.1, Rng::new(1), io)
        })
    }),
    problem("bias_dropout_bwd", "regenerated", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (dy, mut dx, mut db) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?, cx.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let (out, bias) = (dx.shaped_mut(&[r, k])?.into(), db.view_mut().into());
            let mask = DropoutMask::Regenerate(Rng::new(1));
            g.bias_dropout_bwd(0.1, mask, dy.shaped(&[r, k])?, Some(out), Some(bias))
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "dropout",
    |cx, c| Ok(dropout(cx, c.dtype()?, c.size("n")?)?),
    |cx, c| Ok(dropout_bwd(cx, c.dtype()?, c.size("n")?)?),
)];
