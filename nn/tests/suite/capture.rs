//! Recorded steps: the same bits as plain calls, on every device that is there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use trefoil::ops::activation::Activation;
use trefoil::ops::core::CoreOps;
use trefoil::ops::optimizer::{AdaptiveRule, LossScale, OptimRule};
use trefoil::testing::{Call, MockDriver};
use trefoil::{Engine, GpuError};
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{BatchNormalization, Dense, Dropout, GaussianNoise, Residual, Sequential};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Clip, Objective, TrainOptions};
use trefoil_nn::{
    CaptureStatus, CrossEntropyLoss, DType, Device, Entry, InitContext, Layer, LayerExt, Optimizer, Tensor,
    Trainer, Visitor,
};

use crate::common::{cpu, devices, f32s, id, noise, steps_on};

/// The devices that make one kernel of several calls.
fn fusing() -> Vec<Device> {
    devices().into_iter().filter(|d| id(d) != id(&cpu())).collect()
}

const IN: usize = 12;
const OUT: usize = 5;

/// Everything that draws, keeps statistics or has several kernels.
fn network(d: &Device) -> Sequential {
    let cx = InitContext::new(d, 3);
    Sequential::new()
        .push(Dense::new(&cx, IN, 32).unwrap().activation(Activation::Gelu))
        .push(Dropout::new(&cx, 0.25).unwrap())
        .push(Residual::new(Sequential::new().push(Dense::new(&cx, 32, 32).unwrap())))
        .push(BatchNormalization::new(&cx, 32).unwrap())
        .push(GaussianNoise::new(&cx, 0.1).unwrap())
        .push(Dropout::new(&cx, 0.1).unwrap())
        .push(Dense::new(&cx, 32, OUT).unwrap())
}

fn batch(d: &Device, rows: usize, seed: u64) -> (Tensor, Tensor) {
    let x: Vec<f32> = noise(seed, rows * IN).into_iter().map(|v| v as f32).collect();
    let ids: Vec<i64> = noise(seed + 1, rows)
        .into_iter()
        .map(|v| ((v + 1.0) * 0.5 * OUT as f64) as i64 % OUT as i64)
        .collect();
    (f32s(d, &x, &[rows, IN]), Tensor::from_slice(d, &ids, &[rows]).unwrap())
}

/// State of model and optimizer as bytes, by name.
type State = Vec<(String, Vec<u8>)>;

fn state(model: &dyn Layer, optimizer: &Optimizer) -> State {
    let mut all: State =
        model.named_state().into_iter().map(|(n, p)| (n, p.get().to_bytes().unwrap())).collect();
    let own = optimizer.state_tensors().unwrap();
    all.extend(own.into_iter().map(|(n, t)| (n, t.to_bytes().unwrap())));
    let mut counters = vec![];
    model.visit(&mut Visitor::new(&mut |name, e| {
        if let Entry::Counter(c) = e {
            counters.push((
                name.to_string(),
                c.load(std::sync::atomic::Ordering::Relaxed).to_le_bytes().to_vec(),
            ));
        }
    }));
    all.extend(counters);
    all
}

fn assert_same(a: &[(String, Vec<u8>)], b: &[(String, Vec<u8>)], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for ((name, x), (other, y)) in a.iter().zip(b) {
        assert_eq!(name, other, "{what}");
        assert!(x == y, "{what}: `{name}` differs");
    }
}

fn options(capture: bool) -> TrainOptions {
    TrainOptions {
        capture,
        schedule: Schedule::Cosine { total: 120, min: 1e-4 },
        clip: Some(Clip::Norm(0.7)),
        ..TrainOptions::default()
    }
}

/// Steps of two micro-batches with loss scaling, a schedule and clipping; the last of every ten is of other sizes. What was kept of the losses, and
/// the state at the end.
fn train(d: &Device, capture: bool, steps: usize) -> (Vec<Vec<u8>>, State, CaptureStatus) {
    let model = network(d);
    let optimizer = Optimizer::adamw(&model, 0.01, 0.01)
        .and_then(|o| o.loss_scaling(LossScale::new().interval(10), 1024.0))
        .and_then(|o| o.ema(0.9))
        .unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut t = Trainer::new(&model, optimizer, objective, d, options(capture)).unwrap();
    let mut losses = vec![];
    for i in 0..steps {
        let rows = if i % 10 == 9 { 7 } else { 16 };
        let parts = [batch(d, rows, 2 * i as u64), batch(d, rows, 2 * i as u64 + 999)];
        losses.push(t.step_accumulated(&parts).unwrap().unwrap());
    }
    let losses = losses.iter().map(|l| l.to_bytes().unwrap()).collect();
    (losses, state(&model, t.optimizer()), t.capture_status())
}

