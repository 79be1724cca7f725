//! Optimizers, arenas, clipping, schedules.

use std::sync::Arc;

use crate::common::{close, cpu, devices, f32s, id, noise};
use trefoil::ops::optimizer::OptimRule;
use trefoil::testing::MockDriver;
use trefoil::{BackendKind, Caps, DeviceId, Engine};
use trefoil::{DType, ops::activation::Activation};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::optim::LossScale;
use trefoil_nn::optim::{Group, Plateau, Schedule};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, NnError, Optimizer, Param, Tensor, Visitor};

/// A model that is a list of parameters.
#[derive(Debug)]
struct Params(Vec<Param>);

impl Params {
    fn new(d: &Device, values: &[&[f32]]) -> Self {
        Params(values.iter().map(|v| Param::new(f32s(d, v, &[v.len()]))).collect())
    }
    fn values(&self) -> Vec<Vec<f32>> {
        self.0.iter().map(|p| p.get().to_vec().unwrap()).collect()
    }
}

impl Layer for Params {
    fn forward(&self, x: &Tensor) -> trefoil_nn::Result<Tensor> {
        Ok(x.clone())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, p) in self.0.iter().enumerate() {
            v.param(&format!("p{i}"), p);
        }
    }
}

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
fn groups_have_rates_and_decays_of_their_own() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let m = Sequential::new().push(Dense::new(&cx, 3, 2).unwrap());
    let [matrices, others] = Group::new(&m, OptimRule::Sgd { wd: 0.5 }).decay_matrices_only();
    assert_eq!((matrices.params[0].0.as_str(), others.params[0].0.as_str()), ("0.weight", "0.bias"));
    let before: Vec<Vec<f32>> = m.named_parameters().iter().map(|(_, p)| p.get().to_vec().unwrap()).collect();
    let mut o = Optimizer::with_groups(vec![matrices, others.lr_factor(10.0)], 0.1).unwrap();
    o.zero_grad().unwrap();
    for (_, p) in m.named_parameters() {
        p.get().sum().unwrap().backward().unwrap();
    }
    o.step().unwrap();
    let after: Vec<Vec<f32>> = m.named_parameters().iter().map(|(_, p)| p.get().to_vec().unwrap()).collect();
    for (b, a) in before[0].iter().zip(&after[0]) {
        assert!((a - (b - 0.1 * (1.0 + 0.5 * b))).abs() < 1e-6);
    }
    for (b, a) in before[1].iter().zip(&after[1]) {
        assert!((a - (b - 1.0)).abs() < 1e-6);
    }
    let lamb = Group::new(
        &m,
        OptimRule::Lamb {
            b1: 0.9,
            b2: 0.999,
            eps: 1e-6,
            wd: 0.1,
            bias_correction: true,
            max_norm: 10.0,
            adapt: true,
        },
    );
    let [a, b] = lamb.layer_wise();
    assert!(matches!(a.rule, OptimRule::Lamb { wd: 0.1, adapt: true, .. }));
    assert!(matches!(b.rule, OptimRule::Lamb { wd: 0.0, adapt: false, .. }));
}

