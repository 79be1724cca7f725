//! Accumulation, averages, mixed precision, checkpointing, callbacks, anomalies, summaries.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{close, cpu, devices, f32s, noise};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::core::{CoreOps, Counters};
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Checkpointed, Dense, Dropout, Sequential};
use trefoil_nn::losses::{HuberLoss, Reduction};
use trefoil_nn::metrics::{Average, Classification, MeanAbsoluteError, Score};
use trefoil_nn::optim::LossScale;
use trefoil_nn::summary::summary;
use trefoil_nn::trainer::{Callback, Clip, EpochStats, Objective, StepEnd, TrainOptions};
use trefoil_nn::{
    CrossEntropyLoss, Device, InitContext, Layer, LayerExt, MseLoss, NnError, Optimizer, Param, Result,
    Tensor, Trainer, Visitor,
};

fn mlp(cx: &InitContext) -> Sequential {
    Sequential::new()
        .push(Dense::new(cx, 2, 16).unwrap().activation(Activation::Tanh))
        .push(Dense::new(cx, 16, 3).unwrap())
}

fn classes(n: usize) -> Dataset {
    let x: Vec<f32> = noise(5, 2 * n).iter().map(|&v| v as f32).collect();
    let y = x
        .chunks(2)
        .map(|p| {
            if p[0] > 0.2 {
                0
            } else if p[1] > 0.0 {
                1
            } else {
                2
            }
        })
        .collect();
    Dataset::new(x, &[2], Targets::Classes(y)).unwrap()
}

fn classify() -> Objective {
    Objective::Classify(CrossEntropyLoss::default())
}

fn weights(m: &dyn Layer) -> Vec<f64> {
    m.named_parameters()
        .iter()
        .flat_map(|(_, p)| p.get().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap())
        .map(f64::from)
        .collect()
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    for d in devices() {
        let train = ResidentSource::new(&classes(100), &d, DType::F32).unwrap();
        // 100 items in batches of 24 (the last of 4), or in groups of three batches of 8 (the last one of 4).
        let run = |batch_size: usize, accumulate: usize| {
            let m = mlp(&InitContext::new(&d, 3));
            let o = Optimizer::adam(&m, 0.01).unwrap();
            let options = TrainOptions {
                epochs: 3,
                batch_size,
                accumulate,
                clip: Some(Clip::Norm(0.5)),
                ..Default::default()
            };
            let mut t = Trainer::new(&m, o, classify(), &d, options).unwrap();
            let r = t.fit(&train, None, &mut |_| true).unwrap();
            (weights(&m), r.history)
        };
        let (whole, parts) = (run(24, 1), run(8, 3));
        close(&parts.0, &whole.0, 1e-4, "weights");
        for (a, b) in whole.1.iter().zip(&parts.1) {
            assert_eq!(a.step, b.step);
            close(&[b.train_loss], &[a.train_loss], 1e-4, "loss");
        }
    }
    let d = cpu();
    let (a, b) = (mlp(&InitContext::new(&d, 3)), mlp(&InitContext::new(&d, 3)));
    let x = crate::common::tensor(&d, &[6, 2], 9).to_dtype(DType::F32).unwrap();
    let y = Tensor::from_slice(&d, &[0i64, 1, 2, 0, 1, 2], &[6]).unwrap();
    let make = |m| {
        Trainer::new(m, Optimizer::sgd(m, 0.5).unwrap(), classify(), &d, TrainOptions::default()).unwrap()
    };
    let (whole, _) = make(&a).step(&x, &y).unwrap();
    let part = |i: usize| (x.narrow(0, i, 2).unwrap(), y.narrow(0, i, 2).unwrap());
    let parts = make(&b).step_accumulated(&[part(0), part(2), part(4)]).unwrap().unwrap();
    close(&weights(&b), &weights(&a), 1e-6, "weights");
    close(
        &[f64::from(parts.item::<f32>().unwrap())],
        &[f64::from(whole.item::<f32>().unwrap())],
        1e-6,
        "loss",
    );
    assert!(make(&a).step_accumulated(&[]).unwrap().is_none());
    let zero = TrainOptions { accumulate: 0, ..Default::default() };
    assert!(Trainer::new(&a, Optimizer::sgd(&a, 0.5).unwrap(), classify(), &d, zero).is_err());
}

