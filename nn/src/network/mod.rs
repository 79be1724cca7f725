//! Networks described in JSON.

mod build;
mod config;
mod graph;
mod options;
mod shapes;
mod table;

use serde_json::Value;

use crate::error::Result;
use crate::layer::{Build, Layer};

pub use config::{InputConfig, NetworkConfig};
pub use graph::Network;
pub use table::LAYERS;

/// A family of layer types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// What most networks have.
    Core,
    /// Attention.
    Attention,
    /// Recurrent layers.
    Recurrent,
    /// Pooling.
    Pooling,
    /// Normalization.
    Normalization,
    /// Blocks of transformers.
    Transformer,
    /// Convolution.
    Convolution,
    /// Upsampling.
    Upsampling,
    /// Layers that reshape, merge, mask and disturb.
    Utility,
    /// Relatives of the linear layer.
    DenseLike,
    /// Layers made of layers.
    Container,
}

/// An option of a layer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its key.
    pub name: &'static str,
    /// Its default as JSON text; none if it is required.
    pub default: Option<&'static str>,
}

/// A layer type, a row of [`LAYERS`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LayerInfo {
    /// Number in the list of layers that this library set out with; 0 for later ones.
    pub entry: u32,
    /// Name of the layer in the list.
    pub kind: &'static str,
    /// Value of `type`.
    pub name: &'static str,
    /// Family.
    pub family: Family,
    /// What PyTorch has for it.
    pub torch: &'static str,
    /// Least and largest number of inputs.
    pub inputs: (usize, usize),
    /// Options beside `type`.
    pub keys: &'static [Key],
    build: fn(&build::Site<'_>, Value) -> Result<Box<dyn Layer>>,
}

/// Any number of inputs.
const MANY: usize = usize::MAX;

/// A number of inputs for people.
fn inputs_text(range: (usize, usize)) -> String {
    match range {
        (a, b) if a == b => format!("{a}"),
        (a, MANY) => format!("at least {a}"),
        (a, b) => format!("{a} to {b}"),
    }
}

/// Makes one layer of its JSON, `{ "type": "dense", "out_features": 8 }`.
///
/// Errors: [`NnError::Config`](crate::NnError::Config) with the path of what is unknown, missing, of a wrong type or out of range; those of
/// the device.
pub fn layer(cx: &Build, json: &Value) -> Result<Box<dyn Layer>> {
    build::build(cx, "", json)
}
