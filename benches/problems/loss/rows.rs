//! Losses with one item for each row.

use trefoil::ops::loss::{BoxOverlap, Reduction, RowLoss, RowLossBwd, RowLossFwd};
use trefoil::{DType, Result};

use super::operands::*;
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, problem};

/// A row loss with its operands.
struct RowCase {
    kind: RowLoss,
    /// Operands, and the places of those whose gradients are taken.
    x: Operands<4>,
    grads: &'static [usize],
    ids: Option<Shaped>,
    mask: Option<Shaped>,
}

impl RowCase {
    fn new(kind: RowLoss, x: Operands<4>, grads: &'static [usize]) -> Self {
        RowCase { kind, x, grads, ids: None, mask: None }
    }

    fn extra(&self) -> usize {
        self.ids.iter().chain(&self.mask).map(Shaped::bytes).sum()
    }
}

fn row_fwd(cx: &Context<'_>, dtype: DType, c: RowCase) -> Result<Prepared> {
    let mut loss = cx.empty(dtype.accumulator(), 1)?;
    bytes(traffic(&c.x, &[const { None }; 4]) + c.extra(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let io = RowLossFwd::new(views(&c.x)?, loss.view_mut()).ids(ids).mask(mask);
        g.row_loss(c.kind, Reduction::Mean, io)
    })
}

/// One item per row in memory.
fn row_each(cx: &Context<'_>, dtype: DType, c: RowCase, items: &[usize]) -> Result<Prepared> {
    let mut loss = cx.empty(dtype, items.iter().product())?;
    let items = items.to_vec();
    bytes(traffic(&c.x, &[const { None }; 4]) + c.extra() + loss.len() * dtype.size(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let io = RowLossFwd::new(views(&c.x)?, loss.shaped_mut(&items)?).ids(ids).mask(mask);
        g.row_loss(c.kind, Reduction::None, io)
    })
}

fn row_bwd(cx: &Context<'_>, dtype: DType, c: RowCase) -> Result<Prepared> {
    let gy = cx.positive(dtype.accumulator(), 1)?;
    let mut dx = gradients(cx, &c.x, c.grads)?;
    bytes(traffic(&c.x, &dx) + c.extra(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let dx = gradient_views(&c.x, &mut dx)?;
        g.row_loss_bwd(
            c.kind,
            Reduction::Mean,
            RowLossBwd::new(gy.view(), views(&c.x)?).ids(ids).mask(mask).dx(dx),
        )
    })
}

fn triplet(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = cx.rows();
    let x = [
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::positive(cx, dt, &s)?),
        None,
    ];
    let kind = RowLoss::Triplet { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, squared: false };
    Ok(RowCase::new(kind, x, &[0, 1, 2]))
}

fn kl(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = cx.classes();
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None, None];
    Ok(RowCase::new(RowLoss::Kl { log_input: true, log_target: false }, x, &[0]))
}

fn nll(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = cx.classes();
    let x = [Some(Shaped::normal(cx, dt, &[n, c])?), Some(Shaped::positive(cx, dt, &[c])?), None, None];
    let mut case = RowCase::new(RowLoss::Nll { floor: None, ignore_index: -100 }, x, &[0]);
    case.ids = Some(Shaped::ids(cx, c, &[n])?);
    Ok(case)
}

fn focal(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = cx.classes();
    let x = [Some(Shaped::normal(cx, dt, &[n, c])?), None, None, None];
    let mut case = RowCase::new(RowLoss::MulticlassFocal { gamma: 2.0 }, x, &[0]);
    case.ids = Some(Shaped::ids(cx, c, &[n])?);
    Ok(case)
}

fn circle(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = cx.classes();
    let x = [Some(Shaped::normal(cx, dt, &[n, c])?), None, None, None];
    let mut case = RowCase::new(RowLoss::Circle { scale: 8.0, margin: 0.25, detach: true }, x, &[0]);
    case.ids = Some(Shaped::ids(cx, c, &[n])?);
    Ok(case)
}

fn kto(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = [cx.n()];
    let x = [
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::positive(cx, dt, &s)?),
        None,
    ];
    Ok(RowCase::new(RowLoss::Kto { beta: 0.1, desirable: 1.0, undesirable: 1.0 }, x, &[0]))
}

fn distillation(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = cx.classes();
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::normal(cx, dt, &s)?), None, None];
    let mut case = RowCase::new(RowLoss::Distillation { temperature: 2.0, alpha: 0.5 }, x, &[0]);
    case.ids = Some(Shaped::ids(cx, s[1], &s[..1])?);
    Ok(case)
}

/// Thresholds that all rows share.
fn ordinal(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let (n, levels) = (cx.n() / 16, 8);
    let x = [None, Some(Shaped::normal(cx, dt, &[n])?), Some(Shaped::normal(cx, dt, &[levels])?), None];
    let mut case = RowCase::new(RowLoss::Ordinal, x, &[1, 2]);
    case.ids = Some(Shaped::ids(cx, levels + 1, &[n])?);
    Ok(case)
}

