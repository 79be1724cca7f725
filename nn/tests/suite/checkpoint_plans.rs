//! Layers in a row whose activations are computed again: in segments, and within a budget of bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::core::CoreOps;
use trefoil_nn::layers::{
    BatchNormalization, CheckpointPlan, Dense, Dropout, Expert, GaussianNoise, MultiHeadAttention, Residual,
    Sequential,
};
use trefoil_nn::network::{Network, NetworkConfig};
use trefoil_nn::{
    CaptureStatus, Device, InitContext, Layer, LayerExt, NnError, Optimizer, Result, Tensor, Visitor, capture,
};

use crate::common::{cpu, devices, f32s, id, noise};

const DEPTH: usize = 64;
const WIDTH: usize = 16;
const ROWS: usize = 4096;
/// Bytes of an activation, and of the loss with its gradient, which are no part of a plan.
const LAYER: usize = ROWS * WIDTH * 4;
const LOSS: usize = 4 * 512;

/// Counts its forwards.
#[derive(Debug)]
struct Counting(Arc<AtomicUsize>, Dense);

impl Layer for Counting {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.forward(x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&self.1);
    }
}

/// Equal layers in a row, and how often they have run forward.
fn deep(d: &Device) -> (Sequential, Arc<AtomicUsize>) {
    let (cx, count) = (InitContext::new(d, 3), Arc::new(AtomicUsize::new(0)));
    let layer =
        || Counting(count.clone(), Dense::new(&cx, WIDTH, WIDTH).unwrap().activation(Activation::Tanh));
    ((0..DEPTH).fold(Sequential::new(), |m, _| m.push(layer())), count)
}

/// The peak of a step beside parameters and gradients, and how many layers ran forward in it.
fn step(d: &Device, model: &Sequential, count: &AtomicUsize) -> (usize, usize) {
    // Gradients lie in the optimizer's memory.
    let _optimizer = Optimizer::sgd(model, 0.1).unwrap();
    let x = Tensor::ones(d, DType::F32, &[ROWS, WIDTH]).unwrap();
    let forwards = count.load(Ordering::Relaxed);
    let before = d.memory().in_use;
    d.reset_peak();
    model.forward(&x).unwrap().mean().unwrap().backward().unwrap();
    (d.memory().peak - before, count.load(Ordering::Relaxed) - forwards)
}

#[test]
fn default_segments_take_square_root_memory_and_one_more_forward_at_most() {
    let run = |plan: Option<CheckpointPlan>| {
        let d = cpu();
        let (model, count) = deep(&d);
        let model = match plan {
            Some(plan) => model.checkpointed(&plan).unwrap(),
            None => model,
        };
        step(&d, &model, &count)
    };
    let (plain, with) = (run(None), run(Some(CheckpointPlan::default())));
    println!("{} bytes plain, {} in segments; {} forwards", plain.0, with.0, with.1);
    assert!(with.0 <= plain.0 * (2 * 8 + 2) / 64 + LAYER, "{} of {}", with.0, plain.0);
    // The last of eight segments keeps what it computes.
    assert_eq!((plain.1, with.1), (64, 64 + 56));
    assert_eq!(run(Some(CheckpointPlan::Segments(4))).1, 64 + 48);
    assert_eq!(run(Some(CheckpointPlan::Segments(1))), plain);
}

#[test]
fn steps_stay_within_their_budget_and_compute_less_again_the_larger_it_is() {
    let d = cpu();
    let (mut model, count) = deep(&d);
    let example = Tensor::ones(&d, DType::F32, &[ROWS, WIDTH]).unwrap();
    let (plain, _) = step(&d, &model, &count);
    let Err(NnError::MemoryBudget { budget: 1000, least }) = CheckpointPlan::within(&model, 1000, &example)
    else {
        panic!("1000 bytes are too few");
    };
    assert!(least < plain / 3, "{least} of {plain}");
    let text = CheckpointPlan::within(&model, least - 1, &example).unwrap_err().to_string();
    assert!(text.contains(&format!("{least} bytes")) && text.contains(&format!("{}", least - 1)), "{text}");

    let mut forwards = vec![];
    for budget in [least, plain * 3 / 10, plain / 2, plain * 3 / 4, plain * 9 / 10, plain + 2 * LAYER] {
        let plan = CheckpointPlan::within(&model, budget, &example).unwrap();
        assert_eq!(
            CheckpointPlan::within(&model, budget, &example).unwrap(),
            plan,
            "the same plan every time"
        );
        model = model.checkpointed(&plan).unwrap();
        let (peak, n) = step(&d, &model, &count);
        println!("budget {budget}, peak {peak}, {n} forwards: {plan:?}");
        assert!(peak <= budget + LOSS, "{peak} of {budget} bytes");
        // Not far from what the budget allows: less than a layer of each of the kinds that a plan holds at a time.
        assert!(budget > plain || peak + 6 * LAYER > budget.min(plain), "{peak} of {budget} bytes");
        assert!((DEPTH..=2 * DEPTH).contains(&n));
        forwards.push(n);
    }
    assert!(forwards.is_sorted_by(|a, b| a >= b), "{forwards:?}");
    assert_eq!((model.checkpoints().count(), forwards[5]), (0, DEPTH), "nothing again where all fits");
}

