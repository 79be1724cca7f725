//! One expert of a mixture.

use trefoil::GpuError;
use trefoil::ops::activation::Activation;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::containers::sequential::Sequential;
use crate::module::{Layer, Visitor, hooks};

const OP: &str = "Expert";

/// One expert of a [`MixtureOfExperts`](crate::layers::MixtureOfExperts): layers in a row and an activation, `torch.nn.Sequential`.
///
/// State: that of the layers under their index or key.
#[derive(Debug)]
pub struct Expert {
    layers: Sequential,
    act: Activation,
}

impl Expert {
    /// These layers, without activation. Errors: no layers; some that are [checkpointed](Sequential::checkpointed).
    pub fn new(layers: Sequential) -> Result<Self> {
        if layers.is_empty() {
            return Err(invalid(OP, "layers", "at least one layer", "none"));
        }
        if layers.checkpoints().next().is_some() {
            let want = "layers without a plan of checkpoints: checkpoint the expert as a whole";
            return Err(invalid(OP, "layers", want, "some that are checkpointed"));
        }
        Ok(Expert { layers, act: Activation::Identity })
    }

    setters! {
        /// Sets the activation of the result.
        activation: Activation => act;
    }
}

/// Names both layers where one does not take what the one before it gives.
fn name_pair(e: NnError, before: Option<&str>, key: &str) -> NnError {
    match (e, before) {
        (NnError::Layer { name, kind, inputs, error }, Some(before))
            if name == key && matches!(*error, NnError::Gpu(GpuError::Invalid(_))) =>
        {
            let expected = format!("a layer `{key}` that takes what `{before}` gives");
            let error = Box::new(invalid(OP, "layers", expected, error.to_string()));
            NnError::Layer { name, kind, inputs, error }
        }
        (e, _) => e,
    }
}

impl Layer for Expert {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (mut y, mut before) = (x.clone(), None);
        for (key, layer) in self.layers.entries() {
            y = hooks::layer(key, layer, &y).map_err(|e| name_pair(e, before, key))?;
            before = Some(key);
        }
        y.activation(self.act)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.layers.visit(v);
    }
}
