//! Files of weights.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use trefoil::ops::activation::Activation;

use super::definition::{LayerDefinition, LoomConfig, Origin, canonical, parse};
use super::flags::Flags;
use super::layer::LoomLayer;
use super::network::LoomNetwork;
use super::plan::Op;
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::tensor::Tensor;
use crate::module::InitContext;

const TYPE: &str = "modelhost/bundle";
const FORMAT: &str = "jsonModelB64";

/// Loom's file of models: `modelhost/bundle`, version 1, weights as base64 of JSON.
///
/// Loom reads what this writes for dense, conv2d, rnn, lstm, mha, softmax, both norms, swiglu, parallel and sequential layers; here all
/// layers come back (Loom loses the weights of conv1d, embedding and residual, and the rope base and the key heads of mha; these stand in
/// the file here, where Loom does not look). Weights are 32-bit floats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    #[serde(rename = "type")]
    kind: String,
    version: u32,
    models: Vec<Model>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    id: String,
    cfg: LoomConfig,
    weights: Encoded,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    fmt: String,
    data: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weights {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    dtype: String,
    layers: Vec<LayerWeights>,
}

macro_rules! weights {
    ($($key:ident)*) => {
        /// Arrays of one layer.
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct LayerWeights {
            #[serde(default, skip_serializing_if = "String::is_empty")]
            dtype: String,
            $(#[serde(default, skip_serializing_if = "Vec::is_empty")] $key: Vec<f32>,)*
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            branch_weights: Vec<LayerWeights>,
        }

        impl LayerWeights {
            fn array(&mut self, key: &str) -> Option<&mut Vec<f32>> {
                match key {
                    $(stringify!($key) => Some(&mut self.$key),)*
                    _ => None,
                }
            }

            /// Names of the arrays that are there.
            fn names(&self) -> Vec<&'static str> {
                [$((!self.$key.is_empty()).then_some(stringify!($key)),)*].into_iter().flatten().collect()
            }
        }
    };
}

weights! {
    kernel biases conv_bias
    q_weights k_weights v_weights output_weight q_bias k_bias v_bias output_bias
    weight_ih weight_hh bias_h
    weight_ii weight_if weight_ig weight_io weight_hi weight_hf weight_hg weight_ho bias_i bias_f bias_g bias_o
    gamma beta
    gate_weights up_weights down_weights gate_bias up_bias down_bias
    embedding_weights
}

fn fail<T>(key: impl Into<String>, what: impl Into<String>) -> Result<T> {
    Err(NnError::Config { file: "Loom bundle".into(), key: key.into(), what: what.into() })
}

impl Default for Bundle {
    /// Without models.
    fn default() -> Self {
        Bundle { kind: TYPE.into(), version: 1, models: vec![] }
    }
}

impl Bundle {
    /// Reads a bundle's JSON. Errors: [`NnError::Config`] with the path of what is unknown or has a wrong type.
    pub fn from_json(text: &str) -> Result<Self> {
        let b: Bundle = parse("Loom bundle", text)?;
        if b.kind != TYPE {
            return fail("type", format!("expected `{TYPE}`, found `{}`", b.kind));
        }
        if b.version != 1 {
            return fail("version", format!("expected 1, found {}", b.version));
        }
        Ok(b)
    }

