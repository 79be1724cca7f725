//! The run folder: who may write to it, what is kept, how a run stops and goes on, and damage.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::common::runs::Folder;
use crate::common::{cpu, devices, noise};
use trefoil::ops::activation::Activation;
use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Dense, Dropout, Sequential};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{
    Callback, Clip, Ended, EpochStats, Objective, Report, StepEnd, TrainOptions, read_metrics,
};
use trefoil_nn::{
    CrossEntropyLoss, DType, Device, InitContext, LayerExt, NnError, Optimizer, Result, StateFile, Trainer,
};

const CHECKPOINT: &str = "checkpoint.safetensors";

fn data(d: &Device, n: usize) -> ResidentSource {
    let x = noise(5, 2 * n).into_iter().map(|v| v as f32).collect();
    let set = Dataset::new(x, &[2], Targets::Classes((0..n as i64).map(|i| i % 3).collect())).unwrap();
    ResidentSource::new(&set, d, DType::F32).unwrap()
}

fn model(d: &Device) -> Sequential {
    let cx = InitContext::new(d, 11);
    Sequential::new()
        .push(Dense::new(&cx, 2, 8).unwrap().activation(Activation::Relu))
        .push(Dropout::new(&cx, 0.1).unwrap())
        .push(Dense::new(&cx, 8, 3).unwrap())
}

fn options(run: &Path) -> TrainOptions {
    TrainOptions { epochs: 3, batch_size: 16, seed: 4, run: Some(run.into()), ..TrainOptions::default() }
}

fn trainer<'a>(d: &Device, m: &'a Sequential, o: TrainOptions) -> Result<Trainer<'a>> {
    let objective = Objective::Classify(CrossEntropyLoss::default());
    Trainer::new(m, Optimizer::adamw(m, 0.02, 0.01)?, objective, d, o)
}

/// Trains on 70 items, in 5 batches an epoch, up to the end of epoch `stop`.
fn run(d: &Device, folder: &Path, resume: bool, stop: u64) -> Report {
    let m = model(d);
    let mut t = trainer(d, &m, options(folder)).unwrap();
    assert!(!resume || t.resume().unwrap());
    t.fit(&data(d, 70), Some(&data(d, 20)), &mut |s| s.epoch < stop).unwrap()
}

fn bytes(folder: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(folder.0.join(name)).unwrap()
}