#[test]
fn a_hundred_recorded_steps_equal_plain_ones_bit_for_bit() {
    for d in devices() {
        let steps = steps_on(&d, 100, 40);
        let (plain, recorded) = (train(&d, false, steps), train(&d, true, steps));
        println!("{}: {:?}", id(&d), recorded.2);
        assert_eq!(recorded.2.plain, None, "{}", id(&d));
        assert_eq!(recorded.2.update, None, "{}: the update is part of the graphs", id(&d));
        assert_eq!(recorded.2.graphs, 4, "first and last parts of a step, whole batches and smaller ones");
        assert!(recorded.2.replays >= 2 * steps as u64 - 16);
        assert!(plain.2.plain.is_some_and(|why| why.contains("`capture` is off")));
        for (i, (a, b)) in plain.0.iter().zip(&recorded.0).enumerate() {
            assert!(a == b, "{}: loss of step {i} differs", id(&d));
        }
        assert_same(&plain.1, &recorded.1, &format!("{}", id(&d)));
        let start = network(&d);
        let fresh = Optimizer::adamw(&start, 0.01, 0.01).unwrap();
        let moved = state(&start, &fresh).iter().zip(&plain.1).filter(|(a, b)| a.1 != b.1).count();
        assert!(moved > 8, "training changes the state");
    }
}

/// Twelve layers with dropout, two inputs for the loss: losses and state after some steps that are recorded, and what was recorded.
fn deep(d: &Device, mode: &str, steps: usize) -> (Vec<Vec<u8>>, State, CaptureStatus) {
    let cx = InitContext::new(d, 4);
    let mut model = Sequential::new();
    for i in 0..12 {
        let dense = Dense::new(&cx, if i == 0 { IN } else { 32 }, if i == 11 { OUT } else { 32 });
        model = model.push(dense.unwrap().activation(if i == 11 {
            Activation::Identity
        } else {
            Activation::Tanh
        }));
        if i < 11 {
            model = model.push(Dropout::new(&cx, 0.1).unwrap());
        }
    }
    let optimizer = Optimizer::adamw(&model, 0.01, 0.01).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    d.pin_variant("capture_calls", Some(mode)).unwrap();
    // A pass that sums for the bias, too, is no part of a chain that can be fused.
    d.pin_variant("activation_bias_bwd", Some("portable")).unwrap();
    let mut t = Trainer::new(&model, optimizer, objective, d, options(true)).unwrap();
    let steps = (0..steps).map(|i| t.step(&batch(d, 16, i as u64).0, &batch(d, 16, i as u64).1).unwrap());
    let losses = steps.map(|(a, b)| [a.to_bytes().unwrap(), b.to_bytes().unwrap()].concat()).collect();
    d.pin_variant("capture_calls", None).unwrap();
    d.pin_variant("activation_bias_bwd", None).unwrap();
    (losses, state(&model, t.optimizer()), t.capture_status())
}

#[test]
fn fused_steps_of_twelve_layers_make_fewer_launches_and_the_same_bits() {
    for d in fusing() {
        let (plain, fused, parallel) =
            (deep(&d, "plain", 10), deep(&d, "fused", 10), deep(&d, "parallel", 10));
        let launches = |s: &CaptureStatus| s.last.as_ref().map(|i| i.launches + i.copies).unwrap();
        println!("{}: {:#?}\n{} launches as recorded", id(&d), fused.2, launches(&plain.2));
        assert!(launches(&fused.2) + 11 <= launches(&plain.2), "{}", id(&d));
        for (other, what) in [(&fused, "fused"), (&parallel, "parallel")] {
            assert_eq!(plain.0, other.0, "{}: losses {what}", id(&d));
            assert_same(&plain.1, &other.1, what);
        }
    }
}

