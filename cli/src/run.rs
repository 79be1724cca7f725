//! Training runs: from their own file, or from the file of a network and options that say the rest.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use trefoil_nn::config::{Config, Data, Sources, TargetKind};
use trefoil_nn::loom::LoomNetwork;
use trefoil_nn::network::Network;
use trefoil_nn::{Device, InitContext, Layer, NnError, limits};

use crate::error::{CliError, Result};
use crate::network::{Content, Loom};

/// The file and the options that describe a run.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// A training run; or a network, or a network or bundle of Loom, with --data or --config
    file: PathBuf,
    /// What a network alone is trained with: a training run without `model`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data, instead of the configuration's: a .csv, .tsv, .parquet, .arrow, .feather, .npy, .npz or .idx file, a folder of images, or JSON as under `data`
    #[arg(long, value_name = "FILE|JSON")]
    data: Option<String>,
    /// What targets are, instead of the configuration's
    #[arg(long, value_parser = ["class", "value", "input"])]
    target: Option<String>,
    /// Loss, instead of the configuration's: a name, or JSON as under `loss`
    #[arg(long, value_name = "NAME|JSON")]
    loss: Option<String>,
    /// Any value of the run, by its place: optimizer.lr=0.01, model.layers.0.out_features=64, data.label=species. The value is JSON, or a text;
    /// may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Sets a value by its place, of which absent objects are made.
fn set(keys: &mut Map<String, Value>, text: &str) -> Result<()> {
    let wrong = |what: String| Err(CliError::Input(format!("--set {text}: {what}")));
    let Some((place, value)) = text.split_once('=') else {
        return wrong("expected KEY=VALUE, as in optimizer.lr=0.01".into());
    };
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
    // `layers[0]` is `layers.0`.
    let place = place.replace('[', ".").replace(']', "");
    let parts: Vec<&str> = place.split('.').collect();
    let (Some((last, path)), false) = (parts.split_last(), parts.iter().any(|p| p.is_empty())) else {
        return wrong("expected names between dots, as in optimizer.lr=0.01".into());
    };
    let mut root = Value::Object(std::mem::take(keys));
    let done = put(&mut root, path, last, value);
    if let Value::Object(all) = root {
        *keys = all;
    }
    done.or_else(wrong)
}

/// Puts a value under `last` of what stands at `path`. Errors: what is there and has no such place.
fn put(at: &mut Value, path: &[&str], last: &str, value: Value) -> std::result::Result<(), String> {
    let next = path.first().copied().unwrap_or(last);
    if let Value::String(name) = at
        && next != "type"
    {
        // A section that is given by its name alone, as "adam".
        *at = json!({ "type": name.clone() });
    }
    let below = match at {
        Value::Object(keys) => keys.entry(next.to_string()).or_insert_with(|| json!({})),
        Value::Array(list) => {
            let n = list.len();
            let place = next.parse::<usize>().ok().and_then(|i| list.get_mut(i));
            place.ok_or_else(|| format!("expected a position below {n}, got `{next}`"))?
        }
        other => return Err(format!("expected an object or a list above `{next}`, got {other}")),
    };
    match path.split_first() {
        Some((_, rest)) => put(below, rest, last, value),
        None => {
            *below = value;
            Ok(())
        }
    }
}

/// A run whose data was read.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) config: Config,
    pub(crate) data: Data,
    /// The network, where it is one of Loom.
    pub(crate) loom: Option<Loom>,
    /// What was chosen because nothing else was said.
    pub(crate) notes: Vec<&'static str>,
}

/// The network of a run, on a device.
pub(crate) enum Built {
    Loom(LoomNetwork),
    Network(Network),
}

impl Built {
    pub(crate) fn layer(&self) -> &dyn Layer {
        match self {
            Built::Loom(n) => n,
            Built::Network(n) => n,
        }
    }
}

impl Run {
    /// The network, ready to train on these data.
    pub(crate) fn build(&self, device: &Device, sources: &Sources) -> Result<Built> {
        let Some(loom) = &self.loom else { return Ok(Built::Network(self.config.model(device, sources)?)) };
        let train = &self.config.train;
        let made = loom.network(&InitContext::new(device, train.seed).dtype(train.precision.dtype()))?;
        self.config.prepare(&made, sources)?;
        Ok(Built::Loom(made))
    }
}

/// Parses an option that may be JSON.
fn json_or(option: &str, text: &str, plain: impl FnOnce() -> Result<Value>) -> Result<Value> {
    if !text.trim_start().starts_with('{') {
        return plain();
    }
    serde_json::from_str(text).map_err(|e| CliError::Input(format!("{option}: {e}")))
}

/// `data` of a file, by its name.
pub(crate) fn data_of(file: &str) -> Result<Value> {
    let path = Path::new(file);
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    Ok(match extension.as_str() {
        _ if path.is_dir() => json!({ "images": file }),
        "tsv" => json!({ "csv": file, "separator": "\t" }),
        "csv" | "parquet" | "arrow" | "npy" | "npz" | "idx" => json!({ extension: file }),
        "pq" => json!({ "parquet": file }),
        "arrows" | "feather" | "ipc" => json!({ "arrow": file }),
        _ => {
            let text = format!(
                "--data: expected a .csv, .tsv, .parquet, .arrow, .feather, .npy, .npz or .idx file, a folder, or JSON as {{ \"text\": FILE, \"length\": 64 }}, got {file}"
            );
            return Err(CliError::Input(text));
        }
    })
}