#[test]
fn averages_follow_the_weights_and_swap_without_loss() {
    for d in devices() {
        for dtype in [DType::F32, DType::F16] {
            let m = mlp(&InitContext::new(&d, 3).dtype(dtype));
            let mut want = weights(&m);
            let o = Optimizer::sgd(&m, 0.1).unwrap();
            let o = if dtype == DType::F16 { o.master_weights().unwrap() } else { o };
            let mut o = o.ema(0.4).unwrap();
            for t in 1..=4 {
                o.zero_grad().unwrap();
                for (_, p) in m.named_parameters() {
                    p.get().sum().unwrap().backward().unwrap();
                }
                o.step().unwrap();
                let decay = f64::min(0.4, (1.0 + t as f64) / (10.0 + t as f64));
                want = want.iter().zip(weights(&m)).map(|(e, w)| decay * e + (1.0 - decay) * w).collect();
            }
            let before = weights(&m);
            o.swap_ema().unwrap();
            close(&weights(&m), &want, if dtype == DType::F32 { 1e-6 } else { 2e-3 }, "average");
            assert_ne!(weights(&m), before);
            o.swap_ema().unwrap();
            assert_eq!(weights(&m), before);
        }
        assert!(Optimizer::sgd(&mlp(&InitContext::new(&d, 3)), 0.1).unwrap().ema(1.5).is_err());
    }
}

#[test]
fn loss_scales_skip_bad_steps_and_grow_after_good_ones() {
    for d in devices() {
        let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 3).dtype(DType::F16), 2, 1).unwrap());
        let o = Optimizer::adam(&m, 0.01).unwrap().master_weights().unwrap();
        let mut o = o.loss_scaling(LossScale::new().interval(2), 1024.0).unwrap();
        let mut step = |scale: f32, clip: bool| {
            o.zero_grad().unwrap();
            let x = f32s(&d, &[scale, 1.0], &[1, 2]).to_dtype(DType::F16).unwrap();
            let y = m.forward(&x).unwrap();
            let t = Tensor::full(&d, DType::F16, &[1, 1], 2.0).unwrap();
            o.backward(&MseLoss::default().forward(&y, &t).unwrap()).unwrap();
            if clip {
                let norm: f32 = o.clip_grad_norm(0.5, 2.0).unwrap().item().unwrap();
                assert!(norm > 0.1 && norm < 20.0, "{norm}");
            }
            o.step().unwrap();
            o.loss_scale().unwrap().item::<f32>().unwrap()
        };
        let start = weights(&m);
        assert_eq!(step(30000.0, false), 512.0);
        assert_eq!(weights(&m), start, "a step with infinities changed the weights");
        // The step count is that of good steps: Adam's first step has the size of the learning rate.
        assert_eq!(step(1.0, true), 512.0);
        let moved: Vec<f64> = weights(&m).iter().zip(&start).map(|(a, b)| (a - b).abs()).collect();
        close(&moved, &[0.01; 3], 1e-3, "first step");
        assert_eq!(step(1.0, false), 1024.0);
        assert_eq!(o.steps(), 3);
    }
    let d = cpu();
    let o = || Optimizer::sgd(&mlp(&InitContext::new(&d, 3)), 0.1).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(o().loss_scaling(LossScale::new(), bad).is_err());
    }
    assert!(o().loss_scaling(LossScale::new().interval(0), 1.0).is_err());
}

