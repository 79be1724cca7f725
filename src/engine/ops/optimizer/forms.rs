//! Optimizer steps in other forms.

use crate::spec::kernels::optimizer::*;
use crate::spec::optimizer::{SPARSE_RULES};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Table, int, long, real};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::optimizer::{Kernel, List, copy_kind, host, master, rule_kernel};
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::ops::random::Rng;
use crate::spec::BLOCK;

/// Arrays of a tensor in the tables of `optimizer_more.h`: w, g, four states, copy.
const ARRAYS: usize = 7;

/// A rule of `optimizer_more.c` as its C function sees it.
#[derive(Default)]
struct More {
    name: &'static str,
    p: [f64; 8],
    /// Bases of 1 - b^t (0 for none).
    decays: [f64; 3],
    /// Kind of `memory_dot` and weight decay of its gradient, whose sum is needed before the step.
    dot: Option<(i32, f64)>,
    /// Kind and numbers of the `memory_finish` that follows the sum.
    before: Option<(i32, [f64; 5])>,
    /// The same after the step, from its sums if the flag says so.
    after: Option<(i32, [f64; 5], bool)>,
}

fn more(rule: &OptimRule) -> More {
    let plain = |name, p| More { name, p, ..More::default() };
    match *rule {
        OptimRule::Adan { b1, b2, b3, eps, wd } => More {
            decays: [b1, b2, b3],
            ..plain("gk_rule_adan", [b1, b2, b3, eps, wd, 1.0 - b1, 1.0 - b2, 1.0 - b3])
        },
        OptimRule::Sophia { b1, gamma, eps, wd } => {
            plain("gk_rule_sophia", [b1, gamma, eps, wd, 1.0 - b1, 0.0, 0.0, 0.0])
        }
        OptimRule::SophiaCurvature { b2, batch } => {
            plain("gk_rule_curvature", [b2, (1.0 - b2) * batch, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        }
        OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate }) => More {
            dot: Some((0, 0.0)),
            before: Some((0, [rate, 0.0, 0.0, 0.0, 0.0])),
            ..plain("gk_rule_hyper", [0.0; 8])
        },
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeSgd { b, wd }) => More {
            after: Some((1, [0.0; 5], false)),
            ..plain("gk_rule_free_sgd", [b, wd, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b, b2, eps, wd }) => More {
            decays: [b2, 0.0, 0.0],
            after: Some((1, [0.0; 5], false)),
            ..plain("gk_rule_free_adamw", [b, wd, b2, eps, 1.0 - b2, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0, mu, wd, growth }) => More {
            dot: Some((1, wd)),
            before: Some((2, [0.0; 5])),
            after: Some((3, [d0, growth, 0.0, 0.0, 0.0], true)),
            ..plain("gk_rule_dadapt_sgd", [mu, wd, d0, 0.0, 0.0, 0.0, 0.0, 0.0])
        },
        OptimRule::Adaptive(AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0, growth }) => {
            let q = b2.sqrt();
            More {
                after: Some((4, [d0, growth, q, 0.0, 1.0 - q], true)),
                ..plain("gk_rule_dadapt_adam", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2, q, d0])
            }
        }
        OptimRule::Adaptive(AdaptiveRule::Prodigy { b1, b2, eps, wd, d0, coef, growth }) => {
            let q = b2.sqrt();
            More {
                after: Some((5, [d0, growth, q, coef, 1.0 - q], true)),
                ..plain("gk_rule_prodigy", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2, q, d0])
            }
        }
        _ => More::default(),
    }
}

