//! Activations as layers.

use trefoil::ops::Activation;

use crate::error::Result;
use crate::layer::Layer;
use crate::tensor::Tensor;

/// An elementwise activation; shapes are unchanged.
#[derive(Debug, Clone, Copy)]
pub struct Activate(pub Activation);

impl Layer for Activate {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.activation(self.0)
    }
}

/// Softmax along an axis (usually -1); shapes are unchanged.
#[derive(Debug, Clone, Copy)]
pub struct Softmax(pub isize);

impl Layer for Softmax {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.softmax(self.0)
    }
}

/// Logarithm of softmax along an axis (usually -1); shapes are unchanged.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax(pub isize);

impl Layer for LogSoftmax {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.log_softmax(self.0)
    }
}

/// The activation of a PyTorch name with default constants: `relu`, `leaky_relu`, `gelu`, `silu`, ...
pub fn activation_from_name(name: &str) -> Option<Activation> {
    Some(match name {
        "identity" | "linear" | "none" => Activation::Identity,
        "relu" => Activation::Relu,
        "leaky_relu" => Activation::LeakyRelu { slope: 0.01 },
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" | "swish" => Activation::Swish { beta: 1.0 },
        "elu" => Activation::Elu { alpha: 1.0 },
        "mish" => Activation::Mish,
        "softplus" => Activation::Softplus { beta: 1.0, threshold: 20.0 },
        "hard_swish" | "hardswish" => Activation::Hardswish,
        "selu" => Activation::Selu,
        "hard_sigmoid" | "hardsigmoid" => Activation::Hardsigmoid,
        "hardtanh" => Activation::Hardtanh { lo: -1.0, hi: 1.0 },
        "relu6" => Activation::Relu6,
        _ => return None,
    })
}