#[test]
fn masters_keep_what_sixteen_bits_cannot() {
    for d in devices() {
        for dtype in [DType::F16, DType::Bf16] {
            let moved = |masters: bool| {
                let p = Sequential::new()
                    .push(Dense::new(&InitContext::new(&d, 3).dtype(dtype), 1, 1).unwrap().no_bias());
                p.named_parameters()[0].1.get().fill(1.0).unwrap();
                let o = Optimizer::sgd(&p, 1e-5).unwrap();
                let mut o = if masters { o.master_weights().unwrap() } else { o };
                for _ in 0..2000 {
                    o.zero_grad().unwrap();
                    p.named_parameters()[0].1.get().sum().unwrap().backward().unwrap();
                    o.step().unwrap();
                }
                weights(&p)[0]
            };
            assert_eq!(moved(false), 1.0, "{dtype}");
            close(&[moved(true)], &[0.98], 4e-3, dtype.name());
        }
        // Parameters that are set from outside become the masters.
        let m = mlp(&InitContext::new(&d, 3).dtype(DType::F16));
        let mut o = Optimizer::sgd(&m, 0.0).unwrap().master_weights().unwrap();
        m.named_parameters()[0].1.get().fill(0.25).unwrap();
        o.refresh_masters().unwrap();
        o.zero_grad().unwrap();
        o.step().unwrap();
        assert_eq!(weights(&m)[0], 0.25);
    }
}

#[test]
fn mixed_precision_learns_what_f32_learns() {
    for d in devices() {
        let (data, last) = (classes(200), RefCell::new(vec![]));
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let train = ResidentSource::new(&data, &d, dtype).unwrap();
            let m = mlp(&InitContext::new(&d, 3).dtype(dtype));
            let mut o = Optimizer::adam(&m, 0.02).unwrap().master_weights().unwrap();
            if dtype == DType::F16 {
                o = o.loss_scaling(LossScale::new(), 65536.0).unwrap();
            }
            let options = TrainOptions {
                epochs: 12,
                batch_size: 20,
                clip: Some(Clip::Norm(1.0)),
                ..Default::default()
            };
            let mut t = Trainer::new(&m, o, classify(), &d, options).unwrap();
            let r = t.fit(&train, None, &mut |_| true).unwrap();
            last.borrow_mut().push(r.history.last().unwrap().train_loss);
        }
        let last = last.into_inner();
        assert!(last[0] < 0.35, "{last:?}");
        assert!(last.iter().all(|l| (l - last[0]).abs() < 0.05), "{last:?} on {}", crate::common::id(&d));
    }
}

/// A stack of blocks with dropout, each checkpointed or not.
fn stack(d: &Device, depth: usize, width: usize, checkpointed: bool) -> Sequential {
    let cx = InitContext::new(d, 3);
    (0..depth).fold(Sequential::new(), |s, _| {
        let block = Sequential::new()
            .push(Dense::new(&cx, width, width).unwrap().activation(Activation::Gelu))
            .push(Dropout::new(&cx, 0.3).unwrap())
            .push(Dense::new(&cx, width, width).unwrap().activation(Activation::Tanh))
            .push(RunningMean::new(d));
        if checkpointed { s.push(Checkpointed::new(block)) } else { s.push(block) }
    })
}

/// Counts its forwards in a buffer on the device, as normalisations keep statistics, and computes with it.
#[derive(Debug)]
struct RunningMean(Param);

impl RunningMean {
    fn new(d: &Device) -> Self {
        RunningMean(Param::buffer(Tensor::zeros(d, DType::F32, &[1]).unwrap()))
    }
}

impl Layer for RunningMean {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let now = self.0.get();
        now.assign(&now.add_scalar(1.0)?)?;
        // What the forward changed takes part in it and in its backward.
        x.mul(&now.copy()?)?.mul_scalar(0.9)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("forwards", &self.0);
    }
}

