//! Adan and Sophia, and rules that adapt the learning rate of a whole list of tensors.

use trefoil::DType;
use trefoil::ops::optimizer::{AdaptiveRule, OptimRule, ParamSlot};

use super::calls::steps;
use super::clock::{Clock, state};
use super::sample::{draw, draw_decayed};
use super::{OPT, STEP};
use crate::cases::Bound::Derived;
use crate::cases::{Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Positive, Zero};
use crate::sampler::Sample;

fn adan(cx: &Cx<'_>) -> R {
    let (b1, b2, b3, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("b3")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::Adan { b1, b2, b3, eps, wd })
}

fn sophia(cx: &Cx<'_>) -> R {
    let (b1, gamma, eps, wd) = (cx.f("b1")?, cx.f("gamma")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::Sophia { b1, gamma, eps, wd })
}

fn curvature(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::SophiaCurvature { b2: cx.f("b2")?, batch: cx.f("batch")? })
}

/// Consecutive calls for a list of tensors, whose gradients carry a leading axis with the steps.
fn adapt(cx: &Cx<'_>, rule: AdaptiveRule) -> R {
    let g = cx.list("g");
    let mut w = vec![];
    let mut states = vec![];
    for i in 0..g.len() {
        let name = format!("w{i}");
        w.push(cx.inout(&name, &name)?);
        let (acc, shape) = (w[i].dtype().accumulator(), w[i].v().shape().to_vec());
        let one = rule.states().iter().map(|s| state(cx, &format!("{s}{i}"), acc, &shape));
        states.push(one.collect::<R<Vec<_>>>()?);
    }
    let acc = w.first().map_or(DType::F32, |w| w.dtype().accumulator());
    let memory = state(cx, "memory", acc, &[rule.memory().len()])?;
    let mut clock = Clock::new(cx)?;
    for i in 0..cx.n("steps")? {
        let step = clock.step(cx, i)?;
        let mut slots = vec![];
        for ((w, g), states) in w.iter().zip(&g).zip(&states) {
            let state = [0, 1, 2, 3].map(|k| states.get(k).map(|t| t.m()));
            slots.push(ParamSlot::new(w.m(), g.map("steps", |l| l.select(0, i))?).state(state));
        }
        cx.gpu.adaptive_step(&rule, &step, memory.m(), &mut slots)?;
    }
    Ok(())
}

fn hypergradient(cx: &Cx<'_>) -> R {
    adapt(cx, AdaptiveRule::HypergradientSgd { rate: cx.f("rate")? })
}

fn free_sgd(cx: &Cx<'_>) -> R {
    adapt(cx, AdaptiveRule::ScheduleFreeSgd { b: cx.f("b")?, wd: cx.f("wd")? })
}

fn free_adamw(cx: &Cx<'_>) -> R {
    let (b, b2, eps, wd) = (cx.f("b")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    adapt(cx, AdaptiveRule::ScheduleFreeAdamW { b, b2, eps, wd })
}

fn dadapt_sgd(cx: &Cx<'_>) -> R {
    let (d0, mu, wd, growth) = (cx.f("d0")?, cx.f("mu")?, cx.f("wd")?, cx.f("growth")?);
    adapt(cx, AdaptiveRule::DAdaptSgd { d0, mu, wd, growth })
}

fn dadapt_adam(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    adapt(cx, AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0: cx.f("d0")?, growth: cx.f("growth")? })
}

fn prodigy(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    let (d0, coef, growth) = (cx.f("d0")?, cx.f("coef")?, cx.f("growth")?);
    adapt(cx, AdaptiveRule::Prodigy { b1, b2, eps, wd, d0, coef, growth })
}

