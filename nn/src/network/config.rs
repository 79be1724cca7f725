//! The description of a network, and the plan of its graph.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trefoil::DType;

use super::LayerInfo;
use super::build::{Entry, check_name};
use super::shapes::{BATCH, Item, batches};
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::options::{join, suggest};

/// A network in JSON; see the [module](super) for its rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// Version of the format, 1.
    #[serde(default = "version")]
    pub version: u32,
    /// Inputs by name, in alphabetical order. None: one input `input` of any shape.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputConfig>,
    /// Layers in any order.
    pub layers: Vec<Value>,
    /// Outputs: layers by name, `name.1` for the second output of one. None: the last layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
}

fn version() -> u32 {
    1
}

/// What is known of an input: the shape of an item, or an object of `shape` and `dtype`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct InputConfig {
    /// Shape behind the batch axis; -1 is any size.
    pub shape: Vec<isize>,
    /// Element type; none is that of the parameters.
    pub dtype: Option<DType>,
}

impl TryFrom<Value> for InputConfig {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        let shape = |v: &Value| {
            let sizes: Option<Vec<isize>> = serde_json::from_value(v.clone()).ok();
            let fits = |s: &Vec<isize>| s.iter().all(|&n| n > 0 || n == -1);
            sizes.filter(fits).ok_or_else(|| format!("expected sizes above 0 or -1 as `shape`, got {v}"))
        };
        let Value::Object(o) = &v else { return Ok(InputConfig { shape: shape(&v)?, dtype: None }) };
        if let Some(key) = o.keys().find(|k| !["shape", "dtype"].contains(&k.as_str())) {
            return Err(format!("unknown key `{key}`; known are shape, dtype"));
        }
        let dtype = match o.get("dtype") {
            None | Some(Value::Null) => None,
            Some(v) => Some(super::options::dtype(v.as_str().unwrap_or_default())?),
        };
        Ok(InputConfig { shape: shape(o.get("shape").unwrap_or(&Value::Null))?, dtype })
    }
}

impl From<InputConfig> for Value {
    fn from(i: InputConfig) -> Value {
        match i.dtype {
            None => i.shape.into(),
            Some(d) => serde_json::json!({ "shape": i.shape, "dtype": d.name() }),
        }
    }
}

/// Where a tensor comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// An input of the network.
    Input(usize),
    /// An output of a layer.
    Layer(usize, usize),
}

/// A layer of the graph.
#[derive(Debug)]
pub(super) struct Step {
    /// Its name, else its position.
    pub(super) name: String,
    /// Where it stands.
    pub(super) path: String,
    pub(super) info: &'static LayerInfo,
    pub(super) options: serde_json::Map<String, Value>,
    pub(super) sources: Vec<Source>,
    /// Whether one of its outputs is asked for by number.
    pub(super) numbered: bool,
}

/// The graph, with everything checked that does not need layers.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) inputs: Vec<(String, Option<InputConfig>)>,
    /// As in the file.
    pub(super) steps: Vec<Step>,
    /// Positions of layers such that each comes after those that it reads.
    pub(super) order: Vec<usize>,
    pub(super) outputs: Vec<(String, Source)>,
}

/// Names of inputs and layers.
struct Names<'a> {
    inputs: &'a [(String, Option<InputConfig>)],
    layers: &'a [String],
}

impl Names<'_> {
    /// What a reference means, and whether it has a number. Errors: no such name.
    fn find(&self, at: &str, reference: &str) -> Result<(Source, bool)> {
        if let Some(i) = self.layers.iter().position(|n| n == reference) {
            return Ok((Source::Layer(i, 0), false));
        }
        if let Some(i) = self.inputs.iter().position(|(n, _)| n == reference) {
            return Ok((Source::Input(i), false));
        }
        if let Some((name, number)) = reference.rsplit_once('.')
            && let (Some(i), Ok(k)) = (self.layers.iter().position(|n| n == name), number.parse())
        {
            return Ok((Source::Layer(i, k), true));
        }
        let known: Vec<&str> =
            self.inputs.iter().map(|(n, _)| n).chain(self.layers).map(String::as_str).collect();
        let what = format!("there is no layer or input `{reference}`; there are {}", known.join(", "));
        Err(NnError::config(at, what))
    }
}

