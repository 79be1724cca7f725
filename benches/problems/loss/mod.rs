//! Losses of single elements, cross entropy, lists of losses. Those of rows, of batches and of sequences are in files of their own.

mod batches;
mod operands;
mod rows;
mod sequences;

use trefoil::ops::loss::{
    CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Loss, LossBwd, LossFwd, LossTerm, Reduction,
};
use trefoil::{Buffer, DType, GradMut, Result};

pub(super) use self::batches::BATCHES;
pub(super) use self::rows::ROWS;
pub(super) use self::sequences::SEQUENCES;
use crate::case::{Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Mean squared error of `n` elements.
fn mse(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let k = cx.sets(moved);
    let (p, t) = (cx.normal_sets(dt, n, k)?, cx.normal_sets(dt, n, k)?);
    let mut loss = cx.empty(dt.accumulator(), 1)?;
    prepared(moved, 0, move |g, i| {
        let (p, t) = (p.at(i).view(), t.at(i).view());
        let io = LossFwd::new(p, t, loss.view_mut());
        g.loss(Loss::Mse, Reduction::Mean, io)
    })
}

/// The gradient of [`mse`].
fn mse_bwd(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let k = cx.sets(2 * n * dt.size());
    let (p, t) = (cx.normal_sets(dt, n, k)?, cx.normal_sets(dt, n, k)?);
    let (gy, mut dp) = (cx.positive(dt.accumulator(), 1)?, cx.empty(dt, n)?);
    prepared(3 * n * dt.size(), 0, move |g, i| {
        let (p, t, dp) = (p.at(i).view(), t.at(i).view(), Some(dp.view_mut().into()));
        let io = LossBwd::new(gy.view(), p, t).dp(dp);
        g.loss_bwd(Loss::Mse, Reduction::Mean, io)
    })
}

/// Shapes of logits and of class ids: rows, or samples with `inner` positions.
fn logits([r, c]: [usize; 2], inner: usize) -> [Vec<usize>; 2] {
    match inner {
        1 => [vec![r, c], vec![r]],
        s => [vec![r.div_ceil(s), c, s], vec![r.div_ceil(s), s]],
    }
}

fn cross_entropy(cx: &Context<'_>, dt: DType, size: [usize; 2], inner: usize) -> Result<Prepared> {
    let ([shape, positions], acc) = (logits(size, inner), dt.accumulator());
    let n: usize = positions.iter().product();
    let moved = n * size[1] * dt.size();
    let x = cx.normal_sets(dt, n * size[1], cx.sets(moved))?;
    let (ids, mut loss) = (cx.ids(n, size[1])?, cx.empty(acc, 1)?);
    let (mut lse, mut den) = (cx.empty(acc, n)?, cx.empty(acc, 1)?);
    prepared(moved, 0, move |g, i| {
        let io = CrossEntropyFwd::new(x.at(i).shaped(&shape)?, ids.shaped(&positions)?, loss.view_mut())
            .lse(lse.shaped_mut(&positions)?)
            .den(den.view_mut());
        g.cross_entropy(&CrossEntropy::new(), io)
    })
}

/// The gradient of [`cross_entropy`].
fn cross_entropy_bwd(cx: &Context<'_>, dt: DType, size: [usize; 2], inner: usize) -> Result<Prepared> {
    let ([shape, positions], acc) = (logits(size, inner), dt.accumulator());
    let n: usize = positions.iter().product();
    let tensor = n * size[1] * dt.size();
    let x = cx.normal_sets(dt, n * size[1], cx.sets(tensor))?;
    let (ids, mut dx) = (cx.ids(n, size[1])?, cx.empty(dt, n * size[1])?);
    let (lse, den, gy) = (cx.positive(acc, n)?, cx.positive(acc, 1)?, cx.positive(acc, 1)?);
    prepared(2 * tensor, 0, move |g, i| {
        let io = CrossEntropyBwd::new(
            gy.view(),
            x.at(i).shaped(&shape)?,
            ids.shaped(&positions)?,
            lse.shaped(&positions)?,
            dx.shaped_mut(&shape)?.into(),
        )
        .den(den.view());
        g.cross_entropy_bwd(&CrossEntropy::new(), io)
    })
}

/// Feature maps of falling size, as a perceptual loss compares them.
fn maps(cx: &Context<'_>, dtype: DType) -> Result<Vec<[Buffer; 2]>> {
    (1..5).map(|i| cx.n() >> i).map(|n| Ok([cx.normal(dtype, n)?, cx.positive(dtype, n)?])).collect()
}

fn terms(maps: &[[Buffer; 2]]) -> Vec<LossTerm<'_>> {
    maps.iter().map(|[p, t]| LossTerm::new(p.view()).t(t.view()).weight(0.25)).collect()
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("loss", "mse_mean", F32_BF16, |cx, dt| mse(cx, dt, cx.n())),
    problem("loss", "mse_none", F32, |cx, dt| {
        let n = cx.n();
        let (p, t, mut loss) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let io = LossFwd::new(p.view(), t.view(), loss.view_mut());
            g.loss(Loss::Mse, Reduction::None, io)
        })
    }),
    problem("loss", "mse_masked_mean", F32, |cx, dt| {
        let n = cx.n();
        let (p, t, m, mut loss) =
            (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.mask(n)?, cx.empty(dt.accumulator(), 1)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            let io = LossFwd::new(p.view(), t.view(), loss.view_mut()).mask(m.view());
            g.loss(Loss::Mse, Reduction::Mean, io)
        })
    }),
    problem("loss_bwd", "mse_mean", F32_BF16, |cx, dt| mse_bwd(cx, dt, cx.n())),
    problem("loss_bwd", "mse_masked_mean", F32, |cx, dt| {
        let n = cx.n();
        let (p, t, gy, m) =
            (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.positive(dt.accumulator(), 1)?, cx.mask(n)?);
        let mut dp = cx.empty(dt, n)?;
        bytes(n * (3 * dt.size() + 1), move |g| {
            let (p, t, dp) = (p.view(), t.view(), Some(dp.view_mut().into()));
            let io = LossBwd::new(gy.view(), p, t).mask(m.view()).dp(dp);
            g.loss_bwd(Loss::Mse, Reduction::Mean, io)
        })
    }),
    problem("cross_entropy", "ids", F32_BF16, |cx, dt| cross_entropy(cx, dt, cx.classes(), 1)),
    problem("cross_entropy", "ids_positions", F32, |cx, dt| cross_entropy(cx, dt, cx.classes(), 8)),
    problem("cross_entropy", "probabilities", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let (x, t, mut loss) =
            (cx.normal(dt, r * c)?, cx.positive(dt, r * c)?, cx.empty(dt.accumulator(), 1)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let (x, target, loss) = (x.shaped(&[r, c])?, t.shaped(&[r, c])?, loss.view_mut());
            g.cross_entropy(&CrossEntropy::new(), CrossEntropyFwd::new(x, target, loss))
        })
    }),
    problem("cross_entropy", "ids_weighted_smooth", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let (x, t, w, mut loss) =
            (cx.normal(dt, r * c)?, cx.ids(r, c)?, cx.positive(dt, c)?, cx.empty(dt.accumulator(), 1)?);
        bytes(r * c * dt.size(), move |g| {
            let (x, loss) = (x.shaped(&[r, c])?, loss.view_mut());
            let io = CrossEntropyFwd::new(x, t.view(), loss).weight(w.view());
            g.cross_entropy(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    problem("cross_entropy_bwd", "ids", F32_BF16, |cx, dt| cross_entropy_bwd(cx, dt, cx.classes(), 1)),
    problem("cross_entropy_bwd", "ids_positions", F32, |cx, dt| cross_entropy_bwd(cx, dt, cx.classes(), 8)),
    problem("cross_entropy_bwd", "ids_weighted_smooth", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let acc = dt.accumulator();
        let (x, t, gy, lse) =
            (cx.normal(dt, r * c)?, cx.ids(r, c)?, cx.positive(acc, 1)?, cx.positive(acc, r)?);
        let (den, w, mut dx) = (cx.positive(acc, 1)?, cx.positive(dt, c)?, cx.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let io = CrossEntropyBwd::new(
                gy.view(),
                x.shaped(&[r, c])?,
                t.view(),
                lse.view(),
                dx.shaped_mut(&[r, c])?.into(),
            )
            .weight(w.view())
            .den(den.view());
            g.cross_entropy_bwd(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    problem("cross_entropy_bwd", "probabilities", F32, |cx, dt| {
        let [r, c] = cx.classes();
        let acc = dt.accumulator();
        let (x, t, gy, lse) =
            (cx.normal(dt, r * c)?, cx.positive(dt, r * c)?, cx.positive(acc, 1)?, cx.positive(acc, r)?);
        let (den, w, mut dx) = (cx.positive(acc, 1)?, cx.positive(dt, c)?, cx.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            let io = CrossEntropyBwd::new(
                gy.view(),
                x.shaped(&[r, c])?,
                t.shaped(&[r, c])?,
                lse.view(),
                dx.shaped_mut(&[r, c])?.into(),
            )
            .weight(w.view())
            .den(den.view());
            g.cross_entropy_bwd(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    problem("loss_list", "mse", F32_BF16, |cx, dt| {
        let (maps, mut loss) = (maps(cx, dt)?, cx.empty(dt.accumulator(), 1)?);
        let n: usize = maps.iter().map(|[p, _]| p.len()).sum();
        bytes(2 * n * dt.size(), move |g| g.loss_list(Loss::Mse, &terms(&maps), loss.view_mut()))
    }),
    problem("loss_list_bwd", "mse", F32_BF16, |cx, dt| {
        let (maps, gy) = (maps(cx, dt)?, cx.positive(dt.accumulator(), 1)?);
        let n: usize = maps.iter().map(|[p, _]| p.len()).sum();
        let mut dp: Vec<Buffer> = maps.iter().map(|[p, _]| cx.empty(dt, p.len())).collect::<Result<_>>()?;
        bytes(3 * n * dt.size(), move |g| {
            let mut dp: Vec<GradMut<'_>> = dp.iter_mut().map(|d| d.view_mut().into()).collect();
            g.loss_list_bwd(Loss::Mse, gy.view(), &terms(&maps), &mut dp)
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[
    both(
        "mse",
        |cx, c| Ok(mse(cx, c.dtype()?, c.size("n")?)?),
        |cx, c| Ok(mse_bwd(cx, c.dtype()?, c.size("n")?)?),
    ),
    both(
        "cross_entropy",
        |cx, c| Ok(cross_entropy(cx, c.dtype()?, c.sizes(["rows", "cols"])?, 1)?),
        |cx, c| Ok(cross_entropy_bwd(cx, c.dtype()?, c.sizes(["rows", "cols"])?, 1)?),
    ),
];
