//! Training runs described by JSON files.
//!
//! ```json
//! {
//!   "data": { "csv": "data/digits.csv", "scale": 0.0625, "train_rows": 1437, "test_rows": 360 },
//!   "model": { "layers": [ { "type": "dense", "units": 64, "activation": "relu" }, { "type": "dense", "units": 10 } ] },
//!   "optimizer": { "type": "adamw", "lr": 0.001 },
//!   "train": { "epochs": 20, "batch_size": 64, "seed": 1, "run": "runs/digits" }
//! }
//! ```
//!
//! Unknown keys, wrong types and values out of range are errors that name the place in the file. Paths are relative to the current folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use trefoil::DType;
use trefoil::ops::{Activation, CrossEntropy, OptimRule};

use crate::data::{CsvOptions, Dataset, HostSource, Label, ResidentSource, Source, read_csv};
use crate::error::{NnError, Result};
use crate::layer::Build;
use crate::layers::{
    Activate, Dense, Dropout, Flatten, LogSoftmax, Reshape, Sequential, Softmax, activation_from_name,
};
use crate::losses::{CrossEntropyLoss, MseLoss};
use crate::optim::{Optimizer, Plateau, Schedule};
use crate::tensor::Device;
use crate::trainer::{Clip, EarlyStopping, Objective, TrainOptions};

/// A training run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Training and test data.
    pub data: DataConfig,
    /// The network.
    pub model: ModelConfig,
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

/// Which CSV file and which of its rows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// The file.
    pub csv: PathBuf,
    /// Whether its first line is a header; found out if absent.
    #[serde(default)]
    pub header: Option<bool>,
    /// Target column: `"last"` or its position from 0.
    #[serde(default)]
    pub label: Column,
    /// What the target column holds.
    #[serde(default)]
    pub target: TargetKind,
    /// Factor of the features.
    #[serde(default = "one")]
    pub scale: f64,
    /// Shape of one item's features; by default a vector.
    #[serde(default)]
    pub item_shape: Option<Vec<usize>>,
    /// The first rows train; by default all that do not test.
    #[serde(default)]
    pub train_rows: Option<usize>,
    /// The last rows test; none by default.
    #[serde(default)]
    pub test_rows: usize,
    /// Keep the data on the device if it takes at most this many bytes, otherwise upload batches ahead of use. Default 1 GiB.
    #[serde(default = "gib")]
    pub resident_bytes: usize,
}

fn one() -> f64 {
    1.0
}

fn gib() -> usize {
    1 << 30
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub enum Column {
    /// The last.
    #[default]
    Last,
    /// This one, from 0.
    At(usize),
}

impl TryFrom<serde_json::Value> for Column {
    type Error = String;
    fn try_from(v: serde_json::Value) -> Result<Self, String> {
        match (v.as_str(), v.as_u64()) {
            (Some("last"), _) => Ok(Column::Last),
            (_, Some(n)) => Ok(Column::At(n as usize)),
            _ => Err(format!("expected \"last\" or a column number from 0, got {v}")),
        }
    }
}

/// Meaning of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Class ids.
    #[default]
    Class,
    /// Real numbers.
    Value,
}

/// A sequence of layers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// From input to output.
    pub layers: Vec<LayerConfig>,
}

/// A layer, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LayerConfig {
    /// Fully connected.
    Dense {
        /// Outputs.
        units: usize,
        /// Name of an activation.
        #[serde(default)]
        activation: Option<String>,
        /// Whether there is a bias (default true).
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Elementwise activation.
    Activation {
        /// Its name.
        kind: String,
    },
    /// Dropout.
    Dropout {
        /// Probability of dropping.
        p: f64,
    },
    /// Merges all axes but the first.
    Flatten,
    /// Another shape behind the first axis.
    Reshape {
        /// Sizes, at most one -1.
        shape: Vec<isize>,
    },
    /// Softmax along the last axis.
    Softmax,
    /// Logarithm of softmax along the last axis.
    LogSoftmax,
}

