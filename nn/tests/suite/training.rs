//! Runs: configuration, checkpoints, resumption, counters.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common::{cpu, devices, f32s, id, noise, slow};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::core::CoreOps;
use trefoil_nn::checkpoint::{Checkpoint, Progress, write_atomic};
use trefoil_nn::config::Config;
use trefoil_nn::data::{Dataset, ResidentSource, Source, Targets};
use trefoil_nn::layers::{Dense, Dropout, Sequential};
use trefoil_nn::optim::{Plateau, Schedule};
use trefoil_nn::trainer::{Clip, EarlyStopping, Ended, EpochStats, Objective, TrainOptions, read_metrics};
use trefoil_nn::{
    CrossEntropyLoss, Device, InitContext, Layer, LayerExt, MseLoss, NnError, Optimizer, Trainer,
};

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let p = std::env::temp_dir().join(format!("trefoil-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Three classes of points around three centres.
fn blobs(n: usize) -> Dataset {
    let z = noise(5, 2 * n);
    let centre = [(0.0, 1.0), (1.0, -1.0), (-1.0, -1.0)];
    let x = (0..n).flat_map(|i| {
        [(centre[i % 3].0 + 0.5 * z[2 * i]) as f32, (centre[i % 3].1 + 0.5 * z[2 * i + 1]) as f32]
    });
    Dataset::new(x.collect(), &[2], Targets::Classes((0..n as i64).map(|i| i % 3).collect())).unwrap()
}

fn model(d: &Device, hidden: usize) -> Sequential {
    let cx = InitContext::new(d, 11);
    Sequential::new()
        .push(Dense::new(&cx, 2, hidden).unwrap().activation(Activation::Relu))
        .push(Dropout::new(&cx, 0.1).unwrap())
        .push(Dense::new(&cx, hidden, 3).unwrap())
}

fn options(run: Option<&Path>, epochs: u64) -> TrainOptions {
    TrainOptions {
        epochs,
        batch_size: 16,
        seed: 4,
        schedule: Schedule::Cosine { total: 60, min: 1e-4 },
        plateau: Some(Plateau::new(0.5, 1)),
        clip: Some(Clip::Norm(1.0)),
        run: run.map(Path::to_path_buf),
        ..TrainOptions::default()
    }
}

/// Trains up to `epochs`, ending after epoch `stop` as if killed there.
fn run(d: &Device, folder: &Path, epochs: u64, stop: u64, resume: bool) -> Vec<EpochStats> {
    let m = model(d, 16);
    let o = Optimizer::adamw(&m, 0.02, 0.01).unwrap();
    let (train, test) = (blobs(150), blobs(30));
    let train = ResidentSource::new(&train, d, DType::F32).unwrap();
    let test = ResidentSource::new(&test, d, DType::F32).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut t = Trainer::new(&m, o, objective, d, options(Some(folder), epochs)).unwrap();
    assert_eq!(t.resume().unwrap(), resume);
    t.fit(&train, Some(&test), &mut |s| s.epoch < stop).unwrap().history
}

fn bytes(f: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(f.at(name)).unwrap()
}

#[test]
fn a_resumed_run_gives_the_same_bytes() {
    for d in devices() {
        let (whole, parts) = (Folder::new("whole"), Folder::new("parts"));
        let a = run(&d, &whole.0, 6, 99, false);
        run(&d, &parts.0, 6, 2, false);
        // A kill in the middle of the next epoch leaves a line that the checkpoint does not know, cut off at that.
        let mut text = std::fs::read_to_string(parts.at("metrics.jsonl")).unwrap();
        text.push_str("{\"epoch\":3,\"step\":30,\"lr\":0.0");
        std::fs::write(parts.at("metrics.jsonl"), text).unwrap();
        run(&d, &parts.0, 6, 4, true);
        let b = run(&d, &parts.0, 6, 99, true);
        assert_eq!(bytes(&whole, "checkpoint.safetensors"), bytes(&parts, "checkpoint.safetensors"));
        assert_eq!(bytes(&whole, "best.safetensors"), bytes(&parts, "best.safetensors"));
        assert_eq!(a.len(), 6);
        for (a, b) in a.iter().zip(&b) {
            assert_eq!(a, &EpochStats { seconds: a.seconds, ..b.clone() });
        }
        assert_eq!(read_metrics(&parts.at("metrics.jsonl")).unwrap(), b);
        assert!(a[5].test_accuracy.unwrap() > 0.85 && a[5].train_loss < a[0].train_loss, "{a:?}");
        let svg = String::from_utf8(bytes(&whole, "curves.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("accuracy"));
        // The same seed again gives the same bytes.
        let again = Folder::new("again");
        run(&d, &again.0, 6, 99, false);
        assert_eq!(bytes(&whole, "checkpoint.safetensors"), bytes(&again, "checkpoint.safetensors"));
    }
}

#[test]
fn a_training_step_transfers_and_allocates_nothing() {
    for d in devices() {
        let m = model(&d, 16);
        let o = Optimizer::adamw(&m, 0.02, 0.01).unwrap();
        let data = ResidentSource::new(&blobs(160), &d, DType::F32).unwrap();
        let objective = Objective::Classify(CrossEntropyLoss::default());
        let mut t = Trainer::new(&m, o, objective, &d, options(None, 5)).unwrap();
        let mut totals = trefoil_nn::metrics::Totals::new(&d).unwrap();
        let mut warm = None;
        for (i, b) in data.epoch(Some(trefoil_nn::data::Order { seed: 1, epoch: 0 }), 16).unwrap().enumerate()
        {
            let b = b.unwrap();
            let (loss, out) = t.step(&b.x, &b.y).unwrap();
            totals.add(&loss, b.len, Some((&out, &b.y))).unwrap();
            // The third step is recorded and keeps its memory; the fourth finds other blocks for what is made beside it.
            if i == 3 {
                warm = Some(d.counters());
            }
        }
        let (before, after) = (warm.unwrap(), d.counters());
        assert!(after.launches > before.launches + 8 * 5);
        let quiet =
            |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
        assert_eq!(quiet(before), quiet(after), "on {}", crate::common::id(&d));
        assert!(totals.read().unwrap().loss.is_finite());
    }
}

#[test]
fn regression_early_stopping_and_value_clipping() {
    let d = cpu();
    let x: Vec<f32> = noise(3, 64).into_iter().map(|v| v as f32).collect();
    let y = x.iter().map(|v| 3.0 * v - 1.0).collect();
    let data = Dataset::new(x, &[1], Targets::Values { data: y, shape: vec![1] }).unwrap();
    let data = ResidentSource::new(&data, &d, DType::F32).unwrap();
    let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 1), 1, 1).unwrap());
    let o = Optimizer::momentum(&m, 0.1, 0.9).unwrap();
    let options = TrainOptions {
        epochs: 500,
        batch_size: 64,
        clip: Some(Clip::Value(1.0)),
        early_stopping: Some(EarlyStopping { patience: 5, min_delta: 1e-6 }),
        ..TrainOptions::default()
    };
    let mut t = Trainer::new(&m, o, Objective::Regress(MseLoss::default()), &d, options).unwrap();
    let r = t.fit(&data, None, &mut |_| true).unwrap();
    assert_eq!(r.ended, Ended::Stalled);
    assert!(r.history.len() < 500 && r.best.unwrap().0 < 1e-3, "{:?}", r.history.last());
    assert!(r.history.iter().all(|s| s.train_accuracy.is_none() && s.test_loss.is_none()));
}

#[test]
fn divergence_leaves_the_last_checkpoint() {
    let (d, f) = (cpu(), Folder::new("diverged"));
    run(&d, &f.0, 1, 99, false);
    let good = bytes(&f, "checkpoint.safetensors");
    let m = model(&d, 16);
    let o = Optimizer::sgd(&m, 1e30).unwrap();
    let data = ResidentSource::new(&blobs(150), &d, DType::F32).unwrap();
    let options =
        TrainOptions { clip: None, plateau: None, schedule: Schedule::Constant, ..options(Some(&f.0), 3) };
    let mut t = Trainer::new(&m, o, Objective::Classify(CrossEntropyLoss::default()), &d, options).unwrap();
    assert!(matches!(t.fit(&data, None, &mut |_| true), Err(NnError::Diverged { .. })));
    assert_eq!(bytes(&f, "checkpoint.safetensors"), good);
}

#[test]
fn foreign_and_damaged_checkpoints_are_typed_errors() {
    let (d, f) = (cpu(), Folder::new("damaged"));
    run(&d, &f.0, 1, 99, false);
    let good = bytes(&f, "checkpoint.safetensors");
    let path = f.at("checkpoint.safetensors");
    let resume = |hidden: usize, change: &dyn Fn(&mut TrainOptions)| {
        let m = model(&d, hidden);
        let o = Optimizer::adamw(&m, 0.02, 0.01).unwrap();
        let mut options = options(Some(&f.0), 3);
        change(&mut options);
        let before = m.named_parameters()[0].1.get().to_bytes().unwrap();
        let mut t =
            Trainer::new(&m, o, Objective::Classify(CrossEntropyLoss::default()), &d, options).unwrap();
        let out = t.resume();
        if out.is_err() {
            assert_eq!(m.named_parameters()[0].1.get().to_bytes().unwrap(), before);
        }
        out
    };
    match resume(17, &|_| ()).unwrap_err() {
        NnError::Checkpoint { source: Some(e), what, .. } => match *e {
            NnError::StateShape { name, expected, found, .. } => {
                assert!(what.contains(&name) && expected.contains(&17) && found.contains(&16), "{what}");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    for (change, word) in [
        ((|o: &mut TrainOptions| o.seed = 5) as fn(&mut TrainOptions), "seed"),
        (|o| o.batch_size = 8, "batch size"),
    ] {
        let e = resume(16, &change).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
    for damaged in [&good[..good.len() - 1], &good[..100], &good[..4], b"not a checkpoint at all", b""] {
        std::fs::write(&path, damaged).unwrap();
        assert!(matches!(resume(16, &|_| ()), Err(NnError::Checkpoint { .. })), "{} bytes", damaged.len());
    }
    // Weights without the optimizer's state, and a file of another program, which has no progress.
    let m = model(&d, 16);
    let progress = Progress { seed: 4, batch_size: 16, ..Progress::default() };
    let mut plain = Checkpoint::capture(&m, None, progress).unwrap();
    plain.save(&path).unwrap();
    let e = resume(16, &|_| ()).unwrap_err().to_string();
    assert!(e.contains("missing") && e.contains("optimizer.m.0.weight"), "{e}");
    plain.progress = Progress::default();
    plain.save(&path).unwrap();
    let e = resume(16, &|_| ()).unwrap_err().to_string();
    assert!(e.contains("no training progress"), "{e}");
    std::fs::write(&path, &good).unwrap();
    assert!(resume(16, &|_| ()).unwrap());
    std::fs::remove_file(&path).unwrap();
    assert!(!resume(16, &|_| ()).unwrap());
}

#[test]
fn checkpoints_keep_every_bit_and_equal_ones_are_equal_files() {
    let (d, f) = (cpu(), Folder::new("bits"));
    let m = model(&d, 4);
    let odd = [f32::NAN, -0.0, f32::INFINITY, 1e-40];
    m.named_parameters()[1].1.get().assign(&f32s(&d, &odd, &[4])).unwrap();
    let c =
        Checkpoint::capture(&m, None, Progress { epoch: 3, seed: u64::MAX, ..Progress::default() }).unwrap();
    c.save(f.at("a")).unwrap();
    let back = Checkpoint::load(f.at("a")).unwrap();
    assert_eq!(back, c);
    back.save(f.at("b")).unwrap();
    assert_eq!(bytes(&f, "a"), bytes(&f, "b"));
    let other = model(&d, 4);
    back.restore(&other, None).unwrap();
    let got = other.named_parameters()[1].1.get().to_vec::<f32>().unwrap();
    assert_eq!(got.map_bits(), odd.to_vec().map_bits());
    // Alignment of the data for readers that map the file.
    let header = u64::from_le_bytes(bytes(&f, "a")[..8].try_into().unwrap());
    assert_eq!(header % 8, 0);
}

trait MapBits {
    fn map_bits(self) -> Vec<u32>;
}

impl MapBits for Vec<f32> {
    fn map_bits(self) -> Vec<u32> {
        self.into_iter().map(f32::to_bits).collect()
    }
}

#[test]
fn unwritable_places_are_errors_and_leave_what_was_there() {
    let f = Folder::new("unwritable");
    // A file where the run folder should be.
    std::fs::write(f.at("file"), "x").unwrap();
    let d = cpu();
    let m = model(&d, 4);
    let o = Optimizer::sgd(&m, 0.1).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let e = Trainer::new(&m, o, objective, &d, options(Some(&f.at("file")), 1)).unwrap_err();
    assert!(matches!(e, NnError::Io { .. }), "{e}");
    // A folder where the checkpoint should be: the rename fails, the temporary file is removed.
    std::fs::create_dir(f.at("taken")).unwrap();
    std::fs::write(f.at("taken").join("x"), "x").unwrap();
    assert!(matches!(write_atomic(&f.at("taken"), b"new"), Err(NnError::Io { .. })));
    let left: Vec<_> = std::fs::read_dir(&f.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn trainers_refuse_what_makes_no_sense() {
    let d = cpu();
    let m = model(&d, 4);
    let bad = |change: &dyn Fn(&mut TrainOptions)| {
        let mut o = options(None, 1);
        change(&mut o);
        let opt = Optimizer::sgd(&m, 0.1).unwrap();
        Trainer::new(&m, opt, Objective::Classify(CrossEntropyLoss::default()), &d, o).map(drop)
    };
    assert!(bad(&|_| ()).is_ok());
    assert!(bad(&|o| o.epochs = 0).is_err());
    assert!(bad(&|o| o.batch_size = 0).is_err());
    // More classes in the data than outputs.
    let data = Dataset::new(vec![0.0; 8], &[2], Targets::Classes(vec![0, 1, 2, 3])).unwrap();
    let data = ResidentSource::new(&data, &d, DType::F32).unwrap();
    let opt = Optimizer::sgd(&m, 0.1).unwrap();
    let mut t = Trainer::new(&m, opt, Objective::Classify(CrossEntropyLoss::default()), &d, options(None, 1))
        .unwrap();
    let e = t.evaluate(&data).unwrap_err().to_string();
    assert!(e.contains("index 3 in row 3 of the labels of the test data") && e.contains("0..3"), "{e}");
    assert!(t.resume().is_err());
}

#[test]
fn configurations_name_what_is_wrong_with_them() {
    let good = include_str!("../../../examples/digits.json");
    Config::parse(good).unwrap();
    for (from, to, key, words) in [
        ("\"batch_size\": 64", "\"batch_size\": 0", "train.batch_size", "at least 1"),
        ("\"batch_size\": 64", "\"batch_size\": -1", "train.batch_size", "invalid value"),
        ("\"batch_size\": 64", "\"batch_size\": \"64\"", "train.batch_size", "invalid type"),
        ("\"batch_size\": 64", "\"batchsize\": 64", "train.batchsize", "unknown field"),
        ("\"epochs\": 100", "\"epochs\": 0", "train.epochs", "at least 1"),
        ("\"out_features\": 128", "\"out_features\": 0", "model.layers[0].out_features", "at least 1"),
        (
            "\"activation\": \"relu\"",
            "\"activation\": \"rellu\"",
            "model.layers[0].activation",
            "unknown activation",
        ),
        (
            "\"type\": \"dense\", \"out_features\": 10",
            "\"type\": \"dens\", \"out_features\": 10",
            "model.layers[2].type",
            "unknown layer type",
        ),
        ("\"out_features\": 10", "\"units\": 10", "model.layers[2].units", "unknown field"),
        ("\"lr\": 0.004", "\"lr\": 0", "optimizer.lr", "above 0"),
        ("\"label\": \"last\"", "\"label\": true", "data.label", "the name of a column"),
        ("\"type\": \"cosine\"", "\"type\": \"cosine\", \"warmup\": -1", "schedule.warmup", "at least 0"),
        ("\"model\": {", "\"model\": 3, \"x\": {", "x", "unknown field"),
    ] {
        assert!(good.contains(from), "{from}");
        match Config::parse(&good.replacen(from, to, 1)) {
            Err(NnError::Config { key: k, what, .. }) => {
                assert_eq!(k, key, "{to}: {what}");
                assert!(what.contains(words), "{to}: {what}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    assert!(matches!(Config::parse("{"), Err(NnError::Config { .. })));
    assert!(matches!(Config::parse(&format!("{good} x")), Err(NnError::Config { .. })));
    assert!(matches!(Config::load("/no/such/config.json"), Err(NnError::Io { .. })));
}

/// What the digits example reports after each of its epochs, or of the first so many.
fn digits_example(d: &Device, epochs: Option<u64>) -> Vec<EpochStats> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut c = Config::load(root.join("examples/digits.json")).unwrap();
    c.data.rebase(root).unwrap();
    c.train.run = None;
    c.train.epochs = epochs.unwrap_or(c.train.epochs);
    let data = c.data.open().unwrap();
    assert_eq!((data.train_items(), data.test_items(), data.classes()), (1437, 360, 10));
    let sources = c.sources(&data, d).unwrap();
    let m = c.model(d, &sources).unwrap();
    let mut t = c.trainer(&m, &data, &sources, d).unwrap();
    let r = t.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
    assert_eq!(m.forward(&f32s(d, &[0.0; 64], &[1, 64])).unwrap().shape(), [1, 10]);
    r.history
}

/// To 90 % of the test images; a slow device takes two epochs, with the losses of the CPU.
#[test]
fn the_digits_example_is_learned() {
    for d in devices() {
        let start = Instant::now();
        if slow(&d) {
            println!("skipped all epochs but two on {}: a CPU behind a driver", id(&d));
            for (got, want) in digits_example(&d, Some(2)).iter().zip(&digits_example(&cpu(), Some(2))) {
                let apart = (got.train_loss - want.train_loss).abs();
                assert!(apart <= 2e-3 * (want.train_loss + 0.1), "{got:?}, not {want:?}");
            }
            continue;
        }
        let history = digits_example(&d, None);
        let last = history.last().unwrap();
        println!("{}: {last:?} in {:?}", id(&d), start.elapsed());
        assert!(last.test_accuracy.unwrap() >= 0.90, "{last:?}");
    }
}
