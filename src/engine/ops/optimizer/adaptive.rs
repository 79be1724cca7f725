//! Steps of rules with up to four states, and of optimizers that estimate their own step size.

use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int};
use crate::engine::ops::optimizer::rule::{copy_kind, host, master};
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::spec::kernels::optimizer::*;

/// Arrays of a tensor in the tables of `kernels/common/optimizer/adaptive.c`: w, g, four states, copy.
const ARRAYS: usize = 7;

/// C function of a rule of `kernels/common/optimizer/adaptive.c`, and its numbers.
#[derive(Default)]
struct Rule {
    name: &'static str,
    p: [f64; 8],
    /// Bases of 1 - b^t (0 for none).
    decays: [f64; 3],
    /// Kind of the `memory_dot` whose sum is needed before the step, and the weight decay of its gradient.
    dot: Option<(i32, f64)>,
    /// Kind and numbers of the `memory_finish` that follows the sum.
    before: Option<(i32, [f64; 5])>,
    /// The same after the step; the flag says whether it uses the step's sums.
    after: Option<(i32, [f64; 5], bool)>,
}

fn adaptive_function(rule: &OptimRule) -> Rule {
    let plain = |name, p| Rule { name, p, ..Rule::default() };
    match *rule {
        OptimRule::Adan { b1, b2, b3, eps, wd } => Rule {
            decays: [b1, b2, b3],
            ..plain("gk_rule_adan", [b1, b2, b3, eps, wd, 1.0 - b1, 1.0 - b2, 1.0 - b3])
        },
        OptimRule::Sophia { b1, gamma, eps, wd } => {
            plain("gk_rule_sophia", [b1, gamma, eps, wd, 1.0 - b1, 0.0, 0.0, 0.0])
        }
        OptimRule::SophiaCurvature { b2, batch } => {
            plain("gk_rule_curvature", [b2, (1.0 - b2) * batch, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        }
        OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate }) => Rule {
            dot: Some((0, 0.0)),
            before: Some((0, [rate, 0.0, 0.0, 0.0, 0.0])),
            ..plain("gk_rule_hyper", [0.0; 8])
        },
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeSgd { b, wd }) => Rule {
            after: Some((1, [0.0; 5], false)),
            ..plain("gk_rule_free_sgd", [b, wd, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b, b2, eps, wd }) => Rule {
            decays: [b2, 0.0, 0.0],
            after: Some((1, [0.0; 5], false)),
            ..plain("gk_rule_free_adamw", [b, wd, b2, eps, 1.0 - b2, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0, mu, wd, growth }) => Rule {
            dot: Some((1, wd)),
            before: Some((2, [0.0; 5])),
            after: Some((3, [d0, growth, 0.0, 0.0, 0.0], true)),
            ..plain("gk_rule_dadapt_sgd", [mu, wd, d0, 0.0, 0.0, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0, growth }) => {
            let q = b2.sqrt();
            Rule {
                after: Some((4, [d0, growth, q, 0.0, 1.0 - q], true)),
                ..plain("gk_rule_dadapt_adam", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2, q, d0])
            }
        }
        OptimRule::Adaptive(AdaptiveRule::Prodigy { b1, b2, eps, wd, d0, coef, growth }) => {
            let q = b2.sqrt();
            Rule {
                after: Some((5, [d0, growth, q, coef, 1.0 - q], true)),
                ..plain("gk_rule_prodigy", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2, q, d0])
            }
        }
        _ => Rule::default(),
    }
}

/// 1 - b^t of a rule's decays at step t.
pub(super) fn corrections(rule: &OptimRule, t: f64) -> [f64; 3] {
    adaptive_function(rule).decays.map(|b| 1.0 - b.powf(t))
}

