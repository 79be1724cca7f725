//! Optimizers, losses and data.

use super::{each, host, same};
use crate::common::everywhere::{everywhere, values};
use crate::common::{close, f32s, id};
use trefoil::DType;
use trefoil::ops::optimizer::OptimRule;
use trefoil_nn::data::{Dataset, Order, ResidentSource, Source, Targets};
use trefoil_nn::losses::{BceLoss, BceWithLogitsLoss, GaussianKlLoss, NllLoss, Reduction};
use trefoil_nn::{CrossEntropyLoss, HostTensor, Layer, MseLoss, Optimizer, Param, Result, Tensor, Visitor};

/// One trainable number.
#[derive(Debug)]
struct Scalar(Param);

impl Layer for Scalar {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.get().mul(x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("p", &self.0);
    }
}

#[test]
fn optimizers() {
    each(|d| {
        let run = |rule: OptimRule, steps: usize| -> Vec<f64> {
            let model = Scalar(Param::new(f32s(d, &[1.0], &[1])));
            let mut opt = Optimizer::new(&model, rule, 0.1).unwrap();
            let mut path = vec![];
            for _ in 0..steps {
                opt.zero_grad().unwrap();
                model.0.get().square().unwrap().sum().unwrap().backward().unwrap();
                opt.step().unwrap();
                path.push(values(&model.0.get())[0]);
            }
            path
        };
        let sgd = OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.01, nesterov: false };
        close(&run(sgd, 3), &[0.799, 0.457501, 0.0581942], 1e-6, "SGD");
        let adam = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };
        close(&run(adam, 3), &[0.9, 0.8004125, 0.7015873], 1e-6, "Adam");
        let (mut p, mut m, mut v) = (1.0f64, 0.0, 0.0);
        for t in 1..=200 {
            let g = 2.0 * p + 0.01 * p;
            (m, v) = (0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g);
            let (mh, vh) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.999f64.powi(t)));
            p -= 0.1 * mh / (vh.sqrt() + 1e-8);
        }
        assert!((run(adam, 200)[199] - p).abs() < 1e-4, "{}", id(d));
    });
}

#[test]
fn losses() {
    let p = |x: f64| 0.5 + 0.4 * x;
    let target = || vec![HostTensor::from_slice(&[0f32, 1.0, 0.5, 1.0], &[4]).unwrap()];
    everywhere("mse", &[&[4]], &target(), same, |t, e| {
        MseLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let soft = HostTensor::from_slice(&[0.25f32, 0.25, 0.5, 0.0, 1.0, 0.0], &[2, 3]).unwrap();
    everywhere("cross entropy of soft targets", &[&[2, 3]], &[soft], same, |t, e| {
        CrossEntropyLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let classes = HostTensor::from_slice(&[2i64, 0], &[2]).unwrap();
    everywhere("nll", &[&[2, 3]], &[classes], same, |t, e| {
        NllLoss::default().forward(&t[0].log_softmax(-1)?, &e[0])
    });
    everywhere("bce", &[&[4]], &target(), p, |t, e| {
        BceLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    everywhere("bce with logits", &[&[4]], &target(), same, |t, e| {
        BceWithLogitsLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let kl = GaussianKlLoss { reduction: Reduction::Sum };
    everywhere("kl to the unit normal", &[&[2, 3], &[2, 3]], &[], same, |t, _| kl.forward(&t[0], &t[1]));
    each(|d| {
        let x = f32s(d, &[1e4, -1e4, 100., -100.], &[4]);
        let y = f32s(d, &[0., 1., 1., 0.], &[4]);
        let l = BceWithLogitsLoss::default().forward(&x, &y).unwrap().item::<f32>().unwrap();
        assert!((l - 5e3).abs() < 1.0, "{l}");
        let c = Tensor::from_slice(d, &[0i64], &[1]).unwrap();
        let far = f32s(d, &[-1e4, 1e4], &[1, 2]);
        let l = CrossEntropyLoss::default().forward(&far, &c).unwrap().item::<f32>().unwrap();
        assert!((l - 2e4).abs() < 1.0, "{l}");
        let (mu, log_var) = (f32s(d, &[1.0, 0.0], &[1, 2]), f32s(d, &[0.0, 1.0], &[1, 2]));
        let want = 0.5 * (1.0 + (1f32.exp() - 2.0));
        assert!((kl.forward(&mu, &log_var).unwrap().item::<f32>().unwrap() - want).abs() < 1e-6);
    });
}

#[test]
fn batches() {
    let n = 10;
    let features: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let targets = Targets::Values { data: features.iter().map(|x| 10.0 * x).collect(), shape: vec![1] };
    let data = Dataset::new(features.clone(), &[1], targets).unwrap();
    each(|d| {
        let source = ResidentSource::new(&data, d, DType::F32).unwrap();
        let epoch = |order: Option<Order>| -> Vec<Vec<f32>> {
            let all = source.epoch(order, 4).unwrap().map(|b| b.unwrap());
            all.map(|b| {
                assert_eq!(host(&b.y), host(&b.x).iter().map(|x| 10.0 * x).collect::<Vec<_>>());
                assert_eq!(id(b.x.device()), id(d));
                host(&b.x)
            })
            .collect()
        };
        let plain = epoch(None);
        assert_eq!(plain.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2], "the short last batch stays");
        assert_eq!(plain.concat(), features);
        let shuffled = epoch(Some(Order { seed: 1, epoch: 0 }));
        assert_eq!(shuffled, epoch(Some(Order { seed: 1, epoch: 0 })), "seeded");
        assert_ne!(shuffled, epoch(Some(Order { seed: 1, epoch: 1 })), "other epochs, other orders");
        let mut sorted = shuffled.concat();
        assert_ne!(sorted, features);
        sorted.sort_by(f32::total_cmp);
        assert_eq!(sorted, features, "a permutation");
    });
}