#[test]
fn saved_states_continue_with_the_same_bits() {
    use trefoil_nn::checkpoint::{Checkpoint, Progress};
    use trefoil_nn::optim::LossScale;
    let d = cpu();
    let make = |dtype: DType| {
        let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 1).dtype(dtype), 3, 2).unwrap());
        let o = Optimizer::nadam(&m, 0.1).unwrap().ema(0.9).unwrap();
        let o = o.master_weights().unwrap().loss_scaling(LossScale::new().interval(3), 256.0).unwrap();
        (m, o)
    };
    for dtype in [DType::F32, DType::F16] {
        let step = |m: &Sequential, o: &mut Optimizer| {
            o.zero_grad().unwrap();
            let x = Tensor::ones(&d, dtype, &[4, 3]).unwrap();
            let y = m.forward(&x).unwrap();
            let loss =
                trefoil_nn::MseLoss::default().forward(&y, &y.detach().add_scalar(1.0).unwrap()).unwrap();
            o.backward(&loss).unwrap();
            o.step().unwrap();
        };
        let (m, mut o) = make(dtype);
        (0..4).for_each(|_| step(&m, &mut o));
        let saved = Checkpoint::capture(&m, Some(&o), Progress::default()).unwrap();
        let (n, mut p) = make(dtype);
        saved.restore(&n, Some(&mut p)).unwrap();
        (0..4).for_each(|_| step(&m, &mut o));
        (0..4).for_each(|_| step(&n, &mut p));
        let end =
            |m: &Sequential, o: &Optimizer| Checkpoint::capture(m, Some(o), Progress::default()).unwrap();
        assert_eq!(end(&m, &o), end(&n, &p), "{dtype}");
        assert_eq!(p.loss_scale().unwrap().item::<f32>().unwrap(), 1024.0);
        assert_eq!(end(&m, &o).tensors.contains_key("optimizer.master.0.weight"), dtype == DType::F16);
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

#[test]
fn groups_have_their_own_rate_and_decay() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0], &[1.0]]);
    let group = |i: usize, wd: f64, lr_factor: f64| Group {
        params: vec![(format!("p{i}"), p.0[i].clone())],
        rule: OptimRule::Sgd { wd },
        lr_factor,
    };
    let mut o = Optimizer::with_groups(vec![group(0, 0.0, 1.0), group(1, 1.0, 0.5)], 0.1).unwrap();
    for q in &p.0 {
        q.get().mul_scalar(2.0).unwrap().backward().unwrap();
    }
    o.step().unwrap();
    close(&[p.values()[0][0] as f64, p.values()[1][0] as f64], &[0.8, 1.0 - 0.05 * 3.0], 1e-6, "groups");
}

#[test]
fn tensors_follow_their_parameter_into_the_arena() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0, 2.0, 3.0], &[4.0]]);
    let held = p.0[0].get();
    let part = held.detach().narrow(0, 1, 2).unwrap();
    held.sum().unwrap().backward().unwrap();
    p.0[1].get().sum().unwrap().backward().unwrap();
    let mut o = Optimizer::sgd(&p, 0.5).unwrap();
    // Values and gradients moved along.
    assert_eq!(p.values(), [vec![1.0, 2.0, 3.0], vec![4.0]]);
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 3]);
    o.step().unwrap();
    assert_eq!(held.to_vec::<f32>().unwrap(), [0.5, 1.5, 2.5]);
    assert_eq!(part.to_vec::<f32>().unwrap(), [1.5, 2.5]);
    o.zero_grad().unwrap();
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    p.0[0].get().sum().unwrap().backward().unwrap();
    p.zero_grad().unwrap();
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    // A step is one launch, clearing another, however many parameters there are.
    let count = || trefoil::ops::core::CoreOps::counters(&d).launches;
    let n = count();
    o.zero_grad().unwrap();
    assert_eq!(count() - n, 1);
    p.0.iter().for_each(|q| q.get().sum().unwrap().backward().unwrap());
    let n = count();
    o.step().unwrap();
    assert_eq!(count() - n, 1);
}

#[test]
fn a_step_invalidates_older_graphs() {
    let p = Params::new(&cpu(), &[&[1.0, 2.0]]);
    let mut o = Optimizer::sgd(&p, 0.5).unwrap();
    let y = p.0[0].get().square().unwrap().sum().unwrap();
    p.0[0].get().sum().unwrap().backward().unwrap();
    o.step().unwrap();
    assert!(matches!(y.backward(), Err(NnError::SavedModified { .. })));
}