#[test]
fn an_epoch_is_recorded_by_default_and_resumes_alike() {
    for d in devices() {
        let (x, y) = (
            noise(5, 70 * IN).into_iter().map(|v| v as f32).collect(),
            (0..70).map(|i| i % OUT as i64).collect(),
        );
        let data = Dataset::new(x, &[IN], Targets::Classes(y)).unwrap();
        let run = |capture: bool| {
            let model = network(&d);
            let optimizer = Optimizer::adam(&model, 0.01).unwrap();
            let objective = Objective::Classify(CrossEntropyLoss::default());
            let data = ResidentSource::new(&data, &d, DType::F32).unwrap();
            let options = TrainOptions { epochs: 4, batch_size: 16, capture, ..TrainOptions::default() };
            let mut t = Trainer::new(&model, optimizer, objective, &d, options).unwrap();
            let report = t.fit(&data, None, &mut |_| true).unwrap();
            let losses: Vec<f64> = report.history.iter().map(|e| e.train_loss).collect();
            (losses, state(&model, t.optimizer()), t.capture_status())
        };
        assert!(TrainOptions::default().capture);
        let (plain, recorded) = (run(false), run(true));
        assert_eq!(plain.0, recorded.0);
        assert_same(&plain.1, &recorded.1, &format!("{}", id(&d)));
        // 4 whole batches an epoch and one of 6.
        assert_eq!((recorded.2.graphs, recorded.2.plain), (2, None), "{}", id(&d));
    }
}

/// A captured forward and backward of a network whose optimizer steps outside, each time after gradients of `passes` were summed.
fn captured_loop(d: &Device, steps: usize, model: &Sequential, capture: bool, passes: usize) -> Vec<Tensor> {
    let mut optimizer = Optimizer::adam(model, 0.01).unwrap();
    let mut pass = trefoil_nn::capture(d, |io: &[Tensor]| {
        let loss = CrossEntropyLoss::default().forward(&model.forward(&io[0])?, &io[1])?;
        loss.backward()?;
        Ok(vec![loss])
    });
    let mut losses = vec![];
    for i in 0..steps {
        let (x, y) = batch(d, 16, i as u64);
        if i % passes == 0 {
            optimizer.zero_grad().unwrap();
        }
        match capture {
            true => losses.extend(pass.run(&[x, y]).unwrap()),
            false => {
                let loss = CrossEntropyLoss::default().forward(&model.forward(&x).unwrap(), &y).unwrap();
                loss.backward().unwrap();
                losses.push(loss.detach());
            }
        }
        if i % passes == passes - 1 {
            optimizer.step().unwrap();
        }
    }
    if capture {
        assert_eq!((pass.status().graphs, pass.status().plain.as_ref()), (1, None), "{}", id(d));
    }
    losses
}

fn values(losses: &[Tensor]) -> Vec<u32> {
    losses.iter().map(|l| l.item::<f32>().unwrap().to_bits()).collect()
}

#[test]
fn a_loop_of_ones_own_is_recorded_and_keeps_its_losses() {
    for d in devices() {
        let steps = steps_on(&d, 30, 12);
        // The third pass is recorded: on cleared gradients, and on those of two passes before.
        for passes in [1, 2, 3] {
            let want = captured_loop(&d, steps, &network(&d), false, passes);
            let got = captured_loop(&d, steps, &network(&d), true, passes);
            assert_eq!(values(&got), values(&want), "{} passes on {}", passes, id(&d));
        }
    }
}

#[test]
fn replays_move_nothing_between_host_and_device_and_take_no_memory() {
    for d in devices() {
        let model = network(&d);
        let mut optimizer = Optimizer::sgd(&model, 0.01).unwrap();
        let mut pass = trefoil_nn::capture(&d, |io: &[Tensor]| {
            let loss = CrossEntropyLoss::default().forward(&model.forward(&io[0])?, &io[1])?;
            loss.backward()?;
            Ok(vec![loss])
        });
        let (x, y) = batch(&d, 16, 1);
        let mut step = || {
            optimizer.zero_grad().unwrap();
            drop(pass.run(&[x.clone(), y.clone()]).unwrap());
            optimizer.step().unwrap();
        };
        (0..5).for_each(|_| step());
        let (counters, memory) = (d.counters(), d.memory());
        (0..50).for_each(|_| step());
        let after = d.counters();
        let numbers =
            |c: &trefoil::ops::core::Counters| [c.uploads, c.downloads, c.allocations, c.compiles, c.syncs];
        assert_eq!(numbers(&after), numbers(&counters), "{}", id(&d));
        assert_eq!(d.memory(), memory, "{}", id(&d));
    }
}

