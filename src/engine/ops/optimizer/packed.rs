//! Optimizer steps with moments in 8-bit codes or bf16.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::int;
use crate::engine::ops::optimizer::rule::{Bias, Rule, copy_kind, host, master, rule_function};
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::ops::random::Rng;
use crate::spec::kernels::optimizer::*;

/// Arrays of a tensor in the tables of `kernels/common/optimizer/packed.c`: w, g, m, v, scales, none, copy.
const ARRAYS: usize = 7;

impl PackedOptimizerOps for Engine {
    fn optimizer_step_packed(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        rng: Option<Rng<'_>>,
        params: &mut [PackedSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "optimizer_step_packed";
        check_packed(rule, step, rng.as_ref(), params)?;
        self.own_step(OP, step)?;
        let more = rng.and_then(|r| r.device_offset);
        self.check_owner_all(OP, &[("rng", more)])?;
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
                v.map_or(Ok(()), |v| self.check_owner(OP, arg, &v))?;
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let Some(Rule { p, decays, .. }) = rule_function(rule) else { return Ok(()) };
        let t = host(&step.step);
        let Bias { c1, c2, log1, log2 } = Bias::new(decays, t);
        let [p0, p1, p2, p3, p4, p5] = p;
        let draw = rng.unwrap_or(Rng::new(0));
        let mut done = 0;
        for list in self.lists(OP, &tensors)? {
            let table = self.table(&list.words)?;
            let [w, g, m, v, scales, _, copy] = list.bases;
            let args = AdamPackedArgs {
                table: table.arg,
                tensors: int(list.tensors),
                w,
                g,
                m,
                v,
                scales,
                copy,
                codes: i32::from(first.m.dtype() == DType::U8),
                master: master(wdt, dt),
                copy_kind: copy_kind(first.copy.as_ref()),
                lr_dev: self.arg_scalar(&step.lr),
                step: self.arg_scalar(&step.step),
                inv_scale: self.arg_opt(step.inv_scale.as_ref()),
                found_inf: self.arg_opt(step.found_inf.as_ref()),
                maximize: i32::from(step.maximize),
                decoupled: i32::from(matches!(rule, OptimRule::AdamW { .. })),
                lr: host(&step.lr),
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
                random: i32::from(rng.is_some()),
                seed: draw.seed as i64,
                stream: draw.stream as i64,
                offset: draw.offset as i64,
                more: self.arg_opt(more.as_ref()),
                numbers: self.arg_opt(step.numbers.as_ref()),
                first_tensor: int(done),
            };
            self.launch(&ADAM_PACKED, dt, "", list.grid(), &args)?;
            done += list.tensors;
        }
        Ok(())
    }
}