#[test]
fn checkpointing_changes_no_bit() {
    for d in devices() {
        let run = |checkpointed: bool, from: bool| {
            let m = stack(&d, 3, 8, checkpointed);
            let x = f32s(&d, &noise(4, 40).iter().map(|&v| v as f32).collect::<Vec<_>>(), &[5, 8]);
            let x = if from { x.with_grad() } else { x };
            let mut out = vec![];
            for _ in 0..2 {
                let y = m.forward(&x).unwrap();
                y.square().unwrap().mean().unwrap().backward().unwrap();
                out.push(y.to_bytes().unwrap());
            }
            out.extend(m.named_parameters().iter().map(|(_, p)| p.get().grad().unwrap().to_bytes().unwrap()));
            out.extend(m.named_state().iter().map(|(_, p)| p.get().to_bytes().unwrap()));
            out.extend(x.grad().map(|g| g.to_bytes().unwrap()));
            let names: Vec<String> = m.named_state().into_iter().map(|(n, _)| n).collect();
            (out, names, m.counters())
        };
        for from in [false, true] {
            assert_eq!(run(true, from), run(false, from), "on {}", crate::common::id(&d));
        }
        // Nothing to compute again in evaluation, and no graph.
        let m = stack(&d, 1, 8, true);
        m.eval();
        let x = f32s(&d, &[0.5; 8], &[1, 8]);
        let y = trefoil_nn::autograd::no_grad(|| m.forward(&x)).unwrap();
        assert!(!y.requires_grad());
    }
}

#[test]
fn checkpointing_saves_memory() {
    let (depth, width, rows) = (12, 64, 2048);
    let peak = |checkpointed: bool| {
        let d = cpu();
        let m = stack(&d, depth, width, checkpointed);
        let x = Tensor::ones(&d, DType::F32, &[rows, width]).unwrap();
        let before = d.memory().in_use;
        m.forward(&x).unwrap().mean().unwrap().backward().unwrap();
        d.memory().peak - before
    };
    let (with, without) = (peak(true), peak(false));
    // A block keeps its input alone instead of six results.
    assert!(with * 2 < without, "{with} of {without} bytes");
}

#[test]
fn a_parameter_changed_before_the_recomputation_is_an_error() {
    let d = cpu();
    let m = stack(&d, 1, 8, true);
    let mut o = Optimizer::sgd(&m, 0.1).unwrap();
    let y = m.forward(&Tensor::ones(&d, DType::F32, &[1, 8]).unwrap()).unwrap().mean().unwrap();
    m.parameters().iter().for_each(|p| p.get().sum().unwrap().backward().unwrap());
    o.step().unwrap();
    assert!(matches!(y.backward(), Err(NnError::SavedModified { op: "checkpointed", .. })));
}

/// Divides by what is 0 from a given forward on.
#[derive(Debug)]
struct Breaks {
    after: u64,
    forwards: AtomicU64,
    in_backward: bool,
}

impl Layer for Breaks {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bad = self.forwards.fetch_add(1, Ordering::Relaxed) >= self.after;
        match (bad, self.in_backward) {
            (false, _) => Ok(x.clone()),
            (true, false) => x.mul_scalar(0.0)?.ln()?.mul(x),
            // sqrt has no slope at 0: an infinity times 0.
            (true, true) => x.add(&x.mul_scalar(0.0)?.sqrt()?),
        }
    }
}

