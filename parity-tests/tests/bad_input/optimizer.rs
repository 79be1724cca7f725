//! Optimizer steps, clipping of gradients, and loss scales.

use super::*;
use trefoil::ops::optimizer::{
    AdaptiveRule, ClipAdaptive, ClipNorm, GradFactor, LossScale, LossScaleState, OptimRule, PackedSlot,
    ParamSlot, RowSlot, Step,
};

pub(super) fn optimizer(t: &mut Bed<'_>) {
    let (w, g0, v) = (t.f32(8), t.f32(8), t.f32(8));
    let short = t.f32(7);
    let total = t.f32(1);
    let rule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    fn slot<'a>(w: &'a Buffer, g: &'a Buffer, m: Option<&'a Buffer>, v: Option<&'a Buffer>) -> ParamSlot<'a> {
        ParamSlot::new(w.alias_mut(), g.view()).state([
            m.map(Buffer::alias_mut),
            v.map(Buffer::alias_mut),
            None,
            None,
        ])
    }
    let m = t.f32(8);
    t.refuse("step 0", &[&w, &m, &v], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 0), &mut [slot(&w, &g0, Some(&m), Some(&v))])
    });
    t.refuse("missing state", &[&w, &m], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &g0, Some(&m), None)])
    });
    t.refuse("a gradient of another size", &[&w, &m, &v], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &short, Some(&m), Some(&v))])
    });
    t.refuse("one state buffer twice", &[&w, &m], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &g0, Some(&m), Some(&m))])
    });
    t.refuse("a total of two elements", &[&g0], |g| {
        g.clip_grad_norm(&ClipNorm::new(1.0), &mut [g0.alias_mut()], v.alias_mut().range(0, 2)?)
    });
    t.refuse("a negative norm", &[&g0, &total], |g| {
        g.clip_grad_norm(&ClipNorm::new(-1.0), &mut [g0.alias_mut()], total.alias_mut())
    });
    t.refuse("a factor among the gradients", &[&g0], |g| {
        g.grad_factor(&ClipNorm::new(1.0), &[g0.view()], GradFactor::new(g0.alias_mut().range(0, 1)?))
    });
    t.refuse("a factor that is the total", &[&total], |g| {
        let io = GradFactor::new(total.alias_mut()).total(total.alias_mut());
        g.grad_factor(&ClipNorm::new(1.0), &[g0.view()], io)
    });
    t.refuse("a negative bound", &[&g0], |g| g.clip_grad_value(-1.0, &mut [g0.alias_mut()]));
    let i = t.buf(DType::I32, 8);
    t.refuse("adaptive clipping without weights", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(0.01), &[], &mut [g0.alias_mut()])
    });
    t.refuse("weights of another shape", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(0.01), &[short.view()], &mut [g0.alias_mut()])
    });
    t.refuse("a negative ratio", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(-0.01), &[w.view()], &mut [g0.alias_mut()])
    });
    let (scale, good) = (t.f32(1), t.ids(&[3]));
    t.refuse("two flags for one", &[&g0], |g| {
        g.unscale_grads(None, &mut [g0.alias_mut()], v.alias_mut().range(0, 2)?)
    });
    t.refuse("a scale of integers", &[&g0, &total], |g| {
        g.unscale_grads(Some(good.view()), &mut [g0.alias_mut()], total.alias_mut())
    });
    t.refuse("a flag among the gradients", &[&g0], |g| {
        g.unscale_grads(None, &mut [g0.alias_mut()], g0.alias_mut().range(0, 1)?)
    });
    let state = |found_inf| LossScaleState::new(scale.alias_mut(), good.alias_mut(), found_inf);
    t.refuse("a loss scale that grows by 0", &[&scale, &total], |g| {
        g.update_loss_scale(&LossScale::new().factors(0.0, 0.5), state(total.alias_mut()))
    });
    t.refuse("a scale that is its own flag", &[&scale], |g| {
        g.update_loss_scale(&LossScale::new(), state(scale.alias_mut()))
    });
    t.refuse("a flag of integers", &[&scale], |g| {
        g.update_loss_scale(&LossScale::new(), state(i.alias_mut().range(0, 1)?))
    });
    t.refuse("clipping integers", &[&i], |g| g.clip_grad_value(1.0, &mut [i.alias_mut()]));
}

const ADAM: OptimRule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };

fn prodigy(d0: f64) -> AdaptiveRule {
    AdaptiveRule::Prodigy { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, d0, coef: 1.0, growth: f64::INFINITY }
}

