//! Normalization.

use trefoil::ops::activation::Activation;
use trefoil::ops::norm::{
    BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, GroupNorm, GroupNormBwd, GroupNormFwd, InstanceNorm,
    Momentum, RowNorm, RowNormBwd, RowNormFwd, Running,
};
use trefoil::{Buffer, DType, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Images, channels and positions of a training step.
pub(crate) fn images(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(2, 4, 64), cx.pick(8, 16, 256), cx.pick(49, 196, 3136)]
}

/// Scale and shift of `n` features, and room for the statistics of `stats` groups: gamma, beta, mean, rstd.
fn affine(cx: &Context<'_>, dt: DType, n: usize, stats: usize) -> Result<[Buffer; 4]> {
    let acc = dt.accumulator();
    Ok([cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(acc, stats)?, cx.empty(acc, stats)?])
}

/// Layer or RMS norm with everything that training saves.
fn row_norm(cx: &Context<'_>, dt: DType, p: RowNorm, [r, c]: [usize; 2]) -> Result<Prepared> {
    let moved = 2 * r * c * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, r * c, cx.sets(moved))?, cx.empty(dt, r * c)?);
    let [gamma, beta, mut mean, mut rstd] = affine(cx, dt, c, r)?;
    prepared(moved, 0, move |g, i| {
        let mut io = RowNormFwd::new(x.at(i).shaped(&[r, c])?, y.shaped_mut(&[r, c])?);
        io.gamma = Some(gamma.view());
        if !p.rms {
            (io.beta, io.mean) = (Some(beta.view()), Some(mean.view_mut()));
        }
        io.rstd = Some(rstd.view_mut());
        g.row_norm(&p, io)
    })
}

/// All gradients of [`row_norm`].
fn row_norm_bwd(cx: &Context<'_>, dt: DType, p: RowNorm, [r, c]: [usize; 2]) -> Result<Prepared> {
    let k = cx.sets(2 * r * c * dt.size());
    let (x, dy) = (cx.normal_sets(dt, r * c, k)?, cx.normal_sets(dt, r * c, k)?);
    let (gamma, acc) = (cx.normal(dt, c)?, dt.accumulator());
    let (mean, rstd) = (cx.normal(acc, r)?, cx.positive(acc, r)?);
    let (mut dx, mut dg, mut db) = (cx.empty(dt, r * c)?, cx.empty(dt, c)?, cx.empty(dt, c)?);
    prepared(3 * r * c * dt.size(), 0, move |g, i| {
        let (dy, x) = (dy.at(i).shaped(&[r, c])?, x.at(i).shaped(&[r, c])?);
        let saved = if p.rms { None } else { Some(mean.view()) };
        let mut io = RowNormBwd::new(dy, x, rstd.view()).mean(saved);
        io.gamma = Some(gamma.view());
        (io.dx, io.dgamma) = (Some(dx.shaped_mut(&[r, c])?.into()), Some(dg.view_mut().into()));
        if !p.rms {
            io.dbeta = Some(db.view_mut().into());
        }
        g.row_norm_bwd(&p, io)
    })
}

/// Batch norm of a training step: statistics of the batch, running ones updated.
fn batch_norm(cx: &Context<'_>, dt: DType, s: [usize; 3]) -> Result<Prepared> {
    let (c, n) = (s[1], s.iter().product::<usize>());
    let tensor = n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(2 * tensor))?, cx.empty(dt, n)?);
    let [gamma, beta, mut mean, mut rstd] = affine(cx, dt, c, c)?;
    let (mut rm, mut rv) = (cx.normal(dt.accumulator(), c)?, cx.positive(dt.accumulator(), c)?);
    prepared(3 * tensor, 0, move |g, i| {
        let momentum = Momentum::Factor(0.1);
        let stats = BatchStats::Batch(Some(Running::new(rm.view_mut(), rv.view_mut(), momentum)));
        let mut io = BatchNormFwd::new(x.at(i).shaped(&s)?, stats, y.shaped_mut(&s)?);
        (io.gamma, io.beta) = (Some(gamma.view()), Some(beta.view()));
        (io.mean, io.rstd) = (Some(mean.view_mut()), Some(rstd.view_mut()));
        g.batch_norm(&BatchNorm::new(), io)
    })
}

/// Channels-last images of 28 x 28 as [N * S, C, 1].
fn rows_of_channels(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(64, 512, 64 * 28 * 28), cx.pick(16, 32, 512), 1]
}

/// Rows of channels that do not consist of whole 16-byte items.
fn rows_of_odd_channels(cx: &Context<'_>) -> [usize; 3] {
    let [n, c, s] = rows_of_channels(cx);
    [n, c - 3, s]
}

