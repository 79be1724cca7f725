//! Optimizer steps, clipping, loss scaling.

use trefoil::ops::optimizer::{
    AdaptiveRule, ClipAdaptive, ClipNorm, GradFactor, LossScale, LossScaleState, OptimRule, PACKED_BLOCK,
    PackedSlot, ParamSlot, RowSlot, Scalar, Scaling, Step,
};
use trefoil::ops::random::Rng;
use trefoil::{BackendExt, Buffer, DType, Result, ViewMut};

use crate::case::{Case, CaseError, Operation, forward};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// So small that nothing overflows however often a step is run.
const RATE: f64 = 1e-6;
const ADAM: OptimRule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };

/// The rules that a case can name.
const RULES: &[(&str, OptimRule)] = &[
    ("sgd", OptimRule::Sgd { wd: 0.0 }),
    ("sgd_momentum", OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false }),
    ("rmsprop", OptimRule::RmsProp { a: 0.99, eps: 1e-8, wd: 0.0, mu: 0.0, centered: false }),
    ("adagrad", OptimRule::Adagrad { lr_decay: 0.0, eps: 1e-10, wd: 0.0 }),
    ("adadelta", OptimRule::Adadelta { rho: 0.9, eps: 1e-6, wd: 0.0 }),
    ("adamax", OptimRule::AdaMax { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }),
    ("nadam", NADAM),
    ("adam", ADAM),
    ("adamw", ADAMW),
];
const NADAM: OptimRule =
    OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(4e-3), decoupled: false };
const ADAMW: OptimRule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };

/// Tensors of a small transformer block: a few large matrices, many short vectors.
fn sizes(cx: &Context<'_>) -> Vec<usize> {
    let s = cx.side() / 2;
    (0..24).map(|i| if i % 4 == 0 { s * s } else { s }).collect()
}

fn normals(cx: &Context<'_>, dtype: DType, sizes: &[usize]) -> Result<Vec<Buffer>> {
    sizes.iter().map(|&n| cx.normal(dtype, n)).collect()
}

/// Parameters and their gradients and states.
struct Parameters {
    w: Vec<Buffer>,
    g: Vec<Buffer>,
    states: [Vec<Buffer>; 4],
}

impl Parameters {
    fn new(cx: &Context<'_>, dt: DType, rule: &OptimRule, sizes: &[usize]) -> Result<Self> {
        let used = rule.states().len();
        let state = |i: usize| -> Result<Vec<Buffer>> {
            let sizes = if i < used { sizes } else { &[] };
            sizes.iter().map(|&n| cx.zeros(dt.accumulator(), n)).collect()
        };
        let states = [state(0)?, state(1)?, state(2)?, state(3)?];
        Ok(Parameters { w: normals(cx, dt, sizes)?, g: normals(cx, dt, sizes)?, states })
    }

    fn slots(&mut self) -> Vec<ParamSlot<'_>> {
        let mut states = self.states.each_mut().map(|s| s.iter_mut());
        let pairs = self.w.iter_mut().zip(&self.g);
        pairs
            .map(|(w, g)| {
                ParamSlot::new(w.view_mut(), g.view())
                    .state(states.each_mut().map(|s| s.next().map(Buffer::view_mut)))
            })
            .collect()
    }
}

/// A step over tensors of these sizes.
fn step(cx: &Context<'_>, dt: DType, rule: OptimRule, sizes: &[usize]) -> Result<Prepared> {
    let (n, states) = (sizes.iter().sum::<usize>(), rule.states().len());
    let moved = n * (3 * dt.size() + 2 * states * dt.accumulator().size());
    let sets = (0..cx.sets(moved)).map(|_| Parameters::new(cx, dt, &rule, sizes));
    let mut sets = sets.collect::<Result<Vec<_>>>()?;
    let mut number = 0;
    prepared(moved, 0, move |gpu, i| {
        number += 1;
        let k = i % sets.len();
        gpu.optimizer_step(&rule, &Step::host(RATE, number), &mut sets[k].slots())
    })
}

