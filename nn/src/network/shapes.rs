//! Running a network without a device, to see whether its shapes fit.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use trefoil::{DType, Engine};

use super::config::{NetworkConfig, Plan};
use super::graph::Network;
use crate::autograd::no_grad;
use crate::error::{NnError, Result};
use crate::layer::{Build, Layer};
use crate::tensor::{Device, Tensor};
use crate::trace::{self, Observer};

/// Shape and element type of an input's items.
pub(super) type Item = (Vec<usize>, DType);

/// Items per batch in trial runs: batch statistics need more than one.
pub(super) const BATCH: usize = 2;

/// The layers that have begun and not ended, innermost last.
#[derive(Debug, Default)]
struct Open(RefCell<Vec<(String, &'static str)>>);

impl Observer for Open {
    fn enter(&self, path: &[String], layer: &dyn Layer) {
        self.0.borrow_mut().push((path.join("."), layer.kind()));
    }

    fn leave(&self, _: &[String], _: &dyn Layer, _: &[Tensor]) {
        self.0.borrow_mut().pop();
    }
}

/// A batch of zeros for each input.
pub(super) fn zeros(device: &Device, items: &[Item]) -> Result<Vec<Tensor>> {
    items.iter().map(|(s, d)| Tensor::zeros(device, *d, &[&[BATCH], s.as_slice()].concat())).collect()
}

impl Plan {
    /// The items of the inputs, if all of their sizes are known.
    pub(super) fn items(&self, dtype: DType) -> Option<Vec<Item>> {
        let known = |i: &super::InputConfig| {
            let shape: Option<Vec<usize>> = i.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
            Some((shape?, i.dtype.unwrap_or(dtype)))
        };
        self.inputs.iter().map(|(_, i)| known(i.as_ref()?)).collect()
    }

    /// Makes the layers of a network at `path` and, if the items are given, runs a batch of them, all without a device. Gives the shapes of
    /// the outputs. Errors: [`NnError::Config`] with the path of the option or layer.
    pub(super) fn dry_run(
        config: &NetworkConfig,
        path: &str,
        dtype: DType,
        items: Option<&[Item]>,
    ) -> Result<Vec<Vec<usize>>> {
        let plan = Plan::new(config, path)?;
        let places: Vec<(String, String)> =
            plan.steps.iter().map(|s| (s.name.clone(), s.path.clone())).collect();
        let device: Device = Arc::new(Engine::shapes());
        let network = Network::of(&Build::new(&device, 0).dtype(dtype), plan)?;
        let Some(items) = items else { return Ok(vec![]) };
        let x = zeros(&device, items)?;
        let open = Rc::new(Open::default());
        let y = no_grad(|| trace::observe(open.clone(), || network.forward_all(&x)));
        match y {
            Ok(y) => Ok(y.iter().map(|t| t.shape().to_vec()).collect()),
            Err(NnError::Layer { name, kind, inputs, error }) => {
                // Errors of a layer's parts name the part.
                let part = open.0.borrow().last().filter(|(p, _)| *p != name).cloned();
                let part = part.map_or(String::new(), |(p, kind)| format!(" in its part `{p}` ({kind})"));
                let place = places.iter().find(|(n, _)| *n == name).map(|(_, p)| p.clone());
                let place = place.unwrap_or_else(|| super::build::join(path, &format!("inputs.{name}")));
                let shapes: Vec<String> = inputs.iter().map(|s| format!("{s:?}")).collect();
                let shapes = shapes.join(" and ");
                let what = format!(
                    "layer `{name}` ({kind}) does not take an input of shape {shapes}{part}: {error}"
                );
                Err(NnError::config(place, what))
            }
            Err(e) => Err(NnError::config(super::build::join(path, "layers"), e.to_string())),
        }
    }
}
