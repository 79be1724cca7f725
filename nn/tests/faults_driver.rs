//! Every call of a driver fails in a training run, once or from then on: the run ends in an error or goes on, the last good checkpoint is
//! intact, and nothing is left on the device.
//!
//! The device is the recording mock driver, which runs no kernels: memory reads as it was written. What the run does beside arithmetic is
//! what it does on every device. A sample of the calls fails; with `CI_FULL` in the environment every one does.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trefoil::testing::MockDriver;
use trefoil::{Engine, GpuError};
use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::config::Config;
use trefoil_nn::{Device, NnError};

const CHECKPOINT: &str = "run/checkpoint.safetensors";
const EPOCHS: usize = 3;
/// Calls of a method that fail by default, spread over the run, beside the first and the last ones.
const SAMPLE: usize = 12;
/// A run takes a fraction of a second.
const TOO_LONG: Duration = Duration::from_secs(60);
/// The kernel cache is off in the process that tests: every unit is compiled in every run.
const CACHE: (&str, &str) = ("TREFOIL_CACHE", "off");

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("trefoil-faults-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Steps are plain calls: where a recording fails, the run goes on with them, and launches others than expected.
    fn config(&self) -> Config {
        let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/digits.csv");
        let text = format!(
            r#"{{
  "data": {{ "csv": "{digits}", "label": "last", "scale": 0.0625, "train_rows": 64, "test_rows": 32 }},
  "model": {{ "layers": [
    {{ "type": "dense", "out_features": 16, "activation": "relu" }},
    {{ "type": "dropout", "p": 0.1 }},
    {{ "type": "dense", "out_features": 10 }} ] }},
  "optimizer": {{ "type": "adamw", "lr": 0.01 }},
  "train": {{ "epochs": {EPOCHS}, "capture": false, "batch_size": 32, "seed": 42, "clip_norm": 1.0, "run": "{}" }}
}}"#,
            self.0.join("run").display()
        );
        Config::parse(&text).unwrap()
    }

    /// Files of the run folder.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.0.join("run")).unwrap().map(|e| e.unwrap());
        entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
    }

    /// Puts files in place of what is in the run folder; there is none where there are no files.
    fn put(&self, files: &BTreeMap<String, Vec<u8>>) {
        let run = self.0.join("run");
        let _ = fs::remove_dir_all(&run);
        if !files.is_empty() {
            fs::create_dir(&run).unwrap();
        }
        files.iter().for_each(|(name, bytes)| fs::write(run.join(name), bytes).unwrap());
    }

    fn checkpoint(&self) -> Option<Vec<u8>> {
        fs::read(self.0.join(CHECKPOINT)).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Trains from the run folder's checkpoint on, if there is one. Everything on the device is dropped before it returns.
fn train(config: &Config, driver: &Arc<MockDriver>, after_epoch: &mut dyn FnMut()) -> Result<(), NnError> {
    let device: Device = Arc::new(Engine::new(driver.clone())?);
    let data = config.data.open()?;
    let sources = config.sources(&data, &device)?;
    let model = config.model(&device, &sources)?;
    let mut trainer = config.trainer(&model, &data, &sources, &device)?;
    trainer.resume()?;
    trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| {
        after_epoch();
        true
    })?;
    Ok(())
}

/// The error that a driver gave, wherever the run met it.
fn is_of_driver(e: &NnError) -> bool {
    match e.root() {
        NnError::Gpu(GpuError::Driver(d)) => d.code == CODE,
        NnError::Gpu(GpuError::OutOfMemory { .. } | GpuError::Poisoned { .. }) => true,
        NnError::Checkpoint { source: Some(e), .. } => is_of_driver(e),
        _ => false,
    }
}

/// Status of the failures.
const CODE: i64 = 77;

/// What a method can fail with.
fn errors(method: &str) -> Vec<GpuError> {
    let mut all = vec![
        GpuError::driver("planned", CODE, "REFUSED"),
        GpuError::driver_fatal("planned", CODE, "DEVICE_LOST"),
    ];
    if method == "alloc" {
        all.push(GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 });
    }
    all
}

/// Which of `n` calls fail.
fn chosen(n: usize) -> BTreeSet<usize> {
    if std::env::var_os("CI_FULL").is_some() {
        return (1..=n).collect();
    }
    let spread = (1..=n).step_by(n.div_ceil(SAMPLE).max(1));
    spread.chain([2, n.saturating_sub(1), n]).filter(|i| (1..=n).contains(i)).collect()
}

/// The run without a failure.
struct Expected {
    counts: BTreeMap<&'static str, usize>,
    launches: Vec<String>,
    /// Checkpoints after epochs 1, 2, ...
    checkpoints: Vec<Vec<u8>>,
    /// The run folder after the first epoch.
    first: BTreeMap<String, Vec<u8>>,
}

