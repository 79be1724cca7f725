//! Profiles of training steps.

use std::sync::Arc;

use serde_json::Value;
use trefoil::ops::activation::Activation;
use trefoil::testing::{Call, MockDriver};
use trefoil::{Engine, GpuError};
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Dense, Dropout, Residual, Sequential};
use trefoil_nn::profile::StepProfile;
use trefoil_nn::trainer::{Clip, Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, DType, Device, InitContext, NnError, Optimizer, Trainer};

use crate::common::{cpu, devices, id, noise};

const IN: usize = 6;
const CLASSES: usize = 3;
const STEPS: usize = 3;
/// The layers with parameters.
const DENSE: [&str; 3] = ["0", "2.0", "3"];

fn network(d: &Device) -> Sequential {
    let cx = InitContext::new(d, 3);
    Sequential::new()
        .push(Dense::new(&cx, IN, 16).unwrap().activation(Activation::Relu))
        .push(Dropout::new(&cx, 0.25).unwrap())
        .push(Residual::new(Sequential::new().push(Dense::new(&cx, 16, 16).unwrap())))
        .push(Dense::new(&cx, 16, CLASSES).unwrap())
}

fn source(d: &Device) -> ResidentSource {
    let x = noise(5, 40 * IN).into_iter().map(|v| v as f32).collect();
    let y = (0..40).map(|i| i % CLASSES as i64).collect();
    let data = Dataset::new(x, &[IN], Targets::Classes(y)).unwrap();
    ResidentSource::new(&data, d, DType::F32).unwrap()
}

/// A profile of steps of two micro-batches.
fn profiled(d: &Device, model: &Sequential) -> StepProfile {
    let optimizer = Optimizer::adamw(model, 0.01, 0.01).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let options = TrainOptions {
        batch_size: 16,
        accumulate: 2,
        clip: Some(Clip::Norm(1.0)),
        ..TrainOptions::default()
    };
    let mut t = Trainer::new(model, optimizer, objective, d, options).unwrap();
    let profile = t.profile(&source(d), STEPS).unwrap();
    assert_eq!(t.optimizer().steps(), 2 + STEPS as u64, "they are steps as others");
    let refused = t.profile(&source(d), 0);
    assert!(matches!(refused, Err(NnError::Gpu(GpuError::Invalid(_)))), "{refused:?}");
    profile
}

#[test]
fn kernels_lie_within_the_step_and_belong_to_layers() {
    for d in devices() {
        let p = profiled(&d, &network(&d));
        let name = id(&d);
        println!("{name}\n{p}");
        let busy = p.busy_ns();
        assert!(busy > 0 && busy <= p.device_ns, "{name}: {busy} of {} ns", p.device_ns);
        assert_eq!(p.kernels.iter().map(|k| k.ns).sum::<u64>(), busy, "{name}");
        assert!(p.kernels.windows(2).all(|k| k[0].ns >= k[1].ns), "{name}: the longest first");
        assert!(p.kernels.iter().all(|k| k.calls % STEPS == 0), "{name}: steps are alike");
        // Nothing that ran is in no layer and no pass.
        let launches: usize = p.kernels.iter().map(|k| k.calls).sum();
        let of_layers: usize = p.layers.iter().flat_map(|l| l.launches).sum();
        assert_eq!(p.layers.iter().flat_map(|l| l.ns).sum::<u64>(), busy, "{name}");
        assert_eq!(of_layers, launches, "{name}");
        let row =
            |layer: &str| p.layers.iter().find(|l| l.name == layer).unwrap_or_else(|| panic!("{layer}: {p}"));
        for layer in DENSE {
            let [forward, backward, optimizer] = row(layer).launches;
            assert!(
                forward >= 2 * STEPS && backward >= 2 * STEPS && optimizer == 0,
                "{name}: {layer} in {p}"
            );
        }
        let [loss, _, optimizer] = row("").launches;
        assert!(loss > 0 && optimizer > 0, "{name}: {p}");
        // Bytes are known where views were checked, arithmetic where products are.
        let step = p.kernels.iter().find(|k| k.op == "optimizer_step").unwrap();
        assert_eq!(step.calls, STEPS);
        assert_eq!(step.bytes.is_some(), id(&d) != id(&cpu()), "{name}");
        let flops: u64 = p.kernels.iter().filter_map(|k| k.flops).sum();
        let products = 2 * 32 * (IN * 16 + 16 * 16 + 16 * CLASSES) as u64 * STEPS as u64;
        assert!(flops >= products, "{name}: {flops}, of which products {products}");
    }
}

#[test]
fn a_trace_is_read_back_with_layers_and_two_lanes() {
    for d in devices() {
        let p = profiled(&d, &network(&d));
        let path = std::env::temp_dir().join(format!("trefoil-trace-{}-{}.json", id(&d), std::process::id()));
        p.write_trace(&path).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let lane = |tid: u64| {
            let timed = events.iter().filter(move |e| e["ph"] == "X" && e["tid"] == tid);
            timed.map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap(), e)).collect::<Vec<_>>()
        };
        let (host, device) = (lane(0), lane(1));
        assert_eq!(device.len(), p.kernels.iter().map(|k| k.calls).sum::<usize>());
        for (what, list) in [("host", &host), ("device", &device)] {
            assert!(!list.is_empty());
            // Rounded to whole nanoseconds.
            let apart = list.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0 + 0.002);
            assert!(apart, "{}: two at a time on the {what}", id(&d));
        }
        for layer in DENSE {
            for pass in ["forward", "backward"] {
                let has = |e: &Value| e["args"]["layer"] == layer && e["args"]["pass"] == pass;
                let found = [&host, &device].map(|l| l.iter().any(|(.., e)| has(e)));
                assert_eq!(found, [true; 2], "{}: {pass} of {layer}", id(&d));
            }
        }
    }
}

#[test]
fn steps_that_are_not_profiled_take_no_times() {
    let driver = Arc::new(MockDriver::default());
    let d: Device = Arc::new(Engine::new(driver.clone()).unwrap());
    let model = network(&d);
    let optimizer = Optimizer::adamw(&model, 0.01, 0.01).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut t = Trainer::new(&model, optimizer, objective, &d, TrainOptions::default()).unwrap();
    let data = source(&d);
    let records = || driver.calls().iter().filter(|c| matches!(c, Call::Record(..))).count();
    t.profile(&data, 1).unwrap();
    let (launches, before) = (driver.launches().len(), records());
    assert!(before > 0 && before.is_multiple_of(2) && before / 2 <= launches, "two events a kernel");
    let report = t.fit(&data, None, &mut |_| false).unwrap();
    assert_eq!(report.history.len(), 1);
    assert_eq!(records(), before);
}