#[test]
fn a_generator_that_is_rewound_draws_the_same_again() {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let drop = Dropout::new(&cx, 0.5).unwrap();
        let x = Tensor::ones(&d, DType::F32, &[64]).unwrap();
        let mut pass = trefoil_nn::capture(&d, |io: &[Tensor]| Ok(vec![drop.forward(&io[0])?]));
        let mut masks: Vec<Vec<f32>> = vec![];
        let mut run = || pass.run(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap();
        (0..6).for_each(|_| masks.push(run()));
        let different = masks.iter().enumerate().all(|(i, m)| masks[..i].iter().all(|o| o != m));
        assert!(different, "{}: every replay draws anew", id(&d));
        drop.visit(&mut Visitor::new(&mut |_, e| {
            if let Entry::Counter(c) = e {
                c.store(0, std::sync::atomic::Ordering::Relaxed);
            }
        }));
        for (i, mask) in masks.iter().enumerate() {
            assert_eq!(run(), *mask, "{}: run {i}", id(&d));
        }
    }
}

#[test]
fn layers_of_one_random_stream_are_not_recorded() {
    for d in devices() {
        let layer = || Dropout::new(&InitContext::new(&d, 3), 0.5).unwrap();
        let (a, b) = (layer(), layer());
        let x = Tensor::ones(&d, DType::F32, &[64]).unwrap();
        let mut both =
            trefoil_nn::capture(&d, |io: &[Tensor]| Ok(vec![a.forward(&io[0])?, b.forward(&io[0])?]));
        for i in 0..5 {
            let out = both.run(std::slice::from_ref(&x)).unwrap();
            let [a, b] = [&out[0], &out[1]].map(|t| t.to_vec::<f32>().unwrap());
            assert_eq!(a, b, "{}: run {i}: both stand at the same place", id(&d));
        }
        assert!(both.status().plain.as_ref().is_some_and(|why| why.contains("seed")), "{:?}", both.status());
    }
}

