//! The calls that the rows of the table stand for.

use trefoil::ops::optimizer::{
    ClipAdaptive, ClipNorm, GradFactor, LossScale, LossScaleState, OptimRule, ParamSlot, Prox, Scalar,
    Scaling, Step,
};
use trefoil::{DType, ViewMut};

use crate::device::{Cx, R};

/// A rule whose rows know the argument `copy`.
pub(super) fn steps(cx: &Cx<'_>, rule: OptimRule) -> R {
    run_steps(cx, rule, cx.opt_dtype("copy")?)
}

/// `steps` consecutive calls with t = step, step + 1, ...; the gradients carry a leading axis of that length. Every second call reads
/// its learning rate and step count from device memory.
pub(super) fn run_steps(cx: &Cx<'_>, rule: OptimRule, copy: Option<DType>) -> R {
    let g = cx.x("g")?;
    let w = cx.inout("w", "w")?;
    let shape = w.v().shape().to_vec();
    let acc = w.dtype().accumulator();
    let mut state = Vec::new();
    for name in rule.states() {
        state.push(match cx.opt(name) {
            Some(_) => cx.inout(name, name)?,
            None => cx.zeroed(name, acc, &shape)?,
        });
    }
    let copy = match copy {
        Some(d) => Some(cx.out("w_copy", d, &shape)?),
        None => None,
    };
    let (lr, first) = (cx.f("lr")?, cx.n("step")?);
    let mut dev_lr = cx.scratch(DType::F32, 1)?;
    let mut dev_step = cx.scratch(DType::I64, 1)?;
    cx.gpu.write_bytes(dev_lr.view_mut(), &(lr as f32).to_le_bytes())?;
    for i in 0..cx.n("steps")? {
        let t = first + i;
        let mut step = Step::host(lr, t as u64);
        if i % 2 == 1 {
            cx.gpu.write_bytes(dev_step.view_mut(), &(t as i64).to_le_bytes())?;
            step.lr = Scalar::Device(dev_lr.view());
            step.step = Scalar::Device(dev_step.view());
        }
        step.maximize = cx.b("maximize")?;
        step.inv_scale = cx.opt("inv_scale");
        step.found_inf = cx.opt("found_inf");
        let mut slots = [ParamSlot::new(w.m(), g.map("steps", |l| l.select(0, i))?)
            .state([0, 1, 2, 3].map(|i| state.get(i).map(|t| t.m())))
            .copy(copy.as_ref().map(|t| t.m()))];
        cx.gpu.optimizer_step(&rule, &step, &mut slots)?;
    }
    Ok(())
}

pub(super) fn sgd(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Sgd { wd: cx.f("wd")? })
}

pub(super) fn momentum(cx: &Cx<'_>) -> R {
    let (mu, damp, wd, nesterov) = (cx.f("mu")?, cx.f("damp")?, cx.f("wd")?, cx.b("nesterov")?);
    steps(cx, OptimRule::Momentum { mu, damp, wd, nesterov })
}

pub(super) fn nag(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Momentum { mu: cx.f("mu")?, damp: 0.0, wd: cx.f("wd")?, nesterov: true })
}

pub(super) fn adam(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Adam { b1: cx.f("b1")?, b2: cx.f("b2")?, eps: cx.f("eps")?, wd: cx.f("wd")? })
}

pub(super) fn adamw(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::AdamW { b1: cx.f("b1")?, b2: cx.f("b2")?, eps: cx.f("eps")?, wd: cx.f("wd")? })
}

pub(super) fn rmsprop(cx: &Cx<'_>) -> R {
    let (a, eps, wd) = (cx.f("a")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::RmsProp { a, eps, wd, mu: cx.f("mu")?, centered: cx.b("centered")? })
}

pub(super) fn adagrad(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Adagrad { lr_decay: cx.f("lr_decay")?, eps: cx.f("eps")?, wd: cx.f("wd")? })
}

pub(super) fn lars(cx: &Cx<'_>) -> R {
    let (mu, wd, eta, eps) = (cx.f("mu")?, cx.f("wd")?, cx.f("eta")?, cx.f("eps")?);
    run_steps(cx, OptimRule::Lars { mu, wd, eta, eps, nesterov: false, adapt: true }, None)
}

pub(super) fn lamb(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    let rule =
        OptimRule::Lamb { b1, b2, eps, wd, bias_correction: true, max_norm: f64::INFINITY, adapt: true };
    run_steps(cx, rule, None)
}

pub(super) fn adadelta(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Adadelta { rho: cx.f("rho")?, eps: cx.f("eps")?, wd: cx.f("wd")? })
}

pub(super) fn adamax(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::AdaMax { b1: cx.f("b1")?, b2: cx.f("b2")?, eps: cx.f("eps")?, wd: cx.f("wd")? })
}

pub(super) fn amsgrad(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::AmsGrad { b1, b2, eps, wd, decoupled: cx.b("decoupled")? })
}

pub(super) fn nadam(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::Nadam { b1, b2, eps, wd, psi: cx.opt_f("psi")?, decoupled: cx.b("decoupled")? })
}

pub(super) fn radam(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::RAdam { b1, b2, eps, wd, decoupled: cx.b("decoupled")? })
}