#[test]
fn anomalies_name_step_and_layer_and_leave_the_weights() {
    for d in devices() {
        for (in_backward, accumulate, interval) in
            [(false, 1, 1), (false, 1, 100), (false, 2, 4), (true, 1, 3)]
        {
            let cx = InitContext::new(&d, 3);
            // The forward of each batch counts, so the fifth step breaks.
            let after = 4 * accumulate as u64;
            let m = Sequential::new()
                .push(Dense::new(&cx, 2, 8).unwrap())
                .named(
                    "middle",
                    Sequential::new().push(Breaks { after, forwards: AtomicU64::new(0), in_backward }),
                )
                .push(Dense::new(&cx, 8, 3).unwrap());
            let train = ResidentSource::new(&classes(160), &d, DType::F32).unwrap();
            let options =
                TrainOptions { batch_size: 10, accumulate, anomaly: Some(interval), ..Default::default() };
            let seen = Mutex::new(vec![]);
            struct Keep<'a>(&'a Mutex<Vec<Vec<f64>>>, &'a Sequential);
            impl Callback for Keep<'_> {
                fn step_end(&mut self, _: &StepEnd<'_>) -> Result<()> {
                    self.0.lock().unwrap().push(weights(self.1));
                    Ok(())
                }
            }
            let o = Optimizer::adam(&m, 0.01).unwrap();
            let mut t = Trainer::new(&m, o, classify(), &d, options).unwrap().callback(Keep(&seen, &m));
            let e = t.fit(&train, None, &mut |_| true).unwrap_err();
            let text = e.to_string();
            match e {
                NnError::Anomaly { step: 5, what, origin } if in_backward => {
                    assert_eq!((what, origin.as_str()), ("a gradient", "the backward pass"));
                }
                NnError::Anomaly { step: 5, what: "the loss", origin } => {
                    assert_eq!(origin, "layer `middle.0`, operation `unary`", "{text}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(t.optimizer().steps(), 4);
            let seen = seen.lock().unwrap();
            assert!(weights(&m).iter().all(|w| w.is_finite()));
            assert_eq!(weights(&m), seen[3], "the weights are not those before the bad step");
            assert_ne!(seen[2], seen[3]);
        }
    }
}

#[test]
fn an_anomaly_leaves_the_last_good_checkpoint() {
    let (d, folder) = (cpu(), std::env::temp_dir().join(format!("trefoil-anomaly-{}", std::process::id())));
    let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 3), 2, 3).unwrap()).push(Breaks {
        after: 6,
        forwards: AtomicU64::new(0),
        in_backward: false,
    });
    let train = ResidentSource::new(&classes(40), &d, DType::F32).unwrap();
    let options =
        TrainOptions { batch_size: 10, anomaly: Some(50), run: Some(folder.clone()), ..Default::default() };
    let mut t = Trainer::new(&m, Optimizer::adam(&m, 0.01).unwrap(), classify(), &d, options).unwrap();
    let mut after_first = vec![];
    let e = t.fit(&train, None, &mut |_| {
        after_first = weights(&m);
        true
    });
    assert!(matches!(e, Err(NnError::Anomaly { step: 7, .. })), "{e:?}");
    // In memory the weights of the sixth step, in the folder those of the first epoch.
    assert_ne!(weights(&m), after_first);
    assert!(t.resume().unwrap());
    assert_eq!((weights(&m), t.optimizer().steps(), t.epochs_done()), (after_first, 4, 1));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn callbacks_metrics_and_objectives_of_ones_own() {
    let d = cpu();
    #[derive(Default)]
    struct Log(Vec<String>);
    struct Seen<'a>(&'a RefCell<Log>);
    impl Callback for Seen<'_> {
        fn epoch_begin(&mut self, epoch: u64) -> Result<()> {
            self.0.borrow_mut().0.push(format!("begin {epoch}"));
            Ok(())
        }
        fn step_end(&mut self, s: &StepEnd<'_>) -> Result<()> {
            assert!(s.loss.item::<f32>()?.is_finite() && s.output.shape() == [10, 3] && s.lr > 0.0);
            self.0.borrow_mut().0.push(format!("step {}", s.step));
            Ok(())
        }
        fn epoch_end(&mut self, s: &EpochStats) -> Result<bool> {
            self.0.borrow_mut().0.push(format!("end {}", s.epoch));
            Ok(s.epoch < 2)
        }
    }
    let log = RefCell::new(Log::default());
    let m = mlp(&InitContext::new(&d, 3));
    let data = ResidentSource::new(&classes(20), &d, DType::F32).unwrap();
    let options = TrainOptions { epochs: 9, batch_size: 10, evaluate_ema: true, ..Default::default() };
    let o = Optimizer::adam(&m, 0.01).unwrap().ema(0.9).unwrap();
    let mut t = Trainer::new(&m, o, classify(), &d, options)
        .unwrap()
        .callback(Seen(&log))
        .metric(Classification::new(&d, 3, Score::Recall, Average::Macro).unwrap());
    let r = t.fit(&data, Some(&data), &mut |_| true).unwrap();
    assert_eq!(
        log.borrow().0,
        ["begin 1", "step 1", "step 2", "end 1", "begin 2", "step 3", "step 4", "end 2"]
    );
    assert_eq!(r.history.len(), 2);
    assert!((0.0..=1.0).contains(&r.history[1].metrics["recall"]));
    // Evaluation used the average: the weights themselves have another loss, and are back.
    let now = weights(&m);
    let with = t.evaluate(&data).unwrap().loss;
    assert_eq!(with, r.history[1].test_loss.unwrap());
    assert_eq!(weights(&m), now);
    let plain = trefoil_nn::autograd::no_grad(|| {
        let b = trefoil_nn::data::Source::epoch(&data, None, 20).unwrap().next().unwrap().unwrap();
        CrossEntropyLoss::default().forward(&m.forward(&b.x).unwrap(), &b.y).unwrap().item::<f32>().unwrap()
    });
    assert!((f64::from(plain) - with).abs() > 1e-5);

    let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 1), 1, 1).unwrap());
    let x: Vec<f32> = noise(3, 64).iter().map(|&v| v as f32).collect();
    let y = x.iter().map(|v| 3.0 * v - 1.0).collect();
    let data = Dataset::new(x, &[1], Targets::Values { data: y, shape: vec![1] }).unwrap();
    let data = ResidentSource::new(&data, &d, DType::F32).unwrap();
    let objective = Objective::custom(HuberLoss::default());
    let options = TrainOptions { epochs: 60, batch_size: 16, ..Default::default() };
    let mut t = Trainer::new(&m, Optimizer::adam(&m, 0.05).unwrap(), objective, &d, options)
        .unwrap()
        .metric(MeanAbsoluteError::new(&d).unwrap());
    let r = t.fit(&data, Some(&data), &mut |_| true).unwrap();
    assert!(r.history.last().unwrap().metrics["mae"] < 0.02, "{:?}", r.history.last());
    let sums = Objective::custom(HuberLoss { reduction: Reduction::Sum, ..Default::default() });
    let o = Optimizer::sgd(&mlp(&InitContext::new(&d, 3)), 0.1).unwrap();
    assert!(Trainer::new(&m, o, sums, &d, TrainOptions::default()).is_err());
}

