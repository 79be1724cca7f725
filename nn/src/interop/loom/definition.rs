//! Loom's network files as they stand.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::options::suggest;
use crate::core::tensor::Device;
use crate::module::InitContext;

/// Where a configuration comes from; some of Loom's habits depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// The JSON builder.
    Json,
    /// Code.
    #[default]
    Code,
    /// A saved bundle.
    Bundle,
}

/// A network as Loom describes it.
///
/// Unknown keys and values of a wrong type are errors that name the place in the file, such as `layers[2].branches[0].filters`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoomConfig {
    /// Name; also the key inside of a bundle.
    #[serde(default)]
    pub id: String,
    /// What Loom hands back to its caller, `float32` by default. It does not change what is computed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dtype: String,
    /// Samples in a flat input; 0 means 1.
    #[serde(default)]
    pub batch_size: usize,
    /// Rows of the grid.
    #[serde(default)]
    pub grid_rows: usize,
    /// Columns of the grid.
    #[serde(default)]
    pub grid_cols: usize,
    /// Layers in a cell.
    #[serde(default)]
    pub layers_per_cell: usize,
    /// The layers in the order of execution: rows, in them columns, in them layers of a cell.
    #[serde(default)]
    pub layers: Vec<LayerDefinition>,
    /// Seed of the initial weights, see [`LoomConfig::init_context`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Where it comes from.
    #[serde(skip)]
    pub origin: Origin,
}

/// The largest count in a value, 0 where it holds none.
trait Largest {
    fn largest(&self) -> usize {
        0
    }
}

impl Largest for usize {
    fn largest(&self) -> usize {
        *self
    }
}

impl<T: Largest> Largest for Vec<T> {
    fn largest(&self) -> usize {
        self.iter().map(T::largest).max().unwrap_or(0)
    }
}

impl Largest for f32 {}
impl Largest for bool {}
impl Largest for String {}
impl Largest for LayerDefinition {}

impl Largest for GridPosition {
    fn largest(&self) -> usize {
        self.target_row.max(self.target_col).max(self.target_layer)
    }
}

/// Declares the keys of a layer, each with the types that read it.
macro_rules! definition {
    ($($(#[$meta:meta])* $key:ident : $ty:ty [$($kind:ident)*],)*) => {
        /// One layer: Loom's keys (`type` is [`kind`](LayerDefinition::kind)), the guide's spellings for `conv1d`, and `num_kv_heads`,
        /// which Loom knows in code only. What is absent is `None`.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct LayerDefinition {
            /// `type`, one of [`types`](super::types).
            #[serde(rename = "type")]
            pub kind: String,
            $(
                $(#[$meta])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $key: Option<$ty>,
            )*
        }

        /// The keys, each with the types that read it.
        const KEYS: &[(&str, &[&str])] = &[$((stringify!($key), &[$(stringify!($kind)),*]),)*];

        impl LayerDefinition {
            /// The keys that are there but that a type does not read.
            pub(super) fn unread(&self, kind: &str) -> impl Iterator<Item = &'static str> {
                let given = [$(self.$key.is_some(),)*];
                let all = KEYS.iter().zip(given).filter(|(_, given)| *given);
                all.filter(move |((_, kinds), _)| !kinds.contains(&kind)).map(|((key, _), _)| *key)
            }

            /// A key with a number beyond `limit`.
            pub(super) fn beyond(&self, limit: usize) -> Option<&'static str> {
                let largest = [$((stringify!($key), self.$key.as_ref().map_or(0, Largest::largest)),)*];
                largest.into_iter().find(|(_, n)| *n > limit).map(|(key, _)| key)
            }
        }
    };
}

