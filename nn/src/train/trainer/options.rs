//! Settings of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use crate::core::tensor::MemoryFormat;
use crate::train::losses::{Criterion, CrossEntropyLoss, MseLoss};
use crate::train::optim::{Plateau, Schedule};

/// What training minimises.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Objective {
    /// Cross entropy of logits `[N, C]` against class ids; accuracy is reported.
    Classify(CrossEntropyLoss),
    /// Mean squared error of outputs against values.
    Regress(MseLoss),
    /// Any loss of outputs and targets that reduces to a mean, with what else is to be measured as the trainer's metrics.
    Custom(Arc<dyn Criterion>),
}

impl Objective {
    /// Any loss of outputs and targets.
    pub fn custom(loss: impl Criterion + 'static) -> Self {
        Objective::Custom(Arc::new(loss))
    }

    pub(super) fn criterion(&self) -> &dyn Criterion {
        match self {
            Objective::Classify(l) => l,
            Objective::Regress(l) => l,
            Objective::Custom(l) => &**l,
        }
    }
}

/// Limits on gradients, applied before each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Euclidean norm over all parameters.
    Norm(f64),
    /// Absolute value.
    Value(f64),
}

/// When to end before the last epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    /// Epochs without improvement of the test loss (training loss without test data) that are tolerated.
    pub patience: u64,
    /// Improvement that counts.
    pub min_delta: f64,
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Number of epochs, counted over all resumed parts.
    pub epochs: u64,
    /// Items per batch (per micro-batch, where gradients accumulate).
    pub batch_size: usize,
    /// Micro-batches whose gradients make one step. The gradient is that of the mean over all their items.
    pub accumulate: usize,
    /// Seed of the data's order.
    pub seed: u64,
    /// New order in every epoch.
    pub shuffle: bool,
    /// Learning rate over optimizer steps.
    pub schedule: Schedule,
    /// Reduction when the test loss stalls.
    pub plateau: Option<Plateau>,
    /// Limits on gradients.
    pub clip: Option<Clip>,
    /// Early end.
    pub early_stopping: Option<EarlyStopping>,
    /// Evaluate with the optimizer's moving average of the parameters, where it keeps one.
    pub evaluate_ema: bool,
    /// Anomaly mode: a loss (or, without loss scaling, a gradient) that is not finite changes no parameter, and training stops with
    /// [`NnError::Anomaly`](crate::NnError::Anomaly), which names the step and the layer. Everything is found on the device; the host asks
    /// after this many steps, and at the end of an epoch. Parameters and optimizer state are then those before the bad step; buffers
    /// (running statistics) may have seen it, and the run folder holds the last good epoch.
    pub anomaly: Option<u64>,
    /// Records steps on the device, from the clearing of gradients to the update, and replays them, with the same bits as plain calls give: one graph for
    /// each shape of batches; where gradients accumulate, one for the first, the last and the other batches of a step. Where that does not go (in anomaly
    /// mode, for steps that need the host), the calls are made as ever, and [`Trainer::capture_status`](super::Trainer::capture_status) says why.
    pub capture: bool,
    /// Memory format of inputs of 3 to 5 axes, which convolutional networks keep from layer to layer.
    pub memory_format: MemoryFormat,
    /// Folder for `checkpoint.safetensors`, `best.safetensors`, `metrics.jsonl` and `curves.svg`. One trainer at a time uses it. An earlier
    /// run in it that is not resumed is moved aside (to `name.1`, ..) when the first epoch is saved.
    pub run: Option<PathBuf>,
    /// Ends training after the present step as soon as it is true: the state is saved, and a resumed run goes on with the next step. For
    /// handlers of signals, and other threads.
    pub stop: Arc<AtomicBool>,
    /// What else defines the training, by name: kept in the checkpoint, and a run that resumes must have the same. The trainer adds what it
    /// knows itself.
    pub settings: BTreeMap<String, Value>,
    /// Further files of the run folder, by name, with their texts: what the run was and what its data means. Not compared when a run is resumed;
    /// written anew then.
    pub files: BTreeMap<String, String>,
    /// Whether to show progress on the terminal, where the feature `progress` is there.
    pub progress: bool,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            epochs: 10,
            batch_size: 32,
            accumulate: 1,
            seed: 0,
            shuffle: true,
            schedule: Schedule::Constant,
            plateau: None,
            clip: None,
            early_stopping: None,
            evaluate_ema: false,
            anomaly: None,
            capture: true,
            memory_format: MemoryFormat::Contiguous,
            run: None,
            stop: Arc::default(),
            settings: BTreeMap::new(),
            files: BTreeMap::new(),
            progress: false,
        }
    }
}