pub(super) fn asgd(cx: &Cx<'_>) -> R {
    let (lambd, alpha, t0, wd) = (cx.f("lambd")?, cx.f("alpha")?, cx.f("t0")?, cx.f("wd")?);
    steps(cx, OptimRule::Asgd { lambd, alpha, t0, wd })
}

pub(super) fn rprop(cx: &Cx<'_>) -> R {
    let (up, down, least, most) = (cx.f("up")?, cx.f("down")?, cx.f("least")?, cx.f("most")?);
    steps(cx, OptimRule::Rprop { up, down, least, most })
}

pub(super) fn lion(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::Lion { b1: cx.f("b1")?, b2: cx.f("b2")?, wd: cx.f("wd")? })
}

pub(super) fn ftrl(cx: &Cx<'_>) -> R {
    let (beta, l1, l2, from_w) = (cx.f("beta")?, cx.f("l1")?, cx.f("l2")?, cx.b("from_w")?);
    steps(cx, OptimRule::Ftrl { beta, l1, l2, from_w })
}

pub(super) fn proximal(cx: &Cx<'_>) -> R {
    let prox = match cx.s("prox")?.as_str() {
        "elastic" => Prox::ElasticNet { l1: cx.f("l1")?, l2: cx.f("l2")? },
        _ => Prox::Box { lo: cx.f("lo")?, hi: cx.f("hi")? },
    };
    steps(cx, OptimRule::Proximal(prox))
}

/// Copies of the gradients, changed in place.
pub(super) fn gradients(cx: &Cx<'_>) -> R<Vec<std::rc::Rc<crate::device::Tensor>>> {
    (0..cx.list("g").len()).map(|i| cx.inout(&format!("g{i}"), &format!("g{i}"))).collect()
}

pub(super) fn clip_norm(cx: &Cx<'_>) -> R {
    let g = gradients(cx)?;
    let total = cx.out("total", DType::F32, &[])?;
    let mut views: Vec<ViewMut<'_>> = g.iter().map(|t| t.m()).collect();
    let p = ClipNorm::new(cx.f("max_norm")?).degree(cx.f("p")?);
    Ok(cx.gpu.clip_grad_norm(&p, &mut views, total.m())?)
}

pub(super) fn grad_factor(cx: &Cx<'_>) -> R {
    let (total, factor) = (cx.out("total", DType::F32, &[])?, cx.out("factor", DType::F32, &[])?);
    let p = ClipNorm::new(cx.f("max_norm")?).degree(cx.f("p")?);
    let io = GradFactor::new(factor.m()).total(total.m());
    if cx.opt("scale").is_none() {
        return Ok(cx.gpu.grad_factor(&p, &cx.list("g"), io)?);
    }
    let [scale, good, found] = ["scale", "good", "found_inf"].map(|n| cx.inout(n, n));
    let [inverse, step] = ["inv_scale", "step"].map(|n| cx.inout(n, n));
    let (scale, good, found, inverse, step) = (scale?, good?, found?, inverse?, step?);
    let (skip, count) = (cx.out("skip", DType::F32, &[])?, cx.out("count", DType::I64, &[])?);
    let state = LossScaleState::new(scale.m(), good.m(), found.m()).inv_scale(inverse.m()).step(step.m());
    let scaling = Scaling::new(scale_rule(cx)?, state, skip.m(), count.m());
    Ok(cx.gpu.grad_factor(&p, &cx.list("g"), io.scaling(scaling))?)
}

fn scale_rule(cx: &Cx<'_>) -> R<LossScale> {
    Ok(LossScale::new()
        .factors(cx.f("growth")?, cx.f("backoff")?)
        .interval(cx.n("interval")? as u32)
        .least(cx.f("least")?))
}

pub(super) fn clip_value(cx: &Cx<'_>) -> R {
    let g = gradients(cx)?;
    let mut views: Vec<ViewMut<'_>> = g.iter().map(|t| t.m()).collect();
    Ok(cx.gpu.clip_grad_value(cx.f("c")?, &mut views)?)
}

pub(super) fn clip_adaptive(cx: &Cx<'_>) -> R {
    let g = gradients(cx)?;
    let mut views: Vec<ViewMut<'_>> = g.iter().map(|t| t.m()).collect();
    let p = ClipAdaptive::new(cx.f("k")?).least(cx.f("least")?);
    Ok(cx.gpu.clip_grad_adaptive(&p, &cx.list("w"), &mut views)?)
}

pub(super) fn unscale(cx: &Cx<'_>) -> R {
    let g = gradients(cx)?;
    let found = cx.zeroed("found_inf", DType::F32, &[])?;
    let mut views: Vec<ViewMut<'_>> = g.iter().map(|t| t.m()).collect();
    Ok(cx.gpu.unscale_grads(cx.opt("scale"), &mut views, found.m())?)
}

pub(super) fn loss_scale(cx: &Cx<'_>) -> R {
    let [scale, good, found] = ["scale", "good", "found_inf"].map(|n| cx.inout(n, n));
    let (scale, good, found) = (scale?, good?, found?);
    let inverse = cx.out("inv_scale", DType::F32, &[])?;
    let step = cx.opt("step").map(|_| cx.inout("step", "step")).transpose()?;
    let p = scale_rule(cx)?;
    let io = LossScaleState::new(scale.m(), good.m(), found.m())
        .inv_scale(inverse.m())
        .step(step.as_ref().map(|t| t.m()));
    Ok(cx.gpu.update_loss_scale(&p, io)?)
}