/// Runs steps and compares the counters of the later ones.
fn steady(d: &Device, what: &str, mut step: impl FnMut()) {
    let quiet = |c: Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
    (0..3).for_each(|_| step());
    let before = d.counters();
    (0..5).for_each(|_| step());
    let after = d.counters();
    assert_eq!(quiet(before), quiet(after), "{what} on {}", crate::common::id(d));
    assert!(after.launches > before.launches + 25, "{what}");
}

#[test]
fn no_feature_transfers_or_allocates_in_a_steady_step() {
    for d in devices() {
        let y = Tensor::from_slice(&d, &[0i64, 1, 2, 0], &[4]).unwrap();
        let x = f32s(&d, &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], &[4, 2]);
        let options = || TrainOptions { clip: Some(Clip::Norm(1.0)), ..Default::default() };
        let m = mlp(&InitContext::new(&d, 3));
        let o = Optimizer::nadam(&m, 0.01).unwrap().ema(0.99).unwrap();
        let mut t =
            Trainer::new(&m, o, classify(), &d, TrainOptions { anomaly: Some(1000), ..options() }).unwrap();
        steady(&d, "average and anomaly mode", || drop(t.step(&x, &y).unwrap()));
        let parts = [(x.clone(), y.clone()), (x.clone(), y.clone())];
        steady(&d, "accumulation", || drop(t.step_accumulated(&parts).unwrap()));

        for dtype in [DType::F16, DType::Bf16] {
            let m = mlp(&InitContext::new(&d, 3).dtype(dtype));
            let mut o = Optimizer::adamw(&m, 0.01, 0.1).unwrap().master_weights().unwrap().ema(0.9).unwrap();
            if dtype == DType::F16 {
                o = o.loss_scaling(LossScale::new().interval(2), 1024.0).unwrap();
            }
            let mut t = Trainer::new(&m, o, classify(), &d, options()).unwrap();
            let x = x.to_dtype(dtype).unwrap();
            steady(&d, "mixed precision", || drop(t.step(&x, &y).unwrap()));
        }

        let m = stack(&d, 2, 2, true).push(Dense::new(&InitContext::new(&d, 5), 2, 3).unwrap());
        let o = Optimizer::lion(&m, 0.01, 0.0).unwrap();
        let mut t = Trainer::new(&m, o, classify(), &d, options()).unwrap();
        steady(&d, "checkpointing", || drop(t.step(&x, &y).unwrap()));
    }
}

