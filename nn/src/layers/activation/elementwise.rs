//! Activations as layers.

use trefoil::ops::activation::Activation as Act;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// A nonlinearity of [`Activation`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ActivationKind {
    /// One that other layers can apply as well
    Elementwise(Act),
    /// x if x > 0, else alpha (e^(x / alpha) - 1)
    Celu {
        /// scale of the negative part, default 1
        alpha: f64,
    },
    /// ln sigmoid(x)
    LogSigmoid,
    /// x / (1 + |x|)
    Softsign,
    /// x tanh(x)
    Lisht,
    /// x / sqrt(1 + alpha x^2)
    Isru {
        /// default 1
        alpha: f64,
    },
    /// (sqrt(x^2 + 1) - 1) / 2 + x
    BentIdentity,
    /// e^(-x^2)
    Gaussian,
    /// e^(-beta x^2)
    Sqrbf {
        /// default 1
        beta: f64,
    },
    /// tanh(beta x / 2)
    ScaledTanh {
        /// default 1
        beta: f64,
    },
    /// x if x > theta, else 0
    ThresholdedRelu {
        /// default 1
        theta: f64,
    },
    /// -1, 0 or 1; the gradient is 0
    Sign,
    /// e^x / sum e^x along an axis
    Softmax,
    /// x - ln sum e^x along an axis
    LogSoftmax,
    /// softmax of -x along an axis
    Softmin,
    /// nearest point of the probability simplex along an axis
    Sparsemax,
    /// s |s| / (1 + |s|^2) of vectors along an axis
    Squash,
}

impl From<Act> for ActivationKind {
    fn from(act: Act) -> Self {
        ActivationKind::Elementwise(act)
    }
}

impl ActivationKind {
    /// The kind of a name with default constants: those of [`activation_from_name`], and `celu`, `log_sigmoid`, `softsign`, `lisht`,
    /// `isru`, `bent_identity`, `gaussian`, `sqrbf`, `scaled_tanh`, `thresholded_relu`, `sign`, `softmax`, `log_softmax`, `softmin`,
    /// `sparsemax`, `squash`. (`prelu` is a layer of its own, [`Prelu`].)
    pub fn from_name(name: &str) -> Option<Self> {
        use ActivationKind::*;
        Some(match name {
            "celu" => Celu { alpha: 1.0 },
            "log_sigmoid" => LogSigmoid,
            "softsign" => Softsign,
            "lisht" => Lisht,
            "isru" => Isru { alpha: 1.0 },
            "bent_identity" => BentIdentity,
            "gaussian" => Gaussian,
            "sqrbf" => Sqrbf { beta: 1.0 },
            "scaled_tanh" => ScaledTanh { beta: 1.0 },
            "thresholded_relu" => ThresholdedRelu { theta: 1.0 },
            "sign" => Sign,
            "softmax" => Softmax,
            "log_softmax" => LogSoftmax,
            "softmin" => Softmin,
            "sparsemax" => Sparsemax,
            "squash" => Squash,
            other => Elementwise(activation_from_name(other)?),
        })
    }

    /// The kind's constants by their PyTorch names (`negative_slope`, `alpha`, `beta`, `threshold`, `min_val`, `max_val`, `theta`), for
    /// reading and setting.
    pub fn constants(&mut self) -> Vec<(&'static str, &mut f64)> {
        use ActivationKind::*;
        match self {
            Elementwise(Act::LeakyRelu { slope }) => vec![("negative_slope", slope)],
            Elementwise(Act::Elu { alpha }) | Celu { alpha } | Isru { alpha } => {
                vec![("alpha", alpha)]
            }
            Elementwise(Act::Swish { beta }) | Sqrbf { beta } | ScaledTanh { beta } => {
                vec![("beta", beta)]
            }
            Elementwise(Act::Softplus { beta, threshold }) => {
                vec![("beta", beta), ("threshold", threshold)]
            }
            Elementwise(Act::Hardtanh { lo, hi }) => vec![("min_val", lo), ("max_val", hi)],
            ThresholdedRelu { theta } => vec![("theta", theta)],
            _ => vec![],
        }
    }

    /// Whether it acts on vectors along an axis instead of on elements.
    pub fn is_vector(&self) -> bool {
        use ActivationKind::*;
        matches!(self, Softmax | LogSoftmax | Softmin | Sparsemax | Squash)
    }
}

/// A nonlinearity of elements, or of vectors along an axis; shapes are unchanged. Derivatives at kinks are PyTorch's.
///
/// Errors of `forward` for vector kinds: no such axis; an axis without elements.
#[derive(Debug, Clone, Copy)]
pub struct Activation {
    kind: ActivationKind,
    dim: isize,
}

impl Activation {
    /// A nonlinearity, along the last axis where it acts on vectors. Errors: a constant that is not finite; an alpha of celu not above
    /// 0, or one of isru below 0.
    pub fn new(kind: impl Into<ActivationKind>) -> Result<Self> {
        let mut kind = kind.into();
        for (name, &mut v) in kind.constants() {
            if !v.is_finite() {
                return Err(invalid("Activation", name, "a finite number", format!("{v}")));
            }
        }
        match kind {
            ActivationKind::Celu { alpha } if alpha <= 0.0 => {
                Err(invalid("Activation", "alpha", "a number above 0", format!("{alpha}")))
            }
            ActivationKind::Isru { alpha } if alpha < 0.0 => {
                Err(invalid("Activation", "alpha", "at least 0", format!("{alpha}")))
            }
            _ => Ok(Activation { kind, dim: -1 }),
        }
    }

