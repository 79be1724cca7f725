//! Each rule against its formula, and each constructor against its rule.

use super::Params;
use crate::common::{close, cpu, devices, noise};
use trefoil::ops::optimizer::OptimRule;
use trefoil_nn::Optimizer;

/// The rules as plain f64 code.
fn reference(rule: OptimRule, lr: f64, t: i32, w: &mut f64, g: f64, m: &mut f64, v: &mut f64) {
    match rule {
        OptimRule::Sgd { wd } => *w -= lr * (g + wd * *w),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            let g = g + wd * *w;
            *m = if t == 1 { g } else { mu * *m + (1.0 - damp) * g };
            *w -= lr * if nesterov { g + mu * *m } else { *m };
        }
        OptimRule::Adam { b1, b2, eps, wd } | OptimRule::AdamW { b1, b2, eps, wd } => {
            let mut g = g;
            if matches!(rule, OptimRule::AdamW { .. }) {
                *w *= 1.0 - lr * wd;
            } else {
                g += wd * *w;
            }
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *w -= lr / (1.0 - b1.powi(t)) * *m / (v.sqrt() / (1.0 - b2.powi(t)).sqrt() + eps);
        }
        _ => unreachable!(),
    }
}

const RULES: [OptimRule; 5] = [
    OptimRule::Sgd { wd: 0.1 },
    OptimRule::Momentum { mu: 0.9, damp: 0.1, wd: 0.01, nesterov: false },
    OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.01, nesterov: true },
    OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 },
    OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.1 },
];

