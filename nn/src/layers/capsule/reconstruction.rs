//! The decoder of a capsule network.

use trefoil::ops::activation::Activation;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::linear::dense::Dense;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Visitor, hooks};

const OP: &str = "Reconstruction";
const NAMES: [&str; 3] = ["0", "2", "4"];

/// Three linear layers that make an image of capsules (Sabour et al., 2017): relu behind the first two, sigmoid behind the last. Inputs of any
/// shape are read as rows of `in_features`, so that `[B, J, D]` with J D = in_features becomes `[B, out_features]`.
///
/// State: `0.weight [hidden1, in]`, `0.bias`, `2.weight [hidden2, hidden1]`, `2.bias`, `4.weight [out, hidden2]`, `4.bias`, the names of
/// `nn.Sequential(Linear, ReLU, Linear, ReLU, Linear, Sigmoid)`; values as in [`Dense`](crate::layers::Dense).
///
/// Errors of `forward`: a number of elements that `in_features` does not divide.
#[derive(Debug)]
pub struct Reconstruction {
    inputs: usize,
    layers: [Dense; 3],
}

impl Reconstruction {
    /// `in_features -> 512 -> 1024 -> out_features`. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        Self::with_hidden(cx, in_features, 512, 1024, out_features)
    }

    /// `in_features -> hidden1 -> hidden2 -> out_features`. Errors: a size of 0.
    pub fn with_hidden(
        cx: &InitContext,
        in_features: usize,
        hidden1: usize,
        hidden2: usize,
        out_features: usize,
    ) -> Result<Self> {
        let sizes = [
            ("in_features", in_features),
            ("hidden1", hidden1),
            ("hidden2", hidden2),
            ("out_features", out_features),
        ];
        sizes.into_iter().try_for_each(|(arg, n)| positive(OP, arg, &[n]))?;
        let layers = [
            Dense::new(cx, in_features, hidden1)?.activation(Activation::Relu),
            Dense::new(cx, hidden1, hidden2)?.activation(Activation::Relu),
            Dense::new(cx, hidden2, out_features)?.activation(Activation::Sigmoid),
        ];
        Ok(Reconstruction { inputs: in_features, layers })
    }

    /// Sets the activation behind the first two layers (default relu).
    pub fn hidden_activation(mut self, act: Activation) -> Self {
        let [a, b, c] = self.layers;
        self.layers = [a.activation(act), b.activation(act), c];
        self
    }

    /// Sets the activation behind the last layer (default sigmoid).
    pub fn output_activation(mut self, act: Activation) -> Self {
        let [a, b, c] = self.layers;
        self.layers = [a, b, c.activation(act)];
        self
    }
}

impl Layer for Reconstruction {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !x.numel().is_multiple_of(self.inputs) {
            let expected = format!("a multiple of {} elements", self.inputs);
            return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
        }
        let rows = x.reshape(&[x.numel() / self.inputs, self.inputs])?;
        NAMES.iter().zip(&self.layers).try_fold(rows, |x, (name, layer)| hooks::layer(name, layer, &x))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        NAMES.iter().zip(&self.layers).for_each(|(name, layer)| v.child(name, layer));
    }
}
