//! Language models.

use trefoil::ops::*;
use trefoil::{Buffer, Result};

use super::*;

/// Batch, length, heads and head size of activations to be rotated.
fn heads(b: &Bed<'_>) -> [usize; 4] {
    [b.pick(1, 2, 8), b.pick(8, 64, 2048), b.pick(2, 4, 32), 128]
}

/// Rows, hidden size and classes.
fn vocabulary(b: &Bed<'_>) -> [usize; 3] {
    let [rows, classes] = b.classes();
    [rows, b.pick(16, 64, 768), classes]
}

/// Tokens, experts, choices and row length.
fn experts(b: &Bed<'_>) -> [usize; 4] {
    [b.pick(32, 256, 16_384), 16, 2, b.pick(32, 128, 2048)]
}

/// A shuffled order of n assignments.
fn order(b: &Bed<'_>, n: usize) -> Result<Buffer> {
    let mut y = b.empty(DType::I32, n)?;
    b.gpu.permutation(Rng::new(n as u64), y.view_mut())?;
    Ok(y)
}

pub(super) const ROWS: &[Row] = &[
    row("rope", "half", F32_BF16, |b, dt| {
        let s = heads(b);
        let n = s.iter().product();
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| g.rope(&Rope::new(), x.shaped(&s)?, None, y.shaped_mut(&s)?))
    }),
    row("rope", "interleaved", F32, |b, dt| {
        let (s, p) = (heads(b), Rope::new().layout(RopeLayout::Interleaved));
        let n = s.iter().product();
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| g.rope(&p, x.shaped(&s)?, None, y.shaped_mut(&s)?))
    }),
    row("rope_bwd", "half", F32_BF16, |b, dt| {
        let s = heads(b);
        let n = s.iter().product();
        let (x, mut y) = (b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(2 * n * dt.size(), move |g| {
            g.rope_bwd(&Rope::new(), x.shaped(&s)?, None, y.shaped_mut(&s)?.into())
        })
    }),
    row("fused_linear_cross_entropy", "ids", F32_BF16, |b, dt| {
        let [n, d, v] = vocabulary(b);
        let (h, w, ids) = (b.normal(dt, n * d)?, b.normal(dt, v * d)?, b.ids(n, v)?);
        let mut loss = b.empty(dt.accumulator(), 1)?;
        flops(2 * n * d * v, move |g| {
            let io = LinearCrossEntropyFwd {
                h: h.shaped(&[n, d])?,
                w: w.shaped(&[v, d])?,
                b: None,
                target: ids.view(),
                loss: loss.view_mut(),
                lse: None,
            };
            g.fused_linear_cross_entropy(&LinearCrossEntropy::new(), io)
        })
    }),
    row("fused_linear_cross_entropy_bwd", "ids", F32_BF16, |b, dt| {
        let [n, d, v] = vocabulary(b);
        let (h, w, ids) = (b.normal(dt, n * d)?, b.normal(dt, v * d)?, b.ids(n, v)?);
        let (gy, mut dh, mut dw) = (b.normal(dt.accumulator(), 1)?, b.empty(dt, n * d)?, b.empty(dt, v * d)?);
        flops(6 * n * d * v, move |g| {
            let io = LinearCrossEntropyBwd {
                gy: gy.view(),
                h: h.shaped(&[n, d])?,
                w: w.shaped(&[v, d])?,
                b: None,
                target: ids.view(),
                dh: Some(dh.shaped_mut(&[n, d])?.into()),
                dw: Some(dw.shaped_mut(&[v, d])?.into()),
                db: None,
            };
            g.fused_linear_cross_entropy_bwd(&LinearCrossEntropy::new(), io)
        })
    }),
    row("moe_router", "softmax", F32, |b, dt| {
        let [t, e, k, _] = experts(b);
        let (x, mut w) = (b.normal(dt, t * e)?, b.empty(dt, t * k)?);
        let int = |n| b.empty(DType::I32, n);
        let (mut ids, mut counts, mut offsets, mut perm) = (int(t * k)?, int(e)?, int(e + 1)?, int(t * k)?);
        bytes((t * e + t * k) * dt.size(), move |g| {
            let io = MoeRouterIo {
                logits: x.shaped(&[t, e])?,
                weights: w.shaped_mut(&[t, k])?,
                ids: ids.shaped_mut(&[t, k])?,
                counts: counts.view_mut(),
                offsets: offsets.view_mut(),
                perm: perm.view_mut(),
            };
            g.moe_router(&MoeRouter::new(), io)
        })
    }),
    row("moe_router_bwd", "softmax", F32, |b, dt| {
        let [t, e, k, _] = experts(b);
        let (x, dw, mut dx) = (b.normal(dt, t * e)?, b.normal(dt, t * k)?, b.empty(dt, t * e)?);
        let mut ids = b.empty(DType::I32, t * k)?;
        b.gpu.random(Distribution::Int { lo: 0, hi: e as i64 }, Rng::new(5), ids.view_mut())?;
        bytes(2 * t * e * dt.size(), move |g| {
            let (dw, ids) = (dw.shaped(&[t, k])?, ids.shaped(&[t, k])?);
            g.moe_router_bwd(&MoeRouter::new(), dw, x.shaped(&[t, e])?, ids, dx.shaped_mut(&[t, e])?.into())
        })
    }),
    row("moe_permute", "two_of_16", F32_BF16, |b, dt| {
        let [t, _, k, d] = experts(b);
        let (x, perm, mut y) = (b.normal(dt, t * d)?, order(b, t * k)?, b.empty(dt, t * k * d)?);
        bytes((1 + k) * t * d * dt.size(), move |g| {
            g.moe_permute(x.shaped(&[t, d])?, perm.view(), y.shaped_mut(&[t * k, d])?)
        })
    }),
    row("moe_permute_bwd", "two_of_16", F32_BF16, |b, dt| {
        let [t, _, k, d] = experts(b);
        let (dy, perm, mut dx) = (b.normal(dt, t * k * d)?, order(b, t * k)?, b.empty(dt, t * d)?);
        bytes((1 + k) * t * d * dt.size(), move |g| {
            g.moe_permute_bwd(dy.shaped(&[t * k, d])?, perm.view(), dx.shaped_mut(&[t, d])?.into())
        })
    }),
    row("moe_unpermute", "two_of_16", F32_BF16, |b, dt| {
        let [t, _, k, d] = experts(b);
        let (x, perm, mut y) = (b.normal(dt, t * k * d)?, order(b, t * k)?, b.empty(dt, t * d)?);
        let w = b.positive(dt, t * k)?;
        bytes((1 + k) * t * d * dt.size(), move |g| {
            let w = w.shaped(&[t, k])?;
            g.moe_unpermute(x.shaped(&[t * k, d])?, perm.view(), w, y.shaped_mut(&[t, d])?)
        })
    }),
    row("moe_unpermute_bwd", "two_of_16", F32_BF16, |b, dt| {
        let [t, _, k, d] = experts(b);
        let (dy, x, perm) = (b.normal(dt, t * d)?, b.normal(dt, t * k * d)?, order(b, t * k)?);
        let (w, mut dx, mut dw) = (b.positive(dt, t * k)?, b.empty(dt, t * k * d)?, b.empty(dt, t * k)?);
        bytes((2 + 2 * k) * t * d * dt.size(), move |g| {
            g.moe_unpermute_bwd(MoeUnpermuteBwd {
                dy: dy.shaped(&[t, d])?,
                x: x.shaped(&[t * k, d])?,
                perm: perm.view(),
                weights: w.shaped(&[t, k])?,
                dx: Some(dx.shaped_mut(&[t * k, d])?.into()),
                dweights: Some(dw.shaped_mut(&[t, k])?.into()),
            })
        })
    }),
];