#[test]
fn ownership_is_checked() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0]]);
    let first = Optimizer::sgd(&p, 0.1).unwrap();
    assert!(matches!(Optimizer::sgd(&p, 0.1), Err(NnError::Param { .. })));
    drop(first);
    let mut o = Optimizer::sgd(&p, 0.1).unwrap();
    p.0[0].set(f32s(&d, &[9.0], &[1]));
    let e = o.step().unwrap_err();
    assert!(matches!(&e, NnError::Param { name, .. } if name == "p0"), "{e}");
    assert_eq!(o.steps(), 0);
    // A view of a larger tensor cannot move; an empty model has nothing to move.
    let whole = f32s(&d, &[1.0, 2.0], &[2]);
    let view = Params(vec![Param::new(whole.narrow(0, 0, 1).unwrap())]);
    assert!(matches!(Optimizer::sgd(&view, 0.1), Err(NnError::Param { .. })));
    assert!(Optimizer::sgd(&Sequential::new(), 0.1).is_err());
    let p = Params::new(&d, &[&[1.0]]);
    for lr in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(Optimizer::sgd(&p, lr).is_err());
    }
    assert!(Optimizer::momentum(&p, 0.1, 1.0).is_err());
    assert!(Optimizer::adamw(&p, 0.1, -1.0).is_err());
    assert!(Optimizer::sgd(&p, 0.1).unwrap().set_lr(-1.0).is_err());
}

#[test]
fn tied_parameters_move_once() {
    let d = cpu();
    let t = Param::new(f32s(&d, &[1.0, -1.0], &[2]));
    let p = Params(vec![t.clone(), t]);
    let mut o = Optimizer::sgd(&p, 0.1).unwrap();
    p.0[0].get().add(&p.0[1].get()).unwrap().sum().unwrap().backward().unwrap();
    o.step().unwrap();
    assert_eq!(p.values(), [vec![0.8, -1.2], vec![0.8, -1.2]]);
}

#[test]
fn tied_leaves_collect_in_one_place() {
    for d in devices() {
        let t = f32s(&d, &[1.0, -1.0], &[2]);
        let p = Params(vec![Param::new(t.clone()), Param::new(t)]);
        let [a, b] = [[0.5, 2.0], [4.0, -8.0]].map(|x| f32s(&d, &x, &[2]));
        let product = |i: usize, x: &Tensor| p.0[i].get().mul(x).unwrap().sum().unwrap();
        // What the second has collected before is kept.
        product(1, &a).backward().unwrap();
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        let collected = || p.0[0].get().grad().unwrap().to_vec::<f32>().unwrap();
        product(0, &b).backward().unwrap();
        assert_eq!(collected(), [4.5, -6.0], "{}", id(&d));
        for _ in 0..2 {
            o.zero_grad().unwrap();
            product(0, &a).add(&product(1, &b)).unwrap().backward().unwrap();
            assert_eq!(collected(), [4.5, -6.0], "{}", id(&d));
            product(1, &a).backward().unwrap();
            assert_eq!(collected(), [5.0, -4.0], "{}", id(&d));
        }
        // One of them alone is cleared: the memory is, for both.
        p.0[1].get().zero_grad().unwrap();
        product(0, &b).backward().unwrap();
        assert_eq!(collected(), [4.0, -8.0], "{}", id(&d));
    }
}

#[test]
fn parameters_of_several_dtypes() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let m = Sequential::new()
        .push(Dense::new(&cx, 2, 2).unwrap())
        .push(Dense::new(&cx.clone().dtype(DType::F64), 2, 2).unwrap());
    let mut o = Optimizer::adam(&m, 0.1).unwrap();
    let before: Vec<Vec<u8>> =
        m.named_parameters().iter().map(|(_, p)| p.get().to_bytes().unwrap()).collect();
    for (_, p) in m.named_parameters() {
        p.get().sum().unwrap().backward().unwrap();
    }
    o.step().unwrap();
    for ((n, p), old) in m.named_parameters().iter().zip(before) {
        assert_ne!(p.get().to_bytes().unwrap(), old, "{n}");
    }
    assert_eq!(o.state_tensors().unwrap().len(), 8);
}