impl Plan {
    /// Reads the graph of a network that stands at `path`. Errors: [`NnError::Config`].
    pub(super) fn new(config: &NetworkConfig, path: &str) -> Result<Self> {
        let wrong = |key: &str, what: String| Err(NnError::config(join(path, key), what));
        if config.version != 1 {
            return wrong("version", format!("expected 1, got {}", config.version));
        }
        if config.layers.is_empty() {
            return wrong("layers", "expected at least one layer".into());
        }
        let mut inputs: Vec<(String, Option<InputConfig>)> =
            config.inputs.iter().map(|(n, i)| (n.clone(), Some(i.clone()))).collect();
        let declared = !inputs.is_empty();
        if !declared {
            inputs.push(("input".into(), None));
        }
        let list = join(path, "layers");
        limits::check_layers(&list, &config.layers)?;
        for (name, input) in &config.inputs {
            check_input(&join(path, &format!("inputs.{name}")), &input.shape)?;
        }
        let mut seen: BTreeSet<String> = config.inputs.keys().cloned().collect();
        for name in &seen {
            check_name(&join(path, &format!("inputs.{name}")), name)?;
        }
        let (mut names, mut steps, mut reads) = (vec![], vec![], vec![]);
        for (i, json) in config.layers.iter().enumerate() {
            let at = format!("{list}[{i}]");
            let mut entry = Entry::new(&at, json)?;
            let given: Option<String> = entry.take("name")?;
            if let Some(name) = &given {
                check_name(&at, name)?;
            }
            let name = given.unwrap_or_else(|| i.to_string());
            if !seen.insert(name.clone()) {
                return Err(NnError::config(join(&at, "name"), format!("`{name}` is the name of two parts")));
            }
            reads.push(entry.take::<Vec<String>>("inputs")?);
            names.push(name.clone());
            let Entry { info, options, .. } = entry;
            steps.push(Step { name, path: at, info, options, sources: vec![], numbered: false });
        }
        let all = Names { inputs: &inputs, layers: &names };
        for (i, read) in reads.into_iter().enumerate() {
            let at = join(&steps[i].path, "inputs");
            let sources = match read {
                Some(list) => list
                    .iter()
                    .enumerate()
                    .map(|(k, name)| all.find(&format!("{at}[{k}]"), name))
                    .collect::<Result<Vec<_>>>()?,
                None if i > 0 => vec![(Source::Layer(i - 1, 0), false)],
                None if inputs.len() == 1 => vec![(Source::Input(0), false)],
                None => {
                    let known: Vec<&str> = inputs.iter().map(|(n, _)| n.as_str()).collect();
                    let what = format!("are missing; the network has the inputs {}", known.join(", "));
                    return Err(NnError::config(at, what));
                }
            };
            let (least, most) = steps[i].info.inputs;
            if sources.len() < least || sources.len() > most {
                let want = super::inputs_text(steps[i].info.inputs);
                let what = format!("`{}` takes {want} inputs, got {}", steps[i].info.name, sources.len());
                return Err(NnError::config(at, what));
            }
            for (source, numbered) in sources {
                if let (Source::Layer(k, _), true) = (source, numbered) {
                    steps[k].numbered = true;
                }
                steps[i].sources.push(source);
            }
        }
        let last = names.last().cloned().into_iter().collect();
        let mut outputs = vec![];
        for (k, name) in (if config.outputs.is_empty() { &last } else { &config.outputs }).iter().enumerate()
        {
            let (source, numbered) = all.find(&join(path, &format!("outputs[{k}]")), name)?;
            if let (Source::Layer(k, _), true) = (source, numbered) {
                steps[k].numbered = true;
            }
            outputs.push((name.clone(), source));
        }
        let order = order(&steps, &list)?;
        let plan = Plan { inputs, steps, order, outputs };
        plan.check_used(path, declared)?;
        Ok(plan)
    }

    /// Error if something is not read by anything.
    fn check_used(&self, path: &str, declared: bool) -> Result<()> {
        let (mut inputs, mut layers) = (vec![false; self.inputs.len()], vec![false; self.steps.len()]);
        let all = self.steps.iter().flat_map(|s| &s.sources).chain(self.outputs.iter().map(|(_, s)| s));
        for source in all {
            match *source {
                Source::Input(i) => inputs[i] = true,
                Source::Layer(i, _) => layers[i] = true,
            }
        }
        if let Some(i) = inputs.iter().position(|used| !used) {
            let name = &self.inputs[i].0;
            let key = if declared { format!("inputs.{name}") } else { "layers".into() };
            return Err(NnError::config(join(path, &key), format!("no layer reads the input `{name}`")));
        }
        match layers.iter().position(|used| !used) {
            Some(i) => {
                let Step { name, path, info, .. } = &self.steps[i];
                let what =
                    format!("nothing reads `{name}` ({}), and it is no output of the network", info.name);
                Err(NnError::config(path, what))
            }
            None => Ok(()),
        }
    }
}