    setters! {
        /// Sets the axis of vector kinds, negative from the end (default -1).
        dim: isize => dim;
    }
}

impl Layer for Activation {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        use ActivationKind::*;
        if self.kind.is_vector() {
            let at = axis("Activation", self.dim, x.rank())?;
            if x.shape()[at] == 0 {
                let got = format!("shape {:?}", x.shape());
                return Err(invalid("Activation", "x", format!("elements along axis {at}"), got));
            }
        }
        match self.kind {
            Elementwise(act) => x.activation(act),
            Celu { alpha } => {
                x.mul_scalar(1.0 / alpha)?.activation(Act::Elu { alpha: 1.0 })?.mul_scalar(alpha)
            }
            // -softplus(-x), without the shortcut for large numbers.
            LogSigmoid => {
                let softplus = Act::Softplus { beta: 1.0, threshold: 1e4 };
                x.neg()?.activation(softplus)?.neg()
            }
            Softsign => x.div(&x.abs()?.add_scalar(1.0)?),
            Lisht => x.mul(&x.tanh()?),
            Isru { alpha } => x.mul(&x.square()?.mul_scalar(alpha)?.add_scalar(1.0)?.rsqrt()?),
            BentIdentity => x.square()?.add_scalar(1.0)?.sqrt()?.add_scalar(-1.0)?.mul_scalar(0.5)?.add(x),
            Gaussian => x.square()?.neg()?.exp(),
            Sqrbf { beta } => x.square()?.mul_scalar(-beta)?.exp(),
            ScaledTanh { beta } => x.mul_scalar(0.5 * beta)?.tanh(),
            ThresholdedRelu { theta } => {
                let scalar = |v: f64| Tensor::full(x.device(), x.dtype(), &[], v);
                x.where_(&x.detach().gt(&scalar(theta)?)?, &scalar(0.0)?)
            }
            Sign => x.sign(),
            Softmax => x.softmax(self.dim),
            LogSoftmax => x.log_softmax(self.dim),
            Softmin => x.neg()?.softmax(self.dim),
            Sparsemax => x.sparsemax(self.dim),
            Squash => x.squash(self.dim),
        }
    }
}

/// x where it is above 0, else a learned slope times x, `torch.nn.PReLU` (He et al., 2015); one slope, or one per channel of axis 1.
///
/// State: `weight [1]` or `[C]` = 0.25.
///
/// Errors of `forward`: another number of channels than slopes.
#[derive(Debug)]
pub struct Prelu {
    weight: Param,
}

impl Prelu {
    /// This many slopes: 1 for all, or the number of channels. Errors: 0.
    pub fn new(cx: &InitContext, slopes: usize) -> Result<Self> {
        Self::with_init(cx, slopes, 0.25)
    }

    /// As [`new`](Self::new) with slopes that start at `init`. Errors: also a start that is not finite.
    pub fn with_init(cx: &InitContext, slopes: usize, init: f64) -> Result<Self> {
        if slopes == 0 || !init.is_finite() {
            let got = format!("{slopes} slopes of {init}");
            return Err(invalid("Prelu", "num_parameters", "at least 1 finite slope", got));
        }
        Ok(Prelu { weight: Init::Constant(init).param(cx, &[slopes], 1, 1)? })
    }

    /// The slopes.
    pub fn weight(&self) -> &Param {
        &self.weight
    }
}

impl Layer for Prelu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let w = self.weight.get();
        let n = w.numel();
        if n > 1 && x.shape().get(1) != Some(&n) {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid("Prelu", "x", format!("{n} channels on axis 1"), got));
        }
        x.prelu(&w)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
    }
}

/// An elementwise activation; shapes are unchanged. Short for [`Activation`] of such a kind.
#[derive(Debug, Clone, Copy)]
pub struct Activate(pub Act);

impl Layer for Activate {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.activation(self.0)
    }
}

/// Softmax along an axis (usually -1); shapes are unchanged. Short for [`Activation`] of that kind.
#[derive(Debug, Clone, Copy)]
pub struct Softmax(pub isize);

impl Layer for Softmax {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Activation { kind: ActivationKind::Softmax, dim: self.0 }.forward(x)
    }
}

/// Logarithm of softmax along an axis (usually -1); shapes are unchanged. Short for [`Activation`] of that kind.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax(pub isize);

impl Layer for LogSoftmax {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Activation { kind: ActivationKind::LogSoftmax, dim: self.0 }.forward(x)
    }
}

/// The elementwise activation of a PyTorch name with default constants: `relu`, `leaky_relu`, `gelu`, `silu`, ...
pub fn activation_from_name(name: &str) -> Option<Act> {
    Some(match name {
        "identity" | "linear" | "none" => Act::Identity,
        "relu" => Act::Relu,
        "leaky_relu" => Act::LeakyRelu { slope: 0.01 },
        "sigmoid" => Act::Sigmoid,
        "tanh" => Act::Tanh,
        "gelu" => Act::Gelu,
        "gelu_tanh" => Act::GeluTanh,
        "silu" | "swish" => Act::Swish { beta: 1.0 },
        "elu" => Act::Elu { alpha: 1.0 },
        "mish" => Act::Mish,
        "softplus" => Act::Softplus { beta: 1.0, threshold: 20.0 },
        "hardswish" | "hard_swish" => Act::Hardswish,
        "selu" => Act::Selu,
        "hardsigmoid" | "hard_sigmoid" => Act::Hardsigmoid,
        "hardtanh" => Act::Hardtanh { lo: -1.0, hi: 1.0 },
        "relu6" => Act::Relu6,
        _ => return None,
    })
}