impl Engine {
    /// Rows of the table: the arrays of every parameter, their owners checked.
    fn adaptive_tensors<'a>(
        &self,
        op: &'static str,
        states: usize,
        params: &'a [ParamSlot<'_>],
    ) -> Result<Vec<[Option<View<'a>>; ARRAYS]>> {
        let mut tensors = vec![];
        for p in params {
            let [s0, s1, s2, s3] =
                [0, 1, 2, 3].map(|i| p.state[i].as_ref().filter(|_| i < states).map(ViewMut::as_view));
            let views =
                [Some(p.w.as_view()), Some(p.g), s0, s1, s2, s3, p.copy.as_ref().map(ViewMut::as_view)];
            for (arg, v) in ["w", "g", "state", "state", "state", "state", "copy"].into_iter().zip(&views) {
                v.map_or(Ok(()), |v| self.check_owner(op, arg, &v))?;
            }
            tensors.push(views);
        }
        Ok(tensors)
    }

    /// A step by `kernels/common/optimizer/adaptive.c`; the operands are checked.
    pub(super) fn step_adaptive(
        &self,
        op: &'static str,
        rule: &OptimRule,
        step: &Step<'_>,
        memory: Option<&ViewMut<'_>>,
        params: &[ParamSlot<'_>],
    ) -> Result<()> {
        let tensors = self.adaptive_tensors(op, rule.states().len(), params)?;
        let Some(first) = params.first() else { return Ok(()) };
        let dt = first.g.dtype();
        let rule = adaptive_function(rule);
        let base = self.adaptive_args(&rule, step, memory, first);
        let lists = self.lists(op, &tensors)?;
        let tables = lists.iter().map(|l| self.table(&l.words)).collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = lists.iter().map(|l| l.chunks.min(1 << 20)).collect();
        let total: usize = sizes.iter().sum();
        let blocks = self.table(&sizes.iter().map(|&n| n as i64).collect::<Vec<_>>())?;
        let finish = |sums: Option<&Buffer>, kind: i32, [p0, p1, p2, p3, p4]: [f64; 5]| {
            let args = AdaptiveMemoryArgs {
                partial: self.arg_opt(sums.map(Buffer::view).as_ref()),
                blocks: blocks.arg,
                parts: int(if sums.is_some() { lists.len() } else { 0 }),
                kind,
                memory: base.memory,
                lr_dev: base.lr_dev,
                step: base.step,
                found_inf: base.found_inf,
                numbers: base.numbers,
                lr: base.lr,
                first: base.first,
                p0,
                p1,
                p2,
                p3,
                p4,
            };
            self.launch(&ADAPTIVE_MEMORY, dt, "", Grid::Blocks([1, 1, 1]), &args)
        };
        // Sums that only the first step needs are left out where the host knows better.
        let wanted = matches!(step.step, Scalar::Device(_))
            || step.numbers.is_some()
            || host(&step.step) == 1.0
            || rule.after.is_none();
        if let (Some((kind, decay)), Some((finish_kind, p)), true) = (rule.dot, rule.before, wanted) {
            let sums = self.scratch(dt.accumulator(), total.max(1))?;
            let mut at = 0;
            for ((list, table), &n) in lists.iter().zip(&tables).zip(&sizes) {
                let [w, g, s0, ..] = list.bases;
                let args = AdaptiveDotArgs {
                    table: table.arg,
                    tensors: int(list.tensors),
                    w,
                    g,
                    s0,
                    master: base.master,
                    inv_scale: base.inv_scale,
                    maximize: base.maximize,
                    kind,
                    decay,
                    partial: self.arg_in(&sums.view().range(at, n)?),
                };
                self.launch(&ADAPTIVE_DOT, dt, "", list.grid(), &args)?;
                at += n;
            }
            finish(Some(&sums), finish_kind, p)?;
        }
        let sums = match rule.after {
            Some((_, _, true)) => Some(self.scratch(dt.accumulator(), 2 * total.max(1))?),
            _ => None,
        };
        let mut at = 0;
        for ((list, table), &n) in lists.iter().zip(&tables).zip(&sizes) {
            let partial = match &sums {
                Some(s) => self.arg_in(&s.view().range(2 * at, 2 * n)?),
                None => Ptr::NULL,
            };
            let (table, tensors) = (table.arg, int(list.tensors));
            let [w, g, s0, s1, s2, s3, copy] = list.bases;
            let args = AdaptiveStepArgs { table, tensors, w, g, s0, s1, s2, s3, copy, partial, ..base };
            self.launch(&ADAPTIVE_STEP, dt, rule.name, list.grid(), &args)?;
            at += n;
        }
        match rule.after {
            Some((kind, p, _)) => finish(sums.as_ref(), kind, p),
            None => Ok(()),
        }
    }

    /// Arguments of a step without its tensors, which differ by launch.
    fn adaptive_args(
        &self,
        rule: &Rule,
        step: &Step<'_>,
        memory: Option<&ViewMut<'_>>,
        first: &ParamSlot<'_>,
    ) -> AdaptiveStepArgs {
        let t = host(&step.step);
        let [c1, c2, c3] = rule.decays.map(|b| 1.0 - b.powf(t));
        let [log1, log2, log3] = rule.decays.map(f64::ln);
        let [p0, p1, p2, p3, p4, p5, p6, p7] = rule.p;
        AdaptiveStepArgs {
            table: Ptr::NULL,
            tensors: 0,
            w: Ptr::NULL,
            g: Ptr::NULL,
            s0: Ptr::NULL,
            s1: Ptr::NULL,
            s2: Ptr::NULL,
            s3: Ptr::NULL,
            copy: Ptr::NULL,
            master: master(first.w.dtype(), first.g.dtype()),
            copy_kind: copy_kind(first.copy.as_ref()),
            lr_dev: self.arg_scalar(&step.lr),
            step: self.arg_scalar(&step.step),
            inv_scale: self.arg_opt(step.inv_scale.as_ref()),
            found_inf: self.arg_opt(step.found_inf.as_ref()),
            numbers: self.arg_opt(step.numbers.as_ref()),
            memory: self.arg_opt_out(memory),
            partial: Ptr::NULL,
            maximize: i32::from(step.maximize),
            lr: host(&step.lr),
            c1,
            c2,
            c3,
            log1,
            log2,
            log3,
            p0,
            p1,
            p2,
            p3,
            p4,
            p5,
            p6,
            p7,
            first: i32::from(t == 1.0),
        }
    }
}

impl AdaptiveOptimizerOps for Engine {
    fn adaptive_step(
        &self,
        rule: &AdaptiveRule,
        step: &Step<'_>,
        memory: ViewMut<'_>,
        params: &mut [ParamSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "adaptive_step";
        check_adaptive(rule, step, &memory, params)?;
        self.own_step(OP, step)?;
        self.check_owner(OP, "memory", &memory.as_view())?;
        self.step_adaptive(OP, &OptimRule::Adaptive(*rule), step, Some(&memory), params)
    }
}
