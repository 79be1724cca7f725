//! Adaptive optimizers, Adan, Sophia, and moments in fewer bits.

use crate::common::{close, cpu, devices, f32s, noise};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::checkpoint::{Checkpoint, Progress};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::losses::MseLoss;
use trefoil_nn::{Device, InitContext, Layer, Optimizer, Param, Result, Tensor, Visitor};

/// A model that is one parameter.
#[derive(Debug)]
struct One(Param);

impl One {
    fn new(d: &Device, values: &[f32]) -> Self {
        One(Param::new(f32s(d, values, &[values.len()])))
    }
    fn values(&self) -> Vec<f64> {
        self.0.get().to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
    }
    /// Sum of (w - 0.3)^2.
    fn loss(&self) -> Tensor {
        self.0.get().add_scalar(-0.3).unwrap().square().unwrap().sum().unwrap()
    }
}

impl Layer for One {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("p", &self.0);
    }
}

fn train(p: &One, o: &mut Optimizer, steps: usize) {
    for _ in 0..steps {
        o.zero_grad().unwrap();
        p.loss().backward().unwrap();
        o.step().unwrap();
    }
}

fn start() -> Vec<f32> {
    noise(3, 20).iter().map(|&x| x as f32).collect()
}

#[test]
fn adan_follows_the_paper() {
    let (b1, b2, b3, lr, wd) = (0.98, 0.92, 0.99, 0.05, 0.1);
    for d in devices() {
        let p = One::new(&d, &start());
        train(&p, &mut Optimizer::adan(&p, lr, wd).unwrap(), 12);
        let want: Vec<f64> = start()
            .iter()
            .map(|&w| {
                let (mut w, mut m, mut v, mut n, mut last) = (f64::from(w), 0.0, 0.0, 0.0, None);
                for t in 1..=12 {
                    let g = 2.0 * (w - 0.3);
                    let diff = g - last.unwrap_or(g);
                    m = b1 * m + (1.0 - b1) * g;
                    v = b2 * v + (1.0 - b2) * diff;
                    n = b3 * n + (1.0 - b3) * (g + b2 * diff) * (g + b2 * diff);
                    let [c1, c2, c3] = [b1, b2, b3].map(|b: f64| 1.0 - b.powi(t));
                    let step = (m / c1 + b2 * v / c2) / ((n / c3).sqrt() + 1e-8);
                    w = (w - lr * step) / (1.0 + lr * wd);
                    last = Some(g);
                }
                w
            })
            .collect();
        close(&p.values(), &want, 5e-5, &format!("adan on {}", crate::common::id(&d)));
    }
}

#[test]
fn schedule_free_weights_are_exchanged_for_evaluation() {
    for d in devices() {
        let p = One::new(&d, &start());
        let mut o = Optimizer::schedule_free_sgd(&p, 0.1).unwrap();
        o.swap_schedule_free().unwrap();
        train(&p, &mut o, 10);
        // x is the mean of all z, and y lies between them.
        let (mut y, mut x) = (vec![], vec![]);
        for w in start() {
            let (mut z, mut mean) = (f64::from(w), f64::from(w));
            let mut at = z;
            for t in 1..=10 {
                z -= 0.1 * 2.0 * (at - 0.3);
                mean += (z - mean) / f64::from(t);
                at = 0.1 * z + 0.9 * mean;
            }
            y.push(at);
            x.push(mean);
        }
        let id = crate::common::id(&d);
        close(&p.values(), &y, 2e-5, &format!("y on {id}"));
        let before = p.values();
        o.swap_schedule_free().unwrap();
        close(&p.values(), &x, 2e-5, &format!("x on {id}"));
        o.swap_schedule_free().unwrap();
        assert_eq!(p.values(), before);
    }
}

type Make = fn(&dyn Layer) -> Result<Optimizer>;

#[test]
fn adaptive_rules_find_their_rates() {
    let all: [(&str, Make, usize); 7] = [
        ("hypergradient", |p| Optimizer::hypergradient(p, 1e-3, 1e-4), 100),
        ("schedule_free_adamw", |p| Optimizer::schedule_free_adamw(p, 0.05, 0.0), 200),
        ("dadapt_sgd", |p| Optimizer::dadapt_sgd(p, 1.0, 0.0), 200),
        ("dadapt_adam", |p| Optimizer::dadapt_adam(p, 1.0, 0.0), 400),
        ("prodigy", |p| Optimizer::prodigy(p, 1.0, 0.0), 400),
        ("adan", |p| Optimizer::adan(p, 0.05, 0.0), 200),
        ("sophia", |p| Optimizer::sophia(p, 0.02, 0.0), 200),
    ];
    for d in devices() {
        for (name, make, steps) in all {
            let p = One::new(&d, &[1.0, -1.0, 0.5]);
            let mut o = make(&p).unwrap();
            let before: f32 = p.loss().item().unwrap();
            train(&p, &mut o, steps);
            let after: f32 = p.loss().item().unwrap();
            assert!(after < 0.1 * before, "{name} on {}: {before} to {after}", crate::common::id(&d));
        }
    }
}

