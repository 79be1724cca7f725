//! `model`: the network.

use serde::Deserialize;
use trefoil::ops::Activation;

use super::{check, yes};
use crate::error::{NnError, Result};
use crate::layer::Build;
use crate::layers::{
    Activate, Dense, Dropout, Flatten, LogSoftmax, Reshape, Sequential, Softmax, activation_from_name,
};
use crate::tensor::Device;

/// A sequence of layers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// From input to output.
    pub layers: Vec<LayerConfig>,
}

/// A layer, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LayerConfig {
    /// Fully connected.
    Dense {
        /// Outputs.
        units: usize,
        /// Name of an activation.
        #[serde(default)]
        activation: Option<String>,
        /// Whether there is a bias (default true).
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Elementwise activation.
    Activation {
        /// Its name.
        kind: String,
    },
    /// Dropout.
    Dropout {
        /// Probability of dropping.
        p: f64,
    },
    /// Merges all axes but the first.
    Flatten,
    /// Another shape behind the first axis.
    Reshape {
        /// Sizes, at most one -1.
        shape: Vec<isize>,
    },
    /// Softmax along the last axis.
    Softmax,
    /// Logarithm of softmax along the last axis.
    LogSoftmax,
}

fn activation(key: String, name: &str) -> Result<Activation> {
    activation_from_name(name).ok_or_else(|| {
        NnError::config(key, format!("unknown activation `{name}`; known are relu, leaky_relu, relu6, sigmoid, tanh, gelu, gelu_tanh, silu, elu, selu, mish, softplus, hardswish, hardsigmoid, hardtanh, identity"))
    })
}

impl ModelConfig {
    pub(super) fn check(&self) -> Result<()> {
        check(!self.layers.is_empty(), "model.layers", "at least one layer", "none")?;
        for (i, l) in self.layers.iter().enumerate() {
            let at = |field: &str| format!("model.layers[{i}].{field}");
            match l {
                LayerConfig::Dense { units, activation: a, .. } => {
                    check(*units > 0, at("units"), "at least 1", units)?;
                    if let Some(a) = a {
                        activation(at("activation"), a)?;
                    }
                }
                LayerConfig::Activation { kind } => drop(activation(at("kind"), kind)?),
                LayerConfig::Dropout { p } => check((0.0..=1.0).contains(p), at("p"), "a probability", p)?,
                LayerConfig::Reshape { shape } => drop(Reshape::new(shape).map_err(|_| {
                    NnError::config(at("shape"), format!("expected sizes with at most one -1, got {shape:?}"))
                })?),
                _ => {}
            }
        }
        Ok(())
    }

    /// The network with parameters drawn from a seed, for items of a shape.
    pub fn model(&self, device: &Device, seed: u64, item: &[usize]) -> Result<Sequential> {
        let cx = Build::new(device, seed);
        let mut model = Sequential::new();
        // Shape of one item as it comes out of the layers so far.
        let mut item = item.to_vec();
        for (i, l) in self.layers.iter().enumerate() {
            model = match l {
                LayerConfig::Dense { units, activation: a, bias } => {
                    let act = match a {
                        Some(a) => activation(format!("model.layers[{i}].activation"), a)?,
                        None => Activation::Identity,
                    };
                    let Some(width) = item.last_mut() else {
                        return Err(NnError::config(
                            format!("model.layers[{i}]"),
                            "dense layers need items with at least one axis",
                        ));
                    };
                    let layer = Dense::new(&cx, *width, *units)?.activation(act);
                    *width = *units;
                    model.push(if *bias { layer } else { layer.no_bias() })
                }
                LayerConfig::Activation { kind } => {
                    model.push(Activate(activation(format!("model.layers[{i}].kind"), kind)?))
                }
                LayerConfig::Dropout { p } => model.push(Dropout::new(&cx, *p)?),
                LayerConfig::Flatten => {
                    item = vec![item.iter().product()];
                    model.push(Flatten::default())
                }
                LayerConfig::Reshape { shape } => {
                    let layer = Reshape::new(shape)?;
                    item = layer
                        .item(&item)
                        .map_err(|e| NnError::config(format!("model.layers[{i}].shape"), e.to_string()))?;
                    model.push(layer)
                }
                LayerConfig::Softmax => model.push(Softmax(-1)),
                LayerConfig::LogSoftmax => model.push(LogSoftmax(-1)),
            };
        }
        Ok(model)
    }
}
