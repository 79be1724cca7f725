//! Optimizer steps and gradient clipping over lists of tensors.

mod adaptive;
mod packed;
mod plan;
mod sparse;

use self::plan::{ListPlan, ListProblem};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::{Ptr, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::optimizer::*;
use crate::spec::BLOCK;
use crate::spec::kernels::optimizer::*;

/// Elements per block and pass: `GK_CHUNK` of the kernels.
const CHUNK: usize = BLOCK as usize * 32;
/// Arrays of a tensor in the tables of `kernels/common/optimizer/optimizer.c`: w, g, three states, copy.
const ARRAYS: usize = 6;

/// Tensors of one launch: base pointers, and the words of the table that the kernels of `kernels/common/optimizer` read.
struct List<const N: usize = ARRAYS> {
    bases: [Ptr; N],
    words: Vec<i64>,
    tensors: usize,
    chunks: usize,
}

impl<const N: usize> List<N> {
    fn grid(&self) -> Grid {
        Grid::Blocks([self.chunks.min(1 << 20), 1, 1])
    }
}

/// Cuts a list into launches.
fn cut<const N: usize>(tensors: &[[Option<View<'_>>; N]], plan: ListPlan) -> Vec<List<N>> {
    let addresses = plan == ListPlan::Fused;
    let mut lists: Vec<(List<N>, [Option<RawMem>; N])> = vec![];
    for t in tensors {
        let len = t.iter().flatten().next().map_or(0, View::numel);
        if len == 0 {
            continue;
        }
        let raw = t.map(|v| v.and_then(|v| v.block().raw()));
        let fits = lists.last().is_some_and(|(_, bases)| addresses || *bases == raw);
        if !fits {
            let base = |m: Option<RawMem>| Ptr(m.filter(|_| !addresses).map(|m| (m, 0)));
            lists.push((List { bases: raw.map(base), words: vec![], tensors: 0, chunks: 0 }, raw));
        }
        let Some((list, _)) = lists.last_mut() else { continue };
        list.words.extend([list.chunks as i64, len as i64]);
        for (v, m) in t.iter().zip(raw) {
            let offset = v.map_or(0, |v| {
                let base = if addresses { m.map_or(0, |m| m.0) as usize } else { 0 };
                base / v.dtype().size() + v.layout().offset()
            });
            list.words.push(offset as i64);
        }
        list.tensors += 1;
        list.chunks += len.div_ceil(CHUNK);
    }
    lists
        .into_iter()
        .map(|(mut l, _)| {
            l.words.push(l.chunks as i64);
            l
        })
        .collect()
}

/// C function of a rule, and its numbers.
struct Rule {
    name: &'static str,
    p: [f64; 6],
    flag: bool,
    /// Bases of the bias corrections 1 - b^t (0 for none).
    decays: (f64, f64),
}

/// `None` for rules of `kernels/common/optimizer/adaptive.c`.
fn rule_function(rule: &OptimRule) -> Option<Rule> {
    let plain = |name, p, flag| Rule { name, p, flag, decays: (0.0, 0.0) };
    let adam = |name, b1: f64, b2: f64, eps, wd, flag| Rule {
        name,
        p: [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2],
        flag,
        decays: (b1, b2),
    };
    Some(match *rule {
        OptimRule::Sgd { wd } => plain("gk_rule_sgd", [wd, 0.0, 0.0, 0.0, 0.0, 0.0], false),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            plain("gk_rule_momentum", [mu, 1.0 - damp, wd, 0.0, 0.0, 0.0], nesterov)
        }
        OptimRule::Adam { b1, b2, eps, wd } => adam("gk_rule_adam", b1, b2, eps, wd, false),
        OptimRule::AdamW { b1, b2, eps, wd } => adam("gk_rule_adamw", b1, b2, eps, wd, false),
        OptimRule::AmsGrad { b1, b2, eps, wd, decoupled } => {
            adam("gk_rule_amsgrad", b1, b2, eps, wd, decoupled)
        }
        OptimRule::Nadam { b1, b2, eps, wd, decoupled, .. } => {
            adam("gk_rule_nadam", b1, b2, eps, wd, decoupled)
        }
        OptimRule::RAdam { b1, b2, eps, wd, decoupled } => adam("gk_rule_radam", b1, b2, eps, wd, decoupled),
        OptimRule::Asgd { lambd, alpha, t0, wd } => {
            plain("gk_rule_asgd", [lambd, alpha, t0, wd, 0.0, 0.0], false)
        }
        OptimRule::Rprop { up, down, least, most } => {
            plain("gk_rule_rprop", [up, down, least, most, 0.0, 0.0], false)
        }
        OptimRule::AdaMax { b1, b2, eps, wd } => adam("gk_rule_adamax", b1, b2, eps, wd, false),
        OptimRule::Lion { b1, b2, wd } => adam("gk_rule_lion", b1, b2, 0.0, wd, false),
        OptimRule::Lamb { b1, b2, eps, wd, bias_correction, adapt, .. } => {
            let mut k = adam("gk_rule_lamb", b1, b2, eps, if adapt { wd } else { 0.0 }, false);
            if !bias_correction {
                k.decays = (0.0, 0.0);
            }
            k
        }
        OptimRule::Lars { mu, wd, nesterov, adapt, .. } => {
            plain("gk_rule_lars", [mu, if adapt { wd } else { 0.0 }, 0.0, 0.0, 0.0, 0.0], nesterov)
        }
        OptimRule::RmsProp { a, eps, wd, mu, centered } => {
            let name = match (centered, mu > 0.0) {
                (false, false) => "gk_rule_rmsprop",
                (false, true) => "gk_rule_rmsprop_momentum",
                (true, false) => "gk_rule_rmsprop_centered",
                (true, true) => "gk_rule_rmsprop_centered_momentum",
            };
            plain(name, [a, 1.0 - a, eps, wd, 1.0 - mu, 0.0], false)
        }
        OptimRule::Adagrad { lr_decay, eps, wd } => {
            plain("gk_rule_adagrad", [lr_decay, eps, wd, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Adadelta { rho, eps, wd } => {
            plain("gk_rule_adadelta", [rho, 1.0 - rho, eps, wd, 0.0, 0.0], false)
        }
        OptimRule::Ftrl { beta, l1, l2, from_w } => {
            plain("gk_rule_ftrl", [beta, l1, l2, 0.0, 0.0, 0.0], from_w)
        }
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 }) => {
            plain("gk_rule_prox_elastic", [l1, l2, 0.0, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Proximal(Prox::Box { lo, hi }) => {
            plain("gk_rule_prox_box", [lo, hi, 0.0, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Adan { .. }
        | OptimRule::Sophia { .. }
        | OptimRule::SophiaCurvature { .. }
        | OptimRule::Adaptive(_) => return None,
    })
}

/// Numbers of a step that its kernels share.
struct StepArgs<'s> {
    dt: DType,
    master: i32,
    step: Ptr,
    numbers: Ptr,
    inv_scale: Ptr,
    maximize: i32,
    bias: Bias,
    p: [f64; 6],
    rule: &'s OptimRule,
}

/// Bias corrections of a step whose count is on the host, and logarithms of the decays for one whose count is on the device.
#[derive(Clone, Copy)]
struct Bias {
    c1: f64,
    c2: f64,
    log1: f64,
    log2: f64,
}

impl Bias {
    /// At step `t`, for the decays `b1` and `b2`.
    fn new((b1, b2): (f64, f64), t: f64) -> Self {
        Bias { c1: 1.0 - b1.powf(t), c2: (1.0 - b2.powf(t)).max(0.0).sqrt(), log1: b1.ln(), log2: b2.ln() }
    }
}

impl Engine {
    /// The launches that serve a list of tensors. All of them count as written: kernels that get addresses do not show which they write.
    fn lists<const N: usize>(
        &self,
        op: &'static str,
        tensors: &[[Option<View<'_>>; N]],
    ) -> Result<Vec<List<N>>> {
        let plan = self.plan(op, &ListProblem)?;
        self.wrote(tensors.iter().flatten().flatten().filter_map(|v| v.block().raw()));
        Ok(cut(tensors, plan))
    }

    /// What serves a list of tensors.
    pub(crate) fn explain_optimizer(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &ListProblem)
    }

    /// Trust ratio of every tensor of a list, for rules that have one.
    fn trust_ratios(&self, list: &List, table: Ptr, step: &StepArgs<'_>) -> Result<Option<Buffer>> {
        let (lamb, eta, wd, eps, bound) = match *step.rule {
            OptimRule::Lars { eta, wd, eps, adapt: true, .. } => (false, eta, wd, eps, 0.0),
            OptimRule::Lamb { max_norm, adapt: true, .. } => (true, 0.0, 0.0, 0.0, max_norm),
            _ => return Ok(None),
        };
        let dt = step.dt;
        let partial = self.scratch(dt.accumulator(), 6 * list.chunks)?;
        let ratio = self.scratch(dt.accumulator(), list.tensors)?;
        let tensors = list.tensors as i32;
        let [w, g, s0, s1, ..] = list.bases;
        let Bias { c1, c2, log1, log2 } = step.bias;
        let [p0, p1, p2, p3, p4, p5] = step.p;
        let args = TrustPartialArgs {
            table,
            tensors,
            w,
            g,
            s0,
            s1,
            master: step.master,
            step: step.step,
            numbers: step.numbers,
            inv_scale: step.inv_scale,
            maximize: step.maximize,
            lamb: i32::from(lamb),
            c1,
            c2,
            log1,
            log2,
            p0,
            p1,
            p2,
            p3,
            p4,
            p5,
            partial: self.arg_in(&partial.view()),
        };
        self.launch(&TRUST_PARTIAL, dt, "", list.grid(), &args)?;
        let args = TrustFinishArgs {
            table,
            tensors,
            partial: self.arg_in(&partial.view()),
            lamb: i32::from(lamb),
            eta,
            wd,
            eps,
            bound,
            ratio: self.arg_in(&ratio.view()),
        };
        let blocks = list.tensors.min(1 << 16);
        self.launch(&TRUST_FINISH, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(Some(ratio))
    }
}

/// [`OptimRule::step_numbers`].
pub(crate) fn step_numbers(rule: &OptimRule, lr: f64, t: f64) -> [f64; STEP_NUMBERS] {
    let [c1, c2, c3] = match rule_function(rule) {
        Some(known) => {
            let Bias { c1, c2, .. } = Bias::new(known.decays, t);
            [c1, c2, 1.0]
        }
        None => adaptive::corrections(rule, t),
    };
    let (q0, q1) = host_factors(rule, t);
    [lr, t, c1, c2, c3, q0, q1, 0.0]
}

/// q0 and q1 of a rule at step t.
fn host_factors(rule: &OptimRule, t: f64) -> (f64, f64) {
    match *rule {
        OptimRule::Nadam { b1, psi, .. } => nadam_factors(b1, psi, t),
        OptimRule::RAdam { b2, .. } => (radam_factor(b2, t).unwrap_or(0.0), 0.0),
        _ => (1.0, 0.0),
    }
}

/// The value of a number on the host; 0 for one on the device.
fn host(s: &Scalar<'_>) -> f64 {
    if let Scalar::Host(x) = s { *x } else { 0.0 }
}

/// Whether parameters of dtype `w` with gradients of dtype `g` are stored in the arithmetic type.
fn master(w: DType, g: DType) -> i32 {
    i32::from(w != g || g.accumulator() == w)
}

/// Kind of the 16-bit copy: 0 for none, 1 for f16, 2 for bf16.
fn copy_kind(copy: Option<&ViewMut<'_>>) -> i32 {
    match copy.map(ViewMut::dtype) {
        None => 0,
        Some(DType::F16) => 1,
        Some(_) => 2,
    }
}

impl Engine {
    /// Pointer argument of a number on the device; null for one on the host.
    fn arg_scalar(&self, s: &Scalar<'_>) -> Ptr {
        match s {
            Scalar::Device(v) => self.arg_in(v),
            Scalar::Host(_) => Ptr::NULL,
        }
    }

    /// [`Engine::check_owner`] for what a step holds.
    fn own_step(&self, op: &'static str, step: &Step<'_>) -> Result<()> {
        for (arg, s) in [("lr", &step.lr), ("step", &step.step)] {
            if let Scalar::Device(v) = s {
                self.check_owner(op, arg, v)?;
            }
        }
        let others =
            [("inv_scale", step.inv_scale), ("found_inf", step.found_inf), ("numbers", step.numbers)];
        self.check_owner_all(op, &others)
    }

    /// q0 and q1 of a rule: from the host, or in device memory where the step count is there.
    fn step_factors(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        dt: DType,
    ) -> Result<((f64, f64), Option<Buffer>)> {
        let device = matches!(step.step, Scalar::Device(_));
        let (t, count) = (host(&step.step), self.arg_scalar(&step.step));
        match *rule {
            OptimRule::Nadam { b1, psi, .. } if device => {
                let out = self.scratch(dt.accumulator(), 2)?;
                let args = NadamScalarsArgs {
                    step: count,
                    b1,
                    psi: psi.unwrap_or(-1.0),
                    factors: self.arg_in(&out.view()),
                };
                self.launch(&NADAM_SCALARS, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            OptimRule::RAdam { b2, .. } if device => {
                let out = self.scratch(dt.accumulator(), 2)?;
                let (lambda, most) = (-b2.ln(), 2.0 / (1.0 - b2) - 1.0);
                let args = RadamScalarsArgs {
                    step: count,
                    lambda,
                    most,
                    rest: most - 2.0 / lambda,
                    factor: self.arg_in(&out.view()),
                };
                self.launch(&RADAM_SCALARS, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            _ => Ok((host_factors(rule, t), None)),
        }
    }
}

impl OptimizerOps for Engine {
    fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()> {
        const OP: &str = "optimizer_step";
        check_step(rule, step, params)?;
        self.own_step(OP, step)?;
        let states = rule.states().len();
        let mut tensors = Vec::with_capacity(params.len());
        for p in params.iter() {
            let state = |i: usize| p.state[i].as_ref().filter(|_| i < states).map(ViewMut::as_view);
            let views = [
                Some(p.w.as_view()),
                Some(p.g),
                state(0),
                state(1),
                state(2),
                p.copy.as_ref().map(ViewMut::as_view),
            ];
            for (arg, v) in ["w", "g", "state", "state", "state", "copy"].into_iter().zip(&views) {
                if let Some(v) = v {
                    self.check_owner(OP, arg, v)?;
                }
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let Some(Rule { name, p, flag, decays }) = rule_function(rule) else {
            return self.step_adaptive(OP, rule, step, None, params);
        };
        let t = host(&step.step);
        let shared = StepArgs {
            dt,
            master: master(wdt, dt),
            step: self.arg_scalar(&step.step),
            numbers: self.arg_opt(step.numbers.as_ref()),
            inv_scale: self.arg_opt(step.inv_scale.as_ref()),
            maximize: i32::from(step.maximize),
            bias: Bias::new(decays, t),
            p,
            rule,
        };
        let Bias { c1, c2, log1, log2 } = shared.bias;
        let [p0, p1, p2, p3, p4, p5] = p;
        let ((q0, q1), factors) = self.step_factors(rule, step, dt)?;
        for list in self.lists(OP, &tensors)? {
            let table = self.table(&list.words)?;
            let ratio = self.trust_ratios(&list, table.arg, &shared)?;
            let [w, g, s0, s1, s2, copy] = list.bases;
            let args = OptimizerStepArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                w,
                g,
                s0,
                s1,
                s2,
                copy,
                master: shared.master,
                copy_kind: copy_kind(first.copy.as_ref()),
                lr_dev: self.arg_scalar(&step.lr),
                step: shared.step,
                numbers: shared.numbers,
                inv_scale: shared.inv_scale,
                found_inf: self.arg_opt(step.found_inf.as_ref()),
                extra: self.arg_opt(ratio.as_ref().or(factors.as_ref()).map(Buffer::view).as_ref()),
                per_tensor: i32::from(ratio.is_some()),
                maximize: shared.maximize,
                lr: host(&step.lr),
                t,
                c1,
                c2,
                log1,
                log2,
                p0,
                p1,
                p2,
                p3,
                p4,
                p5,
                q0,
                q1,
                first: i32::from(t == 1.0),
                flag: i32::from(flag),
            };
            self.launch(&OPTIMIZER_STEP, dt, name, list.grid(), &args)?;
        }
        Ok(())
    }

    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> {
        const OP: &str = "clip_grad_norm";
        check_clip_norm(p, grads, &total)?;
        self.check_owner(OP, "total", &total.as_view())?;
        for g in grads.iter() {
            self.check_owner(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        let lists = self.lists(OP, &grad_tensors(grads.iter().map(ViewMut::as_view)))?;
        let (partial, n) = self.norm_partials(dt, &lists, p)?;
        let coef = self.scratch(dt.accumulator(), 1)?;
        let args = GradientNormFinalArgs {
            partial: self.arg_in(&partial.view()),
            n,
            kind: norm_kind(p),
            p: p.p,
            max_norm: p.max_norm,
            total: self.arg_out(&total),
            coef: self.arg_in(&coef.view()),
        };
        self.launch(&GRADIENT_NORM_FINAL, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
        self.scale_grads(dt, &lists, self.arg_in(&coef.view()), 0, 0.0)
    }

    fn grad_factor(&self, p: &ClipNorm, grads: &[View<'_>], io: GradFactor<'_>) -> Result<()> {
        const OP: &str = "grad_factor";
        check_factor(p, grads, &io)?;
        let total = io.total.as_ref().map(ViewMut::as_view);
        self.check_owner_all(OP, &[("factor", Some(io.factor.as_view())), ("total", total)])?;
        for g in grads {
            self.check_owner(OP, "grads", g)?;
        }
        let scaling = io.scaling.as_ref();
        if let Some(s) = scaling {
            self.check_owner_all(OP, &[("skip", s.skip.as_view()), ("count", s.count.as_view())])?;
            s.state.views().try_for_each(|(arg, v, _)| self.check_owner(OP, arg, &v.as_view()))?;
        }
        let dt = grads.first().map_or(DType::F32, View::dtype);
        let plan = self.plan(OP, &ListProblem)?;
        let (partial, n) = self.norm_partials(dt, &cut(&grad_tensors(grads.iter().copied()), plan), p)?;
        let state = scaling.map(|s| &s.state);
        let how = scaling.map_or(LossScale::new(), |s| s.p);
        let args = GradientFactorArgs {
            partial: self.arg_in(&partial.view()),
            n,
            kind: norm_kind(p),
            p: p.p,
            max_norm: p.max_norm,
            total: self.arg_opt_out(io.total.as_ref()),
            factor: self.arg_out(&io.factor),
            scale: self.arg_opt_out(state.map(|s| &s.scale)),
            good: self.arg_opt_out(state.map(|s| &s.good)),
            found: self.arg_opt_out(state.map(|s| &s.found_inf)),
            inverse: self.arg_opt_out(state.and_then(|s| s.inv_scale.as_ref())),
            step: self.arg_opt_out(state.and_then(|s| s.step.as_ref())),
            skip: self.arg_opt_out(scaling.map(|s| &s.skip)),
            count: self.arg_opt_out(scaling.map(|s| &s.count)),
            growth: how.growth as f32,
            backoff: how.backoff as f32,
            interval: how.interval.into(),
            least: how.least as f32,
        };
        self.launch(&GRADIENT_FACTOR, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }

    fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()> {
        const OP: &str = "clip_grad_value";
        check_clip_value(c, grads)?;
        for g in grads.iter() {
            self.check_owner(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        let lists = self.lists(OP, &grad_tensors(grads.iter().map(ViewMut::as_view)))?;
        self.scale_grads(dt, &lists, Ptr::NULL, 1, c)
    }

    fn clip_grad_adaptive(
        &self,
        p: &ClipAdaptive,
        weights: &[View<'_>],
        grads: &mut [ViewMut<'_>],
    ) -> Result<()> {
        const OP: &str = "clip_grad_adaptive";
        check_clip_adaptive(p, weights, grads)?;
        for (w, g) in weights.iter().zip(grads.iter()) {
            self.check_owner_all(OP, &[("weights", *w), ("grads", g.as_view())])?;
        }
        for (w, g) in weights.iter().zip(grads.iter()) {
            let (dt, [units, len]) = (g.dtype(), output_units(w.shape()));
            let args = UnitClipArgs {
                w: self.arg_in(w),
                g: self.arg_out(g),
                master: i32::from(w.dtype() == dt.accumulator()),
                units: units as i64,
                len: len as i64,
                k: p.k,
                least: p.least,
            };
            let blocks = if len == 0 { 0 } else { units.min(1 << 20) };
            self.launch(&UNIT_CLIP, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        }
        Ok(())
    }

    fn unscale_grads(
        &self,
        scale: Option<View<'_>>,
        grads: &mut [ViewMut<'_>],
        found_inf: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "unscale_grads";
        check_unscale(scale.as_ref(), grads, &found_inf)?;
        self.check_owner_all(OP, &[("scale", scale), ("found_inf", Some(found_inf.as_view()))])?;
        for g in grads.iter() {
            self.check_owner(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        for list in self.lists(OP, &grad_tensors(grads.iter().map(ViewMut::as_view)))? {
            let table = self.table(&list.words)?;
            let args = GradUnscaleArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                g: list.bases[1],
                scale: self.arg_opt(scale.as_ref()),
                found: self.arg_out(&found_inf),
            };
            self.launch(&GRAD_UNSCALE, dt, "", list.grid(), &args)?;
        }
        Ok(())
    }

    fn update_loss_scale(&self, p: &LossScale, io: LossScaleState<'_>) -> Result<()> {
        const OP: &str = "update_loss_scale";
        check_loss_scale(p, &io)?;
        let views =
            [Some(&io.scale), Some(&io.good), Some(&io.found_inf), io.inv_scale.as_ref(), io.step.as_ref()];
        let names = ["scale", "good", "found_inf", "inv_scale", "step"];
        for (arg, v) in names.into_iter().zip(views) {
            v.map_or(Ok(()), |v| self.check_owner(OP, arg, &v.as_view()))?;
        }
        let args = LossScaleArgs {
            scale: self.arg_out(&io.scale),
            good: self.arg_out(&io.good),
            found: self.arg_out(&io.found_inf),
            inverse: self.arg_opt_out(io.inv_scale.as_ref()),
            step: self.arg_opt_out(io.step.as_ref()),
            growth: p.growth as f32,
            backoff: p.backoff as f32,
            interval: p.interval.into(),
            least: p.least as f32,
        };
        self.launch(&LOSS_SCALE, DType::F32, "", Grid::Blocks([1, 1, 1]), &args)
    }
}

/// Gradients stand in the second place of a table row.
fn grad_tensors<'a>(grads: impl Iterator<Item = View<'a>>) -> Vec<[Option<View<'a>>; ARRAYS]> {
    grads.map(|g| [None, Some(g), None, None, None, None]).collect()
}

/// `kind` of the kernels for a norm's degree.
fn norm_kind(p: &ClipNorm) -> i32 {
    match p.p {
        1.0 => 1,
        2.0 => 2,
        p if p.is_infinite() => 3,
        _ => 0,
    }
}

impl Engine {
    /// Sums of all blocks for the norm of gradients, and their number.
    fn norm_partials(&self, dt: DType, lists: &[List], p: &ClipNorm) -> Result<(Buffer, i64)> {
        // Enough blocks to fill any device; by size alone, so that the tree is the same on every run.
        let blocks: Vec<_> = lists.iter().map(|l| l.chunks.min(2048)).collect();
        let n: usize = blocks.iter().sum();
        let partial = self.scratch(dt.accumulator(), 4 * n.max(1))?;
        let mut at = 0;
        for (list, &b) in lists.iter().zip(&blocks) {
            let table = self.table(&list.words)?;
            let args = GradientNormPartialArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                g: list.bases[1],
                partial: self.arg_in(&partial.view().range(4 * at, 4 * b)?),
                kind: norm_kind(p),
                p: p.p,
            };
            self.launch(&GRADIENT_NORM_PARTIAL, dt, "", Grid::Blocks([b, 1, 1]), &args)?;
            at += b;
        }
        Ok((partial, n as i64))
    }

    fn scale_grads(&self, dt: DType, lists: &[List], coef: Ptr, mode: i32, bound: f64) -> Result<()> {
        for list in lists {
            let table = self.table(&list.words)?;
            let args = GradScaleArgs {
                table: table.arg,
                tensors: list.tensors as i32,
                g: list.bases[1],
                coef,
                mode,
                bound,
            };
            self.launch(&GRAD_SCALE, dt, "", list.grid(), &args)?;
        }
        Ok(())
    }
}
