//! Optimizer steps in other forms.

use std::rc::Rc;

#[cfg(test)]
use serde_json::{Value, json};
use trefoil::ops::*;
use trefoil::{Buffer, DType};

use super::Bound::Close;
use super::optimizer::{OPT, STEP, draw, draw_decayed, steps};
use super::{Kernel, k};
use crate::device::{Cx, Fail, R, Tensor};
use crate::random_cases::Dom::{Any, Positive, Zero};
use crate::random_cases::Sample;

fn adan(cx: &Cx<'_>) -> R {
    let (b1, b2, b3, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("b3")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::Adan { b1, b2, b3, eps, wd })
}

fn sophia(cx: &Cx<'_>) -> R {
    let (b1, gamma, eps, wd) = (cx.f("b1")?, cx.f("gamma")?, cx.f("eps")?, cx.f("wd")?);
    steps(cx, OptimRule::Sophia { b1, gamma, eps, wd })
}

fn curvature(cx: &Cx<'_>) -> R {
    steps(cx, OptimRule::SophiaCurvature { b2: cx.f("b2")?, batch: cx.f("batch")? })
}

/// Step count and rate of call `i`: every second call reads them from device memory.
struct Clock {
    lr: f64,
    first: usize,
    dev_lr: Buffer,
    dev_step: Buffer,
}

impl Clock {
    fn new(cx: &Cx<'_>) -> R<Self> {
        let (lr, first) = (cx.f("lr")?, cx.n("step")?);
        let mut dev_lr = cx.scratch(DType::F32, 1)?;
        cx.gpu.write_bytes(dev_lr.view_mut(), &(lr as f32).to_le_bytes())?;
        Ok(Clock { lr, first, dev_lr, dev_step: cx.scratch(DType::I64, 1)? })
    }

    fn step<'a>(&'a mut self, cx: &'a Cx<'_>, i: usize) -> R<Step<'a>> {
        let t = self.first + i;
        let mut step = Step::host(self.lr, t as u64);
        if i % 2 == 1 {
            cx.gpu.write_bytes(self.dev_step.view_mut(), &(t as i64).to_le_bytes())?;
            step.lr = Scalar::Device(self.dev_lr.view());
            step.step = Scalar::Device(self.dev_step.view());
        }
        step.maximize = cx.b("maximize")?;
        step.inv_scale = cx.opt("inv_scale");
        step.found_inf = cx.opt("found_inf");
        Ok(step)
    }
}

/// An output that starts with the input of its name, or at zero.
fn state(cx: &Cx<'_>, name: &str, dtype: DType, shape: &[usize]) -> R<Rc<Tensor>> {
    match cx.opt(name) {
        Some(_) => cx.inout(name, name),
        None => cx.zeroed(name, dtype, shape),
    }
}

/// Consecutive calls for a list of tensors, whose gradients carry a leading axis with the steps.
fn adapt(cx: &Cx<'_>, rule: AdaptiveRule) -> R {
    let g = cx.list("g");
    let mut w = vec![];
    let mut states = vec![];
    for i in 0..g.len() {
        let name = format!("w{i}");
        w.push(cx.inout(&name, &name)?);
        let (acc, shape) = (w[i].dtype().accumulator(), w[i].v().shape().to_vec());
        let one = rule.states().iter().map(|s| state(cx, &format!("{s}{i}"), acc, &shape));
        states.push(one.collect::<R<Vec<_>>>()?);
    }
    let acc = w.first().map_or(DType::F32, |w| w.dtype().accumulator());
    let memory = state(cx, "memory", acc, &[rule.memory().len()])?;
    let mut clock = Clock::new(cx)?;
    for i in 0..cx.n("steps")? {
        let step = clock.step(cx, i)?;
        let mut slots = vec![];
        for ((w, g), states) in w.iter().zip(&g).zip(&states) {
            let state = [0, 1, 2, 3].map(|k| states.get(k).map(|t| t.m()));
            slots.push(ParamSlot { w: w.m(), g: g.map("steps", |l| l.select(0, i))?, state, copy: None });
        }
        cx.gpu.adaptive_step(&rule, &step, memory.m(), &mut slots)?;
    }
    Ok(())
}