/// The object of a file.
fn object(path: &Path) -> Result<Map<String, Value>> {
    let wrong = |what: String| NnError::Config { file: path.display().to_string(), key: ".".into(), what };
    match serde_json::from_str(&limits::read_config(path)?) {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(v) => Err(wrong(format!("invalid type: expected an object, got {v}")).into()),
        Err(e) => Err(wrong(e.to_string()).into()),
    }
}

/// A training run, read and not yet built.
struct Sections<'a> {
    /// The sections; without `model` where `loom` has the network.
    keys: Map<String, Value>,
    /// The file that they are from.
    from: Option<&'a Path>,
    loom: Option<Loom>,
}

impl RunArgs {
    /// The sections of the run. Errors: a section in two files; no data.
    fn sections(&self) -> Result<Sections<'_>> {
        let (content, json) = Content::read(&self.file)?;
        let mut loom = None;
        let (mut keys, from) = match (content, &self.config) {
            (Content::Run, None) => (object(&self.file)?, Some(self.file.as_path())),
            (Content::Run, Some(_)) => {
                let text = format!(
                    "--config: expected a network beside it, but {} is a training run",
                    self.file.display()
                );
                return Err(CliError::Input(text));
            }
            (_, Some(path)) => (object(path)?, Some(path.as_path())),
            (_, None) => (Map::new(), None),
        };
        if content != Content::Run && keys.contains_key("model") {
            let text =
                format!("--config: expected a run without `model`, the network is {}", self.file.display());
            return Err(CliError::Input(text));
        }
        match content {
            Content::Run => {}
            Content::Network => drop(keys.insert("model".into(), json)),
            Content::Loom | Content::Bundle => loom = Some(Loom::load(&self.file, content)?),
        }
        if let Some(text) = &self.data {
            keys.insert("data".into(), json_or("--data", text, || data_of(text))?);
        }
        self.set.iter().try_for_each(|text| set(&mut keys, text))?;
        let Some(data) = keys.get_mut("data") else { return Err(self.no_data(content)) };
        if let (Some(target), Value::Object(data)) = (&self.target, data) {
            data.insert("target".into(), target.as_str().into());
        }
        if let Some(text) = &self.loss {
            keys.insert("loss".into(), json_or("--loss", text, || Ok(text.as_str().into()))?);
        }
        Ok(Sections { keys, from, loom })
    }

    /// What is missing for a training.
    fn no_data(&self, content: Content) -> CliError {
        let what = match content {
            Content::Run => "a run without `data`",
            Content::Network => "a network alone",
            Content::Loom => "a network of Loom",
            Content::Bundle => "a bundle of Loom",
        };
        CliError::Input(format!(
            "{} is {what}, which says nothing of the data to train on: give --data FILE, or --config RUN.json with `data` and, where the \
             defaults do not serve, `loss`, `optimizer` and `train`",
            self.file.display()
        ))
    }

    /// Reads the run and its data; `change` sets what other options say.
    pub(crate) fn open(&self, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Run> {
        let Sections { mut keys, from, loom } = self.sections()?;
        if let Some(loom) = &loom {
            settings_of(loom, &mut keys);
        }
        let parse = |keys: &Map<String, Value>| {
            let json = Value::Object(keys.clone());
            let config = match &loom {
                Some(loom) => Config::external(json, serde_json::to_value(&loom.config).unwrap_or_default()),
                None => Config::from_value(json),
            };
            config.map_err(|e| match (e, from) {
                (NnError::Config { key, what, .. }, Some(path)) => {
                    NnError::Config { file: path.display().to_string(), key, what }
                }
                (e, _) => e,
            })
        };
        let mut config = parse(&keys)?;
        change(&mut config)?;
        config.check()?;
        let data = config.data.open()?;
        let mut notes = vec![];
        if loom.as_ref().is_some_and(Loom::gives_probabilities)
            && config.loss.is_none()
            && data.target() == TargetKind::Class
        {
            keys.insert("loss".into(), json!({ "type": "nll", "floor": 1e-7 }));
            config.loss = parse(&keys)?.loss;
            notes.push("the network ends in a softmax: the loss is nll of its probabilities (--loss chooses another)");
        }
        Ok(Run { config, data, loom, notes })
    }
}

/// Takes from a file of Loom what the run does not say: seed and samples in a batch.
fn settings_of(loom: &Loom, keys: &mut Map<String, Value>) {
    let train = keys.entry("train").or_insert_with(|| json!({}));
    let Value::Object(train) = train else { return };
    if loom.config.batch_size > 1 {
        train.entry("batch_size").or_insert(loom.config.batch_size.into());
    }
    if let Some(seed) = loom.config.seed {
        train.entry("seed").or_insert((seed as u64).into());
    }
}