#[test]
fn curvature_bounds_the_steps_of_sophia() {
    let d = cpu();
    let p = One::new(&d, &[1.0, 1.0]);
    let mut o = Optimizer::sophia(&p, 0.1, 0.0).unwrap();
    o.zero_grad().unwrap();
    p.0.get().mul(&f32s(&d, &[1000.0, 0.0], &[2])).unwrap().sum().unwrap().backward().unwrap();
    o.renew_curvature(0.99, 4.0).unwrap();
    o.zero_grad().unwrap();
    p.0.get().mul_scalar(1.0).unwrap().sum().unwrap().backward().unwrap();
    o.step().unwrap();
    // h = 0.01 * 4 * 1e6, m = 0.035: the first step is 0.1 * m / (0.01 h), the second is clipped.
    close(&p.values(), &[1.0 - 0.1 * 0.035 / 400.0, 0.9], 1e-6, "sophia");
    assert!(Optimizer::adan(&p, 0.1, 0.0).is_err(), "the parameter has an optimizer");
}

/// Loss after training a small net on a fixed problem, and the largest change of a coordinate in a step.
fn fit(d: &Device, lr: f64, steps: usize, wrap: impl Fn(Optimizer) -> Result<Optimizer>) -> (f64, f64) {
    let b = InitContext::new(d, 5);
    let net = Sequential::new()
        .push(Dense::new(&b, 8, 600).unwrap().activation(Activation::Tanh))
        .push(Dense::new(&b, 600, 1).unwrap());
    let mut o = wrap(Optimizer::adam(&net, lr).unwrap()).unwrap();
    let x: Vec<f32> = noise(7, 64 * 8).iter().map(|&x| x as f32).collect();
    let y: Vec<f32> = x.chunks(8).map(|r| (r[0] * r[1]).sin() + 0.5 * r[2]).collect();
    let (x, y) = (f32s(d, &x, &[64, 8]), f32s(d, &y, &[64, 1]));
    let (mut last, mut most) = (f64::INFINITY, 0.0f64);
    let values = || -> Vec<f32> {
        use trefoil_nn::LayerExt;
        net.parameters().iter().flat_map(|p| p.get().to_vec::<f32>().unwrap()).collect()
    };
    let mut before = values();
    for _ in 0..steps {
        o.zero_grad().unwrap();
        let loss = MseLoss::default().forward(&net.forward(&x).unwrap(), &y).unwrap();
        last = f64::from(loss.item::<f32>().unwrap());
        loss.backward().unwrap();
        o.step().unwrap();
        let after = values();
        most = before.iter().zip(&after).fold(most, |m, (a, b)| m.max(f64::from((a - b).abs())));
        before = after;
    }
    (last, most)
}

#[test]
fn moments_in_fewer_bits_learn_as_well() {
    let d = cpu();
    let steps = 120;
    let (plain, _) = fit(&d, 1e-3, steps, Ok);
    for (name, (loss, most)) in [
        ("codes, at random", fit(&d, 1e-3, steps, |o| o.moments_in_8_bits(Some(1)))),
        ("codes, to nearest", fit(&d, 1e-3, steps, |o| o.moments_in_8_bits(None))),
        ("bf16", fit(&d, 1e-3, steps, |o| o.moments_in_bf16(Some(1)))),
    ] {
        assert!(loss < 1.05 * plain, "{name}: {loss} instead of {plain}");
        assert!(most < 10.0 * 1e-3, "{name}: a coordinate moved by {most}");
    }
}

#[test]
fn every_form_continues_from_a_checkpoint() {
    let d = cpu();
    let forms: [(&str, Make); 4] = [
        ("codes", |m| Optimizer::adamw(m, 0.01, 0.1)?.moments_in_8_bits(Some(3))),
        ("bf16", |m| Optimizer::adam(m, 0.01)?.moments_in_bf16(Some(3))),
        ("prodigy", |m| Optimizer::prodigy(m, 1.0, 0.0)),
        ("free", |m| Optimizer::schedule_free_adamw(m, 0.01, 0.1)),
    ];
    for (name, form) in forms {
        let make = || {
            let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 1), 70, 60).unwrap());
            let o = form(&m).unwrap();
            (m, o)
        };
        let step = |m: &Sequential, o: &mut Optimizer| {
            o.zero_grad().unwrap();
            let y = m.forward(&Tensor::ones(&d, DType::F32, &[4, 70]).unwrap()).unwrap();
            MseLoss::default().forward(&y, &y.detach().add_scalar(1.0).unwrap()).unwrap().backward().unwrap();
            o.step().unwrap();
        };
        let (m, mut o) = make();
        (0..4).for_each(|_| step(&m, &mut o));
        let saved = Checkpoint::capture(&m, Some(&o), Progress::default()).unwrap();
        let (n, mut p) = make();
        saved.restore(&n, Some(&mut p)).unwrap();
        p.set_steps(o.steps());
        (0..4).for_each(|_| step(&m, &mut o));
        (0..4).for_each(|_| step(&n, &mut p));
        let end =
            |m: &Sequential, o: &Optimizer| Checkpoint::capture(m, Some(o), Progress::default()).unwrap();
        assert_eq!(end(&m, &o), end(&n, &p), "{name}");
    }
}

#[test]
fn packing_is_refused_where_it_cannot_be() {
    let d = cpu();
    let p = One::new(&d, &[1.0]);
    assert!(Optimizer::sgd(&p, 0.1).unwrap().moments_in_bf16(None).is_err());
    let mut o = Optimizer::adam(&p, 0.1).unwrap();
    train(&p, &mut o, 1);
    assert!(o.moments_in_8_bits(None).is_err());
}
