//! Every file call of a training run fails once, in every way that a file call can fail: the run ends in an error or goes on, the last good
//! checkpoint is intact, and `--resume` then gives the bytes of a run that nothing happened to.
//!
//! The calls are those of the C library on files below one folder: `faults/shim.c`, loaded into the binary, counts them and lets the n-th fail.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::trainer::{EpochStats, read_metrics};

const CHECKPOINT: &str = "checkpoint.safetensors";
const BEST: &str = "best.safetensors";
const METRICS: &str = "metrics.jsonl";
/// Holds the number of the process that wrote last.
const LOCK: &str = "run.lock";
const EPOCHS: usize = 3;
const SIGKILL: i32 = 9;
/// A run takes a fraction of a second.
const TOO_LONG: Duration = Duration::from_secs(60);
/// What `faults/shim.c` can do to a call.
const FAULTS: [&str; 6] = ["error", "stay", "full", "short", "interrupt", "kill"];

/// A folder with a configuration, its data and run folders, and the compiled shim and the log of calls beside it.
struct Bench {
    base: PathBuf,
    folder: PathBuf,
}

/// How a process ended, what it complained of, and the file calls that it made.
struct Ended {
    status: ExitStatus,
    errors: String,
    calls: Vec<String>,
}

impl Bench {
    /// `None`, with the reason printed, where there is no C compiler.
    fn new(name: &str) -> Option<Bench> {
        let base = std::env::temp_dir().join(format!("trefoil-faults-{name}-{}", std::process::id()));
        let folder = base.join("folder");
        fs::create_dir_all(&folder).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiled = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(base.join("shim.so"))
            .arg(root.join("tests/faults/shim.c"))
            .arg("-ldl")
            .status();
        match compiled {
            Ok(status) => assert!(status.success(), "the shim does not compile"),
            Err(e) => {
                eprintln!("skipped: gcc is absent ({e})");
                assert!(!trefoil::is_required("gcc"), "TREFOIL_REQUIRE names gcc");
                return None;
            }
        }
        let digits = fs::read_to_string(root.join("../data/digits.csv")).unwrap();
        let rows: Vec<&str> = digits.lines().take(129).collect();
        fs::write(folder.join("digits.csv"), rows.join("\n")).unwrap();
        let data = folder.join("digits.csv");
        let config = format!(
            r#"{{
  "data": {{ "csv": "{}", "label": "last", "scale": 0.0625, "train_rows": 96, "test_rows": 32 }},
  "model": {{ "layers": [
    {{ "type": "dense", "out_features": 16, "activation": "relu" }},
    {{ "type": "dropout", "p": 0.1 }},
    {{ "type": "dense", "out_features": 10 }} ] }},
  "optimizer": {{ "type": "adamw", "lr": 0.01 }},
  "train": {{ "epochs": {EPOCHS}, "batch_size": 32, "seed": 42 }}
}}"#,
            data.display()
        );
        fs::write(folder.join("run.json"), config).unwrap();
        Some(Bench { base, folder })
    }

    fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.run_folder().join(name)
    }

    /// Runs `trefoil train` on the run folder; from file call `at` on with the fault `how`.
    fn train(&self, more: &[&str], how: &str, at: usize) -> Ended {
        let [log, said, errors] = ["calls", "said", "errors"].map(|name| self.base.join(name));
        let _ = fs::remove_file(&log);
        let mut child = Command::new(env!("CARGO_BIN_EXE_trefoil"))
            .args(["train", "--backend", "cpu"])
            .arg(self.folder.join("run.json"))
            .arg("--run")
            .arg(self.run_folder())
            .args(more)
            .env_remove("TREFOIL_BACKEND")
            .env("LD_PRELOAD", self.base.join("shim.so"))
            .env("FAULT_UNDER", &self.folder)
            .env("FAULT_LOG", &log)
            .env("FAULT_HOW", how)
            .env("FAULT_AT", at.to_string())
            .stdout(fs::File::create(&said).unwrap())
            .stderr(fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > TOO_LONG {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{how} at file call {at}: the run hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let calls = text(&log).lines().map(str::to_string).collect();
        Ended { status, errors: text(&errors), calls }
    }

    /// A run that nothing happens to; its calls.
    fn train_well(&self, more: &[&str]) -> Vec<String> {
        let ended = self.train(more, "", 0);
        assert!(ended.status.success(), "{}", ended.errors);
        ended.calls
    }

    /// All files of the run folder.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let Ok(entries) = fs::read_dir(self.run_folder()) else { return BTreeMap::new() };
        let file = |e: fs::DirEntry| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap());
        entries.map(|e| file(e.unwrap())).collect()
    }

    /// Puts files in place of what is in the run folder, and removes runs that were moved aside.
    fn put(&self, files: &BTreeMap<String, Vec<u8>>) {
        let entries = fs::read_dir(&self.folder).unwrap().map(|e| e.unwrap().path());
        entries.filter(|path| path.is_dir()).for_each(|path| fs::remove_dir_all(path).unwrap());
        if !files.is_empty() {
            fs::create_dir(self.run_folder()).unwrap();
        }
        files.iter().for_each(|(name, bytes)| fs::write(self.file(name), bytes).unwrap());
    }

    fn metrics(&self) -> Vec<EpochStats> {
        let all = read_metrics(&self.file(METRICS)).unwrap();
        all.into_iter().map(|s| EpochStats { seconds: 0.0, ..s }).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// A run without faults: what it leaves after each epoch.
struct Expected {
    /// Checkpoints after epochs 1, 2, ...
    checkpoints: Vec<Vec<u8>>,
    /// The run folder after the first epoch, and after the last.
    first: BTreeMap<String, Vec<u8>>,
    last: BTreeMap<String, Vec<u8>>,
    metrics: Vec<EpochStats>,
}

impl Expected {
    fn new(bench: &Bench) -> Expected {
        bench.put(&BTreeMap::new());
        let calls = bench.train_well(&[]);
        let (last, metrics) = (bench.contents(), bench.metrics());
        let saved = format!("rename {}", bench.file(CHECKPOINT).display());
        let mut after = vec![];
        // The process is killed by the call after the one that put a checkpoint in its place.
        for (i, _) in calls.iter().enumerate().filter(|(_, call)| **call == saved) {
            bench.put(&BTreeMap::new());
            bench.train(&[], "kill", i + 2);
            after.push(bench.contents());
        }
        assert_eq!(after.len(), EPOCHS, "{calls:?}");
        let checkpoints = after.iter().map(|files| files[CHECKPOINT].clone()).collect();
        Expected { checkpoints, first: after.swap_remove(0), last, metrics }
    }

    /// The run folder is that of the finished run, without anything beside it.
    fn assert_finished(&self, bench: &Bench, what: &str) {
        let found = bench.contents();
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&self.last), "{what}");
        for (name, bytes) in &self.last {
            assert!(
                [METRICS, LOCK].contains(&name.as_str()) || bytes == &found[name],
                "{what}: {name} differs"
            );
        }
        assert_eq!(bench.metrics(), self.metrics, "{what}");
    }

    /// The checkpoint is one of the run's, whole, not older than that of epoch `least`, and its metrics are there.
    fn assert_intact(&self, bench: &Bench, least: u64, what: &str) {
        let path = bench.file(CHECKPOINT);
        let epoch = match path.exists() {
            true => Checkpoint::load(&path).unwrap_or_else(|e| panic!("{what}: {e}")).progress.epoch,
            false => 0,
        };
        assert!(epoch >= least, "{what}: the checkpoint of epoch {least} is lost");
        if epoch > 0 {
            assert!(
                fs::read(&path).unwrap() == self.checkpoints[epoch as usize - 1],
                "{what}: epoch {epoch}"
            );
            Checkpoint::load(bench.file(BEST)).unwrap_or_else(|e| panic!("{what}: {e}"));
            let kept = bench.metrics();
            assert_eq!(kept[..epoch as usize], self.metrics[..epoch as usize], "{what}");
        }
    }
}