/// Error for an input of more elements in a batch of two than [`limits::ELEMENTS`], or a larger axis than [`limits::NUMBER`].
fn check_input(path: &str, shape: &[isize]) -> Result<()> {
    let sizes = || shape.iter().filter_map(|&n| usize::try_from(n).ok());
    if let Some(n) = sizes().find(|&n| n as u64 > limits::NUMBER) {
        return Err(NnError::config(path, format!("expected sizes of at most {}, got {n}", limits::NUMBER)));
    }
    let all = sizes().try_fold(BATCH, |all, n| all.checked_mul(n).filter(|&all| all <= limits::ELEMENTS));
    if all.is_some() {
        return Ok(());
    }
    let what = format!("expected at most {} elements in {BATCH} items, got {shape:?}", limits::ELEMENTS);
    Err(NnError::config(path, what))
}

/// Layers such that each comes after those that it reads, otherwise as they stand. Errors: a cycle, with the names in it.
fn order(steps: &[Step], list: &str) -> Result<Vec<usize>> {
    let reads = |i: usize| {
        steps[i].sources.iter().filter_map(|s| match s {
            Source::Layer(k, _) => Some(*k),
            Source::Input(_) => None,
        })
    };
    let mut done = vec![false; steps.len()];
    let mut order = vec![];
    while order.len() < steps.len() {
        match (0..steps.len()).find(|&i| !done[i] && reads(i).all(|k| done[k])) {
            Some(i) => {
                done[i] = true;
                order.push(i);
            }
            None => {
                // Whatever is left reads something that is left: going back along it must meet a layer twice.
                let mut path: Vec<usize> = (0..steps.len()).filter(|&i| !done[i]).take(1).collect();
                let start = loop {
                    let Some(next) = path.last().and_then(|&i| reads(i).find(|&k| !done[k])) else { break 0 };
                    if let Some(at) = path.iter().position(|&k| k == next) {
                        break at;
                    }
                    path.push(next);
                };
                let mut ring: Vec<&str> =
                    path[start..].iter().rev().map(|&i| steps[i].name.as_str()).collect();
                ring.extend(ring.first().copied());
                return Err(NnError::config(list, format!("the layers {} form a cycle", ring.join(" -> "))));
            }
        }
    }
    Ok(order)
}

impl NetworkConfig {
    /// A network of these layers in a row.
    pub fn sequential(layers: Vec<Value>) -> Self {
        NetworkConfig { version: 1, inputs: BTreeMap::new(), layers, outputs: vec![] }
    }

    /// Parses and checks a network. Errors: [`NnError::Config`] with the path of the value.
    pub fn parse(text: &str) -> Result<Self> {
        let mut de = serde_json::Deserializer::from_str(text);
        let config: NetworkConfig = serde_path_to_error::deserialize(&mut de)
            .map_err(|e| NnError::config(e.path().to_string(), suggest(&e.inner().to_string())))?;
        de.end().map_err(|e| NnError::config(".", e.to_string()))?;
        config.check("")?;
        Ok(config)
    }

    /// Reads a file. Errors: [`NnError::Io`], and those of [`NetworkConfig::parse`] with the file's name.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = limits::read_config(path)?;
        Self::parse(&text).map_err(|e| match e {
            NnError::Config { key, what, .. } => {
                NnError::Config { file: path.display().to_string(), key, what }
            }
            e => e,
        })
    }

    /// Checks the graph, the options of all layers and, if the sizes of the inputs are declared, the shapes, without a device. `path` is
    /// where the network stands in its file (`model`, or nothing). Errors: [`NnError::Config`] with the path of the value or layer.
    pub fn check(&self, path: &str) -> Result<()> {
        let inputs = Plan::new(self, path)?.trial_inputs(DType::F32);
        Plan::dry_run(self, path, DType::F32, inputs.as_deref()).map(|_| ())
    }

    /// Shapes of the outputs for a batch of two of these items (shape and element type of each input, in the order of their names), found
    /// without a device. Parameters have the element type of the first input of floats (f32 where there is none). Errors: as
    /// [`check`](Self::check).
    pub fn output_shapes(&self, path: &str, items: &[(&[usize], DType)]) -> Result<Vec<Vec<usize>>> {
        let items: Vec<Item> = items.iter().map(|(s, d)| (s.to_vec(), *d)).collect();
        let dtype = items.iter().map(|(_, d)| *d).find(|d| d.is_float()).unwrap_or(DType::F32);
        Plan::dry_run(self, path, dtype, Some(&batches(&items))).map(|(shapes, _)| shapes)
    }
}