#[test]
fn one_trainer_at_a_time_uses_a_folder() {
    let (d, f) = (cpu(), Folder::new("locked"));
    let (a, b) = (model(&d), model(&d));
    let first = trainer(&d, &a, options(&f.0)).unwrap();
    match trainer(&d, &b, options(&f.0)) {
        Err(NnError::Locked { path, holder }) => {
            assert_eq!(path, f.0);
            assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    trainer(&d, &b, options(&f.0)).unwrap();
}

#[test]
fn a_fresh_run_moves_the_old_one_aside_when_it_has_something_to_save() {
    let (d, f) = (cpu(), Folder::new("moved"));
    let folder = f.0.join("run");
    run(&d, &folder, false, 2);
    let names = [CHECKPOINT, "best.safetensors", "metrics.jsonl", "curves.svg"];
    let read = |run: &str| names.map(|n| std::fs::read(f.0.join(run).join(n)).unwrap());
    let old = read("run");
    let m = model(&d);
    let mut o = options(&folder);
    o.stop.store(true, Ordering::Relaxed);
    let mut t = trainer(&d, &m, o.clone()).unwrap();
    let report = t.fit(&data(&d, 70), None, &mut |_| true).unwrap();
    assert_eq!((report.ended, report.history.len()), (Ended::Stopped, 0));
    assert!(read("run") == old);
    drop(t);
    run(&d, &folder, false, 1);
    assert!(read("run.1") == old);
    // The third one's first epoch goes aside too; what is in the way of a name stays.
    std::fs::write(f.0.join("run.2"), "mine").unwrap();
    run(&d, &folder, false, 1);
    assert_eq!(read_metrics(&f.0.join("run.3/metrics.jsonl")).unwrap().len(), 1);
    // The new folder is locked as the old one was.
    o.stop = Default::default();
    let a = model(&d);
    let mut t = trainer(&d, &a, o.clone()).unwrap();
    t.fit(&data(&d, 70), None, &mut |_| true).unwrap();
    assert!(f.0.join("run.4").is_dir());
    assert!(matches!(trainer(&d, &m, o), Err(NnError::Locked { .. })));
}

/// Asks to stop in some step.
struct StopAt(std::sync::Arc<std::sync::atomic::AtomicBool>, u64);

impl Callback for StopAt {
    fn step_end(&mut self, s: &StepEnd<'_>) -> Result<()> {
        self.0.store(s.step == self.1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_run_that_stops_at_any_step_goes_on_with_the_next() {
    for d in devices() {
        let whole = Folder::new("unstopped");
        let a = run(&d, &whole.0, false, 9).history;
        // Within epochs, at their ends, and several times.
        for stops in [&[1][..], &[3, 4, 8], &[5], &[14], &[15]] {
            let parts = Folder::new("stopped");
            for (i, &stop) in stops.iter().enumerate() {
                let m = model(&d);
                let o = options(&parts.0);
                let flag = o.stop.clone();
                let mut t = trainer(&d, &m, o).unwrap().callback(StopAt(flag, stop));
                assert_eq!(t.resume().unwrap(), i > 0);
                let report = t.fit(&data(&d, 70), Some(&data(&d, 20)), &mut |_| true).unwrap();
                assert_eq!((report.ended, t.optimizer().steps()), (Ended::Stopped, stop));
                assert_eq!((t.epochs_done(), t.batches_done()), ((stop - 1) / 5, (stop - 1) % 5 + 1));
            }
            let b = run(&d, &parts.0, true, 9).history;
            for name in [CHECKPOINT, "best.safetensors"] {
                assert!(bytes(&whole, name) == bytes(&parts, name), "{name} after {stops:?}");
            }
            for (a, b) in a.iter().zip(&b) {
                assert_eq!(a, &EpochStats { seconds: a.seconds, ..b.clone() });
            }
            assert_eq!(read_metrics(&parts.0.join("metrics.jsonl")).unwrap(), b);
        }
    }
}

#[test]
fn lines_that_the_checkpoint_does_not_cover_are_removed() {
    let (d, f) = (cpu(), Folder::new("torn"));
    run(&d, &f.0, false, 2);
    let good = bytes(&f, "metrics.jsonl");
    let last = good.split_inclusive(|&b| b == b'\n').next_back().unwrap();
    let later = String::from_utf8(last.to_vec()).unwrap().replace("\"epoch\":2", "\"epoch\":3");
    for more in [&b"{\"epoch\":3,\"st"[..], b"\xff\xfe\0\0", later.as_bytes(), last.split_at(9).0] {
        std::fs::write(f.0.join("metrics.jsonl"), [&good, more].concat()).unwrap();
        std::fs::write(f.0.join("checkpoint.safetensors.tmp1"), "from a kill").unwrap();
        let m = model(&d);
        let mut t = trainer(&d, &m, options(&f.0)).unwrap();
        assert!(t.resume().unwrap());
        assert!(bytes(&f, "metrics.jsonl") == good);
        assert!(!f.0.join("checkpoint.safetensors.tmp1").exists());
    }
    // A damaged line in the middle costs that line alone.
    let mut torn = good.clone();
    torn[3] = 0;
    std::fs::write(f.0.join("metrics.jsonl"), &torn).unwrap();
    let done = run(&d, &f.0, true, 9);
    assert_eq!(done.history.iter().map(|s| s.epoch).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(read_metrics(&f.0.join("metrics.jsonl")).unwrap(), done.history);
}

#[test]
fn every_flipped_bit_of_a_checkpoint_is_an_error_that_names_the_file() {
    let (d, f) = (cpu(), Folder::new("flipped"));
    run(&d, &f.0, false, 1);
    let good = bytes(&f, CHECKPOINT);
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let path = f.0.join("flipped.safetensors");
    // All bits of the header's length, and one of every other byte (all of them were tried once; that takes half a minute).
    let bits = (0..64).chain((8..good.len()).map(|i| 8 * i + i % 8));
    for bit in bits {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bad).unwrap();
        let e = Checkpoint::load(&path).expect_err(&format!("bit {bit}"));
        assert!(matches!(&e, NnError::Checkpoint { path: p, .. } if *p == path), "bit {bit}: {e}");
        if bit >= 8 * header {
            assert!(e.to_string().contains("tensor `"), "bit {bit}: {e}");
            if bit % 8 == 0 {
                let file = StateFile::open(&path).unwrap();
                assert!(file.names().any(|n| file.read(n).is_err()), "bit {bit}");
                assert!(file.state_dict(&d).is_err(), "bit {bit}");
            }
        }
    }
    std::fs::write(&path, &good).unwrap();
    assert!(Checkpoint::load(&path).is_ok() && StateFile::open(&path).unwrap().state_dict(&d).is_ok());
}

#[test]
fn checkpoints_without_checksums_are_loaded() {
    let (d, f) = (cpu(), Folder::new("old"));
    let path = f.0.join("old.safetensors");
    let weight = crate::common::f32s(&d, &[1.0, 2.0], &[2]);
    let state = trefoil_nn::StateDict::from([("weight".to_string(), weight)]);
    let text =
        r#"{"version":1,"epoch":7,"step":70,"seed":3,"batch_size":8,"counters":{},"state":{"waited":2}}"#;
    let save = |text: &str| {
        let options = trefoil_nn::state_file::SaveOptions::new().metadata("trefoil", text);
        trefoil_nn::state_file::save(&state, &path, &options).unwrap();
        Checkpoint::load(&path)
    };
    let c = save(text).unwrap();
    assert_eq!((c.progress.epoch, c.progress.state["waited"], c.tensors.len()), (7, 2, 1));
    // Version 2 has checksums; without them it is damaged, and later versions are not known.
    for version in ["2", "3"] {
        let e = save(&text.replace("\"version\":1", &format!("\"version\":{version}"))).unwrap_err();
        assert!(matches!(e, NnError::Checkpoint { .. }), "{e}");
    }
}

#[test]
fn a_run_with_other_settings_is_not_resumed() {
    let (d, f) = (cpu(), Folder::new("settings"));
    let spans = |epochs: u64| Schedule::Cosine { total: 5 * epochs, min: 1e-4 };
    let with = |change: &dyn Fn(&mut TrainOptions), lr: f64, items: usize| {
        let m = model(&d);
        let mut o = TrainOptions { schedule: spans(3), ..options(&f.0) };
        change(&mut o);
        let objective = Objective::Classify(CrossEntropyLoss::default());
        let mut t = Trainer::new(&m, Optimizer::adamw(&m, lr, 0.01)?, objective, &d, o)?;
        let before = m.named_parameters()[0].1.get().to_bytes()?;
        if f.0.join(CHECKPOINT).exists()
            && let Err(e) = t.resume()
        {
            assert_eq!(m.named_parameters()[0].1.get().to_bytes()?, before);
            return Err(e);
        }
        t.fit(&data(&d, items), None, &mut |_| false).map(drop)
    };
    with(&|_| (), 0.02, 70).unwrap();
    let refused = |change: &dyn Fn(&mut TrainOptions), lr: f64, items: usize, want: [&str; 3]| {
        let before = bytes(&f, CHECKPOINT);
        match with(change, lr, items) {
            Err(NnError::ResumeMismatch { setting, written, given, .. }) => {
                assert!(setting.contains(want[0]), "{setting}");
                assert_eq!([written.as_str(), given.as_str()], want[1..]);
            }
            other => panic!("{want:?}: {other:?}"),
        }
        assert!(bytes(&f, CHECKPOINT) == before);
    };
    let epochs = |o: &mut TrainOptions| (o.epochs, o.schedule) = (4, spans(4));
    refused(&epochs, 0.02, 70, ["number of epochs", "3", "4"]);
    refused(&|o| o.seed = 5, 0.02, 70, ["seed", "4", "5"]);
    refused(&|o| o.batch_size = 8, 0.02, 70, ["batch size", "16", "8"]);
    refused(&|o| o.shuffle = false, 0.02, 70, ["shuffling", "true", "false"]);
    refused(&|o| o.clip = Some(Clip::Norm(1.0)), 0.02, 70, ["clipping", "\"None\"", "\"Some(Norm(1.0))\""]);
    refused(&|_| (), 0.5, 70, ["learning rate", "0.02", "0.5"]);
    refused(&|_| (), 0.02, 80, ["items.training", "70", "80"]);
    // More epochs under a schedule that does not span them are the same training, only longer.
    with(&|o| o.epochs = 4, 0.02, 70).unwrap();
}
