//! Losses that compare the samples of a batch with each other.

use trefoil::ops::loss::{BatchLoss, BatchLossBwd, BatchLossFwd};
use trefoil::{DType, Result};

use super::operands::*;
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, flops, problem};

/// How a batch loss is measured.
enum Cost {
    /// By the bytes of its operands.
    Traffic,
    /// By the operations (or comparisons) of the forward; the backward has thrice as many.
    Work(usize),
}

/// A batch loss with its operands.
struct BatchCase {
    kind: BatchLoss,
    x: Operands<3>,
    grads: &'static [usize],
    ids: Option<Shaped>,
    cost: Cost,
}

fn batch_fwd(cx: &Context<'_>, dtype: DType, c: BatchCase) -> Result<Prepared> {
    let mut loss = cx.empty(dtype.accumulator(), 1)?;
    let moved = traffic(&c.x, &[const { None }; 3]) + c.ids.as_ref().map_or(0, Shaped::bytes);
    let cost = match c.cost {
        Cost::Traffic => None,
        Cost::Work(n) => Some(n),
    };
    let run = move |g: &dyn trefoil::IGpuBackend| {
        let ids = c.ids.as_ref().map(Shaped::view).transpose()?;
        g.batch_loss(c.kind, BatchLossFwd::new(views(&c.x)?, loss.view_mut()).ids(ids))
    };
    match cost {
        None => bytes(moved, run),
        Some(n) => flops(n, run),
    }
}

fn batch_bwd(cx: &Context<'_>, dtype: DType, c: BatchCase) -> Result<Prepared> {
    let gy = cx.positive(dtype.accumulator(), 1)?;
    let mut dx = gradients(cx, &c.x, c.grads)?;
    let moved = traffic(&c.x, &dx) + c.ids.as_ref().map_or(0, Shaped::bytes);
    let cost = match c.cost {
        Cost::Traffic => None,
        Cost::Work(n) => Some(3 * n),
    };
    let run = move |g: &dyn trefoil::IGpuBackend| {
        let ids = c.ids.as_ref().map(Shaped::view).transpose()?;
        let dx = gradient_views(&c.x, &mut dx)?;
        g.batch_loss_bwd(c.kind, BatchLossBwd::new(gy.view(), views(&c.x)?).ids(ids).dx(dx))
    };
    match cost {
        None => bytes(moved, run),
        Some(n) => flops(n, run),
    }
}

/// Samples of a batch and width of their embeddings.
fn embeddings(cx: &Context<'_>) -> [usize; 2] {
    [cx.pick(16, 64, 1_024), cx.pick(32, 64, 512)]
}

fn nt_xent(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(cx);
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None];
    let cost = Cost::Work(2 * (2 * s[0]) * (2 * s[0]) * s[1]);
    Ok(BatchCase { kind: BatchLoss::NtXent { tau: 0.5 }, x, grads: &[0, 1], ids: None, cost })
}

/// With a queue of negatives as long as the batch.
fn info_nce(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(cx);
    let x = [
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::positive(cx, dt, &s)?),
        Some(Shaped::normal(cx, dt, &s)?),
    ];
    let cost = Cost::Work(2 * s[0] * (s[0] + 1) * s[1]);
    Ok(BatchCase { kind: BatchLoss::InfoNce { tau: 0.5 }, x, grads: &[0, 1, 2], ids: None, cost })
}

fn sup_con(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(cx);
    let x = [Some(Shaped::normal(cx, dt, &s)?), None, None];
    let ids = Some(Shaped::ids(cx, 4, &s[..1])?);
    let cost = Cost::Work(2 * s[0] * s[0] * s[1]);
    Ok(BatchCase { kind: BatchLoss::SupCon { tau: 0.5 }, x, grads: &[0], ids, cost })
}

fn barlow(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(cx);
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None];
    let cost = Cost::Work(2 * s[0] * s[1] * s[1]);
    Ok(BatchCase { kind: BatchLoss::Barlow { lambda: 0.005 }, x, grads: &[0, 1], ids: None, cost })
}

fn ranking(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let s = [cx.pick(64, 512, 16_384)];
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None];
    let cost = Cost::Work(s[0] * s[0]);
    Ok(BatchCase { kind: BatchLoss::PairwiseRanking, x, grads: &[0], ids: None, cost })
}

fn balance(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let [n, experts, chosen] = [cx.pick(64, 1_024, 65_536), cx.pick(8, 16, 64), 2];
    let x = [Some(Shaped::positive(cx, dt, &[n, experts])?), None, None];
    let ids = Some(Shaped::ids(cx, experts, &[n, chosen])?);
    Ok(BatchCase { kind: BatchLoss::MoeBalance, x, grads: &[0], ids, cost: Cost::Traffic })
}

fn lovasz(cx: &Context<'_>, dt: DType) -> Result<BatchCase> {
    let [n, c] = [cx.pick(64, 256, 8_192), cx.pick(4, 8, 19)];
    let x = [Some(Shaped::positive(cx, dt, &[n, c])?), None, None];
    let ids = Some(Shaped::ids(cx, c, &[n])?);
    Ok(BatchCase { kind: BatchLoss::Lovasz, x, grads: &[0], ids, cost: Cost::Work(n * n * c) })
}

pub(crate) const BATCHES: &[Problem] = &[
    problem("batch_loss", "nt_xent", F32_BF16, |cx, dt| batch_fwd(cx, dt, nt_xent(cx, dt)?)),
    problem("batch_loss", "info_nce", F32, |cx, dt| batch_fwd(cx, dt, info_nce(cx, dt)?)),
    problem("batch_loss", "sup_con", F32, |cx, dt| batch_fwd(cx, dt, sup_con(cx, dt)?)),
    problem("batch_loss", "barlow", F32, |cx, dt| batch_fwd(cx, dt, barlow(cx, dt)?)),
    problem("batch_loss", "pairwise_ranking", F32, |cx, dt| batch_fwd(cx, dt, ranking(cx, dt)?)),
    problem("batch_loss", "moe_balance", F32, |cx, dt| batch_fwd(cx, dt, balance(cx, dt)?)),
    problem("batch_loss", "lovasz", F32, |cx, dt| batch_fwd(cx, dt, lovasz(cx, dt)?)),
    problem("batch_loss_bwd", "nt_xent", F32_BF16, |cx, dt| batch_bwd(cx, dt, nt_xent(cx, dt)?)),
    problem("batch_loss_bwd", "info_nce", F32, |cx, dt| batch_bwd(cx, dt, info_nce(cx, dt)?)),
    problem("batch_loss_bwd", "sup_con", F32, |cx, dt| batch_bwd(cx, dt, sup_con(cx, dt)?)),
    problem("batch_loss_bwd", "barlow", F32, |cx, dt| batch_bwd(cx, dt, barlow(cx, dt)?)),
    problem("batch_loss_bwd", "pairwise_ranking", F32, |cx, dt| batch_bwd(cx, dt, ranking(cx, dt)?)),
    problem("batch_loss_bwd", "moe_balance", F32, |cx, dt| batch_bwd(cx, dt, balance(cx, dt)?)),
    problem("batch_loss_bwd", "lovasz", F32, |cx, dt| batch_bwd(cx, dt, lovasz(cx, dt)?)),
];