/// Attention, dropout, noise, statistics and parameters that many layers share a budget of.
fn mixed(d: &Device) -> Sequential {
    let cx = InitContext::new(d, 3);
    let dense = |n, m| Dense::new(&cx, n, m).unwrap().activation(Activation::Gelu);
    Sequential::new()
        .push(dense(8, 16))
        .push(Dropout::new(&cx, 0.25).unwrap())
        .named("attention", MultiHeadAttention::new(&cx, 16, 2).unwrap())
        .push(BatchNormalization::new(&cx, 6).unwrap())
        .push(Residual::new(Sequential::new().push(dense(16, 16)).push(Dropout::new(&cx, 0.1).unwrap())))
        .named("norm", BatchNormalization::new(&cx, 6).unwrap())
        .push(GaussianNoise::new(&cx, 0.1).unwrap())
        .push(dense(16, 4))
}

fn batch(d: &Device, seed: u64) -> Tensor {
    let x: Vec<f32> = noise(seed, 5 * 6 * 8).iter().map(|&v| v as f32).collect();
    f32s(d, &x, &[5, 6, 8])
}

/// Plans of all kinds for the layers of [`mixed`].
fn plans(d: &Device) -> Vec<CheckpointPlan> {
    let (model, x) = (mixed(d), batch(d, 1));
    let state = bytes(&model);
    let Err(NnError::MemoryBudget { least, .. }) = CheckpointPlan::within(&model, 0, &x) else { panic!() };
    let lean = CheckpointPlan::within(&model, least, &x).unwrap();
    assert!(matches!(&lean, CheckpointPlan::Runs(runs) if !runs.is_empty()), "{lean:?}");
    let count = model.counters().values().sum::<u64>();
    assert_eq!((count, bytes(&model)), (0, state), "planning changes nothing");
    vec![CheckpointPlan::Sqrt, CheckpointPlan::Segments(8), CheckpointPlan::Runs(vec![1..4, 4..7]), lean]
}

fn bytes(model: &dyn Layer) -> Vec<(String, Vec<u8>)> {
    model.named_state().into_iter().map(|(n, p)| (n, p.get().to_bytes().unwrap())).collect()
}

#[test]
fn no_bit_changes() {
    for d in devices() {
        let run = |plan: Option<&CheckpointPlan>, from: bool| {
            let model = mixed(&d);
            let model = if let Some(plan) = plan { model.checkpointed(plan).unwrap() } else { model };
            let mut out = vec![];
            for seed in 1..3 {
                let x = if from { batch(&d, seed).with_grad() } else { batch(&d, seed) };
                let y = model.forward(&x).unwrap();
                y.square().unwrap().mean().unwrap().backward().unwrap();
                out.push(y.to_bytes().unwrap());
                out.extend(x.grad().map(|g| g.to_bytes().unwrap()));
            }
            let grads = model.parameters().into_iter().map(|p| p.get().grad().unwrap().to_bytes().unwrap());
            out.extend(grads);
            (out, bytes(&model), model.counters())
        };
        for from in [false, true] {
            let plain = run(None, from);
            for plan in plans(&d) {
                assert!(run(Some(&plan), from) == plain, "{plan:?} on {}", id(&d));
            }
        }
    }
}

#[test]
fn state_goes_from_plain_layers_to_checkpointed_ones_and_back() {
    let d = cpu();
    let plain = mixed(&d);
    let with = mixed(&d).checkpointed(&CheckpointPlan::Sqrt).unwrap();
    plain.forward(&batch(&d, 1)).unwrap();
    assert_ne!(bytes(&plain), bytes(&with), "statistics");
    with.load_state_dict(&plain.state_dict().unwrap()).unwrap();
    with.set_counters(&plain.counters()).unwrap();
    assert_eq!(bytes(&plain), bytes(&with));
    let names: Vec<String> = with.named_state().into_iter().map(|(n, _)| n).collect();
    assert!(names.contains(&"0.weight".into()) && names.contains(&"norm.running_mean".into()), "{names:?}");
    let again = |m: &Sequential| m.forward(&batch(&d, 2)).unwrap().to_bytes().unwrap();
    assert_eq!(again(&with), again(&plain));
    plain.load_state_dict(&with.state_dict().unwrap()).unwrap();
    assert_eq!(bytes(&plain), bytes(&with));
    with.eval();
    plain.eval();
    assert_eq!(again(&with), again(&plain), "the mode reaches layers in segments");
    assert!(format!("{with:?}").contains("checkpoints: [0..2, 2..5]"), "{with:?}");
}