/// Rows of fewer channels than a 16-byte item has elements.
fn rows_of_few_channels(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(64, 512, 1 << 22), 3, 1]
}

/// All gradients of [`batch_norm`].
fn batch_norm_bwd(cx: &Context<'_>, dt: DType, s: [usize; 3]) -> Result<Prepared> {
    let (c, n) = (s[1], s.iter().product::<usize>());
    let tensor = n * dt.size();
    let k = cx.sets(2 * tensor);
    let (x, dy, mut dx) = (cx.normal_sets(dt, n, k)?, cx.normal_sets(dt, n, k)?, cx.empty(dt, n)?);
    let (mean, rstd) = (cx.normal(dt.accumulator(), c)?, cx.positive(dt.accumulator(), c)?);
    let (gamma, mut dg, mut db) = (cx.normal(dt, c)?, cx.empty(dt, c)?, cx.empty(dt, c)?);
    prepared(5 * tensor, 0, move |g, i| {
        let (dy, x) = (dy.at(i).shaped(&s)?, x.at(i).shaped(&s)?);
        let mut io = BatchNormBwd::new(dy, x, mean.view(), rstd.view());
        io.gamma = Some(gamma.view());
        io.dx = Some(dx.shaped_mut(&s)?.into());
        (io.dgamma, io.dbeta) = (Some(dg.view_mut().into()), Some(db.view_mut().into()));
        g.batch_norm_bwd(&BatchNorm::new(), io)
    })
}

/// Group norm with everything that training saves.
fn group_norm(cx: &Context<'_>, dt: DType, groups: usize, s: [usize; 3]) -> Result<Prepared> {
    let (stats, n) = ([s[0], groups], s.iter().product::<usize>());
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    let [gamma, beta, mut mean, mut rstd] = affine(cx, dt, s[1], s[0] * groups)?;
    prepared(moved, 0, move |g, i| {
        let mut io = GroupNormFwd::new(x.at(i).shaped(&s)?, y.shaped_mut(&s)?);
        (io.gamma, io.beta) = (Some(gamma.view()), Some(beta.view()));
        (io.mean, io.rstd) = (Some(mean.shaped_mut(&stats)?), Some(rstd.shaped_mut(&stats)?));
        g.group_norm(&GroupNorm::new(groups), io)
    })
}

/// All gradients of [`group_norm`].
fn group_norm_bwd(cx: &Context<'_>, dt: DType, groups: usize, s: [usize; 3]) -> Result<Prepared> {
    let (c, stats, n) = (s[1], [s[0], groups], s.iter().product::<usize>());
    let k = cx.sets(2 * n * dt.size());
    let (x, dy, mut dx) = (cx.normal_sets(dt, n, k)?, cx.normal_sets(dt, n, k)?, cx.empty(dt, n)?);
    let acc = dt.accumulator();
    let (mean, rstd) = (cx.normal(acc, s[0] * groups)?, cx.positive(acc, s[0] * groups)?);
    let (gamma, mut dg, mut db) = (cx.normal(dt, c)?, cx.empty(dt, c)?, cx.empty(dt, c)?);
    prepared(3 * n * dt.size(), 0, move |g, i| {
        let (dy, x) = (dy.at(i).shaped(&s)?, x.at(i).shaped(&s)?);
        let mut io = GroupNormBwd::new(dy, x, mean.shaped(&stats)?, rstd.shaped(&stats)?);
        io.gamma = Some(gamma.view());
        io.dx = Some(dx.shaped_mut(&s)?.into());
        (io.dgamma, io.dbeta) = (Some(dg.view_mut().into()), Some(db.view_mut().into()));
        g.group_norm_bwd(&GroupNorm::new(groups), io)
    })
}