    /// Reads a file. Errors: [`NnError::Io`], and those of [`from_json`](Bundle::from_json).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Bundle::from_json(&limits::read_text(path, limits::MODEL_TEXT_BYTES)?)
    }

    /// The bundle as JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| NnError::config("models", e.to_string()))
    }

    /// Writes a file, replacing an older one only once the new one is complete. Errors: [`NnError::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        crate::io::durable::write_atomic(path, self.to_json()?.as_bytes())
    }

    /// Names of the models.
    pub fn ids(&self) -> Vec<&str> {
        self.models.iter().map(|m| m.id.as_str()).collect()
    }

    /// Adds a network, or replaces the one of this name. Waits for the device. Errors: a weight that is NaN or infinite, which JSON cannot say.
    pub fn insert(&mut self, id: &str, network: &LoomNetwork) -> Result<()> {
        let layers = network.layers().iter().map(download).collect::<Result<_>>()?;
        let weights = Weights { kind: "float32".into(), dtype: String::new(), layers };
        let inner = serde_json::to_vec(&weights).map_err(|e| NnError::config("weights", e.to_string()))?;
        let config = network.config();
        let pairs = network.layers().iter().zip(&config.layers);
        let n = network.layers().len();
        let grid = [config.grid_rows, config.grid_cols, config.layers_per_cell];
        let [grid_rows, grid_cols, layers_per_cell] = if grid == [0; 3] { [1, 1, n] } else { grid };
        let cfg = LoomConfig {
            id: id.into(),
            batch_size: network.batch_size(),
            grid_rows,
            grid_cols,
            layers_per_cell,
            layers: pairs.map(|(l, d)| definition(l, d)).collect(),
            ..LoomConfig::default()
        };
        let data = STANDARD.encode(inner);
        let model = Model { id: id.into(), cfg, weights: Encoded { fmt: FORMAT.into(), data } };
        match self.models.iter_mut().find(|m| m.id == id) {
            Some(old) => *old = model,
            None => self.models.push(model),
        }
        Ok(())
    }

    /// Builds a network with its weights. Errors: [`NnError::Config`] for a name that is not there, another format of weights, arrays that are
    /// missing, unknown or of another length; and those of [`LoomNetwork::new`].
    pub fn network(&self, id: &str, cx: &InitContext, flags: &Flags) -> Result<LoomNetwork> {
        let Some((at, model)) = self.models.iter().enumerate().find(|(_, m)| m.id == id) else {
            return fail("models", format!("no model `{id}`, there are {:?}", self.ids()));
        };
        let path = format!("models[{at}].weights");
        if model.weights.fmt != FORMAT {
            let found = &model.weights.fmt;
            return fail(format!("{path}.fmt"), format!("expected `{FORMAT}`, found `{found}`"));
        }
        let bytes = match STANDARD.decode(&model.weights.data) {
            Ok(b) => b,
            Err(e) => return fail(format!("{path}.data"), e.to_string()),
        };
        let text = match std::str::from_utf8(&bytes) {
            Ok(t) => t,
            Err(e) => return fail(format!("{path}.data"), e.to_string()),
        };
        let mut weights: Weights = parse("weights of a Loom bundle", text)?;
        if !matches!(weights.kind.as_str(), "" | "float32") {
            return fail(
                format!("{path}.data.type"),
                format!("expected `float32`, found `{}`", weights.kind),
            );
        }
        let mut cfg = LoomConfig { origin: Origin::Bundle, ..model.cfg.clone() };
        if cfg.layers.len() != weights.layers.len() {
            let (n, m) = (cfg.layers.len(), weights.layers.len());
            return fail(format!("{path}.data.layers"), format!("{m} layers of weights for {n} layers"));
        }
        for (d, w) in cfg.layers.iter_mut().zip(&weights.layers) {
            key_heads(d, w);
        }
        let network = LoomNetwork::new(cx, &cfg, flags)?;
        for (i, (l, w)) in network.layers().iter().zip(&mut weights.layers).enumerate() {
            upload(l, w, &format!("{path}.data.layers[{i}]"))?;
        }
        Ok(network)
    }
}

/// Loom does not write the number of key heads; it follows from the size of their weights.
fn key_heads(d: &mut LayerDefinition, w: &LayerWeights) {
    for (d, w) in d.branches.iter_mut().flatten().zip(&w.branch_weights) {
        key_heads(d, w);
    }
    let (width, heads) = (d.d_model.unwrap_or(0), d.num_heads.unwrap_or(8));
    if canonical(&d.kind) != "mha" || d.num_kv_heads.is_some() || width == 0 || heads == 0 {
        return;
    }
    let (kv, head) = (w.k_weights.len() / width, width / heads);
    if kv < width && kv > 0 && head > 0 && kv.is_multiple_of(head) {
        d.num_kv_heads = Some(kv / head);
    }
}

/// All weights of a layer on the host.
fn download(l: &LoomLayer) -> Result<LayerWeights> {
    let mut w = LayerWeights::default();
    for slot in l.slots() {
        let data = l.weight(slot.key)?;
        if data.iter().any(|v| !v.is_finite()) {
            return fail(format!("{}.{}", l.path(), slot.key), "a weight is NaN or infinite");
        }
        if let Some(array) = w.array(slot.key) {
            *array = data;
        }
    }
    w.branch_weights = l.branches().iter().map(download).collect::<Result<_>>()?;
    Ok(w)
}

