//! Residual blocks.

use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Sequential;
use crate::module::hooks;
use crate::module::{Layer, Visitor};

/// act(x + f(x)) of layers f in a row (He et al., 2016); with a shortcut s, act(s(x) + f(x)). Without layers f is 0.
///
/// State: that of the layers as in [`Sequential`], and that of the shortcut under `shortcut.`.
#[derive(Debug)]
pub struct Residual {
    body: Sequential,
    shortcut: Option<Sequential>,
    act: Activation,
}

impl Residual {
    /// Around these layers, without activation.
    pub fn new(body: Sequential) -> Self {
        Residual { body, shortcut: None, act: Activation::Identity }
    }

    /// Layers that bring the input to the shape of the output.
    pub fn shortcut(mut self, layers: Sequential) -> Self {
        self.shortcut = Some(layers);
        self
    }

    setters! {
        /// Sets the activation of the sum.
        activation: Activation => act;
    }
}

impl Layer for Residual {
    /// Errors beside those of the layers: shapes that differ.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shortcut = match &self.shortcut {
            Some(s) => hooks::layer("shortcut", s, x)?,
            None => x.clone(),
        };
        if self.body.is_empty() {
            return shortcut.activation(self.act);
        }
        let y = self.body.forward(x)?;
        if shortcut.shape() != y.shape() {
            let want = format!("an output of shape {:?} like the {}", shortcut.shape(), self.other());
            return Err(invalid("Residual", "layers", want, format!("{:?}", y.shape())));
        }
        shortcut.add(&y)?.activation(self.act)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&self.body);
        if let Some(s) = &self.shortcut {
            v.child("shortcut", s);
        }
    }
}

impl Residual {
    fn other(&self) -> &'static str {
        if self.shortcut.is_some() { "shortcut's" } else { "input" }
    }
}
