//! Layers in a row.

use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::module::hooks;
use crate::module::{Layer, Visitor};

/// Applies layers one after the other, `torch.nn.Sequential`. State names are `index.name`, or `key.name` for children with a key.
#[derive(Debug, Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl Sequential {
    /// Without layers: the identity.
    pub fn new() -> Self {
        Sequential::default()
    }

    /// Appends a layer under its index.
    pub fn push(self, layer: impl Layer + 'static) -> Self {
        let key = self.layers.len().to_string();
        self.named(key, layer)
    }

    /// Appends a layer under a key.
    pub fn named(mut self, key: impl Into<String>, layer: impl Layer + 'static) -> Self {
        self.layers.push((key.into(), Box::new(layer)));
        self
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True without layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layer under an index.
    pub fn get(&self, index: usize) -> Option<&dyn Layer> {
        self.layers.get(index).map(|(_, l)| &**l)
    }

    /// The layers with their keys, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &dyn Layer)> {
        self.layers.iter().map(|(key, layer)| (key.as_str(), &**layer))
    }

    /// The layer under a key.
    pub fn by_name(&self, key: &str) -> Option<&dyn Layer> {
        self.layers.iter().find(|(k, _)| k == key).map(|(_, l)| &**l)
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, (key, layer)| hooks::layer(key, &**layer, &x))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (key, layer) in &self.layers {
            v.child(key, &**layer);
        }
    }
}
