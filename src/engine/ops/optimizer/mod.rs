//! Optimizer steps and gradient clipping over lists of tensors.

pub(super) mod forms;

use crate::spec::kernels::optimizer::*;
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::{Arg, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, real};
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::spec::BLOCK;

/// Elements per block and pass; the kernels' `GK_CHUNK`.
const CHUNK: usize = BLOCK as usize * 32;
/// Arrays that a tensor of a list of `optimizer.c` can have.
const ARRAYS: usize = 6;

/// Tensors of one launch: base pointers and the table of `kernels/common/optimizer.c` (or, with an array more, of `optimizer_more.c`).
pub(in crate::engine::ops) struct List<const N: usize = ARRAYS> {
    pub(in crate::engine::ops) bases: [Arg; N],
    pub(in crate::engine::ops) words: Vec<i64>,
    pub(in crate::engine::ops) tensors: usize,
    pub(in crate::engine::ops) chunks: usize,
}

impl<const N: usize> List<N> {
    pub(in crate::engine::ops) fn grid(&self) -> Grid {
        Grid::Blocks([self.chunks.min(1 << 20), 1, 1])
    }
}

/// Cuts a list into launches: one where kernels can use addresses, otherwise one per run of tensors that share their buffers.
fn cut<const N: usize>(tensors: &[[Option<View<'_>>; N]], addresses: bool) -> Vec<List<N>> {
    let mut lists: Vec<(List<N>, [Option<RawMem>; N])> = vec![];
    for t in tensors {
        let len = t.iter().flatten().next().map_or(0, View::numel);
        if len == 0 {
            continue;
        }
        let raw = t.map(|v| v.and_then(|v| v.block().raw()));
        let fits = lists.last().is_some_and(|(_, bases)| addresses || *bases == raw);
        if !fits {
            let base = |m: Option<RawMem>| Arg::Mem(m.filter(|_| !addresses).map(|m| (m, 0)));
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

/// A rule as its C function sees it.
pub(in crate::engine::ops) struct Kernel {
    pub(in crate::engine::ops) name: &'static str,
    pub(in crate::engine::ops) p: [f64; 6],
    pub(in crate::engine::ops) flag: bool,
    /// Bases of the bias corrections 1 - b^t (0 for none).
    pub(in crate::engine::ops) decays: (f64, f64),
}

/// `None` for rules of `optimizer_more.c`.
pub(in crate::engine::ops) fn rule_kernel(rule: &OptimRule) -> Option<Kernel> {
    let plain = |name, p, flag| Kernel { name, p, flag, decays: (0.0, 0.0) };
    let adam = |name, b1: f64, b2: f64, eps, wd, flag| Kernel {
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

/// What the kernels of one step share.
struct StepArgs<'s> {
    dt: DType,
    master: Arg,
    step: Arg,
    inv_scale: Arg,
    maximize: Arg,
    /// c1, c2, ln b1, ln b2
    bias: [Arg; 4],
    p: [Arg; 6],
    rule: &'s OptimRule,
}

impl Engine {
    /// The launches that serve a list of tensors. All of them count as written: kernels that get addresses do not show which they write.
    pub(in crate::engine::ops) fn lists<const N: usize>(
        &self,
        tensors: &[[Option<View<'_>>; N]],
    ) -> Vec<List<N>> {
        self.wrote(tensors.iter().flatten().flatten().filter_map(|v| v.block().raw()));
        cut(tensors, self.device_caps().device_addresses)
    }

    /// Trust ratio of every tensor of a list, for rules that have one.
    fn trust_ratios(&self, list: &List, table: Arg, step: &StepArgs<'_>) -> Result<Option<Buffer>> {
        let (lamb, eta, wd, eps, bound) = match *step.rule {
            OptimRule::Lars { eta, wd, eps, adapt: true, .. } => (false, eta, wd, eps, 0.0),
            OptimRule::Lamb { max_norm, adapt: true, .. } => (true, 0.0, 0.0, 0.0, max_norm),
            _ => return Ok(None),
        };
        let dt = step.dt;
        let partial = self.scratch(dt.accumulator(), 6 * list.chunks)?;
        let ratio = self.scratch(dt.accumulator(), list.tensors)?;
        let tensors = Arg::I32(list.tensors as i32);
        let mut args = vec![table, tensors];
        args.extend(&list.bases[..4]);
        args.extend([step.master, step.step, step.inv_scale, step.maximize, Arg::I32(lamb as i32)]);
        args.extend(step.bias);
        args.extend(step.p);
        args.push(self.arg_in(&partial.view()));
        self.launch_list(&TRUST_PARTIAL.spec, dt, "", list.grid(), &args)?;
        let mut args = vec![table, tensors, self.arg_in(&partial.view()), Arg::I32(lamb as i32)];
        args.extend([eta, wd, eps, bound].map(|x| real(dt, x)));
        args.push(self.arg_in(&ratio.view()));
        let blocks = list.tensors.min(1 << 16);
        self.launch_list(&TRUST_FINISH.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(Some(ratio))
    }
}

/// A number of the host; 0 for one on the device.
pub(in crate::engine::ops) fn host(s: &Scalar<'_>) -> f64 {
    if let Scalar::Host(x) = s { *x } else { 0.0 }
}

/// Whether parameters of dtype `w` beside gradients of dtype `g` are in the arithmetic type.
pub(in crate::engine::ops) fn master(w: DType, g: DType) -> Arg {
    Arg::I32((w != g || g.accumulator() == w) as i32)
}

/// Kind of the 16-bit copy.
pub(in crate::engine::ops) fn copy_kind(copy: Option<&ViewMut<'_>>) -> Arg {
    Arg::I32(match copy.map(ViewMut::dtype) {
        None => 0,
        Some(DType::F16) => 1,
        Some(_) => 2,
    })
}

impl Engine {
    /// Pointer argument of a number on the device; null for one of the host.
    pub(in crate::engine::ops) fn arg_scalar(&self, s: &Scalar<'_>) -> Arg {
        match s {
            Scalar::Device(v) => self.arg_in(v),
            Scalar::Host(_) => Arg::Mem(None),
        }
    }

    /// [`Engine::own`] for what a step holds.
    pub(in crate::engine::ops) fn own_step(&self, op: &'static str, step: &Step<'_>) -> Result<()> {
        for (arg, s) in [("lr", &step.lr), ("step", &step.step)] {
            if let Scalar::Device(v) = s {
                self.own(op, arg, v)?;
            }
        }
        self.own_all(op, &[("inv_scale", step.inv_scale), ("found_inf", step.found_inf)])
    }

    /// q0 and q1 of a rule: from the host, or in device memory where the step count is there.
    pub(in crate::engine::ops) fn step_factors(
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
                let args = [count, real(dt, b1), real(dt, psi.unwrap_or(-1.0)), self.arg_in(&out.view())];
                self.launch_list(&NADAM_SCALARS.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            OptimRule::RAdam { b2, .. } if device => {
                let out = self.scratch(dt.accumulator(), 2)?;
                let (lambda, most) = (-b2.ln(), 2.0 / (1.0 - b2) - 1.0);
                let mut args = vec![count];
                args.extend([lambda, most, most - 2.0 / lambda].map(|x| real(dt, x)));
                args.push(self.arg_in(&out.view()));
                self.launch_list(&RADAM_SCALARS.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            OptimRule::Nadam { b1, psi, .. } => Ok((nadam_factors(b1, psi, t), None)),
            OptimRule::RAdam { b2, .. } => Ok(((radam_factor(b2, t).unwrap_or(0.0), 0.0), None)),
            _ => Ok(((1.0, 0.0), None)),
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
                    self.own(OP, arg, v)?;
                }
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let Some(Kernel { name, p, flag, decays: (b1, b2) }) = rule_kernel(rule) else {
            return self.step_more(OP, rule, step, None, params);
        };
        let copy_kind = copy_kind(first.copy.as_ref());
        let t = host(&step.step);
        let (c1, c2) = (1.0 - b1.powf(t), (1.0 - b2.powf(t)).max(0.0).sqrt());
        let shared = StepArgs {
            dt,
            master: master(wdt, dt),
            step: self.arg_scalar(&step.step),
            inv_scale: self.arg_opt(step.inv_scale.as_ref()),
            maximize: Arg::I32(step.maximize as i32),
            bias: [c1, c2, b1.ln(), b2.ln()].map(|x| real(dt, x)),
            p: p.map(|x| real(dt, x)),
            rule,
        };
        let (q, factors) = self.step_factors(rule, step, dt)?;
        for list in self.lists(&tensors) {
            let table = self.table(&list.words)?;
            let ratio = self.trust_ratios(&list, table.arg, &shared)?;
            let mut args = vec![table.arg, Arg::I32(list.tensors as i32)];
            args.extend(list.bases);
            args.extend([
                shared.master,
                copy_kind,
                self.arg_scalar(&step.lr),
                shared.step,
                shared.inv_scale,
                self.arg_opt(step.found_inf.as_ref()),
                self.arg_opt(ratio.as_ref().or(factors.as_ref()).map(Buffer::view).as_ref()),
                Arg::I32(ratio.is_some() as i32),
                shared.maximize,
                real(dt, host(&step.lr)),
                real(dt, t),
            ]);
            args.extend(shared.bias);
            args.extend(shared.p);
            args.extend([real(dt, q.0), real(dt, q.1), Arg::I32((t == 1.0) as i32), Arg::I32(flag as i32)]);
            self.launch_list(&OPTIMIZER_STEP.spec, dt, name, list.grid(), &args)?;
        }
        Ok(())
    }

    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> {
        const OP: &str = "clip_grad_norm";
        check_clip_norm(p, grads, &total)?;
        self.own(OP, "total", &total.as_view())?;
        for g in grads.iter() {
            self.own(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        let kind = match p.p {
            1.0 => 1,
            2.0 => 2,
            p if p.is_infinite() => 3,
            _ => 0,
        };
        let lists = self.lists(&grad_tensors(grads));
        // Enough blocks to fill any device; by size alone, so that the tree is the same on every run.
        let blocks: Vec<_> = lists.iter().map(|l| l.chunks.min(2048)).collect();
        let n: usize = blocks.iter().sum();
        let partial = self.scratch(dt.accumulator(), 3 * n.max(1))?;
        let coef = self.scratch(dt.accumulator(), 1)?;
        let mut at = 0;
        for (list, &b) in lists.iter().zip(&blocks) {
            let table = self.table(&list.words)?;
            let args = [
                table.arg,
                Arg::I32(list.tensors as i32),
                list.bases[1],
                self.arg_in(&partial.view().range(3 * at, 3 * b)?),
                Arg::I32(kind),
                real(dt, p.p),
            ];
            self.launch_list(&NORM_PARTIAL.spec, dt, "", Grid::Blocks([b, 1, 1]), &args)?;
            at += b;
        }
        let args = [
            self.arg_in(&partial.view()),
            Arg::I64(n as i64),
            Arg::I32(kind),
            real(dt, p.p),
            real(dt, p.max_norm),
            self.arg_out(&total),
            self.arg_in(&coef.view()),
        ];
        self.launch_list(&NORM_FINISH.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
        self.scale_grads(dt, &lists, self.arg_in(&coef.view()), 0, 0.0)
    }

    fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()> {
        const OP: &str = "clip_grad_value";
        check_clip_value(c, grads)?;
        for g in grads.iter() {
            self.own(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        self.scale_grads(dt, &self.lists(&grad_tensors(grads)), Arg::Mem(None), 1, c)
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
            self.own_all(OP, &[("weights", *w), ("grads", g.as_view())])?;
        }
        for (w, g) in weights.iter().zip(grads.iter()) {
            let (dt, [units, len]) = (g.dtype(), output_units(w.shape()));
            let args = [
                self.arg_in(w),
                self.arg_out(g),
                Arg::I32((w.dtype() == dt.accumulator()) as i32),
                Arg::I64(units as i64),
                Arg::I64(len as i64),
                real(dt, p.k),
                real(dt, p.least),
            ];
            let blocks = if len == 0 { 0 } else { units.min(1 << 20) };
            self.launch_list(&UNIT_CLIP.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
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
        self.own_all(OP, &[("scale", scale), ("found_inf", Some(found_inf.as_view()))])?;
        for g in grads.iter() {
            self.own(OP, "grads", &g.as_view())?;
        }
        let dt = grads.first().map_or(DType::F32, ViewMut::dtype);
        for list in self.lists(&grad_tensors(grads)) {
            let table = self.table(&list.words)?;
            let args = [
                table.arg,
                Arg::I32(list.tensors as i32),
                list.bases[1],
                self.arg_opt(scale.as_ref()),
                self.arg_out(&found_inf),
            ];
            self.launch_list(&GRAD_UNSCALE.spec, dt, "", list.grid(), &args)?;
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
            v.map_or(Ok(()), |v| self.own(OP, arg, &v.as_view()))?;
        }
        let mut args: Vec<Arg> = views.iter().map(|v| self.arg_opt_out(*v)).collect();
        args.extend([Arg::F32(p.growth as f32), Arg::F32(p.backoff as f32)]);
        args.extend([Arg::I64(p.interval.into()), Arg::F32(p.least as f32)]);
        self.launch_list(&LOSS_SCALE.spec, DType::F32, "", Grid::Blocks([1, 1, 1]), &args)
    }
}

/// Gradients stand in the second place of a table row.
fn grad_tensors<'a>(grads: &[ViewMut<'a>]) -> Vec<[Option<View<'a>>; ARRAYS]> {
    grads.iter().map(|g| [None, Some(g.as_view()), None, None, None, None]).collect()
}

impl Engine {
    fn scale_grads(&self, dt: DType, lists: &[List], coef: Arg, mode: i32, bound: f64) -> Result<()> {
        for list in lists {
            let table = self.table(&list.words)?;
            let args = [
                table.arg,
                Arg::I32(list.tensors as i32),
                list.bases[1],
                coef,
                Arg::I32(mode),
                real(dt, bound),
            ];
            self.launch_list(&GRAD_SCALE.spec, dt, "", list.grid(), &args)?;
        }
        Ok(())
    }
}
