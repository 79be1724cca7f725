//! Networks from files: of a training run, of a network alone, or of Loom.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Value, json};
use trefoil::ops::random::{Distribution, Rng};
use trefoil_nn::config::{Config, Data, ModelConfig};
use trefoil_nn::limits;
use trefoil_nn::loom::{self, Bundle, Flags, LoomConfig, LoomNetwork};
use trefoil_nn::network::{InputConfig, Network, NetworkConfig};
use trefoil_nn::{DType, Device, InitContext, Layer, NnError, Tensor};

use crate::backend::BackendArg;
use crate::error::{CliError, Result};

/// What a JSON file describes, as its keys tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A training run: `data` or `model`.
    Run,
    /// A network alone.
    Network,
    /// A network of Loom: the keys of its grid, or others that only Loom has.
    Loom,
    /// A bundle of Loom: `models`.
    Bundle,
}

impl Content {
    /// Reads a file. What is neither JSON nor a bundle is a run, whose reader says what is wrong.
    pub(crate) fn read(path: &Path) -> Result<(Self, Value)> {
        let json = match limits::read_config(path) {
            // Bundles alone may be larger than that.
            Err(NnError::Data { .. }) => json!({ "models": [] }),
            text => serde_json::from_str(&text?).unwrap_or_default(),
        };
        Ok((Self::of(&json), json))
    }

    fn of(json: &Value) -> Self {
        let any = |keys: &[&str]| keys.iter().any(|key| json.get(key).is_some());
        if any(&["models"]) {
            return Content::Bundle;
        }
        if any(&["data", "model"]) || !any(&["layers"]) {
            return Content::Run;
        }
        // A file of layers alone is Loom's where only Loom can read them.
        let text = json.to_string();
        let of_loom =
            || LoomConfig::from_json(&text).and_then(|c| loom::check(&c, &Flags::corrected())).is_ok();
        if any(&["grid_rows", "grid_cols", "layers_per_cell", "id", "batch_size"])
            || (NetworkConfig::parse(&text).is_err() && of_loom())
        {
            return Content::Loom;
        }
        Content::Network
    }
}

/// The options that say what the inputs of a network are.
#[derive(Debug, clap::Args)]
pub(crate) struct InputArgs {
    /// Shape of an item of an input, in place of the data and of what the network declares: 3,32,32, with name and dtype tokens=16:i32;
    /// once for each input
    #[arg(long = "input", value_name = "[NAME=]SIZES[:DTYPE]")]
    inputs: Vec<InputArg>,
}

/// A file with a network, the device, and what the inputs are.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// A training run, a network, or a network or bundle of Loom
    file: PathBuf,
    #[command(flatten)]
    pub(crate) backend: BackendArg,
    #[command(flatten)]
    inputs: InputArgs,
}

impl ModelArgs {
    pub(crate) fn load(&self) -> Result<ModelFile> {
        ModelFile::load(&self.file, &self.inputs)
    }
}

/// One input.
#[derive(Debug, Clone)]
struct InputArg {
    name: Option<String>,
    config: InputConfig,
}

impl FromStr for InputArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (Some(name.to_string()), rest),
            None => (None, text),
        };
        let (sizes, dtype) = match rest.split_once(':') {
            Some((sizes, dtype)) => (sizes, Some(dtype)),
            None => (rest, None),
        };
        let size =
            |s: &str| s.trim().parse().map_err(|_| format!("expected sizes as in 3,32,32, got `{sizes}`"));
        let shape = match sizes {
            "" => vec![],
            _ => sizes.split(',').map(size).collect::<Result<Vec<isize>, _>>()?,
        };
        let config = InputConfig::try_from(json!({ "shape": shape, "dtype": dtype }))?;
        Ok(InputArg { name, config })
    }
}

impl InputArgs {
    /// Puts the inputs in the place of those that a network declares. Errors: what the network then refuses; no name where it has several.
    fn declare(&self, network: &mut NetworkConfig) -> Result<()> {
        for InputArg { name, config } in &self.inputs {
            let declared: Vec<&String> = network.inputs.keys().collect();
            let name = match (name, &declared[..]) {
                (Some(name), all) if all.is_empty() || all.contains(&name) => name.clone(),
                (None, []) => "input".into(),
                (None, [only]) => only.to_string(),
                (name, all) => {
                    let name = name.as_ref().map_or("none", String::as_str);
                    let text = format!("--input: expected the name of one of the inputs {all:?}, got {name}");
                    return Err(CliError::Input(text));
                }
            };
            network.inputs.insert(name, config.clone());
        }
        Ok(network.check("")?)
    }
}

/// Forward and backward of a network, from the sum of its outputs.
pub(crate) fn both_passes(model: &dyn Layer, inputs: &[Tensor]) -> trefoil_nn::Result<()> {
    let outputs = model.forward_all(inputs)?;
    let sums = outputs.iter().filter(|y| y.requires_grad()).map(Tensor::sum);
    let total = sums.reduce(|a, b| a?.add(&b?));
    total.map_or(Ok(()), |total| total?.backward())
}

/// A training run with its data.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) config: Config,
    network: NetworkConfig,
    data: Data,
}

/// A network of Loom, with its weights where the file is a bundle.
#[derive(Debug)]
pub(crate) struct Loom {
    pub(crate) config: LoomConfig,
    bundle: Option<Bundle>,
    /// Shape of an item, where an option says it.
    input: Option<Vec<isize>>,
}

