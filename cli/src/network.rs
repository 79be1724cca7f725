//! Networks of the commands that look at one: from a training run, or from a file of their own.

use std::path::Path;

use serde_json::Value;
use trefoil::ops::{Distribution, Rng};
use trefoil_nn::config::{Config, Data};
use trefoil_nn::limits;
use trefoil_nn::network::{Network, NetworkConfig};
use trefoil_nn::{DType, Device, InitContext, Tensor};

use crate::error::{CliError, Result};

/// What a file describes.
#[derive(Debug)]
pub(crate) enum Described {
    /// A training run, with its data.
    Run(Box<Config>, Box<Data>),
    /// A network alone.
    Network(NetworkConfig),
}

/// Stands for sizes that a network leaves free.
const FREE: usize = 8;

/// Keeps the inputs apart from parameters and dropout.
const INPUTS: u64 = 1 << 59;

impl Described {
    /// Reads the file; a training run has `data`. Reads the run's data too.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = limits::read_config(path)?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let alone = json.is_some_and(|v| v.get("layers").is_some() && v.get("data").is_none());
        if alone {
            return Ok(Described::Network(NetworkConfig::load(path)?));
        }
        let config = Config::load(path)?;
        let data = config.data.open()?;
        Ok(Described::Run(Box::new(config), Box::new(data)))
    }

    /// The seed of parameters and inputs.
    pub(crate) fn seed(&self) -> u64 {
        match self {
            Described::Run(config, _) => config.train.seed,
            Described::Network(_) => 0,
        }
    }

    /// The dtype of parameters.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Described::Run(config, _) => config.train.precision.dtype(),
            Described::Network(_) => DType::F32,
        }
    }

    /// The network on a device, for these inputs, with floats in `dtype`.
    pub(crate) fn network(&self, device: &Device, dtype: DType, inputs: &[Tensor]) -> Result<Network> {
        let cx = InitContext::new(device, self.seed()).dtype(dtype);
        let items: Vec<(&[usize], DType)> = inputs
            .iter()
            .map(|x| (&x.shape()[1..], if x.dtype().is_float() { dtype } else { x.dtype() }))
            .collect();
        let (config, path) = match self {
            Described::Run(config, _) => (&config.model, "model"),
            Described::Network(config) => (config, ""),
        };
        let network = Network::for_items(&cx, config, path, &items)?;
        if let Described::Run(config, _) = self {
            config.freeze(&network)?;
        }
        Ok(network)
    }

    /// Inputs for `n` items: the first of the run's training data, or random numbers for a network alone (zeros for inputs of integers).
    pub(crate) fn inputs(&self, device: &Device, n: usize) -> Result<Vec<Tensor>> {
        let config = match self {
            Described::Run(config, data) => {
                let sources = config.sources(data, device)?;
                return Ok(vec![sources.first(config.train.seed, n)?.x]);
            }
            Described::Network(config) => config,
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
                let normal = Distribution::Normal { mean: 0.0, std: 1.0 };
                let rng = Rng::new(self.seed()).at(INPUTS + i as u64, 0);
                Tensor::random(device, DType::F32, &shape, normal, rng)?.to_dtype(dtype)?
            } else {
                Tensor::zeros(device, dtype, &shape)?
            });
        }
        Ok(all)
    }
}
