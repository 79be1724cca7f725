//! Steps on the rows of a table that an index list names.

#[cfg(test)]
use serde_json::{Value, json};
use trefoil::DType;
use trefoil::ops::optimizer::{OptimRule, Prox, RowSlot};

use super::OPT;
use super::clock::{Clock, state};
use crate::cases::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Positive, Zero};
use crate::sampler::Sample;

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
        let param =
            RowSlot::new(w.m(), ids.map("steps", |l| l.select(0, i))?, g.map("steps", |l| l.select(0, i))?)
                .state([0, 1, 2, 3].map(|k| states.get(k).map(|t| t.m())));
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

const ROWS_STEP: &[&str] = &["optimizer_step_rows"];

pub(super) const ROWS: &[&[Kernel]] = &[&[
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
    .sample(|s| {
        let (rule, states) = SPARSE[s.below(SPARSE.len())];
        let fresh = rule == "rprop";
        draw_rows(s, if fresh { &[] } else { states });
        if rule.starts_with("rmsprop_centered") {
            // The mean of squares stays above the square of the mean.
            let shape = s.drop("s0");
            s.typed("s0", DType::F32, &shape, crate::sampler::Dom::Range(16.0, 20.0));
        }
        if fresh {
            s.arg("step", 1);
        }
        s.arg("rule", rule);
        s.arg("wd", 0.1);
    }),
]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sparse_rule_is_drawn() {
        let names: Vec<Value> = SPARSE.iter().map(|(n, _)| json!(n)).collect();
        let kernel = crate::cases::find("sparse_step").unwrap();
        let mut seen = vec![];
        for index in 0..400 {
            let (case, _) = crate::sampler::draw(kernel, DType::F32, index, 1, true).unwrap();
            seen.push(case.args["rule"].clone());
        }
        assert!(names.iter().all(|n| seen.contains(n)));
    }
}