fn hypergradient(cx: &Cx<'_>) -> R {
    adapt(cx, AdaptiveRule::HypergradientSgd { rate: cx.f("rate")? })
}

fn free_sgd(cx: &Cx<'_>) -> R {
    adapt(cx, AdaptiveRule::ScheduleFreeSgd { b: cx.f("b")?, wd: cx.f("wd")? })
}

fn free_adamw(cx: &Cx<'_>) -> R {
    let (b, b2, eps, wd) = (cx.f("b")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    adapt(cx, AdaptiveRule::ScheduleFreeAdamW { b, b2, eps, wd })
}

fn dadapt_sgd(cx: &Cx<'_>) -> R {
    let (d0, mu, wd, growth) = (cx.f("d0")?, cx.f("mu")?, cx.f("wd")?, cx.f("growth")?);
    adapt(cx, AdaptiveRule::DAdaptSgd { d0, mu, wd, growth })
}

fn dadapt_adam(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    adapt(cx, AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0: cx.f("d0")?, growth: cx.f("growth")? })
}

fn prodigy(cx: &Cx<'_>) -> R {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    let (d0, coef, growth) = (cx.f("d0")?, cx.f("coef")?, cx.f("growth")?);
    adapt(cx, AdaptiveRule::Prodigy { b1, b2, eps, wd, d0, coef, growth })
}

/// One to three tensors. Gradients that point one way, so that products over all tensors do not cancel.
fn draw_list(s: &mut Sample) {
    // As in `draw`: one step for parameters in 16 bits.
    let steps = if s.dtype.is_half() { 1 } else { 4 };
    for i in 0..1 + s.below(3) {
        let shape = s.shape();
        s.put(&format!("w{i}"), &shape, Any);
        s.put(&format!("g{i}"), &[&[steps], &shape[..]].concat(), Positive);
    }
    if s.coin() {
        s.typed("inv_scale", DType::F32, &[], Positive);
        s.typed("found_inf", DType::F32, &[], Zero);
    }
    s.arg("lr", 0.01);
    s.arg("steps", steps);
    let up = s.coin();
    s.arg("maximize", up);
}

/// Rules of the sparse form, by name, with constants of their own.
fn sparse_rule(cx: &Cx<'_>) -> R<OptimRule> {
    let wd = cx.f("wd")?;
    let (b1, b2, eps) = (0.9, 0.999, 1e-8);
    let rms = |mu, centered| OptimRule::RmsProp { a: 0.99, eps, wd, mu, centered };
    Ok(match cx.s("rule")?.as_str() {
        "sgd" => OptimRule::Sgd { wd },
        "momentum" => OptimRule::Momentum { mu: 0.9, damp: 0.0, wd, nesterov: false },
        "nag" => OptimRule::Momentum { mu: 0.9, damp: 0.0, wd, nesterov: true },
        "adam" => OptimRule::Adam { b1, b2, eps, wd },
        "adamw" => OptimRule::AdamW { b1, b2, eps, wd },
        "amsgrad" => OptimRule::AmsGrad { b1, b2, eps, wd, decoupled: false },
        "nadam" => OptimRule::Nadam { b1, b2, eps, wd, psi: Some(0.004), decoupled: false },
        "radam" => OptimRule::RAdam { b1, b2, eps, wd, decoupled: false },
        "asgd" => OptimRule::Asgd { lambd: 1e-4, alpha: 0.75, t0: 1e6, wd },
        "rprop" => OptimRule::Rprop { up: 1.2, down: 0.5, least: 1e-6, most: 50.0 },
        "adamax" => OptimRule::AdaMax { b1, b2, eps, wd },
        "rmsprop" => rms(0.0, false),
        "rmsprop_momentum" => rms(0.9, false),
        "rmsprop_centered" => rms(0.0, true),
        "rmsprop_centered_momentum" => rms(0.9, true),
        "adagrad" => OptimRule::Adagrad { lr_decay: 0.0, eps: 1e-10, wd },
        "adadelta" => OptimRule::Adadelta { rho: 0.9, eps: 1e-6, wd },
        "lion" => OptimRule::Lion { b1: 0.9, b2: 0.99, wd },
        "ftrl" => OptimRule::Ftrl { beta: 1.0, l1: 0.5, l2: 0.25, from_w: false },
        "proximal_l1" => OptimRule::Proximal(Prox::l1(8.0)),
        "proximal_box" => OptimRule::Proximal(Prox::Box { lo: -0.5, hi: 0.5 }),
        other => return Err(Fail::Case(format!("no sparse rule {other}"))),
    })
}