#[test]
fn steps_that_need_the_host_stay_plain_and_say_why() {
    for d in devices() {
        let x = Tensor::ones(&d, DType::F32, &[8]).unwrap();
        let mut reads = trefoil_nn::capture(&d, |io: &[Tensor]| {
            let y = io[0].mul_scalar(2.0)?;
            assert_eq!(y.item_sum(), 16.0);
            Ok(vec![y])
        });
        let kept = RefCell::new(None);
        let mut keeps = trefoil_nn::capture(&d, |io: &[Tensor]| {
            let before = kept.borrow_mut().take();
            let state = match before {
                Some(s) => io[0].add(&s)?,
                None => io[0].clone(),
            };
            let state = state.mul_scalar(0.5)?;
            *kept.borrow_mut() = Some(state.clone());
            Ok(vec![state.add_scalar(1.0)?])
        });
        let mut uploads = trefoil_nn::capture(&d, |io: &[Tensor]| {
            Ok(vec![io[0].add(&Tensor::from_slice(io[0].device(), &[3f32], &[1])?)?])
        });
        let mut last = 0.0;
        for i in 0..8 {
            assert_eq!(reads.run(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap(), [2.0; 8]);
            assert_eq!(uploads.run(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap(), [4.0; 8]);
            last = (last + 1.0) * 0.5;
            let want = last + 1.0;
            assert_eq!(
                keeps.run(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap(),
                [want; 8],
                "step {i}"
            );
        }
        let why = |s: &CaptureStatus| s.plain.clone().unwrap_or_default();
        assert!(why(reads.status()).contains("waits for the device"), "{}", why(reads.status()));
        assert!(why(uploads.status()).contains("copies from the host"), "{}", why(uploads.status()));
        assert!(why(keeps.status()).contains("kept beyond it"), "{}", why(keeps.status()));
    }
}

trait ItemSum {
    fn item_sum(&self) -> f32;
}

impl ItemSum for Tensor {
    fn item_sum(&self) -> f32 {
        self.to_vec::<f32>().unwrap().iter().sum()
    }
}

/// Steps whose optimizer is part of the recording. The state at the end, and the number of graphs.
fn whole_steps(d: &Device, rule: OptimRule, scaled: bool, capture: bool) -> (State, CaptureStatus) {
    let model = network(d);
    let (_, frozen) = &model.named_parameters()[1];
    let optimizer = Optimizer::new(&model, rule, 0.02).unwrap();
    let optimizer = match scaled {
        true => optimizer.loss_scaling(LossScale::new().interval(3), 256.0).and_then(|o| o.ema(0.8)).unwrap(),
        false => optimizer,
    };
    let optimizer = RefCell::new(optimizer);
    // A parameter that got no gradient in the first steps counts apart.
    frozen.set_requires_grad(false);
    let step = |io: &[Tensor]| {
        let mut o = optimizer.borrow_mut();
        o.zero_grad()?;
        let loss = CrossEntropyLoss::default().forward(&model.forward(&io[0])?, &io[1])?;
        o.backward(&loss)?;
        match scaled {
            true => drop(o.step_clipped(0.5, 2.0)?),
            false => {
                o.clip_grad_norm(0.5, 2.0)?;
                o.step()?;
            }
        }
        Ok(vec![loss])
    };
    let mut recorded = trefoil_nn::capture(d, step);
    for i in 0..14 {
        optimizer.borrow_mut().set_lr(0.02 / (i + 1) as f64).unwrap();
        if i == 2 {
            frozen.set_requires_grad(true);
            recorded = trefoil_nn::capture(d, step);
        }
        let (x, y) = batch(d, 16, i);
        match capture {
            true => drop(recorded.run(&[x, y]).unwrap()),
            false => drop(step(&[x, y]).unwrap()),
        }
    }
    assert_eq!(optimizer.borrow().steps(), 14);
    (state(&model, &optimizer.borrow()), recorded.status().clone())
}

#[test]
fn whole_steps_of_every_kind_of_rule_are_recorded() {
    let rules = [
        OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.01, nesterov: true },
        OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 },
        OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(0.004), decoupled: false },
        OptimRule::RAdam { b1: 0.9, b2: 0.99, eps: 1e-8, wd: 0.0, decoupled: false },
        OptimRule::Lamb {
            b1: 0.9,
            b2: 0.999,
            eps: 1e-6,
            wd: 0.01,
            bias_correction: true,
            max_norm: 10.0,
            adapt: true,
        },
        OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, wd: 0.01 },
        OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate: 1e-3 }),
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }),
    ];
    for d in devices() {
        for rule in &rules[..steps_on(&d, rules.len(), 5)] {
            for scaled in [false, true] {
                let what = format!("{} {rule:?}, scaled: {scaled}", id(&d));
                let (plain, recorded) =
                    (whole_steps(&d, *rule, scaled, false), whole_steps(&d, *rule, scaled, true));
                assert_eq!((recorded.1.graphs, &recorded.1.plain), (1, &None), "{what}");
                assert_same(&plain.0, &recorded.0, &what);
            }
        }
    }
}

#[test]
fn what_an_optimizer_cannot_record_is_refused_and_done_plainly() {
    for d in devices() {
        let model = network(&d);
        let rounded = Optimizer::adam(&model, 0.01).and_then(|o| o.moments_in_bf16(Some(7)));
        let optimizer = RefCell::new(rounded.unwrap());
        let (x, y) = batch(&d, 16, 1);
        let mut step = trefoil_nn::capture(&d, |io: &[Tensor]| {
            optimizer.borrow().zero_grad()?;
            let loss = CrossEntropyLoss::default().forward(&model.forward(&io[0])?, &io[1])?;
            loss.backward()?;
            optimizer.borrow_mut().step()?;
            Ok(vec![loss])
        });
        for _ in 0..5 {
            step.run(&[x.clone(), y.clone()]).unwrap();
        }
        assert_eq!(optimizer.borrow().steps(), 5, "every step was made once");
        let why = step.status().plain.clone().unwrap_or_default();
        assert!(why.contains("Optimizer::step cannot be recorded"), "{why}");
    }
}

