//! Rotary embeddings, and the loss of a language model together with its last product.

use trefoil::DType;
use trefoil::ops::attention::{Rope, RopeLayout};
use trefoil::ops::language_model::{
    LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd, LogitProcessors,
};
use trefoil::ops::random::Rng;

use crate::{Context, F32, F32_BF16, Problem, bytes, flops, problem};

/// Batch, length, heads and head size of activations to be rotated.
fn heads(cx: &Context<'_>) -> [usize; 4] {
    [cx.pick(1, 2, 8), cx.pick(8, 64, 2048), cx.pick(2, 4, 32), 128]
}

/// Rows, hidden size and classes.
fn vocabulary(cx: &Context<'_>) -> [usize; 3] {
    let [rows, classes] = cx.classes();
    [rows, cx.pick(16, 64, 768), classes]
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("rope", "half", F32_BF16, |cx, dt| {
        let s = heads(cx);
        let n = s.iter().product();
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| g.rope(&Rope::new(), x.shaped(&s)?, None, y.shaped_mut(&s)?))
    }),
    problem("rope", "interleaved", F32, |cx, dt| {
        let (s, p) = (heads(cx), Rope::new().layout(RopeLayout::Interleaved));
        let n = s.iter().product();
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| g.rope(&p, x.shaped(&s)?, None, y.shaped_mut(&s)?))
    }),
    problem("rope_bwd", "half", F32_BF16, |cx, dt| {
        let s = heads(cx);
        let n = s.iter().product();
        let (x, mut y) = (cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| {
            g.rope_bwd(&Rope::new(), x.shaped(&s)?, None, y.shaped_mut(&s)?.into())
        })
    }),
    problem("fused_linear_cross_entropy", "ids", F32_BF16, |cx, dt| {
        let [n, d, v] = vocabulary(cx);
        let (h, w, ids) = (cx.normal(dt, n * d)?, cx.normal(dt, v * d)?, cx.ids(n, v)?);
        let mut loss = cx.empty(dt.accumulator(), 1)?;
        flops(2 * n * d * v, move |g| {
            let io = LinearCrossEntropyFwd::new(
                h.shaped(&[n, d])?,
                w.shaped(&[v, d])?,
                ids.view(),
                loss.view_mut(),
            );
            g.fused_linear_cross_entropy(&LinearCrossEntropy::new(), io)
        })
    }),
    problem("fused_linear_cross_entropy_bwd", "ids", F32_BF16, |cx, dt| {
        let [n, d, v] = vocabulary(cx);
        let (h, w, ids) = (cx.normal(dt, n * d)?, cx.normal(dt, v * d)?, cx.ids(n, v)?);
        let (gy, mut dh, mut dw) =
            (cx.normal(dt.accumulator(), 1)?, cx.empty(dt, n * d)?, cx.empty(dt, v * d)?);
        flops(6 * n * d * v, move |g| {
            let io =
                LinearCrossEntropyBwd::new(gy.view(), h.shaped(&[n, d])?, w.shaped(&[v, d])?, ids.view())
                    .dh(dh.shaped_mut(&[n, d])?)
                    .dw(dw.shaped_mut(&[v, d])?);
            g.fused_linear_cross_entropy_bwd(&LinearCrossEntropy::new(), io)
        })
    }),
    problem("logit_processors", "top_k_top_p", F32_BF16, |cx, dt| {
        let [r, v] = [cx.pick(2, 8, 256), cx.pick(500, 40_000, 131_072)];
        let (x, mut y) = (cx.normal(dt, r * v)?, cx.empty(dt, r * v)?);
        bytes(2 * r * v * dt.size(), move |g| {
            let p = LogitProcessors::new().top_k(50).top_p(0.9);
            g.logit_processors(&p, x.shaped(&[r, v])?, None, y.shaped_mut(&[r, v])?)
        })
    }),
    problem("logit_processors", "repetition_penalty", F32_BF16, |cx, dt| {
        let ([r, v], t) = ([cx.pick(2, 8, 256), cx.pick(500, 4_000, 131_072)], cx.pick(16, 64, 2048));
        let (x, mut y) = (cx.normal(dt, r * v)?, cx.empty(dt, r * v)?);
        let prev = cx.integers((0..r * t).map(|i| (i * 31 % v) as i32))?;
        bytes(2 * r * v * dt.size(), move |g| {
            let p = LogitProcessors::new().repetition_penalty(1.1);
            g.logit_processors(&p, x.shaped(&[r, v])?, Some(prev.shaped(&[r, t])?), y.shaped_mut(&[r, v])?)
        })
    }),
    problem("sample_tokens", "temperature", F32_BF16, |cx, dt| {
        let [r, v] = [cx.pick(2, 8, 256), cx.pick(500, 4_000, 131_072)];
        let (x, mut ids) = (cx.normal(dt, r * v)?, cx.empty(DType::I64, r)?);
        bytes(r * v * dt.size(), move |g| {
            let p = LogitProcessors::new().temperature(0.8);
            g.sample_tokens(&p, Rng::new(1), x.shaped(&[r, v])?, None, ids.view_mut())
        })
    }),
    problem("sample_tokens", "greedy", F32_BF16, |cx, dt| {
        let [r, v] = [cx.pick(2, 8, 256), cx.pick(500, 4_000, 131_072)];
        let (x, mut ids) = (cx.normal(dt, r * v)?, cx.empty(DType::I64, r)?);
        bytes(r * v * dt.size(), move |g| {
            let p = LogitProcessors::new().temperature(0.0);
            g.sample_tokens(&p, Rng::new(1), x.shaped(&[r, v])?, None, ids.view_mut())
        })
    }),
    problem("sample_tokens", "top_p", F32, |cx, dt| {
        let [r, v] = [cx.pick(2, 8, 256), cx.pick(500, 40_000, 131_072)];
        let (x, mut ids) = (cx.normal(dt, r * v)?, cx.empty(DType::I64, r)?);
        bytes(r * v * dt.size(), move |g| {
            let p = LogitProcessors::new().top_p(0.9);
            g.sample_tokens(&p, Rng::new(1), x.shaped(&[r, v])?, None, ids.view_mut())
        })
    }),
];