fn sparse(cx: &Cx<'_>) -> R {
    let rule = sparse_rule(cx)?;
    run_sparse(cx, rule, |i| format!("s{i}"))
}

fn sparse_adam(cx: &Cx<'_>) -> R {
    let rule = OptimRule::Adam { b1: cx.f("b1")?, b2: cx.f("b2")?, eps: cx.f("eps")?, wd: 0.0 };
    run_sparse(cx, rule, |i| rule.states()[i].to_string())
}

fn run_sparse(cx: &Cx<'_>, rule: OptimRule, name: impl Fn(usize) -> String) -> R {
    let (ids, g) = (cx.x("ids")?, cx.x("g")?);
    let w = cx.inout("w", "w")?;
    let (acc, shape) = (w.dtype().accumulator(), w.v().shape().to_vec());
    let states: Vec<_> =
        (0..rule.states().len()).map(|i| state(cx, &name(i), acc, &shape)).collect::<R<_>>()?;
    let mut clock = Clock::new(cx)?;
    for i in 0..cx.n("steps")? {
        let step = clock.step(cx, i)?;
        let param = RowSlot {
            w: w.m(),
            ids: ids.map("steps", |l| l.select(0, i))?,
            rows: g.map("steps", |l| l.select(0, i))?,
            state: [0, 1, 2, 3].map(|k| states.get(k).map(|t| t.m())),
            copy: None,
        };
        cx.gpu.optimizer_step_rows(&rule, &step, param)?;
    }
    Ok(())
}

const SPARSE: &[(&str, &[&str])] = &[
    ("sgd", &[]),
    ("momentum", &["s0"]),
    ("nag", &["s0"]),
    ("adam", &["s0", "s1"]),
    ("adamw", &["s0", "s1"]),
    ("amsgrad", &["s0", "s1", "s2"]),
    ("nadam", &["s0", "s1"]),
    ("radam", &["s0", "s1"]),
    ("asgd", &["s0"]),
    ("rprop", &["s0", "s1"]),
    ("adamax", &["s0", "s1"]),
    ("rmsprop", &["s0"]),
    ("rmsprop_momentum", &["s0", "s1"]),
    ("rmsprop_centered", &["s1", "s0"]),
    ("rmsprop_centered_momentum", &["s1", "s2", "s0"]),
    ("adagrad", &["s0"]),
    ("adadelta", &["s0", "s1"]),
    ("lion", &["s0"]),
    ("ftrl", &["s0", "s1"]),
    ("proximal_l1", &[]),
    ("proximal_box", &[]),
];

/// A table of a few rows, some of which are named, some several times.
fn draw_rows(s: &mut Sample, states: &[&str]) {
    let steps = if s.dtype.is_half() { 1 } else { 3 };
    let rows = [1, 7, 40, 3000][s.below(4)];
    let tail: Vec<usize> =
        [vec![], vec![1], vec![5], vec![64], vec![3, 33], vec![300], vec![0]][s.below(7)].clone();
    let n = [0, 1, 6, 50, 700][s.below(5)];
    let w = [&[rows], &tail[..]].concat();
    s.put("w", &w, Any);
    s.ids("ids", &[steps, n], rows);
    s.put("g", &[&[steps, n], &tail[..]].concat(), Any);
    for name in states {
        s.typed(name, DType::F32, &w, Positive);
    }
    if s.coin() {
        s.typed("inv_scale", DType::F32, &[], Positive);
        s.typed("found_inf", DType::F32, &[], Zero);
    }
    s.arg("lr", 0.01);
    s.arg("steps", steps);
    s.arg("step", 2);
    let up = s.coin();
    s.arg("maximize", up);
}

fn packed_rule(cx: &Cx<'_>) -> R<OptimRule> {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    Ok(if cx.b("decoupled")? {
        OptimRule::AdamW { b1, b2, eps, wd }
    } else {
        OptimRule::Adam { b1, b2, eps, wd }
    })
}