#[test]
fn steps_follow_the_formulas() {
    for d in devices() {
        for rule in RULES {
            // Minimise the sum of (w - c)^2 over parameters of several sizes.
            let sizes = [1usize, 70, 3];
            let start: Vec<Vec<f32>> = sizes
                .iter()
                .enumerate()
                .map(|(i, &n)| noise(i as u64 + 1, n).iter().map(|&x| x as f32).collect())
                .collect();
            let p = Params::new(&d, &start.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut o = Optimizer::new(&p, rule, 0.05).unwrap();
            let mut want: Vec<Vec<(f64, f64, f64)>> =
                start.iter().map(|v| v.iter().map(|&x| (x as f64, 0.0, 0.0)).collect()).collect();
            for t in 1..=20 {
                o.zero_grad().unwrap();
                for q in &p.0 {
                    q.get().add_scalar(-0.3).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
                }
                o.step().unwrap();
                for (w, m, v) in want.iter_mut().flatten() {
                    let g = 2.0 * (*w - 0.3);
                    reference(rule, 0.05, t, w, g, m, v);
                }
            }
            assert_eq!(o.steps(), 20);
            for (got, want) in p.values().iter().zip(&want) {
                let got: Vec<f64> = got.iter().map(|&x| f64::from(x)).collect();
                let want: Vec<f64> = want.iter().map(|x| x.0).collect();
                close(&got, &want, 2e-5, &format!("{rule:?} on {}", crate::common::id(&d)));
            }
        }
    }
}

/// A constructor of the optimizer with its defaults.
type Make = fn(&Params) -> trefoil_nn::Result<Optimizer>;

/// The other rules as plain f64 code with PyTorch's (or the papers') constants, one element; `s` is the rule's state.
fn plain(name: &str, lr: f64, t: i32, w: f64, g: f64, s: &mut [f64; 3]) -> f64 {
    let t1 = f64::from(t);
    let ema = |x: &mut f64, b: f64, v: f64| {
        *x = b * *x + (1.0 - b) * v;
        *x
    };
    let unbias = |x: f64, b: f64| x / (1.0 - b.powi(t));
    match name {
        "nesterov" => {
            s[0] = if t == 1 { g } else { 0.9 * s[0] + g };
            w - lr * (g + 0.9 * s[0])
        }
        "amsgrad" => {
            let m = ema(&mut s[0], 0.9, g);
            let v = ema(&mut s[1], 0.999, g * g);
            s[2] = s[2].max(v);
            w - lr * unbias(m, 0.9) / (unbias(s[2], 0.999).sqrt() + 1e-8)
        }
        "rmsprop" => w - lr * g / (ema(&mut s[0], 0.99, g * g).sqrt() + 1e-8),
        "adagrad" => {
            s[0] += g * g;
            w - lr * g / (s[0].sqrt() + 1e-10)
        }
        "adadelta" => {
            let d = (s[1] + 1e-6).sqrt() / (ema(&mut s[0], 0.9, g * g) + 1e-6).sqrt() * g;
            ema(&mut s[1], 0.9, d * d);
            w - lr * d
        }
        "adamax" => {
            let m = ema(&mut s[0], 0.9, g);
            s[1] = (0.999 * s[1]).max(g.abs() + 1e-8);
            w - lr * unbias(m, 0.9) / s[1]
        }
        "nadam" => {
            let mu = |t: f64| 0.9 * (1.0 - 0.5 * 0.96f64.powf(0.004 * t));
            let product: f64 = (1..=t).map(|i| mu(f64::from(i))).product();
            let m = ema(&mut s[0], 0.9, g);
            let v = ema(&mut s[1], 0.999, g * g);
            let step =
                (1.0 - mu(t1)) / (1.0 - product) * g + mu(t1 + 1.0) / (1.0 - product * mu(t1 + 1.0)) * m;
            w - lr * step / (unbias(v, 0.999).sqrt() + 1e-8)
        }
        "radam" => {
            let m = unbias(ema(&mut s[0], 0.9, g), 0.9);
            let v = ema(&mut s[1], 0.999, g * g);
            let most = 2.0 / (1.0 - 0.999) - 1.0;
            let r = most - 2.0 * t1 * 0.999f64.powi(t) / (1.0 - 0.999f64.powi(t));
            if r <= 5.0 {
                return w - lr * m;
            }
            let f = ((r - 4.0) * (r - 2.0) * most / ((most - 4.0) * (most - 2.0) * r)).sqrt();
            w - lr * m * f * (1.0 - 0.999f64.powi(t)).sqrt() / (v.sqrt() + 1e-8)
        }
        "asgd" => {
            let eta = lr / (1.0 + 1e-4 * lr * (t1 - 1.0)).powf(0.75);
            w * (1.0 - 1e-4 * eta) - eta * g
        }
        "rprop" => {
            if t == 1 {
                s[1] = lr;
            }
            let sign = g * s[0];
            let f = if sign > 0.0 {
                1.2
            } else if sign < 0.0 {
                0.5
            } else {
                1.0
            };
            s[1] = (s[1] * f).clamp(1e-6, 50.0);
            s[0] = if sign < 0.0 { 0.0 } else { g };
            w - s[1] * if s[0] == 0.0 { 0.0 } else { s[0].signum() }
        }
        "lion" => {
            let step = (0.9 * s[0] + 0.1 * g).signum();
            ema(&mut s[0], 0.99, g);
            w * (1.0 - lr * 0.1) - lr * step
        }
        "proximal" => {
            let v = w - lr * g;
            v.signum() * (v.abs() - lr * 0.5).max(0.0) / (1.0 + lr * 0.2)
        }
        "projected" => (w - lr * g).clamp(0.0, 0.25),
        _ => unreachable!(),
    }
}

#[test]
fn every_constructor_follows_its_rule() {
    let all: [(&str, f64, Make); 13] = [
        ("nesterov", 0.05, |p| Optimizer::nesterov(p, 0.05, 0.9)),
        ("amsgrad", 0.05, |p| Optimizer::amsgrad(p, 0.05)),
        ("rmsprop", 0.01, |p| Optimizer::rmsprop(p, 0.01)),
        ("adagrad", 0.1, |p| Optimizer::adagrad(p, 0.1)),
        ("adadelta", 1.0, |p| Optimizer::adadelta(p, 1.0)),
        ("adamax", 0.05, |p| Optimizer::adamax(p, 0.05)),
        ("nadam", 0.05, |p| Optimizer::nadam(p, 0.05)),
        ("radam", 0.05, |p| Optimizer::radam(p, 0.05)),
        ("asgd", 0.05, |p| Optimizer::asgd(p, 0.05)),
        ("rprop", 0.01, |p| Optimizer::rprop(p, 0.01)),
        ("lion", 0.01, |p| Optimizer::lion(p, 0.01, 0.1)),
        ("proximal", 0.1, |p| Optimizer::proximal(p, 0.1, 0.5, 0.2)),
        ("projected", 0.1, |p| Optimizer::projected(p, 0.1, 0.0, 0.25)),
    ];
    for d in devices() {
        for (name, lr, make) in all {
            let start: Vec<f32> = noise(3, 20).iter().map(|&x| x as f32).collect();
            let p = Params::new(&d, &[&start]);
            let mut o = make(&p).unwrap();
            let mut want: Vec<(f64, [f64; 3])> = start.iter().map(|&x| (f64::from(x), [0.0; 3])).collect();
            for t in 1..=12 {
                o.zero_grad().unwrap();
                p.0[0].get().add_scalar(-0.3).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
                o.step().unwrap();
                for (w, s) in &mut want {
                    *w = plain(name, lr, t, *w, 2.0 * (*w - 0.3), s);
                }
            }
            let got: Vec<f64> = p.values()[0].iter().map(|&x| f64::from(x)).collect();
            let want: Vec<f64> = want.iter().map(|x| x.0).collect();
            close(&got, &want, 5e-5, &format!("{name} on {}", crate::common::id(&d)));
        }
        // The layer-wise rules and FTRL have tests of their own in the backend; here they must learn.
        let learn: [(&str, Make); 3] = [
            ("ftrl", |p| Optimizer::ftrl(p, 0.5, 0.0, 0.0)),
            ("lars", |p| Optimizer::lars(p, 20.0, 0.9, 0.0)),
            ("lamb", |p| Optimizer::lamb(p, 0.05, 0.0)),
        ];
        for (name, make) in learn {
            let p = Params::new(&d, &[&[1.0, -1.0, 0.5]]);
            let mut o = make(&p).unwrap();
            let loss = || p.0[0].get().add_scalar(-0.3).unwrap().square().unwrap().sum().unwrap();
            let before: f32 = loss().item().unwrap();
            for _ in 0..60 {
                o.zero_grad().unwrap();
                loss().backward().unwrap();
                o.step().unwrap();
            }
            assert!(loss().item::<f32>().unwrap() < 0.1 * before, "{name}: {:?}", p.values());
        }
    }
}

#[test]
fn layer_wise_rules_see_one_tensor_at_a_time() {
    let d = cpu();
    let together = Params::new(&d, &[&[3.0, 4.0], &[0.01; 70], &[1.0]]);
    let apart: Vec<Params> = together.values().iter().map(|v| Params::new(&d, &[v])).collect();
    let rule = OptimRule::Lamb {
        b1: 0.9,
        b2: 0.999,
        eps: 1e-6,
        wd: 0.01,
        bias_correction: true,
        max_norm: 10.0,
        adapt: true,
    };
    let step = |p: &Params| {
        let mut o = Optimizer::new(p, rule, 0.1).unwrap();
        for _ in 0..3 {
            o.zero_grad().unwrap();
            for q in &p.0 {
                q.get().square().unwrap().sum().unwrap().backward().unwrap();
            }
            o.step().unwrap();
        }
    };
    step(&together);
    apart.iter().for_each(step);
    let want: Vec<Vec<f32>> = apart.iter().flat_map(Params::values).collect();
    assert_eq!(together.values(), want);
    // With one norm over everything, the small tensor would move as far as the large ones.
    assert!((want[1][0] - 0.01).abs() < 0.01, "{}", want[1][0]);
}

#[test]
fn ascending_is_descending_of_the_negative() {
    let d = cpu();
    let (a, b) = (Params::new(&d, &[&[1.0, 2.0]]), Params::new(&d, &[&[1.0, 2.0]]));
    let mut up = Optimizer::adam(&a, 0.1).unwrap().maximize(true);
    let mut down = Optimizer::adam(&b, 0.1).unwrap();
    a.0[0].get().square().unwrap().sum().unwrap().backward().unwrap();
    b.0[0].get().square().unwrap().neg().unwrap().sum().unwrap().backward().unwrap();
    up.step().unwrap();
    down.step().unwrap();
    assert_eq!(a.values(), b.values());
    assert!(a.values()[0][0] > 1.0);
}
