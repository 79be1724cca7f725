//! Activations and the softmax family.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::{GatedGrad, GatedInput, check};

/// Activation functions. Names and edge cases are those of `torch.nn.functional.<name>`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Activation {
    /// x
    #[default]
    Identity,
    /// 0 if x <= 0, else x; NaN passes
    Relu,
    /// x if x > 0, else slope*x
    LeakyRelu {
        /// factor of negative inputs, default 0.01
        slope: f64,
    },
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// hyperbolic tangent
    Tanh,
    /// x * Phi(x), exact
    Gelu,
    /// the tanh approximation of gelu
    GeluTanh,
    /// x * sigmoid(beta*x); silu for beta = 1
    Swish {
        /// slope of the gate, default 1
        beta: f64,
    },
    /// x if x > 0, else alpha*(e^x - 1)
    Elu {
        /// scale of the negative part, default 1
        alpha: f64,
    },
    /// x * tanh(softplus(x))
    Mish,
    /// ln(1 + e^(beta x)) / beta, linear where beta*x > threshold
    Softplus {
        /// sharpness, default 1
        beta: f64,
        /// switch to x, default 20
        threshold: f64,
    },
    /// x * relu6(x + 3) / 6
    Hardswish,
    /// scaled elu of Klambauer et al. (2017)
    Selu,
    /// relu6(x + 3) / 6
    Hardsigmoid,
    /// clamp(x, lo, hi)
    Hardtanh {
        /// lower bound, default -1
        lo: f64,
        /// upper bound, default 1
        hi: f64,
    },
    /// clamp(x, 0, 6)
    Relu6,
}

impl Activation {
    /// Whether a backward of a fused operation reads the forward's output; of the others it reads the value before the activation.
    pub const fn reads_output(self) -> bool {
        matches!(self, Activation::Relu | Activation::Sigmoid | Activation::Tanh)
    }

    /// The tensor that a fused operation saved, as [`ActivationOps::activation_bwd`] takes it.
    pub const fn saved(self, v: View<'_>) -> Saved<'_> {
        if self.reads_output() { Saved::Output(v) } else { Saved::Input(v) }
    }
}

/// The tensor that an activation's backward reads.
#[derive(Debug, Clone, Copy)]
pub enum Saved<'a> {
    /// The forward's input.
    Input(View<'a>),
    /// The forward's output.
    Output(View<'a>),
}

/// Normalised exponentials along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Softmax {
    /// e^x / sum e^x
    Softmax,
    /// x - ln sum e^x
    LogSoftmax,
}

op_family! {
    /// Activations. Inputs of any strides, outputs of the same shape and dtype (floats). Deterministic.
    pub trait ActivationOps : Activation => ACTIVATION_OPS {
        /// y = act(x).
        fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = dy * act'. Sigmoid and tanh read the output; identity, relu and elu (alpha >= 0) read either; all others read the
        /// input. `Invalid` for the other tensor.
        fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Softmax or log-softmax of a contiguous tensor along `axis`. A slice of only -inf, or with +inf or NaN, is all NaN. Oracle
        /// `torch.softmax`, `torch.log_softmax`. Errors: axis out of range.
        fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Softmax: dx = y*(dy - sum dy*y); log-softmax: dx = dy - e^y * sum dy. Reads the forward's output y.
        fn softmax_bwd(&self, kind: Softmax, axis: usize, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Softmax of scale * x + mask along the last axis of a contiguous tensor; the additive mask (0 and -inf, or any number) broadcasts against x.
        /// A row of only -inf is all NaN. Oracle `torch.softmax`.
        fn masked_softmax(&self, scale: f64, x: View<'_>, mask: Option<View<'_>>, y: ViewMut<'_>) -> Result<()>;
        /// dx = scale * y * (dy - sum dy*y). Reads the forward's output y.
        fn masked_softmax_bwd(&self, scale: f64, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Gated units of Shazeer (2020): one factor times the activation of the other. Contiguous operands. With sigmoid it is `F.glu`, with gelu
        /// GEGLU, with swish SwiGLU, with relu ReGLU. Errors: an axis of odd size, shapes, an activation that is not fused, overlap.
        fn gated(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`ActivationOps::gated`]: dup = dy * act(gate), dgate = dy * up * act'(gate).
        fn gated_bwd(&self, act: Activation, dy: View<'_>, input: GatedInput<'_>, grads: GatedGrad<'_>) -> Result<()>;
        /// x if x > 0, else a * x, with one slope or one per channel (axis 1). Contiguous operands. Oracle `F.prelu`.
        fn prelu(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = dy where x > 0, else a * dy; da = sum of dy * x over the other elements, in two stages.
        fn prelu_bwd(&self, dy: View<'_>, x: View<'_>, a: View<'_>, dx: Option<GradMut<'_>>, da: Option<GradMut<'_>>) -> Result<()>;
    }
}

/// Checks of [`ActivationOps::activation`].
pub(crate) fn check_activation(x: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "activation";
    check::float(OP, "x", x)?;
    check::shape(OP, "y", &y.as_view(), x.shape())?;
    check::dtype(OP, "y", &y.as_view(), x.dtype())?;
    check::elementwise_output(OP, "y", y, &[("x", *x)])
}

/// Checks of [`ActivationOps::activation_bwd`].
pub(crate) fn check_activation_bwd(
    act: Activation,
    dy: &View<'_>,
    saved: &Saved<'_>,
    dx: &GradMut<'_>,
) -> Result<()> {
    const OP: &str = "activation_bwd";
    let (s, fits) = match saved {
        Saved::Input(x) => (x, !matches!(act, Activation::Sigmoid | Activation::Tanh)),
        Saved::Output(y) => {
            let elu = matches!(act, Activation::Elu { alpha } if alpha >= 0.0);
            (
                y,
                elu || matches!(
                    act,
                    Activation::Sigmoid | Activation::Tanh | Activation::Identity | Activation::Relu
                ),
            )
        }
    };
    if !fits {
        let (want, got) = match saved {
            Saved::Input(_) => ("the forward's output", "its input"),
            Saved::Output(_) => ("the forward's input", "its output"),
        };
        return Err(GpuError::invalid(OP, "saved", want, format!("{got} for {act:?}")));
    }
    check::float(OP, "saved", s)?;
    for (arg, v) in [("dy", dy), ("dx", &dx.out.as_view())] {
        check::shape(OP, arg, v, s.shape())?;
        check::dtype(OP, arg, v, s.dtype())?;
    }
    check::elementwise_output(OP, "dx", &dx.out, &[("dy", *dy), ("saved", *s)])
}
