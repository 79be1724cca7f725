//! Optimizer steps with sparse gradients, on the rows that a batch touched.

use crate::buffer::{Buffer, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::optimizer::rule::{Bias, Rule, copy_kind, host, master, rule_function};
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::spec::BLOCK;
use crate::spec::kernels::optimizer::*;
use crate::spec::optimizer::SPARSE_RULES;

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
        self.check_owner_all(OP, &views)?;
        let k = param.ids.numel();
        let Some(Rule { name, p, flag, decays }) = rule_function(rule) else { return Ok(()) };
        let number = SPARSE_RULES.iter().position(|r| *r == name);
        let (Some(number), true) = (number, k > 0) else { return Ok(()) };
        let keys = self.embedding_keys(OP, &param.ids, n, None)?;
        if n * width == 0 {
            return Ok(());
        }
        let plan = self.sorted(OP, &keys, n)?;
        let (keys, positions) = plan.sorted_views();
        let (dt, wdt) = (param.rows.dtype(), param.w.dtype());
        let ((q0, q1), factors) = self.step_factors(rule, step, dt)?;
        let t = host(&step.step);
        let lanes = width.next_power_of_two().min(BLOCK as usize);
        let [s0, s1, s2] = states.map(|s| self.arg_opt_out(s));
        let Bias { c1, c2, log1, log2 } = Bias::new(decays, t);
        let [p0, p1, p2, p3, p4, p5] = p;
        let args = OptimizerSparseRowsArgs {
            keys: self.arg_in(&keys),
            positions: self.arg_in(&positions),
            w: self.arg_out(&param.w),
            rows: self.arg_in(&param.rows),
            s0,
            s1,
            s2,
            copy: self.arg_opt_out(param.copy.as_ref()),
            master: master(wdt, dt),
            copy_kind: copy_kind(param.copy.as_ref()),
            lr_dev: self.arg_scalar(&step.lr),
            step: self.arg_scalar(&step.step),
            inv_scale: self.arg_opt(step.inv_scale.as_ref()),
            found_inf: self.arg_opt(step.found_inf.as_ref()),
            extra: self.arg_opt(factors.as_ref().map(Buffer::view).as_ref()),
            n: long(k),
            limit: long(n),
            width: long(width),
            lanes: int(lanes),
            wide: wide_index(&keys),
            rule: int(number),
            states: int(count),
            maximize: i32::from(step.maximize),
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
        let blocks = k.div_ceil(BLOCK as usize / lanes).min(1 << 30);
        self.launch(&OPTIMIZER_SPARSE_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
    }
}