fn yes() -> bool {
    true
}

/// A loss, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LossConfig {
    /// Cross entropy of logits.
    CrossEntropy {
        /// In [0, 1).
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Mean squared error.
    Mse,
}

/// An optimizer, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// Gradient descent.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Gradient descent with momentum.
    Momentum {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        #[serde(default = "momentum")]
        momentum: f64,
        /// Nesterov's form.
        #[serde(default)]
        nesterov: bool,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Adam.
    Adam {
        /// Learning rate.
        #[serde(default = "milli")]
        lr: f64,
        /// Decay of the two moments.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the root.
        #[serde(default = "eps")]
        eps: f64,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// AdamW.
    Adamw {
        /// Learning rate.
        #[serde(default = "milli")]
        lr: f64,
        /// Decay of the two moments.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the root.
        #[serde(default = "eps")]
        eps: f64,
        /// Decoupled weight decay.
        #[serde(default = "centi")]
        weight_decay: f64,
    },
}

fn momentum() -> f64 {
    0.9
}

fn milli() -> f64 {
    1e-3
}

fn centi() -> f64 {
    1e-2
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn eps() -> f64 {
    1e-8
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig::Adamw { lr: milli(), betas: betas(), eps: eps(), weight_decay: centi() }
    }
}

/// Learning rate over time, chosen by its `type`. Lengths are in epochs; they need not be whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ScheduleConfig {
    /// The base rate throughout.
    #[default]
    Constant,
    /// Multiplied every few epochs.
    Step {
        /// Epochs between changes.
        every: f64,
        /// Factor.
        gamma: f64,
    },
    /// Multiplied once per epoch, smoothly.
    Exponential {
        /// Factor per epoch.
        gamma: f64,
    },
    /// Half a cosine over the whole run, after a linear rise.
    Cosine {
        /// Epochs of linear rise.
        #[serde(default)]
        warmup: f64,
        /// Last rate.
        #[serde(default)]
        min_lr: f64,
    },
    /// A power of the remaining share of the run, after a linear rise.
    Polynomial {
        /// Epochs of linear rise.
        #[serde(default)]
        warmup: f64,
        /// Exponent.
        #[serde(default = "one")]
        power: f64,
        /// Last rate.
        #[serde(default)]
        min_lr: f64,
    },
    /// Linear rise, then constant.
    Warmup {
        /// Epochs of linear rise.
        epochs: f64,
    },
    /// Up and down once over the whole run.
    OneCycle {
        /// Share that rises.
        #[serde(default = "rise")]
        rise: f64,
    },
    /// Multiplied when the test loss stalls.
    Plateau {
        /// Factor.
        #[serde(default = "tenth")]
        factor: f64,
        /// Epochs without improvement that are tolerated.
        #[serde(default = "ten")]
        patience: u64,
    },
}

fn rise() -> f64 {
    0.3
}

fn tenth() -> f64 {
    0.1
}

fn ten() -> u64 {
    10
}

/// Length, batches, run folder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Epochs.
    pub epochs: u64,
    /// Items per batch.
    pub batch_size: usize,
    /// Seed of parameters, data order and dropout.
    pub seed: u64,
    /// New order in every epoch.
    pub shuffle: bool,
    /// Largest Euclidean norm of the gradients.
    pub clip_norm: Option<f64>,
    /// Largest absolute value of a gradient.
    pub clip_value: Option<f64>,
    /// Epochs without improvement after which training ends.
    pub patience: Option<u64>,
    /// Run folder.
    pub run: Option<PathBuf>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 10,
            batch_size: 32,
            seed: 0,
            shuffle: true,
            clip_norm: None,
            clip_value: None,
            patience: None,
            run: None,
        }
    }
}

fn check(ok: bool, key: impl Into<String>, expected: &str, got: impl std::fmt::Display) -> Result<()> {
    if ok { Ok(()) } else { Err(NnError::config(key, format!("expected {expected}, got {got}"))) }
}

