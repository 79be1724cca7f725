//! Comparing two copies of a model.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{cpu, devices, f32s, id, noise};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::compare::{Agreement, Gate, Quantity, Table, compare_models};
use trefoil_nn::layers::*;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, NnError, Result, Tensor, Visitor};

fn model(d: &Device, seed: u64, dtype: DType) -> Sequential {
    let cx = InitContext::new(d, seed).dtype(dtype);
    Sequential::new()
        .push(Dense::lazy(&cx, 6).unwrap().activation(Activation::Tanh))
        .named("norm", BatchNormalization::new(&cx, 6).unwrap())
        .push(Dropout::new(&cx, 0.25).unwrap())
        .push(Dense::new(&cx, 6, 3).unwrap())
}

fn input(d: &Device) -> Tensor {
    f32s(d, &noise(3, 20).iter().map(|&v| v as f32).collect::<Vec<_>>(), &[5, 4])
}

#[test]
fn every_device_agrees_with_the_cpu_in_f64() {
    let reference = model(&cpu(), 1, DType::F64);
    for d in devices() {
        let other = model(&d, 1, DType::F32);
        // The copy takes over the parameters.
        other.state_dict().unwrap()["3.weight"].fill(0.0).unwrap();
        let errors = compare_models(&reference, &other, &[input(&d)]).unwrap();
        println!("{}\n{}", id(&d), Table(&errors));
        assert!(errors.iter().all(|e| e.passes(&Gate::default())), "{}", Table(&errors));
        let rows: Vec<_> = errors.iter().map(|e| (e.layer.as_str(), e.quantity, e.name.as_str())).collect();
        use Quantity::*;
        let want = [
            ("0", Output, "0"),
            ("norm", Output, "0"),
            ("2", Output, "0"),
            ("3", Output, "0"),
            ("", Output, "0"),
            ("norm", Buffer, "running_mean"),
            ("norm", Buffer, "running_var"),
            ("norm", Buffer, "num_batches_tracked"),
            ("", OutputGradient, "0"),
            ("3", OutputGradient, "0"),
            ("2", OutputGradient, "0"),
            ("norm", OutputGradient, "0"),
            ("0", OutputGradient, "0"),
            ("0", ParameterGradient, "weight"),
            ("0", ParameterGradient, "bias"),
            ("norm", ParameterGradient, "weight"),
            ("norm", ParameterGradient, "bias"),
            ("3", ParameterGradient, "weight"),
            ("3", ParameterGradient, "bias"),
            ("", InputGradient, "0"),
        ];
        assert_eq!(rows, want);
        // f32 is not f64: differences must be seen.
        assert!(errors.iter().any(|e| e.max_ulp > 0 && e.agreement() != Agreement::Exact));
        // Nothing stays behind: running statistics, positions of generators, gradients.
        assert!(other.counters().values().all(|&n| n == 0));
        assert!(other.named_parameters().iter().all(|(_, p)| p.get().grad().is_none()));
        let state = other.state_dict().unwrap();
        assert_eq!(state["norm.running_mean"].to_vec::<f32>().unwrap(), [0.0; 6]);
    }
    let same = compare_models(&reference, &model(&cpu(), 1, DType::F64), &[input(&cpu())]).unwrap();
    assert!(same.iter().all(|e| e.agreement() == Agreement::Exact && e.max_ulp == 0));
}

/// Doubles; one copy is slightly off in its forward, or in its backward alone.
#[derive(Debug)]
struct Faulty {
    dense: Dense,
    forward: AtomicBool,
    backward: AtomicBool,
}

impl Layer for Faulty {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.dense.forward(x)?;
        if self.forward.load(Ordering::Relaxed) {
            return y.add_scalar(1e-3);
        }
        if self.backward.load(Ordering::Relaxed) {
            // The value of y with 1.1 times its gradient.
            return y.mul_scalar(1.1)?.sub(&y.detach().mul_scalar(0.1)?);
        }
        Ok(y)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", self.dense.weight().unwrap());
    }
}

#[test]
fn a_planted_error_is_found_where_it_is() {
    let build = || {
        let cx = InitContext::new(&cpu(), 4).dtype(DType::F64);
        let dense = Dense::new(&cx, 4, 4).unwrap().no_bias();
        let faulty = Faulty { dense, forward: false.into(), backward: false.into() };
        let shared = std::sync::Arc::new(faulty);
        let all = Sequential::new()
            .push(Dense::new(&cx, 4, 4).unwrap())
            .push(shared.clone())
            .push(Dense::new(&cx, 4, 2).unwrap());
        (all, shared)
    };
    let ((a, _), (b, bad)) = (build(), build());
    let x = input(&cpu()).to_dtype(DType::F64).unwrap();
    let failed = |b: &Sequential| -> Vec<(String, Quantity)> {
        let errors = compare_models(&a, b, std::slice::from_ref(&x)).unwrap();
        errors.iter().filter(|e| !e.passes(&Gate::default())).map(|e| (e.layer.clone(), e.quantity)).collect()
    };
    assert_eq!(failed(&b), []);
    bad.forward.store(true, Ordering::Relaxed);
    assert_eq!(failed(&b)[0], ("1".to_string(), Quantity::Output));
    bad.forward.store(false, Ordering::Relaxed);
    bad.backward.store(true, Ordering::Relaxed);
    let found = failed(&b);
    assert!(found.iter().all(|(_, q)| q.is_gradient()));
    assert_eq!(found[0], ("0".to_string(), Quantity::OutputGradient), "the output below the fault");
    assert!(found.contains(&("1".to_string(), Quantity::ParameterGradient)));

    let cx = InitContext::new(&cpu(), 1);
    let other = Sequential::new().push(Dense::new(&cx, 4, 4).unwrap());
    assert!(matches!(compare_models(&a, &other, &[x]), Err(NnError::StateNames { .. })));
}

#[test]
fn infinities_and_repeated_layers() {
    let cx = InitContext::new(&cpu(), 1);
    let twice = std::sync::Arc::new(Activate(Activation::Tanh));
    let a = Sequential::new().named("act", twice.clone()).named("act", twice);
    let x = f32s(&cpu(), &[f32::NAN, 1.0], &[2]);
    let errors = compare_models(&a, &a, &[x]).unwrap();
    assert_eq!(errors[1].layer, "act#2");
    assert_eq!(errors[0].max_abs, 0.0, "NaN on both sides agrees");
    let log = Sequential::new().push(Dense::new(&cx, 1, 1).unwrap());
    assert!(compare_models(&log, &log, &[]).is_err());
}
