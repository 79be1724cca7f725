//! Normalization, gated units, masked softmax, bias with dropout.

use trefoil::ops::*;

use super::{Bed, F32, F32_BF16, Row, bytes, row};

/// Shape of the images of a training step.
fn images(b: &Bed<'_>) -> [usize; 3] {
    [b.pick(2, 4, 64), b.pick(8, 16, 256), b.pick(49, 196, 3136)]
}

pub(super) const ROWS: &[Row] = &[
    row("row_norm", "layer", F32_BF16, |b, dt| {
        let [r, k] = b.rows();
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        let (gamma, beta) = (b.positive(dt, k)?, b.normal(dt, k)?);
        let (mut mean, mut rstd) = (b.empty(dt.accumulator(), r)?, b.empty(dt.accumulator(), r)?);
        bytes(2 * r * k * dt.size(), move |g| {
            let mut io = RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?);
            (io.gamma, io.beta) = (Some(gamma.view()), Some(beta.view()));
            (io.mean, io.rstd) = (Some(mean.view_mut()), Some(rstd.view_mut()));
            g.row_norm(&RowNorm::layer(), io)
        })
    }),
    row("row_norm", "rms_residual", F32_BF16, |b, dt| {
        let [r, k] = b.rows();
        let (x, res, gamma) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.positive(dt, k)?);
        let (mut y, mut sum) = (b.empty(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(4 * r * k * dt.size(), move |g| {
            let mut io = RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?);
            (io.gamma, io.residual) = (Some(gamma.view()), Some(res.shaped(&[r, k])?));
            io.sum = Some(sum.shaped_mut(&[r, k])?);
            g.row_norm(&RowNorm::rms(), io)
        })
    }),
    row("row_norm_bwd", "layer", F32_BF16, |b, dt| {
        let [r, k] = b.rows();
        let (dy, x, gamma) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.positive(dt, k)?);
        let (mean, rstd) = (b.normal(dt.accumulator(), r)?, b.positive(dt.accumulator(), r)?);
        let (mut dx, mut dg, mut db) = (b.empty(dt, r * k)?, b.empty(dt, k)?, b.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[r, k])?, x.shaped(&[r, k])?);
            let mut io = RowNormBwd::new(dy, x, Some(mean.view()), rstd.view());
            io.gamma = Some(gamma.view());
            io.dx = Some(dx.shaped_mut(&[r, k])?.into());
            (io.dgamma, io.dbeta) = (Some(dg.view_mut().into()), Some(db.view_mut().into()));
            g.row_norm_bwd(&RowNorm::layer(), io)
        })
    }),
    row("group_norm", "32_groups_swish", F32_BF16, |b, dt| {
        let [n, c, s] = images(b);
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let p = GroupNorm::new((c / 8).max(1)).act(Activation::Swish { beta: 1.0 });
            g.group_norm(&p, GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?))
        })
    }),
    row("group_norm", "large_groups", F32, |b, dt| {
        // Groups beyond the registers, which are read again from a cache.
        let [n, c, s] = [b.rows()[0].max(4), 16, 2048];
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            g.group_norm(
                &GroupNorm::new(2),
                GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?),
            )
        })
    }),
    row("group_norm_bwd", "32_groups", F32, |b, dt| {
        let [n, c, s] = images(b);
        let groups = (c / 8).max(1);
        let (dy, x, mut dx) = (b.normal(dt, n * c * s)?, b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        let (mean, rstd) = (b.normal(dt, n * groups)?, b.positive(dt, n * groups)?);
        let (gamma, mut dg, mut db) = (b.positive(dt, c)?, b.empty(dt, c)?, b.empty(dt, c)?);
        bytes(5 * n * c * s * dt.size(), move |g| {
            let stats = [n, groups];
            let (dy, x) = (dy.shaped(&[n, c, s])?, x.shaped(&[n, c, s])?);
            let mut io = GroupNormBwd::new(dy, x, mean.shaped(&stats)?, rstd.shaped(&stats)?);
            io.gamma = Some(gamma.view());
            io.dx = Some(dx.shaped_mut(&[n, c, s])?.into());
            (io.dgamma, io.dbeta) = (Some(dg.view_mut().into()), Some(db.view_mut().into()));
            g.group_norm_bwd(&GroupNorm::new(groups), io)
        })
    }),
    row("instance_norm", "plain", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let io = GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?);
            g.instance_norm(&InstanceNorm::new(), io)
        })
    }),
    row("batch_norm", "training_relu", F32_BF16, |b, dt| {
        let [n, c, s] = images(b);
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        let (mut m, mut v) = (b.zeros(dt.accumulator(), c)?, b.zeros(dt.accumulator(), c)?);
        bytes(3 * n * c * s * dt.size(), move |g| {
            let momentum = Momentum::Factor(0.1);
            let running = Running { mean: m.view_mut(), var: v.view_mut(), momentum };
            let stats = BatchStats::Batch(Some(running));
            let io = BatchNormFwd::new(x.shaped(&[n, c, s])?, stats, y.shaped_mut(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new().act(Activation::Relu), io)
        })
    }),
    row("batch_norm_bwd", "training", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (dy, x, mut dx) = (b.normal(dt, n * c * s)?, b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        let (mean, rstd, gamma) = (b.normal(dt, c)?, b.positive(dt, c)?, b.positive(dt, c)?);
        let (mut dg, mut db) = (b.empty(dt, c)?, b.empty(dt, c)?);
        bytes(5 * n * c * s * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[n, c, s])?, x.shaped(&[n, c, s])?);
            let mut io = BatchNormBwd::new(dy, x, mean.view(), rstd.view());
            io.gamma = Some(gamma.view());
            io.dx = Some(dx.shaped_mut(&[n, c, s])?.into());
            (io.dgamma, io.dbeta) = (Some(dg.view_mut().into()), Some(db.view_mut().into()));
            g.batch_norm_bwd(&BatchNorm::new(), io)
        })
    }),
    row("l2_normalize", "rows", F32, |b, dt| {
        let [r, k] = b.rows();
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.l2_normalize(1, 1e-12, x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?)
        })
    }),
    row("l2_normalize_bwd", "rows", F32, |b, dt| {
        let [r, k] = b.rows();
        let (dy, x, mut dx) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let out = dx.shaped_mut(&[r, k])?.into();
            g.l2_normalize_bwd(1, 1e-12, dy.shaped(&[r, k])?, x.shaped(&[r, k])?, out)
        })
    }),
    row("gated", "swiglu", F32_BF16, |b, dt| {
        let n = b.n();
        let (gate, up, mut y) = (b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let input = GatedInput::Two { gate: gate.view(), up: up.view() };
            g.gated(Activation::Swish { beta: 1.0 }, input, y.view_mut())
        })
    }),
    row("gated_bwd", "swiglu", F32_BF16, |b, dt| {
        let n = b.n();
        let (dy, gate, up) = (b.normal(dt, n)?, b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut dgate, mut dup) = (b.empty(dt, n)?, b.empty(dt, n)?);
        bytes(5 * n * dt.size(), move |g| {
            let input = GatedInput::Two { gate: gate.view(), up: up.view() };
            let grads =
                GatedGrad::Two { gate: Some(dgate.view_mut().into()), up: Some(dup.view_mut().into()) };
            g.gated_bwd(Activation::Swish { beta: 1.0 }, dy.view(), input, grads)
        })
    }),
    row("prelu", "channels", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (x, a, mut y) = (b.normal(dt, n * c * s)?, b.positive(dt, c)?, b.empty(dt, n * c * s)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            g.prelu(x.shaped(&[n, c, s])?, a.view(), y.shaped_mut(&[n, c, s])?)
        })
    }),
    row("prelu_bwd", "channels", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (dy, x, a) = (b.normal(dt, n * c * s)?, b.normal(dt, n * c * s)?, b.positive(dt, c)?);
        let (mut dx, mut da) = (b.empty(dt, n * c * s)?, b.empty(dt, c)?);
        bytes(3 * n * c * s * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[n, c, s])?, x.shaped(&[n, c, s])?);
            let (dx, da) = (dx.shaped_mut(&[n, c, s])?.into(), da.view_mut().into());
            g.prelu_bwd(dy, x, a.view(), Some(dx), Some(da))
        })
    }),
    row("masked_softmax", "rows", F32_BF16, |b, dt| {
        let [r, k] = b.rows();
        let (x, mask, mut y) = (b.normal(dt, r * k)?, b.zeros(dt, k)?, b.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.masked_softmax(0.125, x.shaped(&[r, k])?, Some(mask.view()), y.shaped_mut(&[r, k])?)
        })
    }),
    row("masked_softmax_bwd", "rows", F32, |b, dt| {
        let [r, k] = b.rows();
        let (dy, y, mut dx) = (b.normal(dt, r * k)?, b.positive(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let out = dx.shaped_mut(&[r, k])?.into();
            g.masked_softmax_bwd(0.125, dy.shaped(&[r, k])?, y.shaped(&[r, k])?, out)
        })
    }),
    row("bias_dropout", "residual", F32_BF16, |b, dt| {
        let [r, k] = b.rows();
        let (x, bias, res) = (b.normal(dt, r * k)?, b.normal(dt, k)?, b.normal(dt, r * k)?);
        let mut y = b.empty(dt, r * k)?;
        bytes(3 * r * k * dt.size(), move |g| {
            let io = BiasDropout {
                x: x.shaped(&[r, k])?,
                bias: bias.view(),
                residual: Some(res.shaped(&[r, k])?),
                y: y.shaped_mut(&[r, k])?,
                mask: None,
            };
            g.bias_dropout(0.1, Rng::new(1), io)
        })
    }),
    row("bias_dropout_bwd", "regenerated", F32, |b, dt| {
        let [r, k] = b.rows();
        let (dy, mut dx, mut db) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?, b.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let (out, bias) = (dx.shaped_mut(&[r, k])?.into(), db.view_mut().into());
            let mask = DropoutMask::Regenerate(Rng::new(1));
            g.bias_dropout_bwd(0.1, mask, dy.shaped(&[r, k])?, Some(out), Some(bias))
        })
    }),
    row("row_norm", "layer_8192", F32, |b, dt| {
        let (r, k) = (b.pick(2, 64, 8192), 8192);
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            let io = RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?);
            g.row_norm(&RowNorm::layer(), io)
        })
    }),
    row("batch_norm", "residual_relu", F32, |b, dt| {
        let [n, c, _] = images(b);
        let s = b.pick(48, 196, 3136);
        let (x, res, mut y) = (b.normal(dt, n * c * s)?, b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        bytes(4 * n * c * s * dt.size(), move |g| {
            let y = y.shaped_mut(&[n, c, s])?;
            let mut io = BatchNormFwd::new(x.shaped(&[n, c, s])?, BatchStats::Batch(None), y);
            io.residual = Some(res.shaped(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new().act(Activation::Relu), io)
        })
    }),
    row("row_norm", "long", F32, |b, dt| {
        let [r, k] = [b.pick(2, 8, 2_048), 16_384];
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.row_norm(&RowNorm::rms(), RowNormFwd::new(x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?))
        })
    }),
    row("row_norm_bwd", "rms_8192", F32, |b, dt| {
        let [r, k] = [b.pick(2, 8, 8_192), 8_192];
        let (dy, x, rstd) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.positive(dt, r)?);
        let (mut dx, mut dg) = (b.empty(dt, r * k)?, b.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let mut io = RowNormBwd::new(dy.shaped(&[r, k])?, x.shaped(&[r, k])?, None, rstd.view());
            (io.dx, io.dgamma) = (Some(dx.shaped_mut(&[r, k])?.into()), Some(dg.view_mut().into()));
            g.row_norm_bwd(&RowNorm::rms(), io)
        })
    }),
    row("batch_norm", "features_counted", F32, |b, dt| {
        let [r, k] = b.rows();
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        let (mut m, mut v, mut count) = (b.zeros(dt, k)?, b.zeros(dt, k)?, b.zeros(trefoil::DType::I64, 1)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let momentum = Momentum::Cumulative(count.view_mut());
            let running = Running { mean: m.view_mut(), var: v.view_mut(), momentum };
            let stats = BatchStats::Batch(Some(running));
            let io = BatchNormFwd::new(x.shaped(&[r, k])?, stats, y.shaped_mut(&[r, k])?);
            g.batch_norm(&BatchNorm::new(), io)
        })
    }),
    row("batch_norm", "inference", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        let (m, v) = (b.normal(dt, c)?, b.positive(dt, c)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let stats = BatchStats::Given { mean: m.view(), var: v.view() };
            let io = BatchNormFwd::new(x.shaped(&[n, c, s])?, stats, y.shaped_mut(&[n, c, s])?);
            g.batch_norm(&BatchNorm::new(), io)
        })
    }),
    row("batch_norm_bwd", "features", F32, |b, dt| {
        let [r, k] = b.rows();
        let (dy, x, mut dx) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        let (mean, rstd) = (b.normal(dt, k)?, b.positive(dt, k)?);
        bytes(5 * r * k * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[r, k])?, x.shaped(&[r, k])?);
            let mut io = BatchNormBwd::new(dy, x, mean.view(), rstd.view());
            io.dx = Some(dx.shaped_mut(&[r, k])?.into());
            g.batch_norm_bwd(&BatchNorm::new(), io)
        })
    }),
    row("instance_norm", "running", F32, |b, dt| {
        let [n, c, s] = images(b);
        let (x, mut y) = (b.normal(dt, n * c * s)?, b.empty(dt, n * c * s)?);
        let (mut m, mut v) = (b.zeros(dt, c)?, b.zeros(dt, c)?);
        bytes(2 * n * c * s * dt.size(), move |g| {
            let mut io = GroupNormFwd::new(x.shaped(&[n, c, s])?, y.shaped_mut(&[n, c, s])?);
            let momentum = Momentum::Factor(0.1);
            io.running = Some(Running { mean: m.view_mut(), var: v.view_mut(), momentum });
            g.instance_norm(&InstanceNorm::new(), io)
        })
    }),
    row("l2_normalize", "columns", F32, |b, dt| {
        let [r, k] = b.rows();
        let (x, mut y) = (b.normal(dt, r * k)?, b.empty(dt, r * k)?);
        bytes(2 * r * k * dt.size(), move |g| {
            g.l2_normalize(0, 1e-12, x.shaped(&[r, k])?, y.shaped_mut(&[r, k])?)
        })
    }),
    row("prelu_bwd", "features", F32, |b, dt| {
        let [r, k] = b.rows();
        let (dy, x, a) = (b.normal(dt, r * k)?, b.normal(dt, r * k)?, b.positive(dt, k)?);
        let (mut dx, mut da) = (b.empty(dt, r * k)?, b.empty(dt, k)?);
        bytes(3 * r * k * dt.size(), move |g| {
            let (dy, x) = (dy.shaped(&[r, k])?, x.shaped(&[r, k])?);
            let (dx, da) = (dx.shaped_mut(&[r, k])?.into(), da.view_mut().into());
            g.prelu_bwd(dy, x, a.view(), Some(dx), Some(da))
        })
    }),
];