definition! {
    /// `relu`, `sigmoid`, `tanh`, `softplus`, `leaky_relu`, `linear`; `identity` stands for Loom's identity that exists in code only.
    activation: String [dense conv1d conv2d residual],
    /// Inputs of a dense layer.
    width: usize [dense],
    /// Outputs of a dense layer.
    height: usize [dense],
    /// Inputs of dense, swiglu; width of a step of rnn, lstm.
    input_size: usize [dense rnn lstm swiglu],
    /// Outputs of dense; inner size of swiglu.
    output_size: usize [dense swiglu],
    /// Inputs of dense, swiglu; rows of an image.
    input_height: usize [dense conv1d conv2d swiglu],
    /// Columns of an image.
    input_width: usize [conv2d],
    /// Outputs of dense; inner size of swiglu; rows of a result.
    output_height: usize [dense conv1d conv2d swiglu],
    /// Columns of a result.
    output_width: usize [conv2d],
    /// Length of a sequence for conv1d.
    input_length: usize [conv1d],
    /// Channels of a convolution.
    input_channels: usize [conv1d conv2d],
    /// Filters of a convolution.
    filters: usize [conv1d conv2d],
    /// Kernel size of a convolution.
    kernel_size: usize [conv1d conv2d],
    /// Stride of a convolution.
    stride: usize [conv1d conv2d],
    /// Padding of a convolution.
    padding: usize [conv1d conv2d],
    /// The guide's `input_channels`.
    conv1d_in_channels: usize [conv1d],
    /// The guide's `filters`.
    conv1d_filters: usize [conv1d],
    /// The guide's `kernel_size`.
    conv1d_kernel_size: usize [conv1d],
    /// The guide's `stride`.
    conv1d_stride: usize [conv1d],
    /// The guide's `padding`.
    conv1d_padding: usize [conv1d],
    /// Width of a token.
    d_model: usize [mha],
    /// Heads, 8 by default.
    num_heads: usize [mha],
    /// Heads of keys and values; as many as `num_heads` by default.
    num_kv_heads: usize [mha],
    /// Steps of rnn and lstm, 1 by default; attention takes what is there.
    seq_length: usize [rnn lstm mha],
    /// Base of the rotary frequencies, 10000 by default.
    rope_freq_base: f32 [mha],
    /// Width of the state.
    hidden_size: usize [rnn lstm],
    /// `standard`, `grid`, `hierarchical`, `temperature`, `gumbel`, `masked`, `sparse`, `adaptive`, `mixture`, `entmax`.
    softmax_variant: String [softmax],
    /// Groups of a grid softmax.
    softmax_rows: usize [softmax],
    /// Size of a group.
    softmax_cols: usize [softmax],
    /// 0 or absent means 1.
    temperature: f32 [softmax],
    /// Not read: the variant alone decides.
    gumbel_noise: bool [],
    /// Visible places.
    mask: Vec<bool> [softmax],
    /// Children per depth.
    hierarchy_levels: Vec<usize> [softmax],
    /// Classes by cluster.
    adaptive_clusters: Vec<Vec<usize>> [softmax],
    /// Weights of a mixture.
    mixture_weights: Vec<f32> [softmax],
    /// 1 is softmax, 2 sparsemax.
    entmax_alpha: f32 [softmax],
    /// Size of a normalized row.
    norm_size: usize [layer_norm rms_norm],
    /// Added to the variance, 1e-5 by default.
    epsilon: f32 [layer_norm rms_norm],
    /// Rows of a table.
    vocab_size: usize [embedding],
    /// Width of a table.
    embedding_dim: usize [embedding],
    /// Parts of parallel and sequential layers.
    branches: Vec<LayerDefinition> [parallel sequential],
    /// `concat` (also for an empty word), `add`, `avg`, `average`, `grid_scatter`, `filter`.
    combine_mode: String [parallel],
    /// One for each branch of `grid_scatter`.
    grid_positions: Vec<GridPosition> [parallel],
    /// Rows of its grid.
    grid_output_rows: usize [parallel],
    /// Columns of its grid.
    grid_output_cols: usize [parallel],
    /// Layers of its grid.
    grid_output_layers: usize [parallel],
}

/// The types of layers, each with the one of [`network`](crate::network) that computes the same.
pub(super) const TYPES: &[(&str, &str)] = &[
    ("dense", "dense"),
    ("conv1d", "conv1d"),
    ("conv2d", "convolutional"),
    ("rnn", "recurrent"),
    ("lstm", "lstm"),
    ("mha", "multi_head_attention"),
    ("softmax", "softmax_variant"),
    ("layer_norm", "layer_normalization"),
    ("rms_norm", "rms_norm"),
    ("swiglu", "swiglu"),
    ("embedding", "embedding"),
    ("parallel", "parallel"),
    ("sequential", "sequential"),
    ("residual", "residual"),
];

/// A type of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoomType {
    /// Loom's name.
    pub name: &'static str,
    /// The type of [`network`](crate::network) that computes the same.
    pub network: &'static str,
    /// The keys that it reads.
    pub keys: Vec<&'static str>,
}

