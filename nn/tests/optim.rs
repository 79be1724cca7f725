//! Optimizers, arenas, clipping, schedules.
#![allow(missing_docs)]

mod common;
use common::{close, cpu, devices, f32s, noise};
use trefoil::ops::OptimRule;
use trefoil::{DType, ops::Activation};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::optim::{Group, Plateau, Schedule};
use trefoil_nn::{Build, Device, Layer, LayerExt, NnError, Optimizer, Param, Tensor, Visitor};

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
                close(&got, &want, 2e-5, &format!("{rule:?} on {}", common::id(&d)));
            }
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
    let count = || trefoil::ops::CoreOps::counters(&d).launches;
    let n = count();
    o.zero_grad().unwrap();
    o.step().unwrap();
    assert_eq!(count() - n, 2);
}

#[test]
fn a_step_invalidates_older_graphs() {
    let p = Params::new(&cpu(), &[&[1.0, 2.0]]);
    let mut o = Optimizer::sgd(&p, 0.5).unwrap();
    let y = p.0[0].get().square().unwrap().sum().unwrap();
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
fn parameters_of_several_dtypes() {
    let d = cpu();
    let cx = Build::new(&d, 1);
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
fn schedules() {
    let at = |s: &Schedule, ts: &[u64]| -> Vec<f64> { ts.iter().map(|&t| s.lr(0.1, t)).collect() };
    let check = |s: &Schedule, ts: &[u64], want: &[f64]| close(&at(s, ts), want, 1e-12, &format!("{s:?}"));
    check(&Schedule::Constant, &[0, 100], &[0.1, 0.1]);
    check(&Schedule::Step { every: 3, gamma: 0.5 }, &[0, 2, 3, 6], &[0.1, 0.1, 0.05, 0.025]);
    check(&Schedule::Exponential { gamma: 0.9 }, &[0, 1, 2], &[0.1, 0.09, 0.081]);
    check(&Schedule::Cosine { total: 10, min: 0.02 }, &[0, 5, 10, 11], &[0.1, 0.06, 0.02, 0.02]);
    check(&Schedule::Polynomial { total: 4, power: 2.0, end: 0.0 }, &[0, 2, 4, 9], &[0.1, 0.025, 0.0, 0.0]);
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
}

#[test]
fn a_small_problem_is_learned_everywhere() {
    for d in devices() {
        let cx = Build::new(&d, 3);
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
        assert!(last < 1e-2, "loss {last} on {}", common::id(&d));
    }
}
