//! Optimizer steps in other forms.

use trefoil::DType;
use trefoil::ops::*;

use super::{F32, F32_BF16, Row, bytes, row};

/// So small that nothing overflows however often a step is run.
const RATE: f64 = 1e-6;

/// A step of a rule over one large tensor; `traffic` counts the arrays that are read and written.
macro_rules! step {
    ($op:literal, $case:literal, $rule:expr, $traffic:literal, $call:expr) => {
        row($op, $case, F32, |b, dt| {
            let (n, rule) = (b.n(), $rule);
            let (mut w, g) = (b.normal(dt, n)?, b.normal(dt, n)?);
            let mut states = [b.zeros(dt, n)?, b.zeros(dt, n)?, b.zeros(dt, n)?, b.zeros(dt, n)?];
            let (mut memory, mut number) = (b.zeros(dt, 4)?, 0);
            bytes($traffic * n * dt.size(), move |gpu| {
                number += 1;
                let state = states.each_mut().map(|s| Some(s.view_mut()));
                let slot = ParamSlot { w: w.view_mut(), g: g.view(), state, copy: None };
                $call(gpu, &rule, &Step::host(RATE, number), memory.view_mut(), slot)
            })
        })
    };
}

/// Rules without memory.
macro_rules! plain {
    ($case:literal, $rule:expr, $traffic:literal) => {
        step!(
            "optimizer_step",
            $case,
            $rule,
            $traffic,
            |gpu: &dyn trefoil::IGpuBackend, rule: &OptimRule, step: &Step<'_>, _, slot| {
                gpu.optimizer_step(rule, step, &mut [slot])
            }
        )
    };
}

/// Rules with memory.
macro_rules! adaptive {
    ($case:literal, $rule:expr, $traffic:literal) => {
        step!(
            "adaptive_step",
            $case,
            $rule,
            $traffic,
            |gpu: &dyn trefoil::IGpuBackend,
             rule: &AdaptiveRule,
             step: &Step<'_>,
             memory: trefoil::ViewMut<'_>,
             slot| {
                let memory = memory.range(0, rule.memory().len())?;
                gpu.adaptive_step(rule, step, memory, &mut [slot])
            }
        )
    };
}

const ADAM: OptimRule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };

pub(super) const ROWS: &[Row] = &[
    plain!("adan", OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, wd: 0.02 }, 11),
    plain!("sophia", OptimRule::Sophia { b1: 0.965, gamma: 0.01, eps: 1e-12, wd: 0.1 }, 7),
    plain!("sophia_curvature", OptimRule::SophiaCurvature { b2: 0.99, batch: 32.0 }, 7),
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
    row("optimizer_step_rows", "adam", F32_BF16, |b, dt| {
        let [rows, width] = b.rows();
        let (touched, acc) = (rows / 4, dt.accumulator());
        let (mut w, g, ids) =
            (b.normal(dt, rows * width)?, b.normal(dt, touched * width)?, b.ids(touched, rows)?);
        let (mut m, mut v) = (b.zeros(acc, rows * width)?, b.zeros(acc, rows * width)?);
        bytes(touched * width * (3 * dt.size() + 4 * acc.size()), move |gpu| {
            let shape = [rows, width];
            let param = RowSlot {
                w: w.shaped_mut(&shape)?,
                ids: ids.view(),
                rows: g.shaped(&[touched, width])?,
                state: [Some(m.shaped_mut(&shape)?), Some(v.shaped_mut(&shape)?), None, None],
                copy: None,
            };
            gpu.optimizer_step_rows(&ADAM, &Step::host(RATE, 1), param)
        })
    }),
    row("optimizer_step_packed", "adam8bit", F32_BF16, |b, dt| {
        let n = b.n();
        let (mut w, g) = (b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut m, mut v) = (b.zeros(DType::U8, n)?, b.zeros(DType::U8, n)?);
        let blocks = n.div_ceil(PACKED_BLOCK);
        let mut scales = b.zeros(DType::F32, 2 * blocks)?;
        bytes(n * (3 * dt.size() + 4), move |gpu| {
            let scales = Some(scales.shaped_mut(&[2, blocks])?);
            let slot = PackedSlot {
                w: w.view_mut(),
                g: g.view(),
                m: m.view_mut(),
                v: v.view_mut(),
                scales,
                copy: None,
            };
            gpu.optimizer_step_packed(&ADAM, &Step::host(RATE, 1), Some(&Rng::new(1)), &mut [slot])
        })
    }),
    row("optimizer_step_packed", "adam_bf16", F32, |b, dt| {
        let n = b.n();
        let (mut w, g) = (b.normal(dt, n)?, b.normal(dt, n)?);
        let (mut m, mut v) = (b.zeros(DType::Bf16, n)?, b.zeros(DType::Bf16, n)?);
        bytes(n * (3 * dt.size() + 8), move |gpu| {
            let slot = PackedSlot {
                w: w.view_mut(),
                g: g.view(),
                m: m.view_mut(),
                v: v.view_mut(),
                scales: None,
                copy: None,
            };
            gpu.optimizer_step_packed(&ADAM, &Step::host(RATE, 1), Some(&Rng::new(1)), &mut [slot])
        })
    }),
];
