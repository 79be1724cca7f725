//! Networks for the commands that inspect one: from the file of a training run, or from a file of their own.

use std::path::Path;

use serde_json::Value;
use trefoil::ops::random::{Distribution, Rng};
use trefoil_nn::config::{Config, Data};
use trefoil_nn::limits;
use trefoil_nn::loom::{self, Bundle, Flags, LoomConfig, LoomNetwork};
use trefoil_nn::network::{Network, NetworkConfig};
use trefoil_nn::{DType, Device, InitContext, Layer, Tensor};

use crate::error::{CliError, Result};

/// A JSON file that describes a network.
#[derive(Debug)]
pub(crate) enum ModelFile {
    /// A training run, with its data.
    Run(Box<Config>, Box<Data>),
    /// A network alone.
    Network(NetworkConfig),
    /// A network of Loom, with its weights where the file is a bundle.
    Loom(LoomConfig, Option<Box<Bundle>>),
}

/// Size of the axes that a network leaves free.
const FREE: usize = 8;

/// Offset of the random streams of inputs, away from those of parameters and dropout.
const INPUTS: u64 = 1 << 59;

impl ModelFile {
    /// Reads the file: a training run has `data` or `model`, a network of Loom a grid or, as a bundle, `models`. Reads the run's data too. A run
    /// without data, or whose data cannot be read, is its network alone where that declares its inputs.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = limits::read_config(path)?;
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let has = |key: &str| json.get(key).is_some();
        if has("models") {
            return Self::bundle(path);
        }
        if ["grid_rows", "grid_cols", "layers_per_cell"].into_iter().any(has) {
            return Ok(ModelFile::Loom(LoomConfig::from_file(path)?, None));
        }
        if has("layers") && !has("data") {
            return Ok(ModelFile::Network(NetworkConfig::load(path)?));
        }
        if let (Some(model), false) = (json.get("model"), has("data")) {
            return Ok(ModelFile::Network(NetworkConfig::parse(&model.to_string())?));
        }
        let config = Config::load(path)?;
        match config.data.open() {
            Ok(data) => Ok(ModelFile::Run(Box::new(config), Box::new(data))),
            Err(e) if config.model.inputs.is_empty() => Err(e.into()),
            Err(e) => {
                log::warn!("the declared inputs of the network stand for the data: {e}");
                Ok(ModelFile::Network(config.model))
            }
        }
    }

    /// The only model of a bundle of Loom.
    fn bundle(path: &Path) -> Result<Self> {
        let bundle = Bundle::from_file(path)?;
        let ids = bundle.ids();
        let [id] = ids[..] else {
            let text = format!("expected a bundle of one model, got {}", ids.len());
            return Err(CliError::Input(text));
        };
        // The configuration as the bundle's loader understands it.
        let device = std::sync::Arc::new(trefoil::Engine::shapes()) as Device;
        let network = bundle.network(id, &InitContext::new(&device, 0), &Flags::corrected())?;
        Ok(ModelFile::Loom(network.config().clone(), Some(Box::new(bundle))))
    }

    /// The seed of parameters and inputs.
    pub(crate) fn seed(&self) -> u64 {
        match self {
            ModelFile::Run(config, _) => config.train.seed,
            ModelFile::Network(_) => 0,
            ModelFile::Loom(config, _) => config.seed.unwrap_or(0) as u64,
        }
    }

    /// The dtype of parameters.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            ModelFile::Run(config, _) => config.train.precision.dtype(),
            ModelFile::Network(_) | ModelFile::Loom(..) => DType::F32,
        }
    }

    /// The network on a device, for these inputs, with floats in `dtype`.
    pub(crate) fn network(&self, device: &Device, dtype: DType, inputs: &[Tensor]) -> Result<Box<dyn Layer>> {
        let cx = InitContext::new(device, self.seed()).dtype(dtype);
        let items: Vec<(&[usize], DType)> = inputs
            .iter()
            .map(|x| (&x.shape()[1..], if x.dtype().is_float() { dtype } else { x.dtype() }))
            .collect();
        let (config, path) = match self {
            ModelFile::Run(config, _) => (&config.model, "model"),
            ModelFile::Network(config) => (config, ""),
            ModelFile::Loom(_, Some(bundle)) => {
                let id = bundle.ids()[0];
                return Ok(Box::new(bundle.network(id, &cx, &Flags::corrected())?));
            }
            ModelFile::Loom(config, None) => {
                return Ok(Box::new(LoomNetwork::new(&cx, config, &Flags::corrected())?));
            }
        };
        let network = Network::for_items(&cx, config, path, &items)?;
        if let ModelFile::Run(config, _) = self {
            config.freeze(&network)?;
        }
        Ok(Box::new(network))
    }

    /// Inputs for `n` items: the first of the run's training data, or random numbers for a network alone (zeros for inputs of integers).
    pub(crate) fn inputs(&self, device: &Device, n: usize) -> Result<Vec<Tensor>> {
        let config = match self {
            ModelFile::Run(config, data) => {
                let sources = config.sources(data, device)?;
                return Ok(vec![sources.first(config.train.seed, n)?.x]);
            }
            ModelFile::Network(config) => config,
            ModelFile::Loom(config, _) => {
                let Some(width) = loom::check(config, &Flags::corrected())?.inputs else {
                    let text =
                        "the file does not determine the size of its inputs: its first layer takes any";
                    return Err(CliError::Input(text.into()));
                };
                return Ok(vec![self.random(device, 0, &[n, width])?]);
            }
        };
        if config.inputs.is_empty() {
            let text = "the network does not say what its inputs are: add `\"inputs\": { \"x\": [SIZES] }`, or use a training run";
            return Err(CliError::Input(text.into()));
        }
        let mut all = vec![];
        for (i, input) in config.inputs.values().enumerate() {
            let sizes = input.shape.iter().map(|&s| usize::try_from(s).unwrap_or(FREE));
            let shape: Vec<usize> = std::iter::once(n).chain(sizes).collect();
            let dtype = input.dtype.unwrap_or(DType::F32);
            all.push(if dtype.is_float() {
                self.random(device, i as u64, &shape)?.to_dtype(dtype)?
            } else {
                Tensor::zeros(device, dtype, &shape)?
            });
        }
        Ok(all)
    }

    /// Standard normal numbers for the input at a position.
    fn random(&self, device: &Device, position: u64, shape: &[usize]) -> Result<Tensor> {
        let normal = Distribution::Normal { mean: 0.0, std: 1.0 };
        let rng = Rng::new(self.seed()).at(INPUTS + position, 0);
        Ok(Tensor::random(device, DType::F32, shape, normal, rng)?)
    }
}