#[test]
fn clipping() {
    for d in devices() {
        let p = Params::new(&d, &[&[0.0], &[0.0, 0.0]]);
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        let fill = |a: f32, b: f32| {
            o.zero_grad().unwrap();
            p.0[0].get().mul(&f32s(&d, &[a], &[1])).unwrap().sum().unwrap().backward().unwrap();
            p.0[1].get().mul(&f32s(&d, &[b, 0.0], &[2])).unwrap().sum().unwrap().backward().unwrap();
        };
        let grads = || -> Vec<f32> {
            p.0.iter().flat_map(|q| q.get().grad().unwrap().to_vec::<f32>().unwrap()).collect()
        };
        fill(3.0, 4.0);
        assert_eq!(o.clip_grad_norm(10.0, 2.0).unwrap().item::<f32>().unwrap(), 5.0);
        assert_eq!(grads(), [3.0, 4.0, 0.0]);
        assert_eq!(o.clip_grad_norm(1.0, 2.0).unwrap().item::<f32>().unwrap(), 5.0);
        let g = grads();
        assert!((g[0] - 0.6).abs() < 1e-5 && (g[1] - 0.8).abs() < 1e-5, "{g:?}");
        fill(1e30, 1e30);
        o.clip_grad_norm(1.0, 2.0).unwrap();
        assert!((grads()[0] - 0.5f32.sqrt()).abs() < 1e-5);
        fill(3.0, -4.0);
        o.clip_grad_value(2.0).unwrap();
        assert_eq!(grads(), [2.0, -2.0, 0.0]);
        assert!(o.clip_grad_norm(0.0, 2.0).is_err() && o.clip_grad_value(f64::NAN).is_err());
    }
}

#[test]
fn clipping_over_two_dtypes() {
    for d in devices() {
        let p = Params(vec![
            Param::new(f32s(&d, &[0.0], &[1])),
            Param::new(f32s(&d, &[0.0], &[1]).to_dtype(DType::F16).unwrap()),
        ]);
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        for (degree, norm) in [(2.0, 5.0f32), (f64::INFINITY, 4.0)] {
            for bound in [100.0, 1.0] {
                o.zero_grad().unwrap();
                p.0[0].get().mul_scalar(3.0).unwrap().sum().unwrap().backward().unwrap();
                p.0[1].get().mul_scalar(4.0).unwrap().sum().unwrap().backward().unwrap();
                assert_eq!(o.clip_grad_norm(bound, degree).unwrap().item::<f32>().unwrap(), norm);
                let g = |i: usize| {
                    let g = p.0[i].get().grad().unwrap().to_dtype(DType::F32).unwrap();
                    f64::from(g.item::<f32>().unwrap())
                };
                let f = (bound / f64::from(norm)).min(1.0);
                close(&[g(0), g(1)], &[3.0 * f, 4.0 * f], 1e-3, "gradients");
            }
        }
    }
}