fn rng(cx: &Cx<'_>) -> R<Option<Rng<'static>>> {
    if cx.opt_f("seed")?.is_none() {
        return Ok(None);
    }
    Ok(Some(Rng::new(cx.bits("seed")?).at(cx.bits("stream")?, cx.bits("offset")?)))
}

fn bf16_states(cx: &Cx<'_>) -> R {
    let (g, w) = (cx.x("g")?, cx.inout("w", "w")?);
    let [m, v] = ["m", "v"].map(|n| state(cx, n, DType::Bf16, w.v().shape()));
    let (m, v) = (m?, v?);
    let (rule, rng) = (packed_rule(cx)?, rng(cx)?);
    let mut clock = Clock::new(cx)?;
    for i in 0..cx.n("steps")? {
        let step = clock.step(cx, i)?;
        let g = g.map("steps", |l| l.select(0, i))?;
        let mut slots = [PackedSlot { w: w.m(), g, m: m.m(), v: v.m(), scales: None, copy: None }];
        cx.gpu.optimizer_step_packed(&rule, &step, rng.as_ref(), &mut slots)?;
    }
    Ok(())
}

/// One step with codes in memory off every boundary.
fn run_codes<'a>(cx: &Cx<'a>, w: &Tensor, scales: &Tensor) -> R<[Buffer; 2]> {
    let (g, n) = (cx.x("g")?, w.v().numel());
    let lead = if cx.has_output("w") { 0 } else { 3 };
    let code = |name: &str| -> R<Buffer> {
        let mut b = cx.scratch(DType::U8, n + lead)?;
        if let Some(v) = cx.opt(name) {
            cx.gpu.copy(v.reshape(&[n])?, b.view_mut().range(lead, n)?)?;
        }
        Ok(b)
    };
    let (mut m, mut v) = (code("m")?, code("v")?);
    let (rule, rng) = (packed_rule(cx)?, rng(cx)?);
    let mut clock = Clock::new(cx)?;
    let step = clock.step(cx, 0)?;
    let (cm, cv) = (m.view_mut().range(lead, n)?, v.view_mut().range(lead, n)?);
    let mut slots = [PackedSlot { w: w.m(), g, m: cm, v: cv, scales: Some(scales.m()), copy: None }];
    cx.gpu.optimizer_step_packed(&rule, &step, rng.as_ref(), &mut slots)?;
    Ok([m, v])
}

fn blocks(n: usize) -> [usize; 2] {
    [2, n.div_ceil(PACKED_BLOCK)]
}

fn codes(cx: &Cx<'_>) -> R {
    let w = cx.inout("w", "w")?;
    let scales = state(cx, "scales", DType::F32, &blocks(w.v().numel()))?;
    run_codes(cx, &w, &scales).map(drop)
}

/// The codes as numbers.
fn code_numbers(cx: &Cx<'_>) -> R {
    let w = cx.inout("new_w", "w")?;
    let n = w.v().numel();
    let scales = state(cx, "scales", DType::F32, &blocks(n))?;
    let made = run_codes(cx, &w, &scales)?;
    for (name, codes) in ["codes_m", "codes_v"].into_iter().zip(&made) {
        let mut bytes = vec![0; n];
        cx.gpu.read_bytes(codes.view().range(3, n)?, &mut bytes)?;
        let value = |c: &u8| if name == "codes_m" { f32::from(*c as i8) } else { f32::from(*c) };
        // Whole numbers up to 256 are exact in bf16.
        let halves: Vec<u8> =
            bytes.iter().flat_map(|c| ((value(c).to_bits() >> 16) as u16).to_le_bytes()).collect();
        let to = cx.out(name, DType::Bf16, &[n])?;
        cx.gpu.write_bytes(to.m(), &halves)?;
    }
    Ok(())
}

fn draw_packed(s: &mut Sample) {
    draw_decayed(s, &[]);
    s.forget("copy");
    s.arg("steps", 1);
    let shape = s.drop("g");
    s.put("g", &[&[1], &shape[1..]].concat(), Any);
    let d = s.coin();
    s.arg("decoupled", d);
    if s.coin() {
        let seed = s.below(1000);
        s.arg("seed", seed);
        s.arg("stream", 3);
        s.arg("offset", 17);
    }
}