#[test]
fn steps_whose_update_cannot_be_recorded_replay_their_passes() {
    for d in devices() {
        let run = |capture: bool| {
            let model = network(&d);
            let optimizer = Optimizer::adam(&model, 0.01).and_then(|o| o.moments_in_bf16(Some(7))).unwrap();
            let objective = Objective::Classify(CrossEntropyLoss::default());
            let mut t = Trainer::new(&model, optimizer, objective, &d, options(capture)).unwrap();
            for i in 0..8 {
                let (x, y) = batch(&d, 16, i);
                t.step(&x, &y).unwrap();
            }
            (state(&model, t.optimizer()), t.capture_status())
        };
        let (plain, recorded) = (run(false), run(true));
        assert_same(&plain.0, &recorded.0, &format!("{}", id(&d)));
        assert_eq!((recorded.1.graphs, &recorded.1.plain), (1, &None), "{}", id(&d));
        assert!(recorded.1.update.is_some_and(|why| why.contains("rounding")));
    }
}

/// What a driver was asked for in a step, by kind.
fn kinds(calls: &[Call]) -> BTreeMap<&'static str, usize> {
    let mut all = BTreeMap::new();
    for c in calls {
        let kind = match c {
            Call::Launch { .. } => "launch",
            Call::LaunchGraph(..) => "graph",
            Call::Copy(..) => "copy",
            Call::CopyIn(..) => "upload",
            Call::CopyOut(..) | Call::Synchronize(_) => "wait",
            Call::Alloc(_) => "allocation",
            _ => "other",
        };
        *all.entry(kind).or_default() += 1;
    }
    all
}

#[test]
fn a_trained_batch_is_one_launch_of_a_graph() {
    let driver = Arc::new(MockDriver::default());
    driver.have_graphs(true);
    let d: Device = Arc::new(Engine::new(driver.clone()).unwrap());
    let model = network(&d);
    let optimizer = Optimizer::adamw(&model, 0.01, 0.01)
        .and_then(|o| o.loss_scaling(LossScale::new(), 1024.0))
        .and_then(|o| o.ema(0.9))
        .unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut t = Trainer::new(&model, optimizer, objective, &d, options(true)).unwrap();
    let (x, y) = batch(&d, 16, 1);
    for _ in 0..4 {
        t.step(&x, &y).unwrap();
    }
    driver.clear();
    const STEPS: usize = 40;
    for _ in 0..STEPS {
        t.step(&x, &y).unwrap();
    }
    assert_eq!(t.capture_status().update, None);
    // Inputs go in, loss and output come out by copies on the device; the rate of the schedule, which changes with every step, is there.
    let want = BTreeMap::from([("copy", 4 * STEPS), ("graph", STEPS)]);
    assert_eq!(kinds(&driver.calls()), want);
    for _ in 0..2 * STEPS {
        t.step(&x, &y).unwrap();
    }
    let uploads = kinds(&driver.calls()).remove("upload").unwrap_or(0);
    assert!(
        (1..=6).contains(&uploads),
        "{uploads} uploads for 120 steps: 64 rates at a time, and their position"
    );
}

#[test]
fn what_a_model_depends_on_is_not_replayed_when_it_changes() {
    for d in devices() {
        let run = |capture: bool| {
            let model = network(&d);
            let optimizer = Optimizer::momentum(&model, 0.05, 0.9).unwrap();
            let objective = Objective::Classify(CrossEntropyLoss::default());
            let mut t = Trainer::new(&model, optimizer, objective, &d, options(capture)).unwrap();
            for i in 0..24 {
                if i == 8 {
                    model.eval();
                }
                if i == 12 {
                    model.train();
                }
                if i == 14 || i == 20 {
                    let (_, first) = &model.named_parameters()[0];
                    first.set_requires_grad(i == 20);
                }
                let (x, y) = batch(&d, 16, i);
                t.step(&x, &y).unwrap();
            }
            (state(&model, t.optimizer()), t.capture_status())
        };
        let (plain, recorded) = (run(false), run(true));
        assert_same(&plain.0, &recorded.0, &format!("{}", id(&d)));
        assert!(recorded.1.graphs >= 2, "{:?}", recorded.1);
    }
}

#[test]
fn a_recording_inside_a_recording_is_an_error() {
    for d in devices() {
        let x = Tensor::ones(&d, DType::F32, &[4]).unwrap();
        let refused = d.capture_calls(&mut || d.capture_calls(&mut || Ok(())).map(drop));
        assert!(matches!(refused, Err(GpuError::Capture { op: "capture_calls", .. })), "{refused:?}");
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 4]);
    }
}