pub(super) fn adaptive(t: &mut Bed<'_>) {
    let (w, g, k, s) = (t.f32(8), t.f32(8), t.f32(2), [t.f32(8), t.f32(8), t.f32(8), t.f32(8)]);
    let slot = || ParamSlot::new(w.alias_mut(), g.view()).state(s.each_ref().map(|s| Some(s.alias_mut())));
    let step = Step::host(1.0, 1);
    let all = [&w, &k, &s[0], &s[1], &s[2], &s[3]];
    t.refuse("an adaptive rule without its memory", &all, |g| {
        g.optimizer_step(&OptimRule::Adaptive(prodigy(1.0)), &step, &mut [slot()])
    });
    t.refuse("a start of 0", &all, |g| g.adaptive_step(&prodigy(0.0), &step, k.alias_mut(), &mut [slot()]));
    t.refuse("memory of one element", &all, |g| {
        g.adaptive_step(&prodigy(1.0), &step, k.alias_mut().range(0, 1)?, &mut [slot()])
    });
    t.refuse("memory within a state", &all, |g| {
        g.adaptive_step(&prodigy(1.0), &step, s[0].alias_mut().range(0, 2)?, &mut [slot()])
    });
    t.refuse("three states of four", &all, |g| {
        let mut slot = slot();
        slot.state[3] = None;
        g.adaptive_step(&prodigy(1.0), &step, k.alias_mut(), &mut [slot])
    });
    t.refuse("step 0", &all, |g| {
        g.adaptive_step(&prodigy(1.0), &Step::host(1.0, 0), k.alias_mut(), &mut [slot()])
    });
    t.refuse("a share of 0", &all, |g| {
        let rule = AdaptiveRule::ScheduleFreeSgd { b: 0.0, wd: 0.0 };
        g.adaptive_step(&rule, &step, k.alias_mut().range(0, 1)?, &mut [slot()])
    });
    t.refuse("a decay of 1", &all, |g| {
        let rule = OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 1.0, eps: 1e-8, wd: 0.0 };
        g.optimizer_step(&rule, &step, &mut [slot()])
    });
}

pub(super) fn rows(t: &mut Bed<'_>) {
    let (w, g, m, v) = (t.f32(12), t.f32(6), t.f32(12), t.f32(12));
    let ids = t.ids(&[1, 3]);
    let slot = || {
        RowSlot::new(out(&w, &[4, 3]), ids.view(), sh(&g, &[2, 3])).state([
            Some(out(&m, &[4, 3])),
            Some(out(&v, &[4, 3])),
            None,
            None,
        ])
    };
    let step = Step::host(0.1, 1);
    let all = [&w, &m, &v];
    t.refuse("a layer-wise rule on rows", &all, |g| {
        let rule = OptimRule::Lars { mu: 0.9, wd: 0.0, eta: 1e-3, eps: 1e-8, nesterov: false, adapt: true };
        g.optimizer_step_rows(&rule, &step, slot())
    });
    t.refuse("rows of another length", &all, |b| {
        b.optimizer_step_rows(&ADAM, &step, with!(slot(), rows = sh(&g, &[3, 2])))
    });
    t.refuse("two ids for one row", &all, |b| {
        b.optimizer_step_rows(&ADAM, &step, with!(slot(), rows = sh(&g, &[1, 6])))
    });
    t.refuse("ids in f32", &all, |b| {
        b.optimizer_step_rows(&ADAM, &step, with!(slot(), ids = g.view().range(0, 2)?))
    });
    t.refuse("states of another shape", &all, |b| {
        let state = [Some(out(&m, &[3, 4])), Some(out(&v, &[4, 3])), None, None];
        b.optimizer_step_rows(&ADAM, &step, slot().state(state))
    });
    t.refuse("step 0 of rows", &all, |b| b.optimizer_step_rows(&ADAM, &Step::host(0.1, 0), slot()));
}

pub(super) fn packed(t: &mut Bed<'_>) {
    let (w, g, scales) = (t.f32(300), t.f32(300), t.f32(4));
    let (m, v) = (t.buf(DType::U8, 300), t.buf(DType::U8, 300));
    let half = t.buf(DType::Bf16, 300);
    let slot = || {
        PackedSlot::new(w.alias_mut(), g.view(), m.alias_mut(), v.alias_mut()).scales(out(&scales, &[2, 2]))
    };
    let step = Step::host(0.1, 1);
    let all = [&w, &m, &v, &scales];
    t.refuse("codes of another rule", &all, |g| {
        let rule = OptimRule::Lion { b1: 0.9, b2: 0.99, wd: 0.0 };
        g.optimizer_step_packed(&rule, &step, None, &mut [slot()])
    });
    t.refuse("codes without scales", &all, |g| {
        g.optimizer_step_packed(&ADAM, &step, None, &mut [slot().scales(None)])
    });
    t.refuse("scales of one block", &all, |g| {
        let scales = Some(scales.alias_mut().range(0, 2)?.reshape(&[2, 1])?);
        g.optimizer_step_packed(&ADAM, &step, None, &mut [slot().scales(scales)])
    });
    t.refuse("codes beside bf16", &all, |g| {
        g.optimizer_step_packed(&ADAM, &step, None, &mut [with!(slot(), v = half.alias_mut())])
    });
    t.refuse("one buffer for both moments", &all, |g| {
        g.optimizer_step_packed(&ADAM, &step, None, &mut [with!(slot(), v = m.alias_mut())])
    });
    t.refuse("step 0 of codes", &all, |g| {
        g.optimizer_step_packed(&ADAM, &Step::host(0.1, 0), None, &mut [slot()])
    });
}
