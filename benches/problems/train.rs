//! Losses, optimizer steps, clipping.

use trefoil::ops::*;
use trefoil::{BackendExt, Buffer, DType, Result, ViewMut};

use super::{Bed, F32, F32_BF16, Problem, Row, bytes, row};

/// Tensors of a small transformer block: a few large matrices, many short vectors.
fn sizes(b: &Bed<'_>) -> Vec<usize> {
    let s = b.side() / 2;
    (0..24).map(|i| if i % 4 == 0 { s * s } else { s }).collect()
}

fn tensors(b: &Bed<'_>, dtype: DType, zero: bool) -> Result<Vec<Buffer>> {
    sizes(b).into_iter().map(|n| if zero { b.zeros(dtype, n) } else { b.normal(dtype, n) }).collect()
}

fn step(b: &Bed<'_>, dtype: DType, rule: OptimRule, traffic: usize) -> Result<Problem> {
    let total: usize = sizes(b).iter().sum();
    let (mut w, g) = (tensors(b, dtype, false)?, tensors(b, dtype, false)?);
    let count = rule.states().len();
    let state = |i: usize| if i < count { tensors(b, dtype.accumulator(), true) } else { Ok(Vec::new()) };
    let mut states = [state(0)?, state(1)?, state(2)?, state(3)?];
    let mut number = 0;
    bytes(traffic * total * dtype.size(), move |gpu| {
        number += 1;
        let mut states = states.each_mut().map(|s| s.iter_mut());
        let mut slots: Vec<ParamSlot<'_>> = w
            .iter_mut()
            .zip(&g)
            .map(|(w, g)| ParamSlot {
                w: w.view_mut(),
                g: g.view(),
                state: states.each_mut().map(|s| s.next().map(Buffer::view_mut)),
                copy: None,
            })
            .collect();
        gpu.optimizer_step(&rule, &Step::host(RATE, number), &mut slots)
    })
}

fn cross_entropy(
    b: &Bed<'_>,
    dtype: DType,
    inner: usize,
) -> Result<(Vec<usize>, Vec<usize>, Buffer, Buffer)> {
    let [r, c] = b.classes();
    let (shape, positions) = match inner {
        1 => (vec![r, c], vec![r]),
        s => (vec![r.div_ceil(s), c, s], vec![r.div_ceil(s), s]),
    };
    let n: usize = positions.iter().product();
    let (x, t) = (b.normal(dtype, n * c)?, b.ids(n, c)?);
    Ok((shape, positions, x, t))
}

fn xent_forward(b: &Bed<'_>, dtype: DType, inner: usize) -> Result<Problem> {
    let (shape, positions, x, t) = cross_entropy(b, dtype, inner)?;
    let n: usize = positions.iter().product();
    let acc = dtype.accumulator();
    let (mut loss, mut lse, mut den) = (b.empty(acc, 1)?, b.empty(acc, n)?, b.empty(acc, 1)?);
    bytes(x.len() * dtype.size(), move |g| {
        let io = CrossEntropyFwd {
            x: x.shaped(&shape)?,
            target: t.shaped(&positions)?,
            weight: None,
            loss: loss.view_mut(),
            lse: Some(lse.shaped_mut(&positions)?),
            den: Some(den.view_mut()),
        };
        g.cross_entropy(&CrossEntropy::new(), io)
    })
}

fn xent_backward(b: &Bed<'_>, dtype: DType, inner: usize) -> Result<Problem> {
    let (shape, positions, x, t) = cross_entropy(b, dtype, inner)?;
    let n: usize = positions.iter().product();
    let acc = dtype.accumulator();
    let (lse, den, gy) = (b.positive(acc, n)?, b.positive(acc, 1)?, b.positive(acc, 1)?);
    let mut dx = b.empty(dtype, x.len())?;
    bytes(2 * x.len() * dtype.size(), move |g| {
        let io = CrossEntropyBwd {
            gy: gy.view(),
            x: x.shaped(&shape)?,
            target: t.shaped(&positions)?,
            weight: None,
            lse: lse.shaped(&positions)?,
            den: Some(den.view()),
            dx: dx.shaped_mut(&shape)?.into(),
        };
        g.cross_entropy_bwd(&CrossEntropy::new(), io)
    })
}

