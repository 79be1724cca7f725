//! Muon and Adafactor.

use crate::common::{close, cpu, devices, noise};
use trefoil::DType;
use trefoil::ops::core::CoreOps;
use trefoil_nn::optim::{Adafactor, Muon, newton_schulz};
use trefoil_nn::{NnError, Param, Tensor};

/// Ten steps on the loss of tests/golden/second_order.py: the ends there and here.
fn on_matrices(name: &str, step: impl FnOnce(Vec<(String, Param)>, &dyn Fn() -> Tensor)) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/second-order.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let d = cpu();
    let tensors = |key: &str| -> Vec<Tensor> {
        let one = |t: &serde_json::Value| {
            let shape: Vec<usize> = serde_json::from_value(t["shape"].clone()).unwrap();
            let data: Vec<f64> = serde_json::from_value(t["data"].clone()).unwrap();
            Tensor::from_slice(&d, &data, &shape).unwrap()
        };
        golden["matrices"][name][key].as_array().unwrap().iter().map(one).collect()
    };
    let (goal, end) = (tensors("goal"), tensors("end"));
    let params: Vec<Param> = tensors("start").into_iter().map(Param::new).collect();
    let loss = || {
        let mut total: Option<Tensor> = None;
        for (p, g) in params.iter().zip(&goal) {
            let x = p.get();
            let fit = x.sub(g).unwrap().square().unwrap().sum().unwrap();
            let part = fit.add_scaled(&x.exp().unwrap().sum().unwrap(), 0.1).unwrap();
            total = Some(total.map_or(part.clone(), |t| t.add(&part).unwrap()));
        }
        total.unwrap()
    };
    let before = d.counters().downloads;
    step(params.iter().enumerate().map(|(i, p)| (format!("p{i}"), p.clone())).collect(), &loss);
    assert_eq!(d.counters().downloads, before, "{name}: copies to the host");
    // PyTorch's Muon works in bf16 inside, which ten steps of 0.02 show as 1e-2 of their length.
    let tol = if name == "muon" { 2e-3 } else { 1e-10 };
    for (p, want) in params.iter().zip(&end) {
        let got = p.get().to_vec::<f64>().unwrap();
        close(&got, &want.to_vec::<f64>().unwrap(), tol, name);
    }
}

#[test]
fn muon_and_adafactor_follow_pytorch() {
    on_matrices("muon", |params, loss| {
        let mut o = Muon::new(params, 0.02).unwrap();
        for _ in 0..10 {
            o.zero_grad().unwrap();
            loss().backward().unwrap();
            o.step().unwrap();
        }
        assert_eq!(o.state_tensors().len(), 2);
    });
    on_matrices("adafactor", |params, loss| {
        let mut o = Adafactor::new(params, 0.05).unwrap().weight_decay(0.1).unwrap();
        for _ in 0..10 {
            o.zero_grad().unwrap();
            loss().backward().unwrap();
            o.step().unwrap();
        }
        assert_eq!((o.steps(), o.state_tensors().len()), (10, 5));
    });
}

#[test]
fn muon_and_adafactor_refuse_what_does_not_fit() {
    let d = cpu();
    let vector = Param::new(Tensor::zeros(&d, DType::F32, &[3]).unwrap());
    let list = || vec![("v".to_string(), vector.clone())];
    assert!(matches!(Muon::new(list(), 0.1), Err(NnError::Param { .. })));
    assert!(Muon::new(vec![], 0.1).is_err() && Adafactor::new(vec![], 0.1).is_err());
    assert!(Adafactor::new(list(), f64::NAN).is_err());
    assert!(Adafactor::new(list(), 0.1).unwrap().weight_decay(-1.0).is_err());
    let twice = [list(), list()].concat();
    assert!(matches!(Adafactor::new(twice, 0.1), Err(NnError::DuplicateName { .. })));
    let matrix = vec![("m".to_string(), Param::new(Tensor::zeros(&d, DType::F32, &[3, 2]).unwrap()))];
    assert!(Muon::new(matrix.clone(), 0.1).unwrap().momentum(1.0).is_err());
    assert!(newton_schulz(&vector.get(), 5).is_err());
    // A parameter without a gradient stays, and a gradient of zeros changes nothing but by decay.
    let mut o = Muon::new(matrix, 0.1).unwrap();
    o.step().unwrap();
}

#[test]
fn newton_schulz_brings_singular_values_to_one() {
    for d in devices() {
        for shape in [[4, 7], [7, 4]] {
            let g =
                Tensor::from_slice(&d, &noise(3, 28).iter().map(|&x| x as f32).collect::<Vec<_>>(), &shape)
                    .unwrap();
            let x = newton_schulz(&g, 5).unwrap();
            let gram =
                if shape[0] < shape[1] { x.matmul(&x.t().unwrap()) } else { x.t().unwrap().matmul(&x) };
            let gram = gram.unwrap().to_vec::<f32>().unwrap();
            for i in 0..4 {
                for j in 0..4 {
                    let (low, high) = if i == j { (0.4, 1.6) } else { (-0.4, 0.4) };
                    assert!((low..high).contains(&gram[4 * i + j]), "{shape:?}: {gram:?}");
                }
            }
        }
    }
}