/// The loss of a step, after its backward pass.
fn pass(model: &Sequential, io: &[Tensor]) -> Result<Vec<Tensor>> {
    let loss = model.forward(&io[0])?.square()?.mean()?;
    loss.backward()?;
    Ok(vec![loss])
}

#[test]
fn recorded_steps_equal_plain_ones() {
    for d in devices() {
        let run = |plan: Option<&CheckpointPlan>| {
            let model = mixed(&d);
            let model = if let Some(plan) = plan { model.checkpointed(plan).unwrap() } else { model };
            let mut o = Optimizer::adam(&model, 0.01).unwrap();
            let mut step = capture(&d, |io| pass(&model, io));
            let mut all = vec![];
            for i in 0..7 {
                o.zero_grad().unwrap();
                let x = [batch(&d, i)];
                let y = if plan.is_some() { step.run(&x).unwrap() } else { pass(&model, &x).unwrap() };
                o.step().unwrap();
                all.push(y[0].to_bytes().unwrap());
            }
            let status: CaptureStatus = step.status().clone();
            ((all, bytes(&model), model.counters()), status)
        };
        let (plain, _) = run(None);
        for plan in plans(&d) {
            let (with, status) = run(Some(&plan));
            assert_eq!((status.plain, status.replays > 0), (None, true), "{plan:?} on {}", id(&d));
            assert!(with == plain, "{plan:?} on {}", id(&d));
        }
    }
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let d = cpu();
    for (plan, what) in [
        (CheckpointPlan::Segments(0), "0 segments"),
        (CheckpointPlan::Segments(9), "1 to 8 segments"),
        (CheckpointPlan::Runs(vec![0..2, 1..3]), "1..3"),
        (CheckpointPlan::Runs(vec![Range { start: 3, end: 3 }]), "3..3"),
        (CheckpointPlan::Runs(vec![0..2, 7..9]), "7..9"),
    ] {
        let e = mixed(&d).checkpointed(&plan).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    }
    let none = Sequential::new().checkpointed(&CheckpointPlan::default()).unwrap();
    assert_eq!(none.checkpoints().count(), 0);
    let x = batch(&d, 1);
    assert_eq!(CheckpointPlan::within(&none, 0, &x).unwrap(), CheckpointPlan::Runs(vec![]));
    assert!(Expert::new(mixed(&d).checkpointed(&CheckpointPlan::Sqrt).unwrap()).is_err());
    // A wrong example is an error of the layer that refuses it.
    let wrong =
        CheckpointPlan::within(&mixed(&d), 1 << 30, &Tensor::ones(&d, DType::F32, &[5, 6, 7]).unwrap());
    assert!(matches!(wrong, Err(NnError::Layer { .. })), "{wrong:?}");
}

#[test]
fn networks_in_json_name_their_segments() {
    let d = cpu();
    let run = |checkpoint: serde_json::Value| -> Result<_> {
        let dense = json!({"type": "dense", "out_features": 8, "activation": "tanh"});
        let mut row = json!({"type": "sequential", "layers": [dense, {"type": "dropout"}, dense, dense]});
        if !checkpoint.is_null() {
            row["checkpoint"] = checkpoint;
        }
        let net = Network::new(&InitContext::new(&d, 3), &NetworkConfig::sequential(vec![row]))?;
        net.forward(&batch(&d, 1))?.square()?.mean()?.backward()?;
        let grads: Vec<_> =
            net.parameters().iter().map(|p| p.get().grad().unwrap().to_bytes().unwrap()).collect();
        Ok((format!("{net:?}").contains("checkpoints: [0..2]"), bytes(&net), grads))
    };
    let (none, names, grads) = run(json!(null)).unwrap();
    assert!(!none);
    for checkpoint in [json!("sqrt"), json!(2)] {
        assert!(run(checkpoint.clone()).unwrap() == (true, names.clone(), grads.clone()), "{checkpoint}");
    }
    for checkpoint in [json!("all"), json!(0), json!(5), json!(1.5), json!(true)] {
        let e = run(checkpoint.clone()).unwrap_err().to_string();
        assert!(e.contains("checkpoint") && e.contains("segments"), "{checkpoint}: {e}");
    }
}
