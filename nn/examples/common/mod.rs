//! What the examples share: the device, the data folder, and the two claims that each example proves about itself.
#![allow(dead_code)] // no example uses all of it

pub(crate) mod text;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use trefoil::ops::core::{CoreOps, Counters};
use trefoil::ops::optimizer::LossScale;
use trefoil::{DType, Registry, Selector};
use trefoil_nn::trainer::{Callback, EpochStats, StepEnd, TrainOptions};
use trefoil_nn::{Device, Optimizer, Result};

/// What `main` returns: an error ends the process with a status other than 0.
pub(crate) type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// The device that `TREFOIL_BACKEND` names (`cpu`, `opencl`, `cuda:1`, ...); without it the first that works, at last the CPU.
pub(crate) fn device() -> Result<Device> {
    let device = Registry::default().open(&Selector::from_env()?)?;
    println!("on {} ({})", device.id(), device.caps().name);
    Ok(device)
}

/// A file of the repository's `data` folder.
pub(crate) fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "data", name].iter().collect()
}

/// Ends an example with the figure that says whether it learned; an error if it did not.
pub(crate) fn learned(figure: String, enough: bool) -> Outcome {
    println!("{figure}: {}", if enough { "learned" } else { "NOT LEARNED" });
    if enough { Ok(()) } else { Err(figure.into()) }
}

/// The dtype of parameters that the first argument names: `f32` (also without an argument), `bf16` or `f16`.
pub(crate) fn dtype() -> std::result::Result<DType, String> {
    match std::env::args().nth(1).as_deref() {
        None | Some("f32") => Ok(DType::F32),
        Some("bf16") => Ok(DType::Bf16),
        Some("f16") => Ok(DType::F16),
        Some(other) => Err(format!("expected f32, bf16 or f16, got `{other}`")),
    }
}

/// Mixed precision: f32 masters of 16-bit parameters, and for f16, whose range is small, a loss that is scaled so that gradients do not
/// vanish.
pub(crate) fn mixed(optimizer: Optimizer, dtype: DType) -> Result<Optimizer> {
    match dtype {
        DType::Bf16 => optimizer.master_weights(),
        DType::F16 => optimizer.master_weights()?.loss_scaling(LossScale::new().interval(200), 65536.0),
        _ => Ok(optimizer),
    }
}

/// Settings that examples with a [`Trainer`](trefoil_nn::Trainer) begin from.
pub(crate) fn options(epochs: u64, batch_size: usize) -> TrainOptions {
    TrainOptions { epochs, batch_size, seed: 1, progress: true, ..TrainOptions::default() }
}

/// One line per epoch.
pub(crate) fn show(s: &EpochStats) -> bool {
    print!("epoch {:>2}  {:5.2} s  loss {:.4}", s.epoch, s.seconds, s.train_loss);
    s.test_loss.iter().for_each(|l| print!("  test {l:.4}"));
    s.test_accuracy.iter().for_each(|a| print!("  accuracy {a:.4}"));
    println!();
    true
}

/// Steps for which a recorded step finds its learning rates in device memory.
const STEPS_AHEAD: u64 = 64;

/// Proves that training stays on the device: once everything has run before, a step copies nothing from the device, does not wait for it, takes no
/// memory from the driver and compiles nothing. It copies nothing to the device either, but for the learning rates of the next recorded steps, once
/// in [`STEPS_AHEAD`].
pub(crate) struct Steady {
    device: Device,
    warm: u64,
    steps: Cell<u64>,
    before: Cell<Option<Counters>>,
    proven: Cell<u64>,
    uploading: Cell<u64>,
}

impl Steady {
    /// The first `warm` steps may allocate.
    pub(crate) fn new(device: &Device, warm: u64) -> Self {
        let (steps, before, proven, uploading) = Default::default();
        Steady { device: device.clone(), warm, steps, before, proven, uploading }
    }

    /// Of a trainer with so many batches an epoch, the last of which may be smaller: batches of each size run as plain calls in the first two epochs,
    /// and are recorded in the third, which takes memory.
    pub(crate) fn of_epochs(device: &Device, batches: u64) -> Self {
        Steady::new(device, 3 * batches + 1)
    }

    /// Called after every step. Panics if the step since the last call did what it should not.
    pub(crate) fn step(&self) {
        let now = self.device.counters();
        self.steps.set(self.steps.get() + 1);
        if let Some(before) = self.before.get() {
            let quiet = |c: Counters| (c.downloads, c.syncs, c.allocations, c.compiles);
            assert_eq!(quiet(before), quiet(now), "step {} left the device or allocated", self.steps.get());
            self.proven.set(self.proven.get() + 1);
            self.uploading.set(self.uploading.get() + u64::from(before.uploads != now.uploads));
        }
        self.before.set(Some(now).filter(|_| self.steps.get() >= self.warm));
    }

    /// What follows may read results.
    pub(crate) fn pause(&self) {
        self.before.set(None);
    }

    /// Panics unless at least ten steps were watched.
    pub(crate) fn finish(&self) {
        let n = self.proven.get();
        assert!(n >= 10, "only {n} steady steps");
        let (uploading, most) = (self.uploading.get(), self.steps.get() / STEPS_AHEAD);
        assert!(
            uploading <= most,
            "{uploading} steps copied to the device, at most {most} for learning rates"
        );
        println!(
            "{n} steps without a transfer, a wait or an allocation, but for learning rates in {uploading}"
        );
    }
}

/// Watches the steps of a trainer.
impl Callback for &Steady {
    fn epoch_begin(&mut self, _: u64) -> Result<()> {
        self.pause();
        Ok(())
    }

    fn step_end(&mut self, _: &StepEnd<'_>) -> Result<()> {
        self.step();
        Ok(())
    }
}

/// A folder with the files of a data set.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Whether it holds files that this process wrote, and goes with them.
    pub(crate) temporary: bool,
}

impl Folder {
    /// The folder that the first argument names; without it a temporary one with the files that `write` makes in it.
    pub(crate) fn open(
        name: &str,
        write: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> std::io::Result<Self> {
        if let Some(path) = std::env::args_os().nth(1) {
            return Ok(Folder { path: path.into(), temporary: false });
        }
        let path = std::env::temp_dir().join(format!("trefoil-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        let folder = Folder { path, temporary: true };
        write(&folder.path)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