/// A step whose count is on the device, as in a recorded training step.
fn device_step(cx: &Context<'_>, dt: DType, rule: OptimRule, count: i64) -> Result<Prepared> {
    let (n, t) = (cx.n(), cx.gpu.upload(&[count])?);
    let mut parameters = Parameters::new(cx, dt, &rule, &[n])?;
    bytes(7 * n * dt.size(), move |gpu| {
        let step = Step::new(Scalar::Host(RATE), Scalar::Device(t.view()));
        gpu.optimizer_step(&rule, &step, &mut parameters.slots())
    })
}

/// A step of a rule whose memory is shared by all parameters; `traffic` counts the arrays that are read and written.
fn adaptive(cx: &Context<'_>, dt: DType, rule: AdaptiveRule, traffic: usize) -> Result<Prepared> {
    let n = cx.n();
    let (mut w, g) = (cx.normal(dt, n)?, cx.normal(dt, n)?);
    let mut states = [cx.zeros(dt, n)?, cx.zeros(dt, n)?, cx.zeros(dt, n)?, cx.zeros(dt, n)?];
    let (mut memory, mut number) = (cx.zeros(dt, rule.memory().len())?, 0);
    bytes(traffic * n * dt.size(), move |gpu| {
        number += 1;
        let state = states.each_mut().map(|s| Some(s.view_mut()));
        let slot = ParamSlot::new(w.view_mut(), g.view()).state(state);
        gpu.adaptive_step(&rule, &Step::host(RATE, number), memory.view_mut(), &mut [slot])
    })
}

/// Gradients scaled to a norm of at most 1: read for the norm, read and written for the scaling.
fn clip_norm(cx: &Context<'_>, dt: DType, sizes: &[usize]) -> Result<Prepared> {
    let tensors = sizes.iter().sum::<usize>() * dt.size();
    let mut sets = (0..cx.sets(tensors)).map(|_| normals(cx, dt, sizes)).collect::<Result<Vec<_>>>()?;
    let mut norm = cx.empty(DType::F32, 1)?;
    prepared(3 * tensors, 0, move |gpu, i| {
        let k = i % sets.len();
        let mut list: Vec<ViewMut<'_>> = sets[k].iter_mut().map(Buffer::view_mut).collect();
        gpu.clip_grad_norm(&ClipNorm::new(1.0), &mut list, norm.view_mut())
    })
}

/// A rule over one large tensor.
macro_rules! single {
    ($name:literal, $rule:expr) => {
        problem("optimizer_step", $name, F32, |cx, dt| step(cx, dt, $rule, &[cx.n()]))
    };
}

/// A rule over the tensors of a block.
macro_rules! list {
    ($name:literal, $rule:expr) => {
        problem("optimizer_step", $name, F32, |cx, dt| step(cx, dt, $rule, &sizes(cx)))
    };
}

/// A rule with shared memory.
macro_rules! adaptive {
    ($name:literal, $rule:expr, $traffic:literal) => {
        problem("adaptive_step", $name, F32, |cx, dt| adaptive(cx, dt, $rule, $traffic))
    };
}

