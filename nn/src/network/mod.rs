//! Networks described in JSON: graphs of the [layers](crate::layers), checked before anything is allocated.
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::network::{Network, NetworkConfig};
//! use trefoil_nn::{InitContext, DType, Layer, LayerExt, Tensor};
//!
//! let config = NetworkConfig::parse(r#"{
//!     "inputs": { "x": [4] },
//!     "layers": [
//!         { "type": "dense", "name": "first", "out_features": 8, "activation": "relu" },
//!         { "type": "residual", "name": "block", "layers": [ { "type": "dense", "out_features": 8 } ] },
//!         { "type": "concatenate", "inputs": ["block", "x"] },
//!         { "type": "dense", "name": "head", "out_features": 2 }
//!     ] }"#)?;
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let network = Network::new(&InitContext::new(&device, 42), &config)?;
//! let y = network.forward(&Tensor::zeros(&device, DType::F32, &[3, 4])?)?;
//! assert_eq!(y.shape(), [3, 2]);
//! let names: Vec<String> = network.named_parameters().into_iter().map(|(name, _)| name).collect();
//! assert_eq!(names[..4], ["first.weight", "first.bias", "block.0.weight", "block.0.bias"]);
//!
//! let wrong = NetworkConfig::parse(r#"{
//!     "inputs": { "x": [4] },
//!     "layers": [ { "type": "dense", "in_features": 5, "out_features": 8 } ] }"#);
//! let message = wrong.unwrap_err().to_string();
//! assert!(message.contains("layers[0]") && message.contains("[2, 4]") && message.contains("[.., 5]"), "{message}");
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```
//!
//! A layer's `type` and options are those of [`LAYERS`]: the snake-case name of the type in [`layers`](crate::layers), and the names that
//! PyTorch (or Keras) has for the arguments, with their defaults. All other keys and values are errors with their path in the file. Beside
//! them a layer may have a `name`, which begins the names of its parameters (without one, its position does, as in
//! `torch.nn.Sequential`), and `inputs`, the names of what it reads (without them, the layer before it in the list). Layers may stand in
//! any order. `name.1` is the second output of a layer that has several. The rules in full are in `docs/NETWORKS.md`.
//!
//! Shapes are checked by running the network on [`Engine::shapes`](trefoil::Engine::shapes), a device that computes nothing, so that they
//! follow the same rules as the operations themselves.

mod build;
mod config;
mod graph;
mod options;
mod part;
mod shapes;
mod table;
mod unknown;

use serde_json::{Map, Value};

use crate::core::error::Result;
use crate::core::limits;
use crate::module::{InitContext, Layer};

pub use crate::core::options::Key;
pub use config::{InputConfig, NetworkConfig};
pub use graph::Network;
pub use table::LAYERS;

/// A family of layer types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// The most common layers.
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
    /// Layers that reshape, merge, mask and add noise.
    Utility,
    /// Relatives of the linear layer.
    DenseLike,
    /// Layers of graphs.
    Graph,
    /// Layers of meshes.
    Mesh,
    /// Blocks around skip connections.
    Residual,
    /// Capsules, memories, mixtures of experts, local learning rules and other layers of one purpose.
    Specialized,
    /// Layers made of layers.
    Container,
}

/// A layer type, a row of [`LAYERS`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LayerInfo {
    /// Number in the original list of layers; 0 for types that were added later.
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
    /// Number of spatial axes of its inputs `[B, C, ..]`, where the type fixes it.
    pub spatial: Option<usize>,
    /// Options beside `type`.
    pub keys: &'static [Key],
    build: Build,
}

/// Builds a layer from its options.
type Build = fn(&build::Site<'_>, Map<String, Value>) -> Result<Box<dyn Layer>>;

/// Any number of inputs.
const MANY: usize = usize::MAX;

/// A number of inputs as text.
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
pub fn layer(cx: &InitContext, json: &Value) -> Result<Box<dyn Layer>> {
    limits::check_layers("", std::slice::from_ref(json))?;
    build::build(cx, "", json)
}