/// So small that nothing overflows however often a step is run.
const RATE: f64 = 1e-6;
const ADAMW: OptimRule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };

pub(super) const ROWS: &[Row] = &[
    row("loss", "mse_mean", F32_BF16, |b, dt| {
        let n = b.n();
        let (p, t, mut loss) = (b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt.accumulator(), 1)?);
        bytes(2 * n * dt.size(), move |g| {
            let io = LossFwd { p: p.view(), t: t.view(), weight: None, mask: None, loss: loss.view_mut() };
            g.loss(Loss::Mse, Reduction::Mean, io)
        })
    }),
    row("loss", "mse_none", F32, |b, dt| {
        let n = b.n();
        let (p, t, mut loss) = (b.normal(dt, n)?, b.normal(dt, n)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let io = LossFwd { p: p.view(), t: t.view(), weight: None, mask: None, loss: loss.view_mut() };
            g.loss(Loss::Mse, Reduction::None, io)
        })
    }),
    row("loss", "mse_masked_mean", F32, |b, dt| {
        let n = b.n();
        let (p, t, m, mut loss) =
            (b.normal(dt, n)?, b.normal(dt, n)?, b.mask(n)?, b.empty(dt.accumulator(), 1)?);
        bytes(n * (2 * dt.size() + 1), move |g| {
            let io = LossFwd {
                p: p.view(),
                t: t.view(),
                weight: None,
                mask: Some(m.view()),
                loss: loss.view_mut(),
            };
            g.loss(Loss::Mse, Reduction::Mean, io)
        })
    }),
    row("loss_bwd", "mse_mean", F32_BF16, |b, dt| {
        let n = b.n();
        let (p, t, gy, mut dp) =
            (b.normal(dt, n)?, b.normal(dt, n)?, b.positive(dt.accumulator(), 1)?, b.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            let (p, t, dp) = (p.view(), t.view(), Some(dp.view_mut().into()));
            let io = LossBwd { gy: gy.view(), p, t, weight: None, mask: None, dp, dt: None };
            g.loss_bwd(Loss::Mse, Reduction::Mean, io)
        })
    }),
    row("loss_bwd", "mse_masked_mean", F32, |b, dt| {
        let n = b.n();
        let (p, t, gy, m) =
            (b.normal(dt, n)?, b.normal(dt, n)?, b.positive(dt.accumulator(), 1)?, b.mask(n)?);
        let mut dp = b.empty(dt, n)?;
        bytes(n * (3 * dt.size() + 1), move |g| {
            let (p, t, dp) = (p.view(), t.view(), Some(dp.view_mut().into()));
            let io = LossBwd { gy: gy.view(), p, t, weight: None, mask: Some(m.view()), dp, dt: None };
            g.loss_bwd(Loss::Mse, Reduction::Mean, io)
        })
    }),
    row("cross_entropy", "ids", F32_BF16, |b, dt| xent_forward(b, dt, 1)),
    row("cross_entropy", "ids_positions", F32, |b, dt| xent_forward(b, dt, 8)),
    row("cross_entropy", "probabilities", F32, |b, dt| {
        let [r, c] = b.classes();
        let (x, t, mut loss) = (b.normal(dt, r * c)?, b.positive(dt, r * c)?, b.empty(dt.accumulator(), 1)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let (x, target, loss) = (x.shaped(&[r, c])?, t.shaped(&[r, c])?, loss.view_mut());
            g.cross_entropy(
                &CrossEntropy::new(),
                CrossEntropyFwd { x, target, weight: None, loss, lse: None, den: None },
            )
        })
    }),
    row("cross_entropy", "ids_weighted_smooth", F32, |b, dt| {
        let [r, c] = b.classes();
        let (x, t, w, mut loss) =
            (b.normal(dt, r * c)?, b.ids(r, c)?, b.positive(dt, c)?, b.empty(dt.accumulator(), 1)?);
        bytes(r * c * dt.size(), move |g| {
            let (x, loss) = (x.shaped(&[r, c])?, loss.view_mut());
            let io =
                CrossEntropyFwd { x, target: t.view(), weight: Some(w.view()), loss, lse: None, den: None };
            g.cross_entropy(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    row("cross_entropy_bwd", "ids", F32_BF16, |b, dt| xent_backward(b, dt, 1)),
    row("cross_entropy_bwd", "ids_positions", F32, |b, dt| xent_backward(b, dt, 8)),
    row("cross_entropy_bwd", "ids_weighted_smooth", F32, |b, dt| {
        let [r, c] = b.classes();
        let acc = dt.accumulator();
        let (x, t, gy, lse) = (b.normal(dt, r * c)?, b.ids(r, c)?, b.positive(acc, 1)?, b.positive(acc, r)?);
        let (den, w, mut dx) = (b.positive(acc, 1)?, b.positive(dt, c)?, b.empty(dt, r * c)?);
        bytes(2 * r * c * dt.size(), move |g| {
            let io = CrossEntropyBwd {
                gy: gy.view(),
                x: x.shaped(&[r, c])?,
                target: t.view(),
                weight: Some(w.view()),
                lse: lse.view(),
                den: Some(den.view()),
                dx: dx.shaped_mut(&[r, c])?.into(),
            };
            g.cross_entropy_bwd(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    row("cross_entropy_bwd", "probabilities", F32, |b, dt| {
        let [r, c] = b.classes();
        let acc = dt.accumulator();
        let (x, t, gy, lse) =
            (b.normal(dt, r * c)?, b.positive(dt, r * c)?, b.positive(acc, 1)?, b.positive(acc, r)?);
        let (den, w, mut dx) = (b.positive(acc, 1)?, b.positive(dt, c)?, b.empty(dt, r * c)?);
        bytes(3 * r * c * dt.size(), move |g| {
            let io = CrossEntropyBwd {
                gy: gy.view(),
                x: x.shaped(&[r, c])?,
                target: t.shaped(&[r, c])?,
                weight: Some(w.view()),
                lse: lse.view(),
                den: Some(den.view()),
                dx: dx.shaped_mut(&[r, c])?.into(),
            };
            g.cross_entropy_bwd(&CrossEntropy::new().label_smoothing(0.1), io)
        })
    }),
    row("optimizer_step", "sgd", F32, |b, dt| step(b, dt, OptimRule::Sgd { wd: 0.0 }, 3)),
    row("optimizer_step", "momentum", F32, |b, dt| {
        step(b, dt, OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false }, 5)
    }),
    row("optimizer_step", "adamw", F32, |b, dt| step(b, dt, ADAMW, 7)),
    row("optimizer_step", "amsgrad", F32, |b, dt| {
        step(b, dt, OptimRule::AmsGrad { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false }, 9)
    }),
    row("optimizer_step", "nadam_device_step", F32, |b, dt| {
        // The step count on the device, as in a recorded training step.
        let n = b.n();
        let (mut w, g, t) = (b.normal(dt, n)?, b.normal(dt, n)?, b.gpu.upload(&[3i64])?);
        let (mut m, mut v) = (b.zeros(dt, n)?, b.zeros(dt, n)?);
        let rule =
            OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(0.004), decoupled: false };
        bytes(7 * n * dt.size(), move |gpu| {
            let step = Step { step: Scalar::Device(t.view()), ..Step::host(RATE, 1) };
            let state = [Some(m.view_mut()), Some(v.view_mut()), None, None];
            let slot = ParamSlot { w: w.view_mut(), g: g.view(), state, copy: None };
            gpu.optimizer_step(&rule, &step, &mut [slot])
        })
    }),
    row("optimizer_step", "lamb", F32, |b, dt| {
        let (max_norm, bias_correction, adapt) = (10.0, true, true);
        let rule =
            OptimRule::Lamb { b1: 0.9, b2: 0.999, eps: 1e-6, wd: 0.01, bias_correction, max_norm, adapt };
        step(b, dt, rule, 11)
    }),
    row("clip_grad_norm", "list", F32_BF16, |b, dt| {
        let total: usize = sizes(b).iter().sum();
        let (mut g, mut norm) = (tensors(b, dt, false)?, b.empty(DType::F32, 1)?);
        bytes(3 * total * dt.size(), move |gpu| {
            let mut list: Vec<ViewMut<'_>> = g.iter_mut().map(Buffer::view_mut).collect();
            gpu.clip_grad_norm(&ClipNorm::new(1.0), &mut list, norm.view_mut())
        })
    }),
    row("clip_grad_adaptive", "list", F32, |b, dt| {
        let s = b.side() / 2;
        let (w, mut g) = (b.normal(dt, s * s)?, b.normal(dt, s * s)?);
        bytes(3 * s * s * dt.size(), move |gpu| {
            gpu.clip_grad_adaptive(
                &ClipAdaptive::new(0.01),
                &[w.shaped(&[s, s])?],
                &mut [g.shaped_mut(&[s, s])?],
            )
        })
    }),
    row("unscale_grads", "list", F32_BF16, |b, dt| {
        let total: usize = sizes(b).iter().sum();
        let (mut g, scale, mut found) =
            (tensors(b, dt, false)?, b.gpu.upload(&[1.0f32])?, b.zeros(DType::F32, 1)?);
        bytes(2 * total * dt.size(), move |gpu| {
            let mut list: Vec<ViewMut<'_>> = g.iter_mut().map(Buffer::view_mut).collect();
            gpu.unscale_grads(Some(scale.view()), &mut list, found.view_mut())
        })
    }),
    row("update_loss_scale", "step", F32, |b, _| {
        let (mut scale, mut good) = (b.gpu.upload(&[65536.0f32])?, b.gpu.upload(&[0i64])?);
        let (mut found, mut inverse) = (b.zeros(DType::F32, 1)?, b.zeros(DType::F32, 1)?);
        bytes(24, move |gpu| {
            let io = LossScaleState {
                scale: scale.view_mut(),
                good: good.view_mut(),
                found_inf: found.view_mut(),
                inv_scale: Some(inverse.view_mut()),
                step: None,
            };
            gpu.update_loss_scale(&LossScale::new(), io)
        })
    }),
    row("optimizer_step", "radam_device_step", F32, |b, dt| {
        let n = b.n();
        let (mut w, g, t) = (b.normal(dt, n)?, b.normal(dt, n)?, b.gpu.upload(&[300i64])?);
        let (mut m, mut v) = (b.zeros(dt, n)?, b.zeros(dt, n)?);
        let rule = OptimRule::RAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false };
        bytes(7 * n * dt.size(), move |gpu| {
            let step = Step { step: Scalar::Device(t.view()), ..Step::host(RATE, 1) };
            let state = [Some(m.view_mut()), Some(v.view_mut()), None, None];
            let slot = ParamSlot { w: w.view_mut(), g: g.view(), state, copy: None };
            gpu.optimizer_step(&rule, &step, &mut [slot])
        })
    }),
    row("clip_grad_value", "list", F32, |b, dt| {
        let total: usize = sizes(b).iter().sum();
        let mut g = tensors(b, dt, false)?;
        bytes(2 * total * dt.size(), move |gpu| {
            let mut list: Vec<ViewMut<'_>> = g.iter_mut().map(Buffer::view_mut).collect();
            gpu.clip_grad_value(1.0, &mut list)
        })
    }),
];
