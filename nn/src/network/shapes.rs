//! Running a network without a device, to see whether its shapes fit.

use std::sync::Arc;

use trefoil::{DType, Engine};

use super::config::{NetworkConfig, Plan};
use super::graph::Network;
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::options::join;
use crate::core::tensor::{Device, Tensor};
use crate::module::{InitContext, Layer, LayerExt};

/// Shape and element type of an input, or of its items.
pub(super) type Item = (Vec<usize>, DType);

/// Items per batch in trial runs: batch statistics need more than one.
pub(super) const BATCH: usize = 2;

/// Batches of items, as inputs of trial runs.
pub(super) fn batches(items: &[Item]) -> Vec<Item> {
    items.iter().map(|(s, d)| ([&[BATCH], s.as_slice()].concat(), *d)).collect()
}

/// Zeros for each input.
pub(super) fn zeros(device: &Device, inputs: &[Item]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|(s, d)| Tensor::zeros(device, *d, s)).collect()
}

impl Plan {
    /// Batches of the inputs, if all of their sizes are known.
    pub(super) fn trial_inputs(&self, dtype: DType) -> Option<Vec<Item>> {
        let known = |i: &super::InputConfig| {
            let shape: Option<Vec<usize>> = i.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
            Some((shape?, i.dtype.unwrap_or(dtype)))
        };
        let items: Option<Vec<Item>> = self.inputs.iter().map(|(_, i)| known(i.as_ref()?)).collect();
        items.as_deref().map(batches)
    }

    /// Makes the layers of a network at `path` and, if the inputs are given, runs them, all without a device. Gives the shapes of
    /// the outputs, and the number of parameters and buffers. Errors: [`NnError::Config`] with the path of the option or layer.
    pub(super) fn dry_run(
        config: &NetworkConfig,
        path: &str,
        dtype: DType,
        inputs: Option<&[Item]>,
    ) -> Result<(Vec<Vec<usize>>, usize)> {
        let plan = Plan::new(config, path)?;
        let places: Vec<(String, String)> =
            plan.steps.iter().map(|s| (s.name.clone(), s.path.clone())).collect();
        let device: Device = Arc::new(Engine::shapes());
        let network = Network::of(&InitContext::new(&device, 0).dtype(dtype), plan)?;
        let parameters: u128 = network.named_parameters().iter().map(|(_, p)| p.get().numel() as u128).sum();
        if parameters > limits::ELEMENTS as u128 {
            let what = format!("expected at most {} parameters, got {parameters}", limits::ELEMENTS);
            return Err(NnError::config(join(path, "layers"), what));
        }
        let Some(inputs) = inputs else { return Ok((vec![], network.named_state().len())) };
        let x = zeros(&device, inputs)?;
        let y = no_grad(|| network.forward_all(&x)).map_err(|e| {
            // The innermost layer that failed; the place is that of the one around it which stands in the graph.
            let name = match &e {
                NnError::Layer { name, .. } => name.split('.').next(),
                _ => None,
            };
            let place = places.iter().find(|(n, _)| Some(n.as_str()) == name).map(|(_, p)| p.clone());
            let input = || network.input_names().find(|n| Some(*n) == name).map(|n| format!("inputs.{n}"));
            let place = place.unwrap_or_else(|| join(path, &input().unwrap_or_else(|| "layers".into())));
            NnError::config(place, e.to_string())
        })?;
        Ok((y.iter().map(|t| t.shape().to_vec()).collect(), network.named_state().len()))
    }
}
