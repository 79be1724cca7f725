//! Run folders after training: the run as it was, its data's meaning, and its networks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::data::Data;
use super::mapping::DataMapping;
use super::{Config, ModelConfig};
use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;
use crate::core::tensor::Device;
use crate::io::checkpoint::Checkpoint;
use crate::module::{Layer, LayerExt};

const CONFIG: &str = "config.json";
const MAPPING: &str = "mapping.json";
const INFO: &str = "run.json";
/// Prefix of moving averages of parameters in a checkpoint.
const AVERAGE: &str = "optimizer.ema.";
/// Prefix of the optimizer's tensors there.
const OPTIMIZER: &str = "optimizer.";

/// Where and by what a run was made, kept as `run.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of this crate.
    pub trefoil_nn: String,
    /// The device: `cuda:0`.
    pub device: String,
    /// Its name, architecture and driver.
    pub device_name: String,
    /// Architecture.
    pub arch: String,
    /// Version of the driver.
    pub driver: String,
    /// Operating system and processor: `linux x86_64`.
    pub host: String,
    /// Number of scalars of the model's parameters.
    pub parameters: usize,
    /// Whether the program made the network, so that the run alone does not describe it.
    pub external_model: bool,
}

/// The further files of a run's folder.
pub(super) fn files(
    config: &Config,
    data: &Data,
    device: &Device,
    model: &dyn Layer,
) -> Result<BTreeMap<String, String>> {
    let caps = device.caps();
    let info = RunInfo {
        trefoil_nn: env!("CARGO_PKG_VERSION").into(),
        device: device.id().to_string(),
        device_name: caps.name.clone(),
        arch: caps.arch.clone(),
        driver: caps.driver_version.clone(),
        host: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        parameters: model.num_parameters(),
        external_model: matches!(config.model, ModelConfig::External(_)),
    };
    let text = |name: &str, json: serde_json::Result<String>| match json {
        Ok(text) => Ok((name.to_string(), text + "\n")),
        Err(e) => Err(NnError::config(name, e.to_string())),
    };
    Ok(BTreeMap::from([
        text(CONFIG, serde_json::to_string_pretty(&config.to_json()))?,
        text(MAPPING, serde_json::to_string_pretty(data.mapping()))?,
        text(INFO, serde_json::to_string_pretty(&info))?,
    ]))
}

/// Which parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// Those with the lowest monitored loss, `best.safetensors`.
    #[default]
    Best,
    /// Those after the last epoch, `checkpoint.safetensors`.
    Last,
}

/// A run folder: the run as it was, for evaluation, prediction and further training.
///
/// ```no_run
/// use trefoil_nn::config::{SavedRun, Weights};
/// # let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
/// let run = SavedRun::open("runs/digits")?;
/// let data = run.config.data.inference("new.csv", &run.mapping)?;
/// let sources = run.config.sources(&data, &device)?;
/// let model = run.config.model(&device, &sources)?;
/// run.restore(&model, Weights::Best)?;
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SavedRun {
    /// The folder.
    pub folder: PathBuf,
    /// The run. Paths in it are relative to the folder in which it was started.
    pub config: Config,
    /// What its data means.
    pub mapping: DataMapping,
    /// Where it was made.
    pub info: RunInfo,
}

impl SavedRun {
    /// Reads the files of a run folder. Errors: [`NnError::Io`]; [`NnError::Data`] for a folder without them, as those of programs and of earlier
    /// versions are, and for a run whose network the program made; those of [`Config::load`].
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let at = folder.join(INFO);
        if !at.exists() {
            let expected = "a run folder of `trefoil train`, with config.json, mapping.json and run.json";
            let found = if folder.is_dir() { "a folder without run.json" } else { "no such folder" };
            return Err(NnError::data(folder, At::File, expected, found));
        }
        let info: RunInfo = json(&at)?;
        if info.external_model {
            let expected = "a run that describes its network";
            return Err(NnError::data(folder, At::File, expected, "one whose network the program made"));
        }
        let (config, mapping) = (Config::load(folder.join(CONFIG))?, json(&folder.join(MAPPING))?);
        Ok(SavedRun { folder: folder.into(), config, mapping, info })
    }

    /// The run's data, read with its mapping. Errors: those of [`DataConfig::open`](super::DataConfig::open).
    pub fn data(&self) -> Result<Data> {
        self.config.data.open_mapped(Some(&self.mapping))
    }

    /// The file of a run's parameters. A run that was stopped before its first epoch ended has no best ones yet.
    pub fn weights_file(&self, weights: Weights) -> PathBuf {
        let best = self.folder.join("best.safetensors");
        match weights {
            Weights::Best if best.exists() => best,
            _ => self.folder.join("checkpoint.safetensors"),
        }
    }

    /// What was learned, by the names of the model's state dictionary: parameters (or their moving average, where the run evaluates with it) and
    /// buffers, without the optimizer's tensors. Errors: [`NnError::Checkpoint`], [`NnError::Io`].
    pub fn state(&self, weights: Weights) -> Result<BTreeMap<String, HostTensor>> {
        Ok(self.checkpoint(weights)?.tensors)
    }

    fn checkpoint(&self, weights: Weights) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::load(self.weights_file(weights))?;
        let averaged = self.config.train.ema.is_some_and(|e| e.evaluate);
        let (optimizer, mut own): (BTreeMap<_, _>, BTreeMap<_, _>) =
            checkpoint.tensors.into_iter().partition(|(name, _)| name.starts_with(OPTIMIZER));
        for (name, average) in optimizer {
            let of = name.strip_prefix(AVERAGE).filter(|_| averaged);
            if let Some(parameter) = of.and_then(|name| own.get_mut(name)) {
                *parameter = average.to_dtype(parameter.dtype)?;
            }
        }
        checkpoint.tensors = own;
        Ok(checkpoint)
    }

    /// Puts [`state`](SavedRun::state) into the run's model, and switches that to evaluation. Errors: those of `state`; a model of another run.
    pub fn restore(&self, model: &dyn Layer, weights: Weights) -> Result<()> {
        self.checkpoint(weights)?.restore(model, None)?;
        model.eval();
        Ok(())
    }
}

/// A file of JSON.
fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let fail = |what: String| NnError::Config { file: path.display().to_string(), key: ".".into(), what };
    let value: Value = serde_json::from_str(&limits::read_config(path)?).map_err(|e| fail(e.to_string()))?;
    serde_json::from_value(value).map_err(|e| fail(e.to_string()))
}