fn draw_codes(s: &mut Sample) {
    draw_packed(s);
    s.forget("steps");
    let shape = s.shape_of("w");
    s.drop("g");
    s.put("g", &shape, Any);
    if s.coin() {
        s.typed("m", DType::U8, &shape, Any);
        s.typed("v", DType::U8, &shape, Any);
        s.typed("scales", DType::F32, &blocks(shape.iter().product()), Positive);
    }
}

const ADAPTIVE: &[&str] = &["adaptive_step"];
const ROWS_STEP: &[&str] = &["optimizer_step_rows"];
const PACKED: &[&str] = &["optimizer_step_packed"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "adan_update",
            "O48",
            "w, g, [m:f32], [v:f32], [n:f32], [prev:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.98, b2=0.92, b3=0.99, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [v:f32], [n:f32], [prev:f32], [w_copy]",
            STEP,
            adan,
        )
        .bound(OPT)
        .sample(|s| {
            let fresh = s.coin();
            draw_decayed(s, if fresh { &[] } else { &["m", "v", "n", "prev"] });
            if fresh {
                s.arg("step", 1);
            }
        }),
        k(
            "sophia_update",
            "O49",
            "w, g, [m:f32], [h:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0001, b1=0.965, gamma=0.01, eps=1e-12, wd=0.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [h:f32], [w_copy]",
            STEP,
            sophia,
        )
        .bound(OPT)
        .sample(|s| {
            draw_decayed(s, &["m", "h"]);
            let gamma = [0.01, 1.0, 10.0][s.below(3)];
            s.arg("gamma", gamma);
        }),
        k(
            "sophia_curvature",
            "O49",
            "w, g, [m:f32], [h:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0001, b2=0.99, batch=1.0, steps=1, step=1, maximize=false, copy=null",
            "w, [m:f32], [h:f32], [w_copy]",
            STEP,
            curvature,
        )
        .bound(OPT)
        .sample(|s| {
            draw(s, &["m", "h"]);
            s.arg("batch", 32);
        }),
    ],
    &[
        k(
            "hypergradient_sgd_update",
            "O34",
            "w0, w1, ..., g0, g1, ..., prev0, prev1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, rate=1e-08, steps=1, step=1, maximize=false",
            "w0, w1, ..., prev0, prev1, ...:f32, memory:f32",
            ADAPTIVE,
            hypergradient,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("rate", 1e-8);
        }),
        k(
            "schedule_free_sgd_update",
            "O35",
            "w0, w1, ..., g0, g1, ..., z0, z1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr, b=0.9, wd=0.0, steps=1, step=1, maximize=false",
            "w0, w1, ..., z0, z1, ...:f32, memory:f32",
            ADAPTIVE,
            free_sgd,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("wd", 0.1);
        }),
        k(
            "schedule_free_adamw_update",
            "O36",
            "w0, w1, ..., g0, g1, ..., z0, z1, ...:f32, v0, v1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.0025, b=0.9, b2=0.999, eps=1e-08, wd=0.0, steps=1, step=1, maximize=false",
            "w0, w1, ..., z0, z1, ...:f32, v0, v1, ...:f32, memory:f32",
            ADAPTIVE,
            free_adamw,
        )
        .bound(OPT)
        .sample(|s| {
            draw_list(s);
            s.arg("wd", 0.1);
        }),
        k(
            "dadapt_sgd_update",
            "O37",
            "w0, w1, ..., g0, g1, ..., s0, s1, ...:f32, start0, start1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, d0=1e-06, mu=0.0, wd=0.0, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., s0, s1, ...:f32, start0, start1, ...:f32, memory:f32",
            ADAPTIVE,
            dadapt_sgd,
        )
        .bound(Close(2e-5, 1e-6))
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.5);
            s.arg("mu", 0.5);
            s.arg("wd", 0.01);
        }),
        k(
            "dadapt_adam_update",
            "O38",
            "w0, w1, ..., g0, g1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, d0=1e-06, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, memory:f32",
            ADAPTIVE,
            dadapt_adam,
        )
        .bound(Close(2e-5, 1e-6))
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.03125);
            s.arg("growth", 1.5);
            s.arg("wd", 0.1);
        }),
        k(
            "prodigy_update",
            "O39",
            "w0, w1, ..., g0, g1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, start0, start1, ...:f32, [memory:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=1.0, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, d0=1e-06, coef=1.0, growth=\"inf\", steps=1, step=1, maximize=false",
            "w0, w1, ..., m0, m1, ...:f32, v0, v1, ...:f32, s0, s1, ...:f32, start0, start1, ...:f32, memory:f32",
            ADAPTIVE,
            prodigy,
        )
        .bound(Close(2e-5, 1e-6))
        .sample(|s| {
            draw_list(s);
            s.arg("lr", 1.0);
            s.arg("d0", 0.25);
            s.arg("wd", 0.1);
        }),
    ],
    &[
        k(
            "sparse_adam_step",
            "O33",
            "w, ids:idx, g, [m:f32], [v:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, steps=1, step=1, maximize=false",
            "w, m:f32, v:f32",
            ROWS_STEP,
            sparse_adam,
        )
        .bound(OPT)
        // Gradients of one row add up, and may cancel.
        .cancels()
        .sample(|s| draw_rows(s, &["m", "v"])),
        k(
            "sparse_step",
            "O33",
            "w, ids:idx, g, s0, s1, ...:f32, [inv_scale:f32], [found_inf:f32]",
            "rule=\"sgd\", lr=0.01, wd=0.0, steps=1, step=1, maximize=false",
            "w, s0, s1, ...:f32",
            ROWS_STEP,
            sparse,
        )
        .bound(OPT)
        // FTRL's z, and centred means of squares.
        .cancels()
        .sample(|s| {
            let (rule, states) = SPARSE[s.below(SPARSE.len())];
            let fresh = rule == "rprop";
            draw_rows(s, if fresh { &[] } else { states });
            if rule.starts_with("rmsprop_centered") {
                // The mean of squares stays above the square of the mean.
                let shape = s.drop("s0");
                s.typed("s0", DType::F32, &shape, crate::random_cases::Dom::Range(16.0, 20.0));
            }
            if fresh {
                s.arg("step", 1);
            }
            s.arg("rule", rule);
            s.arg("wd", 0.1);
        }),
    ],
    &[
        k(
            "adam_bf16_step",
            "O32",
            "w, g, [m:bf16], [v:bf16], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, steps=1, step=1, maximize=false",
            "w, m:bf16, v:bf16",
            PACKED,
            bf16_states,
        )
        .bound(OPT)
        .same_dtype()
        .sample(|s| {
            draw_packed(s);
            let shape = s.shape_of("w");
            if s.coin() {
                s.typed("m", DType::Bf16, &shape, Any);
                s.typed("v", DType::Bf16, &shape, Positive);
            }
        }),
        k(
            "adam8bit_step",
            "O31",
            "w, g, [m:u8], [v:u8], [scales:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, step=1, maximize=false",
            "w, scales:f32",
            PACKED,
            codes,
        )
        .bound(OPT)
        .same_dtype()
        .sample(draw_codes),
        k(
            "adam8bit_codes",
            "O31",
            "w, g, [m:u8], [v:u8], [scales:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, step=1, maximize=false",
            "new_w, scales:f32, codes_m:bf16, codes_v:bf16",
            PACKED,
            code_numbers,
        )
        // A value that two devices compute with other last bits may fall on either side of a boundary between codes.
        .bound(Close(1e-5, 1.0))
        .same_dtype()
        .sample(draw_codes),
    ],
];

/// The sparse rules that a case may name.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sparse_rule_is_drawn() {
        let names: Vec<Value> = SPARSE.iter().map(|(n, _)| json!(n)).collect();
        let kernel = super::super::find("sparse_step").unwrap();
        let mut seen = vec![];
        for index in 0..400 {
            let (case, _) = crate::random_cases::draw(kernel, DType::F32, index, 1, true).unwrap();
            seen.push(case.args["rule"].clone());
        }
        assert!(names.iter().all(|n| seen.contains(n)));
    }
}