/// Puts a layer's weights in place. A layer of which the file knows no weights keeps zeros, as in Loom.
fn upload(l: &LoomLayer, w: &mut LayerWeights, path: &str) -> Result<()> {
    if matches!(l.op(), Op::Pass) {
        return Ok(());
    }
    let known: Vec<&str> = l.slots().iter().map(|s| s.key).collect();
    if let Some(name) = w.names().into_iter().find(|n| !known.contains(n)) {
        return fail(
            format!("{path}.{name}"),
            format!("a {} layer has no such weights", crate::module::Layer::kind(l)),
        );
    }
    let none = w.names().is_empty();
    for slot in l.slots() {
        let to = l.view(slot)?;
        let data = w.array(slot.key).map(std::mem::take).unwrap_or_default();
        if data.is_empty() && (slot.optional || none) {
            to.assign(&Tensor::zeros(to.device(), to.dtype(), to.shape())?)?;
            continue;
        }
        if data.len() != to.numel() {
            let what = format!("expected {} numbers, found {}", to.numel(), data.len());
            return fail(format!("{path}.{}", slot.key), what);
        }
        l.set_weight(slot.key, &data)?;
    }
    let (n, m) = (l.branches().len(), w.branch_weights.len());
    if n != m {
        return fail(format!("{path}.branch_weights"), format!("expected {n} branches, found {m}"));
    }
    for (i, (l, w)) in l.branches().iter().zip(&mut w.branch_weights).enumerate() {
        upload(l, w, &format!("{path}.branch_weights[{i}]"))?;
    }
    Ok(())
}

fn activation(act: Activation) -> &'static str {
    match act {
        Activation::Relu => "relu",
        Activation::Sigmoid => "sigmoid",
        Activation::Tanh => "tanh",
        Activation::Softplus { .. } => "softplus",
        Activation::LeakyRelu { .. } => "leaky_relu",
        _ => "linear",
    }
}

/// A layer in the keys that Loom's loader reads.
fn definition(l: &LoomLayer, old: &LayerDefinition) -> LayerDefinition {
    let new = |kind: &str| LayerDefinition::new(kind);
    match l.op() {
        Op::Dense { inputs, outputs, act } => LayerDefinition {
            activation: Some(activation(act.act).into()),
            input_height: Some(*inputs),
            output_height: Some(*outputs),
            ..new("dense")
        },
        Op::Conv1d { window: w, act } => LayerDefinition {
            activation: Some(activation(act.act).into()),
            input_channels: Some(w.channels),
            filters: Some(w.filters),
            kernel_size: Some(w.kernel),
            stride: Some(w.stride),
            padding: Some(w.padding),
            input_length: w.size.first().copied(),
            ..new("conv1d")
        },
        Op::Conv2d { window: w, act } => LayerDefinition {
            activation: Some(activation(act.act).into()),
            input_channels: Some(w.channels),
            filters: Some(w.filters),
            kernel_size: Some(w.kernel),
            stride: (!w.fixed).then_some(w.stride),
            padding: Some(w.padding),
            input_height: Some(w.size[0]),
            input_width: Some(w.size[1]),
            output_height: Some(w.out[0]),
            output_width: Some(w.out[1]),
            ..new("conv2d")
        },
        Op::Rnn { input, hidden, steps } | Op::Lstm { input, hidden, steps } => LayerDefinition {
            input_size: Some(*input),
            hidden_size: Some(*hidden),
            seq_length: Some(*steps),
            ..new(canonical(&old.kind))
        },
        Op::Mha(h) => LayerDefinition {
            d_model: Some(h.d),
            num_heads: Some(h.heads),
            num_kv_heads: (h.kv_heads != h.heads).then_some(h.kv_heads),
            seq_length: old.seq_length,
            rope_freq_base: old.rope_freq_base,
            ..new("multi_head_attention")
        },
        Op::SwiGlu { inputs, inner } => {
            LayerDefinition { input_height: Some(*inputs), output_height: Some(*inner), ..new("swiglu") }
        }
        Op::Parallel { .. } | Op::Sequential { .. } => {
            let olds = old.branches.as_deref().unwrap_or(&[]);
            let branches = l.branches().iter().zip(olds).map(|(l, d)| definition(l, d)).collect();
            LayerDefinition { branches: Some(branches), ..old.clone() }
        }
        Op::Activate(act) => {
            LayerDefinition { activation: Some(activation(act.act).into()), ..new(canonical(&old.kind)) }
        }
        _ => LayerDefinition { kind: canonical(&old.kind).into(), ..old.clone() },
    }
}

impl LoomNetwork {
    /// Writes a bundle of this network alone. Waits for the device.
    pub fn save(&self, path: impl AsRef<Path>, id: &str) -> Result<()> {
        let mut b = Bundle::default();
        b.insert(id, self)?;
        b.save(path)
    }

    /// Reads one network of a bundle.
    pub fn load(path: impl AsRef<Path>, id: &str, cx: &InitContext, flags: &Flags) -> Result<Self> {
        Bundle::from_file(path)?.network(id, cx, flags)
    }
}