/// One run with a fault, what must hold after it, and its resumption.
fn check(bench: &Bench, expected: &Expected, args: &[&str], least: u64, how: &str, at: usize) {
    let ended = bench.train(args, how, at);
    let errors = &ended.errors;
    let call = ended.calls.get(at - 1).map_or("no call", String::as_str);
    let what = format!("{how} at file call {at} ({call}): {errors}");
    assert!(!errors.contains("panicked"), "{what}");
    match (ended.status.code(), how) {
        (None, "kill") => assert_eq!(ended.status.signal(), Some(SIGKILL), "{what}"),
        (Some(0), "error" | "stay" | "full" | "short" | "interrupt") => {
            expected.assert_finished(bench, &what)
        }
        (Some(1), "error" | "stay" | "full") => {
            assert!(errors.starts_with("error: ") && errors.contains("caused by: "), "{what}");
            let left = bench.contents().into_keys().find(|name| !expected.last.contains_key(name));
            assert!(how == "stay" || left.is_none(), "{what}: {left:?} is left");
        }
        _ => panic!("ended with {}; {what}", ended.status),
    }
    expected.assert_intact(bench, least, &what);
    bench.train_well(&["--resume"]);
    expected.assert_finished(bench, &format!("resumed after {what}"));
}

/// Every fault at every call of `trefoil train` with `args`, begun with `before` in the run folder, which holds the checkpoint of epoch `least`.
fn at_every_call(
    bench: &Bench,
    expected: &Expected,
    before: &BTreeMap<String, Vec<u8>>,
    args: &[&str],
    least: u64,
) {
    bench.put(before);
    let calls = bench.train_well(args);
    expected.assert_finished(bench, "without a fault");
    assert!(calls.len() > 20, "{calls:?}");
    for how in FAULTS {
        let mut runs = 0;
        for (i, call) in calls.iter().enumerate() {
            let moves = call.starts_with("read ") || call.starts_with("write ");
            let repeats = moves || call.starts_with("open ") || call.starts_with("fsync ");
            // What a system does not do: half of a rename, an interrupted one.
            if (how == "short" && !moves) || (how == "interrupt" && !repeats) {
                continue;
            }
            bench.put(before);
            check(bench, expected, args, least, how, i + 1);
            runs += 1;
        }
        println!("{how}: {runs} runs, for {} file calls", calls.len());
    }
}

#[test]
fn a_run_survives_every_file_fault() {
    let Some(bench) = Bench::new("run") else { return };
    let expected = Expected::new(&bench);
    at_every_call(&bench, &expected, &BTreeMap::new(), &[], 0);
}

#[test]
fn a_resumed_run_survives_every_file_fault() {
    let Some(bench) = Bench::new("resume") else { return };
    let expected = Expected::new(&bench);
    at_every_call(&bench, &expected, &expected.first, &["--resume"], 1);
}