pub(super) const PROBLEMS: &[Problem] = &[
    list!("sgd", OptimRule::Sgd { wd: 0.0 }),
    list!("momentum", OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false }),
    list!("adamw", ADAMW),
    list!("amsgrad", OptimRule::AmsGrad { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false }),
    list!(
        "lamb",
        OptimRule::Lamb {
            b1: 0.9,
            b2: 0.999,
            eps: 1e-6,
            wd: 0.01,
            bias_correction: true,
            max_norm: 10.0,
            adapt: true
        }
    ),
    single!("adan", OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, wd: 0.02 }),
    single!("sophia", OptimRule::Sophia { b1: 0.965, gamma: 0.01, eps: 1e-12, wd: 0.1 }),
    single!("sophia_curvature", OptimRule::SophiaCurvature { b2: 0.99, batch: 32.0 }),
    problem("optimizer_step", "nadam_device_step", F32, |cx, dt| device_step(cx, dt, NADAM, 3)),
    problem("optimizer_step", "radam_device_step", F32, |cx, dt| {
        let rule = OptimRule::RAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false };
        device_step(cx, dt, rule, 300)
    }),
    problem("clip_grad_norm", "list", F32_BF16, |cx, dt| clip_norm(cx, dt, &sizes(cx))),
    adaptive!("hypergradient_sgd", AdaptiveRule::HypergradientSgd { rate: 1e-12 }, 6),
    adaptive!("schedule_free_sgd", AdaptiveRule::ScheduleFreeSgd { b: 0.9, wd: 0.0 }, 5),
    adaptive!(
        "schedule_free_adamw",
        AdaptiveRule::ScheduleFreeAdamW { b: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 },
        7
    ),
    adaptive!("dadapt_sgd", AdaptiveRule::DAdaptSgd { d0: 1e-6, mu: 0.9, wd: 0.0, growth: f64::INFINITY }, 7),
    adaptive!(
        "dadapt_adam",
        AdaptiveRule::DAdaptAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, d0: 1e-6, growth: f64::INFINITY },
        9
    ),
    adaptive!(
        "prodigy",
        AdaptiveRule::Prodigy {
            b1: 0.9,
            b2: 0.999,
            eps: 1e-8,
            wd: 0.0,
            d0: 1e-6,
            coef: 1.0,
            growth: f64::INFINITY,
        },
        11
    ),
    problem("optimizer_step_rows", "adam", F32_BF16, |cx, dt| {
        let [rows, width] = cx.rows();
        let (touched, acc) = (rows / 4, dt.accumulator());
        let (mut w, g, ids) =
            (cx.normal(dt, rows * width)?, cx.normal(dt, touched * width)?, cx.ids(touched, rows)?);
        let (mut m, mut v) = (cx.zeros(acc, rows * width)?, cx.zeros(acc, rows * width)?);
        bytes(touched * width * (3 * dt.size() + 4 * acc.size()), move |gpu| {
            let shape = [rows, width];
            let param = RowSlot::new(w.shaped_mut(&shape)?, ids.view(), g.shaped(&[touched, width])?)
                .state([Some(m.shaped_mut(&shape)?), Some(v.shaped_mut(&shape)?), None, None]);
            gpu.optimizer_step_rows(&ADAM, &Step::host(RATE, 1), param)
        })
    }),
    problem("optimizer_step_packed", "adam8bit", F32_BF16, |cx, dt| {
        let n = cx.n();
        let (mut w, g) = (cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut m, mut v) = (cx.zeros(DType::U8, n)?, cx.zeros(DType::U8, n)?);
        let blocks = n.div_ceil(PACKED_BLOCK);
        let mut scales = cx.zeros(DType::F32, 2 * blocks)?;
        bytes(n * (3 * dt.size() + 4), move |gpu| {
            let scales = Some(scales.shaped_mut(&[2, blocks])?);
            let slot = PackedSlot::new(w.view_mut(), g.view(), m.view_mut(), v.view_mut()).scales(scales);
            gpu.optimizer_step_packed(&ADAM, &Step::host(RATE, 1), Some(Rng::new(1)), &mut [slot])
        })
    }),
    problem("optimizer_step_packed", "adam_bf16", F32, |cx, dt| {
        let n = cx.n();
        let (mut w, g) = (cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut m, mut v) = (cx.zeros(DType::Bf16, n)?, cx.zeros(DType::Bf16, n)?);
        bytes(n * (3 * dt.size() + 8), move |gpu| {
            let slot = PackedSlot::new(w.view_mut(), g.view(), m.view_mut(), v.view_mut());
            gpu.optimizer_step_packed(&ADAM, &Step::host(RATE, 1), Some(Rng::new(1)), &mut [slot])
        })
    }),
    problem("clip_grad_adaptive", "list", F32, |cx, dt| {
        let s = cx.side() / 2;
        let (w, mut g) = (cx.normal(dt, s * s)?, cx.normal(dt, s * s)?);
        bytes(3 * s * s * dt.size(), move |gpu| {
            gpu.clip_grad_adaptive(
                &ClipAdaptive::new(0.01),
                &[w.shaped(&[s, s])?],
                &mut [g.shaped_mut(&[s, s])?],
            )
        })
    }),
    problem("clip_grad_value", "list", F32, |cx, dt| {
        let total: usize = sizes(cx).iter().sum();
        let mut g = normals(cx, dt, &sizes(cx))?;
        bytes(2 * total * dt.size(), move |gpu| {
            let mut list: Vec<ViewMut<'_>> = g.iter_mut().map(Buffer::view_mut).collect();
            gpu.clip_grad_value(1.0, &mut list)
        })
    }),
    problem("unscale_grads", "list", F32_BF16, |cx, dt| {
        let total: usize = sizes(cx).iter().sum();
        let (mut g, scale, mut found) =
            (normals(cx, dt, &sizes(cx))?, cx.gpu.upload(&[1.0f32])?, cx.zeros(DType::F32, 1)?);
        bytes(2 * total * dt.size(), move |gpu| {
            let mut list: Vec<ViewMut<'_>> = g.iter_mut().map(Buffer::view_mut).collect();
            gpu.unscale_grads(Some(scale.view()), &mut list, found.view_mut())
        })
    }),
    problem("grad_factor", "list", F32_BF16, |cx, dt| {
        let total: usize = sizes(cx).iter().sum();
        let g = normals(cx, dt, &sizes(cx))?;
        let one = |x: f32| cx.gpu.upload(&[x]);
        let (mut scale, mut inverse, mut found) = (one(1024.0)?, one(1.0 / 1024.0)?, one(0.0)?);
        let (mut factor, mut skip) = (one(0.0)?, one(0.0)?);
        let (mut good, mut step) = (cx.gpu.upload(&[0i64])?, cx.gpu.upload(&[1i64])?);
        let mut count = cx.gpu.upload(&[0i64])?;
        bytes(total * dt.size(), move |gpu| {
            let list: Vec<_> = g.iter().map(Buffer::view).collect();
            let state = LossScaleState::new(scale.view_mut(), good.view_mut(), found.view_mut())
                .inv_scale(inverse.view_mut())
                .step(step.view_mut());
            let scaling = Scaling::new(LossScale::new(), state, skip.view_mut(), count.view_mut());
            let io = GradFactor::new(factor.view_mut()).scaling(scaling);
            gpu.grad_factor(&ClipNorm::new(1.0), &list, io)
        })
    }),
    problem("update_loss_scale", "step", F32, |cx, _| {
        let (mut scale, mut good) = (cx.gpu.upload(&[65536.0f32])?, cx.gpu.upload(&[0i64])?);
        let (mut found, mut inverse) = (cx.zeros(DType::F32, 1)?, cx.zeros(DType::F32, 1)?);
        bytes(24, move |gpu| {
            let io = LossScaleState::new(scale.view_mut(), good.view_mut(), found.view_mut())
                .inv_scale(inverse.view_mut());
            gpu.update_loss_scale(&LossScale::new(), io)
        })
    }),
];

/// Tensors of a case lie in one buffer, as trefoil-nn's optimizers arrange them.
fn whole(c: &Case) -> Result<[usize; 1], CaseError> {
    Ok([c.total()?])
}

pub(super) const OPERATIONS: &[Operation] = &[
    forward("optimizer", |cx, c| Ok(step(cx, c.dtype()?, c.named("kind", RULES)?, &whole(c)?)?)),
    forward("clip_norm", |cx, c| Ok(clip_norm(cx, c.dtype()?, &whole(c)?)?)),
];