impl Engine {
    /// A step by `optimizer_more.c`; the operands are checked.
    pub(in crate::engine::ops) fn step_more(
        &self,
        op: &'static str,
        rule: &OptimRule,
        step: &Step<'_>,
        memory: Option<&ViewMut<'_>>,
        params: &[ParamSlot<'_>],
    ) -> Result<()> {
        let states = rule.states().len();
        let mut tensors: Vec<[Option<View<'_>>; ARRAYS]> = vec![];
        for p in params {
            let [s0, s1, s2, s3] =
                [0, 1, 2, 3].map(|i| p.state[i].as_ref().filter(|_| i < states).map(ViewMut::as_view));
            let views =
                [Some(p.w.as_view()), Some(p.g), s0, s1, s2, s3, p.copy.as_ref().map(ViewMut::as_view)];
            for (arg, v) in ["w", "g", "state", "state", "state", "state", "copy"].into_iter().zip(&views) {
                v.map_or(Ok(()), |v| self.own(op, arg, &v))?;
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let (copy, master) = (copy_kind(first.copy.as_ref()), master(wdt, dt));
        let rule = more(rule);
        let (lr, t) = (host(&step.lr), host(&step.step));
        let (lr_dev, count) = (self.arg_scalar(&step.lr), self.arg_scalar(&step.step));
        let (inverse, found) = (self.arg_opt(step.inv_scale.as_ref()), self.arg_opt(step.found_inf.as_ref()));
        let (up, start) = (Arg::I32(step.maximize as i32), Arg::I32((t == 1.0) as i32));
        let numbers = self.arg_opt_out(memory);
        let lists = self.lists(&tensors);
        let tables = lists.iter().map(|l| self.table(&l.words)).collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = lists.iter().map(|l| l.chunks.min(1 << 20)).collect();
        let total: usize = sizes.iter().sum();
        let blocks = self.table(&sizes.iter().map(|&n| n as i64).collect::<Vec<_>>())?;
        let finish = |sums: Option<&Buffer>, kind: i32, p: [f64; 5]| {
            let mut args = vec![
                self.arg_opt(sums.map(Buffer::view).as_ref()),
                blocks.arg,
                int(if sums.is_some() { lists.len() } else { 0 }),
                Arg::I32(kind),
                numbers,
                lr_dev,
                count,
                found,
                real(dt, lr),
                start,
            ];
            args.extend(p.map(|x| real(dt, x)));
            self.launch_list(&MEMORY_FINISH.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)
        };
        let head = |list: &List<ARRAYS>, table: &Table| [table.arg, int(list.tensors)];
        // Sums that only the first step needs are left out where the host knows better.
        let wanted = matches!(step.step, Scalar::Device(_)) || t == 1.0 || rule.after.is_none();
        if let (Some((kind, decay)), Some((finish_kind, p)), true) = (rule.dot, rule.before, wanted) {
            let sums = self.scratch(dt.accumulator(), total.max(1))?;
            let mut at = 0;
            for ((list, table), &n) in lists.iter().zip(&tables).zip(&sizes) {
                let mut args = head(list, table).to_vec();
                args.extend([list.bases[0], list.bases[1], list.bases[2], master, inverse, up]);
                args.extend([Arg::I32(kind), real(dt, decay), self.arg_in(&sums.view().range(at, n)?)]);
                self.launch_list(&MEMORY_DOT.spec, dt, "", list.grid(), &args)?;
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
            let mut args = head(list, table).to_vec();
            args.extend(list.bases);
            let partial = match &sums {
                Some(s) => self.arg_in(&s.view().range(2 * at, 2 * n)?),
                None => Arg::Mem(None),
            };
            args.extend([master, copy, lr_dev, count, inverse, found, numbers, partial, up, real(dt, lr)]);
            args.extend(rule.decays.map(|b| real(dt, 1.0 - b.powf(t))));
            args.extend(rule.decays.map(|b| real(dt, b.ln())));
            args.extend(rule.p.map(|x| real(dt, x)));
            args.push(start);
            self.launch_list(&OPTIMIZER_STEP_MORE.spec, dt, rule.name, list.grid(), &args)?;
            at += n;
        }
        match rule.after {
            Some((kind, p, _)) => finish(sums.as_ref(), kind, p),
            None => Ok(()),
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
        self.own(OP, "memory", &memory.as_view())?;
        self.step_more(OP, &OptimRule::Adaptive(*rule), step, Some(&memory), params)
    }
}

impl SparseOptimizerOps for Engine {
    fn optimizer_step_rows(&self, rule: &OptimRule, step: &Step<'_>, param: RowSlot<'_>) -> Result<()> {
        const OP: &str = "optimizer_step_rows";
        let [n, width] = check_rows(rule, step, &param)?;
        self.own_step(OP, step)?;
        let count = rule.states().len();
        let states = [0, 1, 2].map(|i| param.state[i].as_ref().filter(|_| i < count));
        let mut views = vec![
            ("w", Some(param.w.as_view())),
            ("ids", Some(param.ids)),
            ("rows", Some(param.rows)),
            ("copy", param.copy.as_ref().map(ViewMut::as_view)),
        ];
        views.extend(states.map(|s| ("state", s.map(ViewMut::as_view))));
        self.own_all(OP, &views)?;
        let k = param.ids.numel();
        let Some(Kernel { name, p, flag, decays: (b1, b2) }) = rule_kernel(rule) else { return Ok(()) };
        let number = SPARSE_RULES.iter().position(|r| *r == name);
        let (Some(number), true) = (number, k > 0) else { return Ok(()) };
        let keys = self.embedding_keys(OP, &param.ids, n, None)?;
        if n * width == 0 {
            return Ok(());
        }
        let plan = self.sorted(OP, &keys, n)?;
        let (keys, positions) = plan.sorted_views();
        let (dt, wdt) = (param.rows.dtype(), param.w.dtype());
        let (q, factors) = self.step_factors(rule, step, dt)?;
        let t = host(&step.step);
        let lanes = width.next_power_of_two().min(BLOCK as usize);
        let mut args = vec![self.arg_in(&keys), self.arg_in(&positions), self.arg_out(&param.w)];
        args.push(self.arg_in(&param.rows));
        args.extend(states.map(|s| self.arg_opt_out(s)));
        args.extend([
            self.arg_opt_out(param.copy.as_ref()),
            master(wdt, dt),
            copy_kind(param.copy.as_ref()),
            self.arg_scalar(&step.lr),
            self.arg_scalar(&step.step),
            self.arg_opt(step.inv_scale.as_ref()),
            self.arg_opt(step.found_inf.as_ref()),
            self.arg_opt(factors.as_ref().map(Buffer::view).as_ref()),
            long(k),
            long(n),
            long(width),
            int(lanes),
            wide_index(&keys),
            int(number),
            int(count),
            Arg::I32(step.maximize as i32),
        ]);
        let bias = [1.0 - b1.powf(t), (1.0 - b2.powf(t)).max(0.0).sqrt(), b1.ln(), b2.ln()];
        args.extend([host(&step.lr), t].into_iter().chain(bias).chain(p).map(|x| real(dt, x)));
        args.extend([real(dt, q.0), real(dt, q.1), Arg::I32((t == 1.0) as i32), Arg::I32(flag as i32)]);
        let blocks = k.div_ceil(BLOCK as usize / lanes).min(1 << 30);
        self.launch_list(&OPTIMIZER_ROWS.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
    }
}

impl PackedOptimizerOps for Engine {
    fn optimizer_step_packed(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        rng: Option<&Rng<'_>>,
        params: &mut [PackedSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "optimizer_step_packed";
        check_packed(rule, step, rng, params)?;
        self.own_step(OP, step)?;
        let more = rng.and_then(|r| r.device_offset);
        self.own_all(OP, &[("rng", more)])?;
        let mut tensors: Vec<[Option<View<'_>>; ARRAYS]> = vec![];
        for p in params.iter() {
            let [scales, copy] = [&p.scales, &p.copy].map(|v| v.as_ref().map(ViewMut::as_view));
            let views = [
                Some(p.w.as_view()),
                Some(p.g),
                Some(p.m.as_view()),
                Some(p.v.as_view()),
                scales,
                None,
                copy,
            ];
            for (arg, v) in ["w", "g", "m", "v", "scales", "", "copy"].into_iter().zip(&views) {
                v.map_or(Ok(()), |v| self.own(OP, arg, &v))?;
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let Some(Kernel { p, decays: (b1, b2), .. }) = rule_kernel(rule) else { return Ok(()) };
        let t = host(&step.step);
        let bias = [1.0 - b1.powf(t), (1.0 - b2.powf(t)).max(0.0).sqrt(), b1.ln(), b2.ln()];
        let draw = rng.copied().unwrap_or(Rng::new(0));
        let mut done = 0;
        for list in self.lists(&tensors) {
            let table = self.table(&list.words)?;
            let [w, g, m, v, scales, _, copy] = list.bases;
            let mut args = vec![table.arg, int(list.tensors), w, g, m, v, scales, copy];
            args.extend([
                Arg::I32((first.m.dtype() == DType::U8) as i32),
                master(wdt, dt),
                copy_kind(first.copy.as_ref()),
                self.arg_scalar(&step.lr),
                self.arg_scalar(&step.step),
                self.arg_opt(step.inv_scale.as_ref()),
                self.arg_opt(step.found_inf.as_ref()),
                Arg::I32(step.maximize as i32),
                Arg::I32(matches!(rule, OptimRule::AdamW { .. }) as i32),
                real(dt, host(&step.lr)),
            ]);
            args.extend(bias.into_iter().chain(p).map(|x| real(dt, x)));
            args.push(Arg::I32(rng.is_some() as i32));
            args.extend([draw.seed, draw.stream, draw.offset].map(|x| Arg::I64(x as i64)));
            args.extend([self.arg_opt(more.as_ref()), int(done)]);
            self.launch_list(&ADAM_PACKED.spec, dt, "", list.grid(), &args)?;
            done += list.tensors;
        }
        Ok(())
    }
}
