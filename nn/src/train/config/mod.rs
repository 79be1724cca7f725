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
//! | Section | What it holds |
//! |---|---|
//! | `data` | the key of a file says what it is: `csv`, `parquet`, `arrow`, `npy`, `npz`, `idx`, `cifar` (binary files, one or a list), `images` (a folder of folders), `text`, `graph`, `meshes` (files of OBJ and OFF, or folders of them); with the keys of [`Common`], a `sampler` ([`SamplerConfig`]), `transforms` ([`TransformConfig`]) and files of their own for the `test` |
//! | `model` | a network, see [`network`](crate::network) |
//! | `loss` | [`LossConfig`]: any of [`losses`](crate::losses), as `"mse"` or with options as `{ "type": "huber", "delta": 2 }` |
//! | `optimizer` | [`OptimizerConfig`]: any rule of [`optim`](crate::optim), with `groups` of parameters ([`GroupConfig`]) and `maximize` |
//! | `schedule` | [`ScheduleConfig`]: the learning rate over epochs, with `warmup` before any of them |
//! | `metrics` | a list of [`MetricConfig`], measured on the test data |
//! | `train` | [`TrainConfig`]: epochs, batches, accumulation, clipping, early stopping, moving average, frozen parameters, low-rank adapters ([`LoraOptions`]), precision, anomaly mode, recording, seed, run folder |
//!
//! Keys of files: `csv` with `header`, `label` (`"last"`, the name of a column or its number), `separator`, `categorical` (`"refuse"`, `"auto"` or a
//! list of columns), `missing` (`"refuse"`, `"skip"`, `"mean"` or a number), `classes` (names, where labels are texts), `drop` (columns);
//! `parquet` and `arrow` (IPC files and streams, Feather version 2; both with the feature `parquet`) with the same but for `header` and `separator`; `npy` and `idx` with `targets`, `npz` with the names `x` and
//! `y`, `npy` and `npz` with `features` (`"values"`, `"ids"`); `cifar` with `dataset` (`"cifar10"`, `"cifar100"`, `"cifar100_coarse"`);
//! `images` with `channels` (`"rgb"`, `"gray"`) and `size`; `text` with `length`, `step`, `encoding` (`"characters"`, `"bytes"`, `"tokenizer"` with the file under `tokenizer`); `graph`, a CSV file of edges, with `labels` (a
//! CSV file of nodes and their classes), `nodes` (one of their features, a line for each; one-hot ids without it), `undirected`, `weighted`,
//! `header`, `separator`; `meshes` with `labels` (a CSV file of meshes and their classes; without it, folders are classes), `header`, `separator`,
//! `stacked`, `spiral_length`.
//!
//! Of a graph, the items are the nodes with a class. The network runs on the whole graph, and reads what it needs of the inputs `x` (features
//! of the nodes), `edge_index` and, if `weighted`, `edge_weight`; its rows of the nodes of a batch meet their classes in the loss. Test
//! nodes are a share of all or have `labels` of their own under `test`. Meshes are the same to a network: it runs on all of them at once, as one
//! mesh of several pieces, reads what it needs of the inputs that [`MeshData::inputs`](crate::data::MeshData::inputs) lists, and gives a row of
//! outputs for each mesh.
//!
//! A run from its description:
//!
//! ```no_run
//! use trefoil_nn::config::Config;
//! # let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
//! let config = Config::load("examples/digits.json")?;
//! let data = config.data.open()?;
//! let sources = config.sources(&data, &device)?;
//! let model = config.model(&device, &sources)?;
//! let mut trainer = config.trainer(&model, &data, &sources, &device)?;
//! let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true)?;
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```
//!
//! Unknown keys, wrong types and values out of range are errors that name the place in the file, what was expected and what is there. Paths
//! are relative to the current folder ([`DataConfig::rebase`] changes that).

mod closure;
mod data;
mod files;
mod kind;
mod lora;
mod loss;
mod mapping;
mod metrics;
mod optimizer;
mod parts;
mod sampler;
mod saved;
mod schedule;
mod schema;
mod train;
mod transform;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use trefoil::DType;

pub use self::data::{Common, Data, DataConfig, Division, OnError, Sources, TargetKind};
pub use self::lora::LoraOptions;
pub use self::loss::LossConfig;
pub use self::mapping::DataMapping;
pub use self::metrics::MetricConfig;
pub use self::optimizer::{GroupConfig, OptimizerConfig};
pub use self::sampler::SamplerConfig;
pub use self::saved::{RunInfo, SavedRun, Weights};
pub use self::schedule::ScheduleConfig;
pub use self::schema::json_schema;
pub use self::train::{Anomaly, EmaConfig, Precision, ScalingConfig, StoppingConfig, TrainConfig};
pub use self::transform::{On, TransformConfig};
pub use crate::train::data::table::Column;

use self::kind::kinds;
use self::loss::ClassesLast;
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::options::{Key, check_keys, object, read};
use crate::core::tensor::Device;
use crate::module::{InitContext, Layer, LayerExt};
use crate::network::{Network, NetworkConfig};
use crate::train::losses::{CrossEntropyLoss, MseLoss};
use crate::train::optim::{ClosureOptimizer, Optimizer, Stop};
use crate::train::trainer::{Objective, TrainOptions, Trainer};

/// A training run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Training and test data.
    pub data: DataConfig,
    /// The network.
    pub model: ModelConfig,
    /// What is minimised; by default cross entropy for class ids (of a text's classes on the last axis) and squared error for values.
    pub loss: Option<LossConfig>,
    /// Update rule.
    pub optimizer: OptimizerConfig,
    /// Learning rate over time.
    pub schedule: ScheduleConfig,
    /// What is measured on the test data.
    pub metrics: Vec<MetricConfig>,
    /// Length, batches, precision, run folder.
    pub train: TrainConfig,
    /// The sections as they were read.
    json: Map<String, Value>,
}

/// A section of a run that has a type, or is a list of such.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Section {
    /// Where it stands: `data.sampler`.
    pub path: &'static str,
    /// The types, each with its own options beside those that all have. In `data`, the key of the file is the type.
    pub types: Vec<(&'static str, &'static [Key])>,
}

/// All sections of a run that have types, with their options: the names are the keys in the file.
pub fn sections() -> Vec<Section> {
    let section = |path, types| Section { path, types };
    vec![
        section("data", kinds(files::FILES)),
        section("data.sampler", kinds(sampler::SAMPLERS)),
        section("data.transforms", kinds(transform::TRANSFORMS)),
        section("loss", [kinds(loss::LOSSES), kinds(parts::PARTS)].concat()),
        section("optimizer", [kinds(optimizer::RULES), kinds(closure::METHODS)].concat()),
        section("schedule", kinds(schedule::SCHEDULES)),
        section("metrics", kinds(metrics::METRICS)),
    ]
}

/// The network of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelConfig {
    /// Described under `model`; see [`network`](crate::network).
    Network(NetworkConfig),
    /// Made by the program, with its description. A resumed run must have the same description.
    External(Value),
}

const KEYS: &[&str] = &["data", "model", "loss", "optimizer", "schedule", "metrics", "train"];

impl Config {
    /// Parses and checks a configuration. Errors: [`NnError::Config`] with the path of the value.
    pub fn parse(text: &str) -> Result<Config> {
        let json = serde_json::from_str(text).map_err(|e| NnError::config(".", e.to_string()))?;
        Config::from_value(json)
    }

    /// As [`parse`](Config::parse), for JSON that was parsed.
    pub fn from_value(json: Value) -> Result<Config> {
        Config::read(json, |model| {
            let model = model.ok_or_else(|| NnError::config("model", "is missing"))?;
            Ok(ModelConfig::Network(read("model", model)?))
        })
    }

    /// A run whose network the program makes, such as one of another framework; `description` is what tells it from other networks. Its
    /// steps are [`prepare`](Config::prepare) in place of [`model`](Config::model). Errors: as [`from_value`](Config::from_value); a `model`.
    pub fn external(json: Value, description: Value) -> Result<Config> {
        Config::read(json, |model| match model {
            None => Ok(ModelConfig::External(description)),
            Some(_) => {
                Err(NnError::config("model", "expected none beside the network of the program, got one"))
            }
        })
    }

    fn read(json: Value, model: impl FnOnce(Option<Value>) -> Result<ModelConfig>) -> Result<Config> {
        limits::check_numbers("", "", &json)?;
        let mut keys = object(".", json, "an object")?;
        let written = keys.clone();
        check_keys("", "a training run", &keys, KEYS.iter().copied())?;
        let mut section = |key: &str| keys.remove(key).filter(|v| !v.is_null());
        let metrics = match section("metrics") {
            None => vec![],
            Some(Value::Array(list)) => list,
            Some(v) => {
                return Err(NnError::config("metrics", format!("invalid type: expected a list, got {v}")));
            }
        };
        let metrics = metrics.into_iter().enumerate();
        let config = Config {
            data: DataConfig::read(
                "data",
                section("data").ok_or_else(|| NnError::config("data", "is missing"))?,
            )?,
            model: model(section("model"))?,
            loss: section("loss").map(|v| LossConfig::read("loss", v)).transpose()?,
            optimizer: section("optimizer")
                .map_or_else(|| Ok(OptimizerConfig::default()), |v| OptimizerConfig::read("optimizer", v))?,
            schedule: section("schedule")
                .map_or_else(|| Ok(ScheduleConfig::default()), |v| ScheduleConfig::read("schedule", v))?,
            metrics: metrics
                .map(|(i, v)| MetricConfig::read(&format!("metrics[{i}]"), v))
                .collect::<Result<_>>()?,
            train: section("train")
                .map_or_else(|| Ok(TrainConfig::default()), |v| TrainConfig::read("train", v))?,
            json: written,
        };
        config.check()?;
        Ok(config)
    }

    /// The run as JSON, as the run folder keeps it: sections as they were read, `data` and `train` as they are now.
    pub fn to_json(&self) -> Value {
        let mut json = self.json.clone();
        json.insert("data".into(), self.data.json().clone());
        // Its fields are numbers, texts and lists of them.
        json.insert("train".into(), serde_json::to_value(&self.train).unwrap_or_default());
        Value::Object(json)
    }

    /// Reads a file. Errors: [`NnError::Io`], and those of [`Config::parse`] with the file's name.
    pub fn load(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let text = limits::read_config(path)?;
        Config::parse(&text).map_err(|e| match e {
            NnError::Config { key, what, .. } => {
                NnError::Config { file: path.display().to_string(), key, what }
            }
            e => e,
        })
    }

    /// Checks ranges that types do not express.
    pub fn check(&self) -> Result<()> {
        self.train.check("train")?;
        self.data.check("data")?;
        match &self.model {
            ModelConfig::Network(network) => network.check("model"),
            ModelConfig::External(_) if self.train.lora.is_some() => {
                Err(NnError::config("train.lora", "expected a network that the run describes"))
            }
            ModelConfig::External(_) => Ok(()),
        }
    }

    /// The data as batches on a device. Errors: of items; `OutOfMemory`.
    pub fn sources(&self, data: &Data, device: &Device) -> Result<Sources> {
        self.data.sources(data, device, self.train.precision.dtype(), self.train.seed)
    }

    /// The model, for the items of the sources. Errors: those of [`Network::for_items`], which name the layer that does not take them; a
    /// class id for which the network has no output; a network that the program makes.
    pub fn model(&self, device: &Device, sources: &Sources) -> Result<Network> {
        let ModelConfig::Network(network) = &self.model else {
            return Err(NnError::config("model", "is made by the program, not described in the run"));
        };
        let cx = InitContext::new(device, self.train.seed).dtype(self.train.precision.dtype());
        if let Some(inputs) = &sources.fixed {
            let mut model = Network::on_nodes(&cx, network, "model", inputs)?;
            self.prepare(&model, sources)?;
            self.adapt(&cx, &mut model)?;
            return Ok(model);
        }
        let x = sources.first(self.train.seed, 1)?.x;
        let item = &x.shape()[1..];
        // Shapes do not depend on the precision.
        let dtype = if x.dtype().is_float() { DType::F32 } else { x.dtype() };
        let outputs = network.output_shapes("model", &[(item, dtype)])?;
        self.check_classes(outputs.first().map_or(&[][..], Vec::as_slice), sources)?;
        let mut model = Network::for_items(&cx, network, "model", &[(item, x.dtype())])?;
        self.adapt(&cx, &mut model)?;
        Ok(model)
    }

    /// Does for a network that the program made what [`model`](Config::model) does for one that the run describes: runs an item of the
    /// sources on trial, freezes parameters. Errors: an item that does not fit; a class id for which the network has no output.
    pub fn prepare(&self, model: &dyn Layer, sources: &Sources) -> Result<()> {
        let x = sources.first(self.train.seed, 1)?.x;
        model.eval();
        let y = no_grad(|| model.forward(&x));
        model.train();
        self.check_classes(y?.shape(), sources)?;
        self.freeze(model)
    }

    /// Error for a class id without an output, where outputs are `[B, classes]`.
    fn check_classes(&self, output: &[usize], sources: &Sources) -> Result<()> {
        let of_classes = self.loss.as_ref().is_none_or(|l| l.name() == "cross_entropy");
        match (output, sources.largest) {
            ([_, width], Some((class, item))) if of_classes && class >= *width as i64 => {
                let what = format!(
                    "expected class ids below the network's {width} outputs, got {class} for item {item}"
                );
                Err(NnError::config("data", what))
            }
            _ => Ok(()),
        }
    }

    /// Freezes the parameters of the model that `train.freeze` names. Errors: a pattern that fits none.
    pub fn freeze(&self, model: &dyn Layer) -> Result<()> {
        for (i, pattern) in self.train.freeze.iter().enumerate() {
            let key = format!("train.freeze[{i}]");
            model.freeze(pattern).map_err(|e| NnError::config(key, e.to_string()))?;
        }
        Ok(())
    }

    /// Freezes what the run freezes of its network, and adds the adapters of `train.lora`: what [`model`](Config::model) does for a network that
    /// is made otherwise from the run's description. Errors: patterns that fit nothing.
    pub fn adapt(&self, cx: &InitContext, network: &mut Network) -> Result<()> {
        self.freeze(network)?;
        match &self.train.lora {
            Some(lora) => lora.adapt(cx, network, "train.lora"),
            None => Ok(()),
        }
    }

    /// The optimizer of a model, with masters, loss scaling and averages as far as they are asked for. Errors: a group without parameters; a
    /// method that evaluates the loss itself, which [`Config::closure_optimizer`] makes.
    pub fn optimizer(&self, model: &dyn Layer) -> Result<Optimizer> {
        self.train.configure(self.optimizer.build(model)?)
    }

    /// The optimizer of a model where it is one that evaluates the loss itself, and what ends its iterations on a batch; none for others.
    /// Errors: those of [`ClosureOptimizer::new`]; masters, loss scaling and averages, which such optimizers do not have.
    pub fn closure_optimizer(&self, model: &dyn Layer) -> Result<Option<(ClosureOptimizer, Stop)>> {
        let Some(method) = self.optimizer.method() else { return Ok(None) };
        self.train.check_closure(self.optimizer.name())?;
        let made = ClosureOptimizer::new(model, method)?;
        Ok(Some((made, Stop::iterations(self.optimizer.max_iterations()))))
    }

    /// Whether classes lie on the last axis of the output.
    fn classes_last(&self, data: &Data) -> bool {
        let said = self.loss.as_ref().and_then(|l| l.last);
        said.unwrap_or(data.encoding().is_some())
    }

    /// The loss.
    pub fn objective(&self, data: &Data, device: &Device) -> Result<Objective> {
        let classes_last = self.classes_last(data);
        let site = loss::Site { device, dtype: self.train.precision.dtype(), classes_last };
        let objective = match (&self.loss, data.target()) {
            (Some(loss), _) => loss.objective(site)?,
            (None, TargetKind::Class) => Objective::Classify(CrossEntropyLoss::default()),
            (None, TargetKind::Value | TargetKind::Input) => Objective::Regress(MseLoss::default()),
        };
        Ok(match objective {
            Objective::Classify(l) if classes_last => Objective::custom(ClassesLast(l)),
            o => o,
        })
    }

    /// The trainer's settings for `items` training items per epoch.
    pub fn options(&self, items: usize) -> TrainOptions {
        let t = &self.train;
        let per_step = t.batch_size.saturating_mul(t.accumulate).max(1);
        let (schedule, plateau) = self.schedule.build(t.epochs, items.div_ceil(per_step) as u64);
        TrainOptions {
            epochs: t.epochs,
            batch_size: t.batch_size,
            accumulate: t.accumulate,
            seed: t.seed,
            shuffle: t.shuffle,
            schedule,
            plateau,
            clip: t.clip(),
            early_stopping: t.stopping(),
            evaluate_ema: t.ema.is_some_and(|e| e.evaluate),
            anomaly: t.anomaly.0,
            capture: t.capture,
            memory_format: t.memory_format,
            run: t.run.clone(),
            settings: self.settings(),
            ..TrainOptions::default()
        }
    }

    /// Sections that a resumed run must share with the one that it resumes; the trainer knows the other ones itself.
    fn settings(&self) -> BTreeMap<String, Value> {
        let model = match &self.model {
            // A network that was read can be written: its keys are texts.
            ModelConfig::Network(network) => serde_json::to_value(network).unwrap_or_default(),
            ModelConfig::External(description) => description.clone(),
        };
        let loss = self.loss.as_ref().map(|l| l.json.clone()).unwrap_or_default();
        let sections = [("model", model), ("loss", loss), ("data", self.data.meaning())];
        sections.into_iter().map(|(name, v)| (name.to_string(), v)).collect()
    }

    /// The trainer of a model, with objective, optimizer, settings and metrics. Errors: of [`Config::optimizer`], [`Config::objective`] and
    /// [`Trainer::new`]; of the file under `train.lora.weights`.
    pub fn trainer<'a>(
        &self,
        model: &'a dyn Layer,
        data: &Data,
        sources: &Sources,
        device: &Device,
    ) -> Result<Trainer<'a>> {
        if let Some(lora) = &self.train.lora {
            lora.load(model)?;
        }
        let mut options = self.options(sources.train.items());
        options.files = saved::files(self, data, device, model)?;
        let objective = self.objective(data, device)?;
        let site = metrics::Site { device, classes: data.classes(), items: data.test_items().max(1) };
        let mut trainer = match self.closure_optimizer(model)? {
            Some((o, stop)) => Trainer::with_closure(model, o, stop, objective, device, options)?,
            None => Trainer::new(model, self.optimizer(model)?, objective, device, options)?,
        };
        for m in &self.metrics {
            trainer = trainer.metric(m.build(site, self.classes_last(data))?);
        }
        Ok(trainer)
    }
}