/// Groups of eight channels.
fn groups(cx: &Context<'_>) -> usize {
    (images(cx)[1] / 8).max(1)
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("row_norm", "layer", F32_BF16, |cx, dt| row_norm(cx, dt, RowNorm::layer(), cx.rows())),
    problem("row_norm_bwd", "layer", F32_BF16, |cx, dt| row_norm_bwd(cx, dt, RowNorm::layer(), cx.rows())),
    problem("row_norm", "rms", F32, |cx, dt| row_norm(cx, dt, RowNorm::rms(), cx.rows())),
    problem("row_norm_bwd", "rms", F32, |cx, dt| row_norm_bwd(cx, dt, RowNorm::rms(), cx.rows())),
    problem("row_norm", "rms_residual", F32_BF16, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, res, gamma) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.positive(dt, k)?);
        let (mut y, mut sum) = (cx.empty(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(4 * r * k * dt.size(), move |g| {
            let mut io = RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?);
            (io.gamma, io.residual) = (Some(gamma.view()), Some(res.shaped(&[r, k])?));
            io.sum = Some(sum.shaped_mut(&[r, k])?);
            g.row_norm(&RowNorm::rms(), io)
        })
    }),
    problem("row_norm", "layer_8192", F32, |cx, dt| {
        let (r, k) = (cx.pick(2, 64, 8192), 8192);
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            let io = RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?);
            g.row_norm(&RowNorm::layer(), io)
        })
    }),
    problem("row_norm", "long", F32, |cx, dt| {
        let [r, k] = [cx.pick(2, 8, 2_048), 16_384];
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.row_norm(&RowNorm::rms(), RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?))
        })
    }),
    problem("row_norm_bwd", "rms_8192", F32, |cx, dt| {
        let [r, k] = [cx.pick(2, 8, 8_192), 8_192];
        let (dy, x, rstd) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.positive(dt, r)?);
        let (mut dx, mut dg) = (cx.empty(dt, r * k)?, cx.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let mut io = RowNormBwd::new(dy.shaped(&[r, k])?, x.shaped(&[r, k])?, rstd.view());
            (io.dx, io.dgamma) = (Some(dx.shaped_mut(&[r, k])?.into()), Some(dg.view_mut().into()));
            g.row_norm_bwd(&RowNorm::rms(), io)
        })
    }),
    problem("group_norm", "32_groups", F32, |cx, dt| group_norm(cx, dt, groups(cx), images(cx))),
    problem("group_norm_bwd", "32_groups", F32, |cx, dt| group_norm_bwd(cx, dt, groups(cx), images(cx))),
    problem("group_norm", "32_groups_swish", F32_BF16, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let p = GroupNorm::new((c / 8).max(1)).act(Activation::Swish { beta: 1.0 });
            g.group_norm(&p, GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?))
        })
    }),
    problem("group_norm", "large_groups", F32, |cx, dt| {
        // Groups beyond the registers, which are read again from a cache.
        let [n, c, s] = [cx.rows()[0].max(4), 16, 2048];
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            g.group_norm(
                &GroupNorm::new(2),
                GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?),
            )
        })
    }),
    problem("instance_norm", "plain", F32, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let io = GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?);
            g.instance_norm(&InstanceNorm::new(), io)
        })
    }),
    problem("instance_norm", "running", F32, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        let (mut m, mut v) = (cx.zeros(dt, c)?, cx.zeros(dt, c)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let mut io = GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?);
            let momentum = Momentum::Factor(0.1);
            io.running = Some(Running::new(m.view_mut(), v.view_mut(), momentum));
            g.instance_norm(&InstanceNorm::new(), io)
        })
    }),
    problem("batch_norm", "training", F32, |cx, dt| batch_norm(cx, dt, images(cx))),
    problem("batch_norm_bwd", "training", F32, |cx, dt| batch_norm_bwd(cx, dt, images(cx))),
    problem("batch_norm", "channels_last", F32_BF16, |cx, dt| batch_norm(cx, dt, rows_of_channels(cx))),
    problem("batch_norm_bwd", "channels_last", F32_BF16, |cx, dt| {
        batch_norm_bwd(cx, dt, rows_of_channels(cx))
    }),
    problem("batch_norm", "odd_channels", F32, |cx, dt| batch_norm(cx, dt, rows_of_odd_channels(cx))),
    problem("batch_norm_bwd", "odd_channels", F32, |cx, dt| batch_norm_bwd(cx, dt, rows_of_odd_channels(cx))),
    problem("batch_norm", "few_channels", F32, |cx, dt| batch_norm(cx, dt, rows_of_few_channels(cx))),
    problem("batch_norm_bwd", "few_channels", F32, |cx, dt| batch_norm_bwd(cx, dt, rows_of_few_channels(cx))),
    problem("batch_norm", "training_relu", F32_BF16, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        let (mut m, mut v) = (cx.zeros(dt.accumulator(), c)?, cx.zeros(dt.accumulator(), c)?);
        bytes(3 * n * c * s * dt.size(), move |g| {
            let momentum = Momentum::Factor(0.1);
            let running = Running::new(m.view_mut(), v.view_mut(), momentum);
            let stats = BatchStats::Batch(Some(running));
            let io = BatchNormFwd::new(x.shaped(&[n, c, s])?, stats, y.shaped_mut(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new().act(Activation::Relu), io)
        })
    }),
    problem("batch_norm", "residual_relu", F32, |cx, dt| {
        let [n, c, _] = images(cx);
        let s = cx.pick(48, 196, 3136);
        let (x, res, mut y) =
            (cx.normal(dt, n * c * s)?, cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        bytes(4 * n * c * s * dt.size(), move |g| {
            let y = y.shaped_mut(&[n, c, s])?;
            let mut io = BatchNormFwd::new(x.shaped(&[n, c, s])?, BatchStats::Batch(None), y);
            io.residual = Some(res.shaped(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new().act(Activation::Relu), io)
        })
    }),
    problem("batch_norm", "features_counted", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        let (mut m, mut v, mut count) =
            (cx.zeros(dt, k)?, cx.zeros(dt, k)?, cx.zeros(trefoil::DType::I64, 1)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let momentum = Momentum::Cumulative(count.view_mut());
            let running = Running::new(m.view_mut(), v.view_mut(), momentum);
            let stats = BatchStats::Batch(Some(running));
            let io = BatchNormFwd::new(x.shaped(&[r, k])?, stats, y.shaped_mut(&[r, k])?);
            g.batch_norm(&BatchNorm::new(), io)
        })
    }),
    problem("batch_norm", "inference", F32, |cx, dt| {
        let [n, c, s] = images(cx);
        let (x, mut y) = (cx.normal(dt, n * c * s)?, cx.empty(dt, n * c * s)?);
        let (m, v) = (cx.normal(dt, c)?, cx.positive(dt, c)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let stats = BatchStats::Given { mean: m.view(), var: v.view() };
            let io = BatchNormFwd::new(x.shaped(&[n, c, s])?, stats, y.shaped_mut(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new(), io)
        })
    }),
    problem("batch_norm_bwd", "features", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (dy, x, mut dx) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        let (mean, rstd) = (cx.normal(dt, k)?, cx.positive(dt, k)?);
        bytes(5 * r * k * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[r, k])?, x.shaped(&[r, k])?);
            let mut io = BatchNormBwd::new(dy, x, mean.view(), rstd.view());
            io.dx = Some(dx.shaped_mut(&[r, k])?.into());
            g.batch_norm_bwd(&BatchNorm::new(), io)
        })
    }),
    problem("l2_normalize", "rows", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.l2_normalize(1, 1e-12, x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?)
        })
    }),
    problem("l2_normalize", "odd_rows", F32, |cx, dt| {
        let [r, k] = cx.rows().map(|n| n + 1);
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.l2_normalize(1, 1e-12, x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?)
        })
    }),
    problem("l2_normalize", "columns", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (x, mut y) = (cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.l2_normalize(0, 1e-12, x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?)
        })
    }),
    problem("l2_normalize_bwd", "odd_rows", F32, |cx, dt| {
        let [r, k] = cx.rows().map(|n| n + 1);
        let (dy, x, mut dx) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let out = dx.shaped_mut(&[r, k])?.into();
            g.l2_normalize_bwd(1, 1e-12, dy.shaped(&[r, k])?, x.shaped(&[r, k])?, out)
        })
    }),
    problem("l2_normalize_bwd", "rows", F32, |cx, dt| {
        let [r, k] = cx.rows();
        let (dy, x, mut dx) = (cx.normal(dt, r * k)?, cx.normal(dt, r * k)?, cx.empty(dt, r * k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let out = dx.shaped_mut(&[r, k])?.into();
            g.l2_normalize_bwd(1, 1e-12, dy.shaped(&[r, k])?, x.shaped(&[r, k])?, out)
        })
    }),
];