#[test]
fn schedules() {
    let at = |s: &Schedule, ts: &[u64]| -> Vec<f64> { ts.iter().map(|&t| s.lr(0.1, t)).collect() };
    let check = |s: &Schedule, ts: &[u64], want: &[f64]| close(&at(s, ts), want, 1e-12, &format!("{s:?}"));
    check(&Schedule::Constant, &[0, 100], &[0.1, 0.1]);
    check(&Schedule::Step { every: 3, gamma: 0.5 }, &[0, 2, 3, 6], &[0.1, 0.1, 0.05, 0.025]);
    check(&Schedule::Exponential { gamma: 0.9 }, &[0, 1, 2], &[0.1, 0.09, 0.081]);
    check(&Schedule::Cosine { total: 10, min: 0.02 }, &[0, 5, 10, 11], &[0.1, 0.06, 0.02, 0.02]);
    check(&Schedule::Polynomial { total: 4, power: 2.0, end: 0.0 }, &[0, 2, 4, 9], &[0.1, 0.025, 0.0, 0.0]);
    let steps = Schedule::MultiStep { milestones: vec![2, 5], gamma: 0.1 };
    check(&steps, &[0, 1, 2, 4, 5, 9], &[0.1, 0.1, 0.01, 0.01, 0.001, 0.001]);
    check(&Schedule::Linear { total: 4, start: 0.5, end: 1.0 }, &[0, 2, 4, 9], &[0.05, 0.075, 0.1, 0.1]);
    // Periods of 2, 4 and 8 steps.
    let again = Schedule::CosineRestarts { first: 2, factor: 2, min: 0.0 };
    check(&again, &[0, 1, 2, 4, 6, 10], &[0.1, 0.05, 0.1, 0.05, 0.1, 0.05]);
    check(
        &Schedule::CosineRestarts { first: 4, factor: 1, min: 0.02 },
        &[0, 2, 4, 6],
        &[0.1, 0.06, 0.1, 0.06],
    );
    let warm =
        Schedule::Warmup { steps: 4, start: 0.25, then: Box::new(Schedule::Step { every: 1, gamma: 0.5 }) };
    check(&warm, &[0, 2, 4, 5], &[0.025, 0.0625, 0.1, 0.05]);
    // The values of torch.optim.lr_scheduler.OneCycleLR(max_lr=0.1, total_steps=10) at the ends and the peak.
    let one = Schedule::OneCycle { total: 10, rise: 0.3, div: 25.0, final_div: 1e4 };
    check(&one, &[0, 2, 9, 50], &[0.004, 0.1, 4e-7, 4e-7]);
    check(&one, &[1], &[0.052]);
    let mut p = Plateau::new(0.5, 1);
    for v in [1.0, 0.9, 0.9, f64::NAN, 0.9] {
        p.observe(v);
    }
    assert_eq!((p.lr(0.1), p.waited), (0.05, 1));
    p.observe(0.5);
    assert_eq!((p.scale, p.waited), (0.5, 0));
    // After a reduction two observations do not count.
    let mut p = Plateau { cooldown: 2, ..Plateau::new(0.5, 0) };
    let scales: Vec<f64> = [1.0, 1.0, 1.0, 1.0, 1.0].iter().map(|&v| (p.observe(v), p.scale).1).collect();
    assert_eq!(scales, [1.0, 0.5, 0.5, 0.5, 0.25]);
}

#[test]
fn a_small_problem_is_learned_everywhere() {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let m = Sequential::new()
            .push(Dense::new(&cx, 2, 16).unwrap().activation(Activation::Tanh))
            .push(Dense::new(&cx, 16, 1).unwrap());
        let mut o = Optimizer::adam(&m, 0.05).unwrap();
        let x = f32s(&d, &[0., 0., 0., 1., 1., 0., 1., 1.], &[4, 2]);
        let y = f32s(&d, &[0., 1., 1., 0.], &[4, 1]);
        let mut last = f32::NAN;
        for i in 0..200 {
            o.zero_grad().unwrap();
            let loss = trefoil_nn::MseLoss::default().forward(&m.forward(&x).unwrap(), &y).unwrap();
            loss.backward().unwrap();
            o.step().unwrap();
            if i % 50 == 49 {
                last = loss.item().unwrap();
            }
        }
        assert!(last < 1e-2, "loss {last} on {}", crate::common::id(&d));
    }
}

/// Steps start from one tensor, which a user may see as the loss's gradient and overwrite.
#[test]
fn every_backward_starts_from_its_weight() {
    let d = cpu();
    let x = f32s(&d, &[1.0, 2.0], &[2]);
    let model = Dense::new(&InitContext::new(&d, 1), 2, 1).unwrap();
    let o = Optimizer::sgd(&model, 0.1).unwrap();
    for weight in [1.0, 1.0, 0.25, 0.25, 1.0] {
        o.zero_grad().unwrap();
        let loss = model.forward(&x).unwrap().sum().unwrap();
        loss.retain_grad().unwrap();
        o.backward_weighted(&loss, weight).unwrap();
        let g = model.weight().unwrap().get().grad().unwrap();
        let w = weight as f32;
        assert_eq!(g.to_vec::<f32>().unwrap(), [w, 2.0 * w]);
        loss.grad().unwrap().fill(7.0).unwrap();
    }
}

