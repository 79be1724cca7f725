//! Mixture of experts: routing and the order of tokens.

use trefoil::ops::moe::{MoePermuteBwd, MoeRouter, MoeRouterIo, MoeUnpermute, MoeUnpermuteBwd};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::{Buffer, DType, Result};

use crate::{Context, F32, F32_BF16, Problem, bytes, problem};

/// Tokens, experts, choices and row length.
fn experts(cx: &Context<'_>) -> [usize; 4] {
    [cx.pick(32, 256, 16_384), 16, 2, cx.pick(32, 128, 2048)]
}

/// A shuffled order of n assignments.
fn order(cx: &Context<'_>, n: usize) -> Result<Buffer> {
    let mut y = cx.empty(DType::I32, n)?;
    cx.gpu.permutation(Rng::new(n as u64), y.view_mut())?;
    Ok(y)
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("moe_router", "softmax", F32, |cx, dt| {
        let [t, e, k, _] = experts(cx);
        let (x, mut w) = (cx.normal(dt, t * e)?, cx.empty(dt, t * k)?);
        let int = |n| cx.empty(DType::I32, n);
        let (mut ids, mut counts, mut offsets, mut perm) = (int(t * k)?, int(e)?, int(e + 1)?, int(t * k)?);
        bytes((t * e + t * k) * dt.size(), move |g| {
            let io = MoeRouterIo::new(
                x.shaped(&[t, e])?,
                w.shaped_mut(&[t, k])?,
                ids.shaped_mut(&[t, k])?,
                counts.view_mut(),
                offsets.view_mut(),
                perm.view_mut(),
            );
            g.moe_router(&MoeRouter::new(), io)
        })
    }),
    problem("moe_router_bwd", "softmax", F32, |cx, dt| {
        let [t, e, k, _] = experts(cx);
        let (x, dw, mut dx) = (cx.normal(dt, t * e)?, cx.normal(dt, t * k)?, cx.empty(dt, t * e)?);
        let mut ids = cx.empty(DType::I32, t * k)?;
        cx.gpu.random(Distribution::Int { lo: 0, hi: e as i64 }, Rng::new(5), ids.view_mut())?;
        bytes(2 * t * e * dt.size(), move |g| {
            let (dw, ids) = (dw.shaped(&[t, k])?, ids.shaped(&[t, k])?);
            g.moe_router_bwd(&MoeRouter::new(), dw, x.shaped(&[t, e])?, ids, dx.shaped_mut(&[t, e])?.into())
        })
    }),
    problem("moe_permute", "two_of_16", F32_BF16, |cx, dt| {
        let [t, _, k, d] = experts(cx);
        let (x, perm, mut y) = (cx.normal(dt, t * d)?, order(cx, t * k)?, cx.empty(dt, t * k * d)?);
        bytes((1 + k) * t * d * dt.size(), move |g| {
            g.moe_permute(x.shaped(&[t, d])?, perm.view(), y.shaped_mut(&[t * k, d])?)
        })
    }),
    problem("moe_permute_bwd", "two_of_16", F32_BF16, |cx, dt| {
        let [t, _, k, d] = experts(cx);
        let (dy, perm, mut dx) = (cx.normal(dt, t * k * d)?, order(cx, t * k)?, cx.empty(dt, t * d)?);
        bytes((1 + k) * t * d * dt.size(), move |g| {
            let dx = dx.shaped_mut(&[t, d])?.grad(false);
            g.moe_permute_bwd(MoePermuteBwd::new(dy.shaped(&[t * k, d])?, perm.view(), dx))
        })
    }),
    problem("moe_unpermute", "two_of_16", F32_BF16, |cx, dt| {
        let [t, _, k, d] = experts(cx);
        let (x, perm, mut y) = (cx.normal(dt, t * k * d)?, order(cx, t * k)?, cx.empty(dt, t * d)?);
        let w = cx.positive(dt, t * k)?;
        bytes((1 + k) * t * d * dt.size(), move |g| {
            let w = w.shaped(&[t, k])?;
            let y = y.shaped_mut(&[t, d])?;
            g.moe_unpermute(MoeUnpermute::new(x.shaped(&[t * k, d])?, perm.view(), w, y))
        })
    }),
    problem("moe_unpermute_bwd", "two_of_16", F32_BF16, |cx, dt| {
        let [t, _, k, d] = experts(cx);
        let (dy, x, perm) = (cx.normal(dt, t * d)?, cx.normal(dt, t * k * d)?, order(cx, t * k)?);
        let (w, mut dx, mut dw) = (cx.positive(dt, t * k)?, cx.empty(dt, t * k * d)?, cx.empty(dt, t * k)?);
        bytes((2 + 2 * k) * t * d * dt.size(), move |g| {
            g.moe_unpermute_bwd(
                MoeUnpermuteBwd::new(
                    dy.shaped(&[t, d])?,
                    x.shaped(&[t * k, d])?,
                    perm.view(),
                    w.shaped(&[t, k])?,
                )
                .dx(dx.shaped_mut(&[t * k, d])?)
                .dweights(dw.shaped_mut(&[t, k])?),
            )
        })
    }),
];