/// The types of layers that can be read.
pub fn types() -> Vec<LoomType> {
    let reads =
        |name: &str| KEYS.iter().filter(|(_, kinds)| kinds.contains(&name)).map(|(key, _)| *key).collect();
    TYPES.iter().map(|&(name, network)| LoomType { name, network, keys: reads(name) }).collect()
}

/// The name under which a type is known here.
pub(super) fn canonical(kind: &str) -> &str {
    match kind {
        "multi_head_attention" => "mha",
        "layernorm" => "layer_norm",
        "rmsnorm" => "rms_norm",
        other => other,
    }
}

/// Cell of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridPosition {
    /// Which branch.
    pub branch_index: usize,
    /// Row.
    #[serde(default)]
    pub target_row: usize,
    /// Column.
    #[serde(default)]
    pub target_col: usize,
    /// Layer.
    #[serde(default)]
    pub target_layer: usize,
}

impl LayerDefinition {
    /// A layer of this type without keys.
    pub fn new(kind: impl Into<String>) -> Self {
        LayerDefinition { kind: kind.into(), ..LayerDefinition::default() }
    }
}

/// Parses a value, and names the place of what does not fit.
pub(super) fn parse<'a, T: Deserialize<'a>>(file: &str, text: &'a str) -> Result<T> {
    let error = |key: String, what: String| NnError::Config { file: file.into(), key, what };
    let mut de = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut de)
        .map_err(|e| error(e.path().to_string(), suggest(&e.inner().to_string())))?;
    de.end().map_err(|e| error(".".into(), e.to_string()))?;
    Ok(value)
}

impl LoomConfig {
    /// Reads Loom's JSON. Errors: [`NnError::Config`] with the path of a key that is unknown or has a wrong type. Sizes are checked by
    /// [`LoomNetwork::new`](super::LoomNetwork::new) and [`check`](super::check).
    pub fn from_json(text: &str) -> Result<Self> {
        let config: LoomConfig = parse("Loom network", text)?;
        Ok(LoomConfig { origin: Origin::Json, ..config })
    }

    /// Reads a file. Errors: [`NnError::Io`], and those of [`from_json`](LoomConfig::from_json).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = limits::read_config(path)?;
        let config: LoomConfig = parse(&path.display().to_string(), &text)?;
        Ok(LoomConfig { origin: Origin::Json, ..config })
    }

    /// A grid of places that [`set_layer`](LoomConfig::set_layer) fills; one that stays empty is an error later.
    pub fn new(grid_rows: usize, grid_cols: usize, layers_per_cell: usize) -> Self {
        // A grid without places cannot be filled; the error comes when it is built.
        let n = grid_rows.saturating_mul(grid_cols).saturating_mul(layers_per_cell);
        let layers = vec![LayerDefinition::default(); if n > 1 << 20 { 0 } else { n }];
        LoomConfig { grid_rows, grid_cols, layers_per_cell, layers, ..LoomConfig::default() }
    }

    /// Position of a layer in the order of execution, if the grid has it.
    pub fn flat_index(&self, row: usize, col: usize, layer: usize) -> Option<usize> {
        let inside = row < self.grid_rows && col < self.grid_cols && layer < self.layers_per_cell;
        let cell = row.checked_mul(self.grid_cols)?.checked_add(col)?;
        cell.checked_mul(self.layers_per_cell)?.checked_add(layer).filter(|_| inside)
    }

    /// Puts a layer in its place. Errors: [`NnError::Config`] for a place outside of the grid.
    pub fn set_layer(&mut self, row: usize, col: usize, layer: usize, d: LayerDefinition) -> Result<()> {
        let at = self.flat_index(row, col, layer);
        match at.and_then(|i| self.layers.get_mut(i)) {
            Some(slot) => *slot = d,
            None => {
                let (r, c, l) = (self.grid_rows, self.grid_cols, self.layers_per_cell);
                return Err(NnError::Config {
                    file: "Loom network".into(),
                    key: "layers".into(),
                    what: format!("no cell ({row}, {col}, {layer}) in a grid of {r} x {c} x {l}"),
                });
            }
        }
        Ok(())
    }

    /// The context in which layers are made, with the file's seed (0 without one).
    pub fn init_context(&self, device: &Device) -> InitContext {
        InitContext::new(device, self.seed.unwrap_or(0) as u64)
    }

    /// Samples in a flat input.
    pub fn batch(&self) -> usize {
        self.batch_size.max(1)
    }
}
