//! Optimizer steps and gradient clipping over lists of tensors.

use crate::buffer::{View, ViewMut};
use crate::driver::{Arg, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, real};
use crate::error::Result;
use crate::ops::*;
use crate::spec::BLOCK;
use crate::spec::optimizer::*;

/// Elements per block and pass; the kernels' `GK_CHUNK`.
const CHUNK: usize = BLOCK as usize * 32;
/// Arrays that a tensor of a list can have.
const ARRAYS: usize = 5;

/// Tensors of one launch: base pointers and the table of `kernels/common/optimizer.c`.
struct List {
    bases: [Arg; ARRAYS],
    words: Vec<i64>,
    tensors: usize,
    chunks: usize,
}

impl List {
    fn grid(&self) -> Grid {
        Grid::Blocks([self.chunks.min(1 << 20), 1, 1])
    }
}

/// Cuts a list into launches: one where kernels can use addresses, otherwise one per run of tensors that share their buffers.
fn cut(tensors: &[[Option<View<'_>>; ARRAYS]], addresses: bool) -> Vec<List> {
    let mut lists: Vec<(List, [Option<RawMem>; ARRAYS])> = vec![];
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

/// C name, numbers and flag of a rule.
fn rule_kernel(rule: &OptimRule) -> (&'static str, [f64; 6], bool) {
    match *rule {
        OptimRule::Sgd { wd } => ("gk_rule_sgd", [wd, 0.0, 0.0, 0.0, 0.0, 0.0], false),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            ("gk_rule_momentum", [mu, 1.0 - damp, wd, 0.0, 0.0, 0.0], nesterov)
        }
        OptimRule::Adam { b1, b2, eps, wd } => ("gk_rule_adam", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2], false),
        OptimRule::AdamW { b1, b2, eps, wd } => {
            ("gk_rule_adamw", [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2], false)
        }
    }
}

impl Engine {
    fn lists(&self, tensors: &[[Option<View<'_>>; ARRAYS]]) -> Vec<List> {
        cut(tensors, self.device_caps().device_addresses)
    }
}

impl OptimizerOps for Engine {
    fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()> {
        const OP: &str = "optimizer_step";
        check_step(rule, step, params)?;
        let device = |s: &Scalar<'_>| match s {
            Scalar::Device(v) => {
                Some(Arg::Mem(v.block().raw().map(|m| (m, (v.layout().offset() * v.dtype().size()) as u64))))
            }
            Scalar::Host(_) => None,
        };
        for (arg, s) in [("lr", &step.lr), ("step", &step.step)] {
            if let Scalar::Device(v) = s {
                self.own(OP, arg, v)?;
            }
        }
        for (arg, v) in [("inv_scale", &step.inv_scale), ("found_inf", &step.found_inf)] {
            if let Some(v) = v {
                self.own(OP, arg, v)?;
            }
        }
        let mut tensors = Vec::with_capacity(params.len());
        for p in params.iter() {
            let views = [
                Some(p.w.as_view()),
                Some(p.g),
                p.state[0].as_ref().filter(|_| !rule.states().is_empty()).map(ViewMut::as_view),
                p.state[1].as_ref().filter(|_| rule.states().len() > 1).map(ViewMut::as_view),
                p.copy.as_ref().map(ViewMut::as_view),
            ];
            for (arg, v) in ["w", "g", "state", "state", "copy"].into_iter().zip(&views) {
                if let Some(v) = v {
                    self.own(OP, arg, v)?;
                }
            }
            tensors.push(views);
        }
        let Some(first) = params.first() else { return Ok(()) };
        let (dt, wdt) = (first.g.dtype(), first.w.dtype());
        let copy_kind = match first.copy.as_ref().map(ViewMut::dtype) {
            None => 0,
            Some(DType::F16) => 1,
            Some(_) => 2,
        };
        let (name, p, nesterov) = rule_kernel(rule);
        let host = |s: &Scalar<'_>| if let Scalar::Host(x) = s { *x } else { 0.0 };
        let t = host(&step.step);
        let (c1, c2) = (1.0 - p[0].powf(t), (1.0 - p[1].powf(t)).max(0.0).sqrt());
        for list in self.lists(&tensors) {
            let table = self.table(&list.words)?;
            let mut args = vec![self.arg_in(&table.view()), Arg::I32(list.tensors as i32)];
            args.extend(list.bases);
            args.extend([
                Arg::I32((wdt != dt || dt.accumulator() == wdt) as i32),
                Arg::I32(copy_kind),
                device(&step.lr).unwrap_or(Arg::Mem(None)),
                device(&step.step).unwrap_or(Arg::Mem(None)),
                self.arg_opt(step.inv_scale.as_ref()),
                self.arg_opt(step.found_inf.as_ref()),
                Arg::I32(step.maximize as i32),
            ]);
            args.extend([host(&step.lr), c1, c2, p[0].ln(), p[1].ln()].map(|x| real(dt, x)));
            args.extend(p.map(|x| real(dt, x)));
            args.extend([Arg::I32((t == 1.0) as i32), Arg::I32(nesterov as i32)]);
            self.launch(&OPTIMIZER_STEP, dt, name, list.grid(), &args)?;
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
                self.arg_in(&table.view()),
                Arg::I32(list.tensors as i32),
                list.bases[1],
                self.arg_in(&partial.view().range(3 * at, 3 * b)?),
                Arg::I32(kind),
                real(dt, p.p),
            ];
            self.launch(&NORM_PARTIAL, dt, "", Grid::Blocks([b, 1, 1]), &args)?;
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
        self.launch(&NORM_FINISH, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
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
}

/// Gradients stand in the second place of a table row.
fn grad_tensors<'a>(grads: &[ViewMut<'a>]) -> Vec<[Option<View<'a>>; ARRAYS]> {
    grads.iter().map(|g| [None, Some(g.as_view()), None, None, None]).collect()
}

impl Engine {
    fn scale_grads(&self, dt: DType, lists: &[List], coef: Arg, mode: i32, bound: f64) -> Result<()> {
        for list in lists {
            let table = self.table(&list.words)?;
            let args = [
                self.arg_in(&table.view()),
                Arg::I32(list.tensors as i32),
                list.bases[1],
                coef,
                Arg::I32(mode),
                real(dt, bound),
            ];
            self.launch(&GRAD_SCALE, dt, "", list.grid(), &args)?;
        }
        Ok(())
    }
}