impl Loom {
    /// Reads a network or the only model of a bundle.
    pub(crate) fn load(path: &Path, content: Content) -> Result<Self> {
        if content != Content::Bundle {
            return Ok(Loom { config: LoomConfig::from_file(path)?, bundle: None, input: None });
        }
        let bundle = Bundle::from_file(path)?;
        let ids = bundle.ids();
        let [id] = ids[..] else {
            return Err(CliError::Input(format!("expected a bundle of one model, got {}", ids.len())));
        };
        // The configuration as the bundle's loader understands it.
        let device = Arc::new(trefoil::Engine::shapes()) as Device;
        let network = bundle.network(id, &InitContext::new(&device, 0), &Flags::corrected())?;
        Ok(Loom { config: network.config().clone(), bundle: Some(bundle), input: None })
    }

    /// The network as it is meant, with the weights of the bundle if there is one.
    pub(crate) fn network(&self, cx: &InitContext) -> Result<LoomNetwork> {
        let flags = Flags::corrected();
        match &self.bundle {
            Some(bundle) => Ok(bundle.network(bundle.ids()[0], cx, &flags)?),
            None => Ok(LoomNetwork::new(cx, &self.config, &flags)?),
        }
    }

    /// Whether the last layer is a softmax.
    pub(crate) fn gives_probabilities(&self) -> bool {
        self.config.layers.last().is_some_and(|l| l.kind == "softmax")
    }

    /// Shape of an item. Errors: the first layer takes any, and no option says it.
    fn input(&self) -> Result<Vec<usize>> {
        let width = loom::check(&self.config, &Flags::corrected())?.inputs;
        match (&self.input, width) {
            (Some(shape), _) => Ok(shape.iter().map(|&n| usize::try_from(n).unwrap_or(FREE)).collect()),
            (None, Some(width)) => Ok(vec![width]),
            (None, None) => Err(CliError::Input(
                "the file does not determine the size of its inputs: its first layer takes any; say it with --input SIZE"
                    .into(),
            )),
        }
    }
}

/// A JSON file that describes a network.
#[derive(Debug)]
pub(crate) enum ModelFile {
    Run(Box<Run>),
    /// A network alone.
    Network(NetworkConfig),
    Loom(Box<Loom>),
}

/// Size of the axes that a network leaves free.
const FREE: usize = 8;

/// Offset of the random streams of inputs, away from those of parameters and dropout.
const INPUTS: u64 = 1 << 59;

impl ModelFile {
    /// Reads the file, and the data of a training run unless options say what the inputs are. A run without data, or whose data cannot be
    /// read, is its network alone where that declares its inputs.
    pub(crate) fn load(path: &Path, inputs: &InputArgs) -> Result<Self> {
        let network = |mut config: NetworkConfig| {
            inputs.declare(&mut config)?;
            Ok(ModelFile::Network(config))
        };
        let (content, json) = Content::read(path)?;
        match content {
            Content::Run => {}
            Content::Network => return network(NetworkConfig::load(path)?),
            Content::Loom | Content::Bundle => {
                let mut loom = Loom::load(path, content)?;
                loom.input = inputs.inputs.last().map(|i| i.config.shape.clone());
                return Ok(ModelFile::Loom(Box::new(loom)));
            }
        }
        if let (Some(model), None) = (json.get("model"), json.get("data")) {
            return network(NetworkConfig::parse(&model.to_string())?);
        }
        let config = Config::load(path)?;
        let ModelConfig::Network(model) = config.model.clone() else {
            return Err(CliError::Input(format!("{} describes no network", path.display())));
        };
        if !inputs.inputs.is_empty() {
            return network(model);
        }
        match config.data.open() {
            Ok(data) => Ok(ModelFile::Run(Box::new(Run { config, network: model, data }))),
            Err(e) if model.inputs.is_empty() => Err(e.into()),
            Err(e) => {
                log::warn!("the declared inputs of the network stand for the data: {e}");
                network(model)
            }
        }
    }

    /// The seed of parameters and inputs.
    pub(crate) fn seed(&self) -> u64 {
        match self {
            ModelFile::Run(run) => run.config.train.seed,
            ModelFile::Network(_) => 0,
            ModelFile::Loom(loom) => loom.config.seed.unwrap_or(0) as u64,
        }
    }

    /// The dtype of parameters.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            ModelFile::Run(run) => run.config.train.precision.dtype(),
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
        match self {
            ModelFile::Run(run) => {
                let mut network = match run.data.fixed_inputs(device, dtype)? {
                    Some(inputs) => Network::on_nodes(&cx, &run.network, "model", &inputs)?,
                    None => Network::for_items(&cx, &run.network, "model", &items)?,
                };
                run.config.adapt(&cx, &mut network)?;
                Ok(Box::new(network))
            }
            ModelFile::Network(config) => Ok(Box::new(Network::for_items(&cx, config, "", &items)?)),
            ModelFile::Loom(loom) => Ok(Box::new(loom.network(&cx)?)),
        }
    }

    /// Inputs for `n` items: the first of the run's training data, or random numbers for a network alone (zeros for inputs of integers).
    pub(crate) fn inputs(&self, device: &Device, n: usize) -> Result<Vec<Tensor>> {
        let config = match self {
            ModelFile::Run(run) => {
                let sources = run.config.sources(&run.data, device)?;
                return Ok(vec![sources.first(run.config.train.seed, n)?.x]);
            }
            ModelFile::Network(config) => config,
            ModelFile::Loom(loom) => {
                let shape = [&[n], loom.input()?.as_slice()].concat();
                return Ok(vec![self.random(device, 0, &shape)?]);
            }
        };
        if config.inputs.is_empty() {
            let text = "the network does not say what its inputs are: add `\"inputs\": { \"x\": [SIZES] }`, give --input SIZES, or use a \
                        training run";
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