impl Expected {
    fn new(folder: &Folder, config: &Config) -> Expected {
        let driver = Arc::new(MockDriver::default());
        let (mut checkpoints, mut first) = (vec![], BTreeMap::new());
        let mut after_epoch = || {
            checkpoints.push(folder.checkpoint().unwrap());
            if checkpoints.len() == 1 {
                first = folder.contents();
            }
        };
        train(config, &driver, &mut after_epoch).unwrap();
        Expected { counts: driver.counts(), launches: driver.launches(), checkpoints, first }
    }

    /// One run with a failure, begun with `before` in the run folder, and its resumption. Whether the run went on to its end.
    fn check(
        &self,
        folder: &Folder,
        config: &Config,
        before: &BTreeMap<String, Vec<u8>>,
        fault: Fault<'_>,
    ) -> bool {
        let Fault { method, n, lasting, ref error, launches } = fault;
        let what = format!("{method} {n}{}: {error}", if lasting { " and later" } else { "" });
        folder.put(before);
        let driver = Arc::new(MockDriver::default());
        driver.fail_calls(method, n..=if lasting { usize::MAX } else { n }, error.clone());
        let began = Instant::now();
        let done = train(config, &driver, &mut || {});
        assert!(began.elapsed() < TOO_LONG, "{what}: took {:?}", began.elapsed());
        assert_eq!(driver.memory_in_use(), 0, "{what}: device memory is left");
        assert_eq!(driver.live_handles(), (0, 0), "{what}: streams or events are left");
        let went_on = done.is_ok();
        match done {
            Ok(()) => {
                assert_eq!(folder.checkpoint().as_ref(), self.checkpoints.last(), "{what}");
                assert_eq!(driver.launches(), launches, "{what}");
            }
            Err(e) => assert!(is_of_driver(&e), "{what}: {e}"),
        }
        let least = if before.is_empty() { 0 } else { 1 };
        let epoch = match folder.checkpoint() {
            Some(bytes) => {
                let epoch = Checkpoint::load(folder.0.join(CHECKPOINT)).unwrap().progress.epoch as usize;
                assert!(
                    bytes == self.checkpoints[epoch - 1],
                    "{what}: the checkpoint of epoch {epoch} differs"
                );
                epoch
            }
            None => 0,
        };
        assert!(epoch >= least, "{what}: the checkpoint is lost");
        train(config, &Arc::new(MockDriver::default()), &mut || {}).unwrap();
        assert_eq!(folder.checkpoint().as_ref(), self.checkpoints.last(), "{what}: the resumed run differs");
        went_on
    }
}

/// A failure, and what the run launches without it.
struct Fault<'a> {
    method: &'static str,
    n: usize,
    lasting: bool,
    error: GpuError,
    launches: &'a [String],
}

/// Every failure of every method that the run calls, begun with `before` in the run folder.
fn at_every_call(name: &str, resumed: bool) {
    let folder = Folder::new(name);
    let config = folder.config();
    let expected = Expected::new(&folder, &config);
    let (mut counts, mut launches, mut before) =
        (expected.counts.clone(), expected.launches.clone(), BTreeMap::new());
    if resumed {
        before = expected.first.clone();
        folder.put(&before);
        let driver = Arc::new(MockDriver::default());
        train(&config, &driver, &mut || {}).unwrap();
        (counts, launches) = (driver.counts(), driver.launches());
    }
    for method in
        ["alloc", "new_stream", "copy_in", "copy_out", "compile", "load", "function", "launch", "synchronize"]
    {
        assert!(counts.contains_key(method), "the run never calls {method}");
    }
    for (&method, &count) in &counts {
        let (mut runs, mut went_on) = (0, 0);
        for n in chosen(count) {
            for error in errors(method) {
                for lasting in [false, true] {
                    let fault = Fault { method, n, lasting, error: error.clone(), launches: &launches };
                    went_on += usize::from(expected.check(&folder, &config, &before, fault));
                    runs += 1;
                }
            }
        }
        println!(
            "{name}: {method}: {} of {count} calls failed in {runs} runs, {went_on} went on",
            chosen(count).len()
        );
    }
}

/// Runs a test of this program again, without the kernel cache; false in that process.
fn without_cache(test: &str) -> bool {
    if std::env::var(CACHE.0).is_ok_and(|v| v == CACHE.1) {
        return false;
    }
    let own = std::env::current_exe().unwrap();
    let ended = Command::new(own).args([test, "--exact", "--nocapture"]).env(CACHE.0, CACHE.1).status();
    assert!(ended.unwrap().success(), "{test} failed");
    true
}

#[test]
fn a_run_survives_every_driver_fault() {
    if !without_cache("a_run_survives_every_driver_fault") {
        at_every_call("driver", false);
    }
}

#[test]
fn a_resumed_run_survives_every_driver_fault() {
    if !without_cache("a_resumed_run_survives_every_driver_fault") {
        at_every_call("driver-resumed", true);
    }
}