#[test]
fn summaries_show_layers_without_changing_them() {
    let d = cpu();
    let cx = InitContext::new(&d, 3);
    let m = Sequential::new()
        .push(Dense::lazy(&cx, 16).unwrap())
        .named(
            "body",
            Sequential::new().push(Dropout::new(&cx, 0.5).unwrap()).push(Dense::new(&cx, 16, 3).unwrap()),
        )
        .push(RunningMean::new(&d));
    let s = summary(&m, &[Tensor::zeros(&d, DType::F32, &[8, 4]).unwrap()]).unwrap();
    let rows: Vec<_> =
        s.rows.iter().map(|r| (r.name.as_str(), r.kind.as_str(), r.depth, r.parameters)).collect();
    assert_eq!(
        rows,
        [
            ("", "Sequential", 0, 131),
            ("0", "Dense", 1, 80),
            ("body", "Sequential", 1, 51),
            ("body.0", "Dropout", 2, 0),
            ("body.1", "Dense", 2, 51),
            ("2", "RunningMean", 1, 0),
        ]
    );
    assert_eq!(s.rows[1].outputs, [vec![8, 16]]);
    assert_eq!((s.parameters, s.parameter_bytes, s.buffer_bytes, s.input_bytes), (131, 524, 4, 128));
    assert_eq!(s.activation_bytes, 4 * (128 + 128 + 24 + 24));
    // Eight rows through 4 x 16 and 16 x 3 weights; the other layers multiply nothing.
    assert_eq!((s.rows[1].macs, s.rows[2].macs, s.macs), (512, 384, 896));
    assert!(s.flops > 2 * s.macs && s.rows[5].flops > 0);
    let text = s.to_string();
    assert!(
        text.contains("body.1 (Dense)") && text.contains("[8, 3]") && text.contains("131 parameters"),
        "{text}"
    );
    assert!(m.counters().values().all(|&c| c == 0));
    assert_eq!(m.state_dict().unwrap()["2.forwards"].item::<f32>().unwrap(), 0.0);
    assert!(summary(&m, &[Tensor::zeros(&d, DType::F32, &[8, 5]).unwrap()]).is_err());
}

#[test]
fn summaries_count_products() {
    let d = cpu();
    let cx = InitContext::new(&d, 3);
    for (json, shape, macs) in [
        // 24 outputs of 9 taps of 2 channels, in two groups of one channel.
        (
            r#"{ "type": "convolutional", "out_channels": 4, "kernel_size": 3, "groups": 2 }"#,
            vec![1, 2, 4, 5],
            24 * 9,
        ),
        (
            r#"{ "type": "deconvolutional", "out_channels": 3, "kernel_size": 2, "stride": 2 }"#,
            vec![1, 2, 4, 4],
            32 * 12,
        ),
        // Ten steps of 16 x 3 and 16 x 4 weights.
        (r#"{ "type": "lstm", "hidden_size": 4 }"#, vec![2, 5, 3], 10 * (48 + 64)),
        // Four projections of ten rows; scores and mixtures over five keys.
        (
            r#"{ "type": "multi_head_attention", "embed_dim": 8, "num_heads": 2 }"#,
            vec![2, 5, 8],
            10 * 256 + 160 * 5,
        ),
        (r#"{ "type": "flatten" }"#, vec![2, 5, 8], 0),
    ] {
        let layer = trefoil_nn::network::layer(&cx, &serde_json::from_str(json).unwrap()).unwrap();
        let x = Tensor::ones(&d, DType::F32, &shape).unwrap();
        let s = summary(&*layer, &[x]).unwrap_or_else(|e| panic!("{json}: {e}"));
        assert_eq!(s.macs, macs, "{json}");
        assert_eq!(s.flops == 0, macs == 0, "{json}");
    }
}