/// Images of a case: their number, channels and positions.
fn images_of(c: &Case) -> Result<[usize; 3], CaseError> {
    let [n, channels, h, w] = c.sizes(["n", "c", "h", "w"])?;
    Ok([n, channels, h * w])
}

pub(super) const OPERATIONS: &[Operation] = &[
    both(
        "layernorm",
        |cx, c| Ok(row_norm(cx, c.dtype()?, RowNorm::layer(), c.sizes(["rows", "cols"])?)?),
        |cx, c| Ok(row_norm_bwd(cx, c.dtype()?, RowNorm::layer(), c.sizes(["rows", "cols"])?)?),
    ),
    both(
        "rmsnorm",
        |cx, c| Ok(row_norm(cx, c.dtype()?, RowNorm::rms(), c.sizes(["rows", "cols"])?)?),
        |cx, c| Ok(row_norm_bwd(cx, c.dtype()?, RowNorm::rms(), c.sizes(["rows", "cols"])?)?),
    ),
    both(
        "batchnorm",
        |cx, c| Ok(batch_norm(cx, c.dtype()?, images_of(c)?)?),
        |cx, c| Ok(batch_norm_bwd(cx, c.dtype()?, images_of(c)?)?),
    ),
    both(
        "groupnorm",
        |cx, c| Ok(group_norm(cx, c.dtype()?, c.size("groups")?, images_of(c)?)?),
        |cx, c| Ok(group_norm_bwd(cx, c.dtype()?, c.size("groups")?, images_of(c)?)?),
    ),
];
