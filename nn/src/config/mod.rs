//! Training runs described by JSON files.
//!
//! ```json
//! {
//!   "data": { "csv": "data/digits.csv", "scale": 0.0625, "train_rows": 1437, "test_rows": 360 },
//!   "model": { "layers": [ { "type": "dense", "out_features": 64, "activation": "relu" }, { "type": "dense", "out_features": 10 } ] },
//!   "optimizer": { "type": "adamw", "lr": 0.001 },
//!   "train": { "epochs": 20, "batch_size": 64, "seed": 1, "run": "runs/digits" }
//! }
//! ```
//!
//! Unknown keys, wrong types and values out of range are errors that name the place in the file. Paths are relative to the current folder.

mod data;
mod loss;
mod optimizer;
mod schedule;
mod train;

use std::path::Path;

use serde::Deserialize;
use trefoil::DType;

pub use self::data::{Column, DataConfig, TargetKind};
pub use self::loss::LossConfig;
pub use self::optimizer::OptimizerConfig;
pub use self::schedule::ScheduleConfig;
pub use self::train::TrainConfig;

use crate::data::{Dataset, Source};
use crate::error::{NnError, Result};
use crate::layer::{Build, Layer};
use crate::losses::{CrossEntropyLoss, MseLoss};
use crate::network::{Network, NetworkConfig};
use crate::optim::Optimizer;
use crate::tensor::Device;
use crate::trainer::{Clip, EarlyStopping, Objective, TrainOptions};

/// A training run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Training and test data.
    pub data: DataConfig,
    /// The network; see [`network`](crate::network).
    pub model: NetworkConfig,
    /// What is minimised; by default cross entropy for class ids and squared error for values.
    #[serde(default)]
    pub loss: Option<LossConfig>,
    /// Update rule.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Learning rate over time.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// Length, batches, run folder.
    #[serde(default)]
    pub train: TrainConfig,
}

fn one() -> f64 {
    1.0
}

fn check(ok: bool, key: impl Into<String>, expected: &str, got: impl std::fmt::Display) -> Result<()> {
    if ok { Ok(()) } else { Err(NnError::config(key, format!("expected {expected}, got {got}"))) }
}

impl Config {
    /// Parses and checks a configuration. Errors: [`NnError::Config`] with the path of the value.
    pub fn parse(text: &str) -> Result<Config> {
        let mut de = serde_json::Deserializer::from_str(text);
        let config: Config = serde_path_to_error::deserialize(&mut de)
            .map_err(|e| NnError::config(e.path().to_string(), e.inner().to_string()))?;
        de.end().map_err(|e| NnError::config(".", e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Reads a file. Errors: [`NnError::Io`], and those of [`Config::parse`] with the file's name.
    pub fn load(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(NnError::io("read", path))?;
        Config::parse(&text).map_err(|e| match e {
            NnError::Config { key, what, .. } => {
                NnError::Config { file: path.display().to_string(), key, what }
            }
            e => e,
        })
    }

    /// Checks ranges that types do not express.
    pub fn check(&self) -> Result<()> {
        self.train.check()?;
        self.data.check()?;
        self.model.check("model")?;
        self.loss.iter().try_for_each(LossConfig::check)?;
        self.optimizer.check()?;
        self.schedule.check()
    }

    /// Training and test data. Errors: of the file, and rows that it does not have.
    pub fn datasets(&self) -> Result<(Dataset, Option<Dataset>)> {
        self.data.datasets()
    }

    /// A data set as batches on a device: resident if it is small enough, uploaded ahead of use otherwise.
    pub fn source(&self, data: Dataset, device: &Device) -> Result<Box<dyn Source>> {
        self.data.source(data, device)
    }

    /// The model, for items of the given shape. Errors: [`NnError::Config`] that names the layer which does not take them.
    pub fn model(&self, device: &Device, item: &[usize]) -> Result<Network> {
        let cx = Build::new(device, self.train.seed);
        Network::for_items(&cx, &self.model, "model", &[(item, DType::F32)])
    }

    /// The optimizer of a model.
    pub fn optimizer(&self, model: &dyn Layer) -> Result<Optimizer> {
        self.optimizer.build(model)
    }

    /// The loss.
    pub fn objective(&self) -> Objective {
        match (&self.loss, self.data.target) {
            (Some(loss), _) => loss.objective(),
            (None, TargetKind::Class) => Objective::Classify(CrossEntropyLoss::default()),
            (None, TargetKind::Value) => Objective::Regress(MseLoss::default()),
        }
    }

    /// The trainer's settings for `items` training items.
    pub fn options(&self, items: usize) -> TrainOptions {
        let t = &self.train;
        let per_epoch = items.div_ceil(t.batch_size.max(1)) as u64;
        let (schedule, plateau) = self.schedule.build(t.epochs, per_epoch);
        TrainOptions {
            epochs: t.epochs,
            batch_size: t.batch_size,
            seed: t.seed,
            shuffle: t.shuffle,
            schedule,
            plateau,
            clip: t.clip_norm.map(Clip::Norm).or(t.clip_value.map(Clip::Value)),
            early_stopping: t.patience.map(|patience| EarlyStopping { patience, min_delta: 0.0 }),
            run: t.run.clone(),
            ..TrainOptions::default()
        }
    }
}