#[test]
fn a_step_over_many_parameters_is_a_few_launches() {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    caps.device_addresses = true;
    let driver = Arc::new(MockDriver::new(caps));
    let d: Device = Arc::new(Engine::new(driver.clone()).unwrap());
    let launches = |dtype: DType, scaled: bool| {
        let values = [1.0f32; 70];
        let params = Params::new(&d, &[&values[..]; 50]);
        params.0.iter().for_each(|p| p.set(p.get().to_dtype(dtype).unwrap()));
        let mut o = Optimizer::adamw(&params, 0.01, 0.01).and_then(Optimizer::master_weights).unwrap();
        o = o.ema(0.9).unwrap();
        if scaled {
            o = o.loss_scaling(LossScale::new(), 1024.0).unwrap();
        }
        let mut counts = vec![];
        // The first of each kind makes what the others keep.
        for clip in [false, false, true, true] {
            params.0.iter().for_each(|p| o.backward(&p.get().sum().unwrap()).unwrap());
            driver.clear();
            match clip {
                true => drop(o.step_clipped(1.0, 2.0).unwrap()),
                false => o.step().unwrap(),
            }
            counts.push(driver.launches());
        }
        (counts.remove(1), counts.remove(2))
    };
    for dtype in [DType::F32, DType::F16] {
        // The update with the 16-bit copies, and the moving average.
        let update = ["optimizer_step", "binary_flat"];
        let norm = ["gradient_norm_partial", "gradient_factor"];
        let (plain, clipped) = launches(dtype, false);
        assert_eq!(plain, update, "{dtype}");
        assert_eq!(clipped, [norm, update].concat(), "{dtype}");
        // Loss scaling looks at the gradients and adapts within the two launches of the norm.
        let (plain, scaled) = launches(dtype, true);
        assert_eq!(scaled, clipped, "{dtype}");
        assert_eq!(plain.len(), 4, "{dtype}: {plain:?}");
    }
}

#[test]
fn a_clipped_step_is_clipping_and_a_step() {
    for d in devices() {
        let run = |together: bool| {
            let params = Params::new(&d, &[&[1.0, -2.0, 3.0], &[0.5; 100]]);
            let mut o = Optimizer::adamw(&params, 0.05, 0.01).unwrap();
            o = o.loss_scaling(LossScale::new().interval(3), 1024.0).unwrap();
            let mut seen = vec![];
            for i in 0..9 {
                o.zero_grad().unwrap();
                for (k, p) in params.0.iter().enumerate() {
                    let n = p.get().numel();
                    let mut factors: Vec<f32> =
                        noise(7 * i + k as u64, n).iter().map(|&v| v as f32).collect();
                    if i == 4 && k == 1 {
                        factors[n - 1] = f32::INFINITY;
                    }
                    let loss = p.get().mul(&f32s(&d, &factors, &[n])).unwrap().sum().unwrap();
                    o.backward(&loss).unwrap();
                }
                let norm = match together {
                    true => o.step_clipped(0.7, 2.0).unwrap(),
                    false => {
                        let norm = o.clip_grad_norm(0.7, 2.0).unwrap();
                        o.step().unwrap();
                        norm
                    }
                };
                let scale = o.loss_scale().unwrap().item::<f32>().unwrap();
                seen.push((scale, norm.item::<f32>().unwrap(), params.values()));
            }
            let state = o.state_tensors().unwrap();
            let count =
                state.iter().find(|(name, _)| name == "scaler.step").unwrap().1.item::<i64>().unwrap();
            (seen, count)
        };
        let ((apart, a), (together, b)) = (run(false), run(true));
        assert_eq!((a, b), (9, 9), "{}: eight steps were made", id(&d));
        for (i, (x, y)) in apart.iter().zip(&together).enumerate() {
            assert_eq!(x.0, y.0, "{}: scale after step {i}", id(&d));
            assert!(x.1 == y.1 || (x.1 - y.1).abs() <= 1e-6 * x.1, "{}: norm {} and {}", id(&d), x.1, y.1);
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-6 * (1.0 + x.abs());
            assert!(x.2.iter().flatten().zip(y.2.iter().flatten()).all(near), "{}: step {i}", id(&d));
        }
        assert_eq!(together[3].2, together[4].2, "{}: an infinite gradient changes nothing", id(&d));
        assert_ne!(together[4].2, together[5].2);
    }
}