/// One to three tensors. Gradients that point one way, so that products over all tensors do not cancel.
fn draw_list(s: &mut Sample) {
    // As in `draw`: one step for parameters in 16 bits.
    let steps = if s.dtype.is_half() { 1 } else { 4 };
    for i in 0..1 + s.below(3) {
        let shape = s.shape();
        s.put(&format!("w{i}"), &shape, Any);
        s.put(&format!("g{i}"), &[&[steps], &shape[..]].concat(), Positive);
    }
    if s.coin() {
        s.typed("inv_scale", DType::F32, &[], Positive);
        s.typed("found_inf", DType::F32, &[], Zero);
    }
    s.arg("lr", 0.01);
    s.arg("steps", steps);
    let up = s.coin();
    s.arg("maximize", up);
}

const ADAPTIVE: &[&str] = &["adaptive_step"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "adan_update",
            "O48",
            "w, g, [m:f32], [v:f32], [n:f32], [prev:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.98, b2=0.92, b3=0.99, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [n:f32], [prev:f32], [w_copy]",
            STEP,
            adan,
        )
        .bound(OPT)
        .sample(|s| {
            let fresh = s.coin();
            draw_decayed(s, if fresh { &[] } else { &["m", "v", "n", "prev"] });
            if fresh {
                s.arg("step", 1);
            }
        }),
        k(
            "sophia_update",
            "O49",
            "w, g, [m:f32], [h:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0001, b1=0.965, gamma=0.01, eps=1e-12, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [h:f32], [w_copy]",
            STEP,
            sophia,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["m", "h"]);
            let gamma = [0.01, 1.0, 10.0][s.below(3)];
            s.arg("gamma", gamma);
        }),
        k(
            "sophia_curvature",
            "O49",
            "w, g, [m:f32], [h:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0001, b2=0.99, batch=1.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [h:f32], [w_copy]",
            STEP,
            curvature,
        )
        .bound(OPT)
        .sample(|s| {
            draw(s, &["m", "h"]);
            s.arg("batch", 32);
        }),
    ],
    &[
        k(
            "hypergradient_sgd_update",
            "O34",
            "w0, w1, ..., g0, g1, ..., prev0, prev1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, rate=1e-08, steps=1, step=1, maximize=false",
            "w0, w1, ..., prev0, prev1, ...:f32, memory:f32",
            ADAPTIVE,
            hypergradient,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("rate", 1e-8);
        }),
        k(
            "schedule_free_sgd_update",
            "O35",
            "w0, w1, ..., g0, g1, ..., z0, z1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, b=0.9, wd=0.0, steps=1, step=1, maximize=false",
            "w0, w1, ..., z0, z1, ...:f32, memory:f32",
            ADAPTIVE,
            free_sgd,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("wd", 0.1);
        }),
        k(
            "schedule_free_adamw_update",
            "O36",
            "w0, w1, ..., g0, g1, ..., z0, z1, ...:f32, v0, v1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0025, b=0.9, b2=0.999, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false",
            "w0, w1, ..., z0, z1, ...:f32, v0, v1, ...:f32, memory:f32",
            ADAPTIVE,
            free_adamw,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("wd", 0.1);
        }),
        k(
            "dadapt_sgd_update",
            "O37",
            "w0, w1, ..., g0, g1, ..., s0, s1, ...:f32, start0, start1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, d0=1e-06, mu=0.0, wd=0.0, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., s0, s1, ...:f32, start0, start1, ...:f32, memory:f32",
            ADAPTIVE,
            dadapt_sgd,
        )
        .bound(Derived)
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.5);
            s.arg("mu", 0.5);
            s.arg("wd", 0.01);
        }),
        k(
            "dadapt_adam_update",
            "O38",
            "w0, w1, ..., g0, g1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, d0=1e-06, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, memory:f32",
            ADAPTIVE,
            dadapt_adam,
        )
        .bound(Derived)
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.03125);
            s.arg("growth", 1.5);
            s.arg("wd", 0.1);
        }),
        k(
            "prodigy_update",
            "O39",
            "w0, w1, ..., g0, g1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, start0, start1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, d0=1e-06, coef=1.0, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, start0, start1, ...:f32, memory:f32",
            ADAPTIVE,
            prodigy,
        )
        .bound(Derived)
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.25);
            s.arg("wd", 0.1);
        }),
    ],
];