/// A few long rows.
fn dice(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = [4, cx.n() / 4];
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None, None];
    let kind = RowLoss::Dice { smooth: 1.0, squared: false, from_logits: true, per_channel: false };
    Ok(RowCase::new(kind, x, &[0]))
}

fn boxes(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = [cx.n() / 4, 4];
    let x = [Some(Shaped::positive(cx, dt, &s)?), Some(Shaped::normal(cx, dt, &s)?), None, None];
    Ok(RowCase::new(RowLoss::Boxes { overlap: BoxOverlap::Ciou, eps: 1e-7 }, x, &[0]))
}

fn patches(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let [n, e] = cx.rows();
    let s = [4, n / 4, e];
    let x = [Some(Shaped::normal(cx, dt, &s)?), Some(Shaped::positive(cx, dt, &s)?), None, None];
    let mut case = RowCase::new(RowLoss::Patches { normalize: true }, x, &[0]);
    case.mask = Some(Shaped { data: cx.mask(s[0] * s[1])?, shape: s[..2].to_vec() });
    Ok(case)
}

/// An item per element.
fn gaussian_nll(cx: &Context<'_>, dt: DType) -> Result<RowCase> {
    let s = [cx.n()];
    let x = [
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::normal(cx, dt, &s)?),
        Some(Shaped::positive(cx, dt, &s)?),
        None,
    ];
    Ok(RowCase::new(RowLoss::GaussianNll { full: false, eps: 1e-6 }, x, &[0, 2]))
}

pub(crate) const ROWS: &[Problem] = &[
    problem("row_loss", "triplet", F32_BF16, |cx, dt| row_fwd(cx, dt, triplet(cx, dt)?)),
    problem("row_loss", "kl", F32_BF16, |cx, dt| row_fwd(cx, dt, kl(cx, dt)?)),
    problem("row_loss", "nll_weighted", F32, |cx, dt| row_fwd(cx, dt, nll(cx, dt)?)),
    problem("row_loss", "multiclass_focal", F32, |cx, dt| row_fwd(cx, dt, focal(cx, dt)?)),
    problem("row_loss", "distillation", F32, |cx, dt| row_fwd(cx, dt, distillation(cx, dt)?)),
    problem("row_loss", "ordinal_thresholds", F32, |cx, dt| row_fwd(cx, dt, ordinal(cx, dt)?)),
    problem("row_loss", "dice_long_rows", F32_BF16, |cx, dt| row_fwd(cx, dt, dice(cx, dt)?)),
    problem("row_loss", "boxes_ciou", F32, |cx, dt| row_fwd(cx, dt, boxes(cx, dt)?)),
    problem("row_loss", "patches_masked", F32, |cx, dt| row_fwd(cx, dt, patches(cx, dt)?)),
    problem("row_loss", "gaussian_nll", F32, |cx, dt| row_fwd(cx, dt, gaussian_nll(cx, dt)?)),
    problem("row_loss", "gaussian_nll_none", F32, |cx, dt| {
        row_each(cx, dt, gaussian_nll(cx, dt)?, &[cx.n()])
    }),
    problem("row_loss", "circle", F32_BF16, |cx, dt| row_fwd(cx, dt, circle(cx, dt)?)),
    problem("row_loss", "kto", F32, |cx, dt| row_fwd(cx, dt, kto(cx, dt)?)),
    problem("row_loss_bwd", "circle", F32_BF16, |cx, dt| row_bwd(cx, dt, circle(cx, dt)?)),
    problem("row_loss_bwd", "kto", F32, |cx, dt| row_bwd(cx, dt, kto(cx, dt)?)),
    problem("row_loss_bwd", "triplet", F32_BF16, |cx, dt| row_bwd(cx, dt, triplet(cx, dt)?)),
    problem("row_loss_bwd", "kl", F32_BF16, |cx, dt| row_bwd(cx, dt, kl(cx, dt)?)),
    problem("row_loss_bwd", "nll_weighted", F32, |cx, dt| row_bwd(cx, dt, nll(cx, dt)?)),
    problem("row_loss_bwd", "multiclass_focal", F32, |cx, dt| row_bwd(cx, dt, focal(cx, dt)?)),
    problem("row_loss_bwd", "distillation", F32, |cx, dt| row_bwd(cx, dt, distillation(cx, dt)?)),
    problem("row_loss_bwd", "ordinal_thresholds", F32, |cx, dt| row_bwd(cx, dt, ordinal(cx, dt)?)),
    problem("row_loss_bwd", "dice_long_rows", F32_BF16, |cx, dt| row_bwd(cx, dt, dice(cx, dt)?)),
    problem("row_loss_bwd", "boxes_ciou", F32, |cx, dt| row_bwd(cx, dt, boxes(cx, dt)?)),
    problem("row_loss_bwd", "patches_masked", F32, |cx, dt| row_bwd(cx, dt, patches(cx, dt)?)),
    problem("row_loss_bwd", "gaussian_nll", F32, |cx, dt| row_bwd(cx, dt, gaussian_nll(cx, dt)?)),
];