fn activation(key: String, name: &str) -> Result<Activation> {
    activation_from_name(name).ok_or_else(|| {
        NnError::config(key, format!("unknown activation `{name}`; known are relu, leaky_relu, relu6, sigmoid, tanh, gelu, gelu_tanh, silu, elu, selu, mish, softplus, hardswish, hardsigmoid, hardtanh, identity"))
    })
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
        let (t, d) = (&self.train, &self.data);
        check(t.epochs > 0, "train.epochs", "at least 1", t.epochs)?;
        check(t.batch_size > 0, "train.batch_size", "at least 1", t.batch_size)?;
        for (key, v) in [("train.clip_norm", t.clip_norm), ("train.clip_value", t.clip_value)] {
            check(v.is_none_or(|v| v > 0.0), key, "a value above 0", v.unwrap_or_default())?;
        }
        check(
            !(t.clip_norm.is_some() && t.clip_value.is_some()),
            "train.clip_value",
            "only one kind of clipping",
            "two",
        )?;
        check(d.scale.is_finite(), "data.scale", "a finite number", d.scale)?;
        check(d.train_rows != Some(0), "data.train_rows", "at least 1", 0)?;
        if let Some(s) = &d.item_shape {
            check(
                !s.is_empty() && !s.contains(&0),
                "data.item_shape",
                "sizes of at least 1",
                format!("{s:?}"),
            )?;
        }
        check(!self.model.layers.is_empty(), "model.layers", "at least one layer", "none")?;
        for (i, l) in self.model.layers.iter().enumerate() {
            let at = |field: &str| format!("model.layers[{i}].{field}");
            match l {
                LayerConfig::Dense { units, activation: a, .. } => {
                    check(*units > 0, at("units"), "at least 1", units)?;
                    if let Some(a) = a {
                        activation(at("activation"), a)?;
                    }
                }
                LayerConfig::Activation { kind } => drop(activation(at("kind"), kind)?),
                LayerConfig::Dropout { p } => check((0.0..=1.0).contains(p), at("p"), "a probability", p)?,
                LayerConfig::Reshape { shape } => drop(Reshape::new(shape).map_err(|_| {
                    NnError::config(at("shape"), format!("expected sizes with at most one -1, got {shape:?}"))
                })?),
                _ => {}
            }
        }
        if let Some(LossConfig::CrossEntropy { label_smoothing: s }) = self.loss {
            check((0.0..1.0).contains(&s), "loss.label_smoothing", "a value in [0, 1)", s)?;
        }
        self.check_optimizer()?;
        self.check_schedule()
    }

    fn check_optimizer(&self) -> Result<()> {
        let (OptimizerConfig::Sgd { lr, weight_decay, .. }
        | OptimizerConfig::Momentum { lr, weight_decay, .. }
        | OptimizerConfig::Adam { lr, weight_decay, .. }
        | OptimizerConfig::Adamw { lr, weight_decay, .. }) = self.optimizer;
        check(lr.is_finite() && lr > 0.0, "optimizer.lr", "a value above 0", lr)?;
        check(weight_decay >= 0.0, "optimizer.weight_decay", "a value of at least 0", weight_decay)?;
        match self.optimizer {
            OptimizerConfig::Momentum { momentum: m, .. } => {
                check((0.0..1.0).contains(&m), "optimizer.momentum", "a value in [0, 1)", m)
            }
            OptimizerConfig::Adam { betas, eps, .. } | OptimizerConfig::Adamw { betas, eps, .. } => {
                for b in betas {
                    check((0.0..1.0).contains(&b), "optimizer.betas", "values in [0, 1)", b)?;
                }
                check(eps >= 0.0, "optimizer.eps", "a value of at least 0", eps)
            }
            _ => Ok(()),
        }
    }

    fn check_schedule(&self) -> Result<()> {
        use ScheduleConfig::*;
        match self.schedule {
            Step { every, gamma } => check(every > 0.0, "schedule.every", "a value above 0", every)
                .and(check(gamma > 0.0, "schedule.gamma", "a value above 0", gamma)),
            Exponential { gamma } => check(gamma > 0.0, "schedule.gamma", "a value above 0", gamma),
            Cosine { warmup, min_lr } | Polynomial { warmup, min_lr, .. } => check(
                warmup >= 0.0,
                "schedule.warmup",
                "a value of at least 0",
                warmup,
            )
            .and(check(min_lr >= 0.0, "schedule.min_lr", "a value of at least 0", min_lr)),
            Warmup { epochs } => check(epochs >= 0.0, "schedule.epochs", "a value of at least 0", epochs),
            OneCycle { rise } => {
                check(rise > 0.0 && rise < 1.0, "schedule.rise", "a share between 0 and 1", rise)
            }
            Plateau { factor, .. } => {
                check(factor > 0.0 && factor < 1.0, "schedule.factor", "a value between 0 and 1", factor)
            }
            Constant => Ok(()),
        }
    }

    /// Training and test data. Errors: of the file, and rows that it does not have.
    pub fn datasets(&self) -> Result<(Dataset, Option<Dataset>)> {
        let d = &self.data;
        let label = match (d.target, d.label) {
            (TargetKind::Class, Column::Last) => Label::LastClass,
            (TargetKind::Class, Column::At(c)) => Label::Class(c),
            (TargetKind::Value, Column::Last) => Label::LastValue,
            (TargetKind::Value, Column::At(c)) => Label::Value(c),
        };
        let mut all =
            read_csv(&d.csv, &CsvOptions { header: d.header, label, scale: d.scale as f32, separator: ',' })?;
        if let Some(shape) = &d.item_shape {
            let key = "data.item_shape";
            let have = all.features().len() / all.len();
            check(
                shape.iter().product::<usize>() == have,
                key,
                &format!("{have} elements"),
                format!("{shape:?}"),
            )?;
            all = Dataset::new(all.features().to_vec(), shape, all.targets().clone())?;
        }
        let n = all.len();
        let rest = format!("fewer than the file's {n} rows");
        check(d.test_rows < n, "data.test_rows", &rest, d.test_rows)?;
        let train = d.train_rows.unwrap_or(n - d.test_rows);
        check(
            train <= n - d.test_rows,
            "data.train_rows",
            &format!("at most {} rows", n - d.test_rows),
            train,
        )?;
        let test = if d.test_rows > 0 { Some(all.slice(n - d.test_rows, d.test_rows)?) } else { None };
        Ok((all.slice(0, train)?, test))
    }

    /// A data set as batches on a device: resident if it is small enough, uploaded ahead of use otherwise.
    pub fn source(&self, data: Dataset, device: &Device) -> Result<Box<dyn Source>> {
        if data.bytes() <= self.data.resident_bytes {
            return Ok(Box::new(ResidentSource::new(&data, device, DType::F32)?));
        }
        Ok(Box::new(HostSource::new(Arc::new(data), device, DType::F32, 2)))
    }

    /// The model, for items of the given shape.
    pub fn model(&self, device: &Device, item: &[usize]) -> Result<Sequential> {
        let cx = Build::new(device, self.train.seed);
        let mut model = Sequential::new();
        // Shape of one item as it comes out of the layers so far.
        let mut item = item.to_vec();
        for (i, l) in self.model.layers.iter().enumerate() {
            model = match l {
                LayerConfig::Dense { units, activation: a, bias } => {
                    let act = match a {
                        Some(a) => activation(format!("model.layers[{i}].activation"), a)?,
                        None => Activation::Identity,
                    };
                    let Some(width) = item.last_mut() else {
                        return Err(NnError::config(
                            format!("model.layers[{i}]"),
                            "dense layers need items with at least one axis",
                        ));
                    };
                    let layer = Dense::new(&cx, *width, *units)?.activation(act);
                    *width = *units;
                    model.push(if *bias { layer } else { layer.no_bias() })
                }
                LayerConfig::Activation { kind } => {
                    model.push(Activate(activation(format!("model.layers[{i}].kind"), kind)?))
                }
                LayerConfig::Dropout { p } => model.push(Dropout::new(&cx, *p)?),
                LayerConfig::Flatten => {
                    item = vec![item.iter().product()];
                    model.push(Flatten::default())
                }
                LayerConfig::Reshape { shape } => {
                    let layer = Reshape::new(shape)?;
                    item = layer
                        .item(&item)
                        .map_err(|e| NnError::config(format!("model.layers[{i}].shape"), e.to_string()))?;
                    model.push(layer)
                }
                LayerConfig::Softmax => model.push(Softmax(-1)),
                LayerConfig::LogSoftmax => model.push(LogSoftmax(-1)),
            };
        }
        Ok(model)
    }

    /// The optimizer of a model.
    pub fn optimizer(&self, model: &Sequential) -> Result<Optimizer> {
        let (rule, lr) = match self.optimizer {
            OptimizerConfig::Sgd { lr, weight_decay: wd } => (OptimRule::Sgd { wd }, lr),
            OptimizerConfig::Momentum { lr, momentum: mu, nesterov, weight_decay: wd } => {
                (OptimRule::Momentum { mu, damp: 0.0, wd, nesterov }, lr)
            }
            OptimizerConfig::Adam { lr, betas: [b1, b2], eps, weight_decay: wd } => {
                (OptimRule::Adam { b1, b2, eps, wd }, lr)
            }
            OptimizerConfig::Adamw { lr, betas: [b1, b2], eps, weight_decay: wd } => {
                (OptimRule::AdamW { b1, b2, eps, wd }, lr)
            }
        };
        Optimizer::new(model, rule, lr)
    }

    /// The loss.
    pub fn objective(&self) -> Objective {
        match (&self.loss, self.data.target) {
            (Some(LossConfig::CrossEntropy { label_smoothing }), _) => {
                Objective::Classify(CrossEntropyLoss {
                    options: CrossEntropy::new().label_smoothing(*label_smoothing),
                    weight: None,
                })
            }
            (None, TargetKind::Class) => Objective::Classify(CrossEntropyLoss::default()),
            _ => Objective::Regress(MseLoss::default()),
        }
    }

    /// The trainer's settings for `items` training items.
    pub fn options(&self, items: usize) -> TrainOptions {
        let t = &self.train;
        let per_epoch = items.div_ceil(t.batch_size.max(1)) as u64;
        let steps = |epochs: f64| (epochs * per_epoch as f64).round() as u64;
        let total = per_epoch * t.epochs;
        let warm = |epochs: f64, make: &dyn Fn(u64) -> Schedule| {
            let n = steps(epochs).min(total);
            let then = make(total - n);
            if n == 0 {
                then
            } else {
                Schedule::Warmup { steps: n, start: 1.0 / n as f64, then: Box::new(then) }
            }
        };
        let mut plateau = None;
        let schedule = match self.schedule {
            ScheduleConfig::Constant => Schedule::Constant,
            ScheduleConfig::Step { every, gamma } => Schedule::Step { every: steps(every).max(1), gamma },
            ScheduleConfig::Exponential { gamma } => {
                Schedule::Exponential { gamma: gamma.powf(1.0 / per_epoch.max(1) as f64) }
            }
            ScheduleConfig::Cosine { warmup, min_lr } => {
                warm(warmup, &|total| Schedule::Cosine { total, min: min_lr })
            }
            ScheduleConfig::Polynomial { warmup, power, min_lr } => {
                warm(warmup, &|total| Schedule::Polynomial { total, power, end: min_lr })
            }
            ScheduleConfig::Warmup { epochs } => warm(epochs, &|_| Schedule::Constant),
            ScheduleConfig::OneCycle { rise } => {
                Schedule::OneCycle { total, rise, div: 25.0, final_div: 1e4 }
            }
            ScheduleConfig::Plateau { factor, patience } => {
                plateau = Some(Plateau::new(factor, patience));
                Schedule::Constant
            }
        };
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
