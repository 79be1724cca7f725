//! Optimizer steps and gradient clipping over lists of tensors.

mod adaptive;
mod clip;
mod list;
mod packed;
mod plan;
pub(super) mod rule;
mod sparse;

use self::clip::norm_kind;
use self::list::{cut, grad_tensors};
use self::plan::ListProblem;
use self::rule::{Bias, Rule, StepArgs, copy_kind, host, master, rule_function};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::optimizer::*;
use crate::spec::kernels::optimizer::*;

/// Arrays of a tensor in the tables of `kernels/common/optimizer/optimizer.c`: w, g, three states, copy.
const ARRAYS: usize = 6;

impl Engine {
    /// What serves a list of tensors.
    pub(crate) fn explain_optimizer(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &ListProblem)
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
                parts: list.parts(dt, self.target_blocks()) as i32,
            };
            let grid = Grid::Blocks([(list.chunks * args.parts as usize).min(1 << 20), 1, 1]);
            self.launch(&OPTIMIZER_STEP, dt, name, grid, &args)?;
        }
        Ok(())
    }

    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> {
        const OP: &str = "clip_grad_norm";
        check_clip_norm(p, grads, &total)?;
        self.check_owner(OP, "total", &total.as_view())?;
        let (dt, lists) = self.gradient_lists(OP, grads)?;
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
        let (dt, lists) = self.gradient_lists(OP, grads)?;
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
        let (dt, lists) = self.gradient_lists(OP, grads)?;
        for list in lists {
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
        io.views().try_for_each(|(arg, v, _)| self.check_owner(OP, arg, &v.as_view()))?;
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
