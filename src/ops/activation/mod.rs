//! Activations and the softmax family.

mod bias;
mod gated;

pub use self::bias::*;
pub use self::gated::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

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
#[non_exhaustive]
pub enum Saved<'a> {
    /// The forward's input.
    Input(View<'a>),
    /// The forward's output.
    Output(View<'a>),
}

op_family! {
    /// Activations. Inputs of any strides, outputs of the same shape and dtype (floats). Deterministic.
    pub trait ActivationOps : Activation => ACTIVATION_OPS {
        /// y = act(x).
        fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = dy * act'. Sigmoid and tanh read the output; identity, relu and elu (alpha >= 0) read either; all others read the
        /// input. `Invalid` for the other tensor.
        fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()>;
        /// The gradient of y = act(z + bias) for rows of N, in one pass where the device has a kernel for it: dx = dy * act', that of z, and the sums of
        /// its rows, that of the bias. With `offsets` each group of rows has a bias of its own, and rows of no group add to none; an offset that is negative,
        /// beyond the rows or below its predecessor is `IndexOutOfRange`, and the rows beside it are not specified. `Invalid` for shapes,
        /// dtypes, overlap and, as in `activation_bwd`, for the other saved tensor. Oracle autograd of `F.<name>(z + bias)`.
        fn activation_bias_bwd(&self, act: Activation, io: ActivationBiasBwd<'_>) -> Result<()>;
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

/// Checks of [`ActivationOps::activation_bwd`], and of the operations that contain it.
pub(crate) fn check_activation_bwd(
    op: &'static str,
    act: Activation,
    dy: &View<'_>,
    saved: &Saved<'_>,
    dx: &ViewMut<'_>,
) -> Result<()> {
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
        return Err(GpuError::invalid(op, "saved", want, format!("{got} for {act:?}")));
    }
    check::float(op, "saved", s)?;
    for (arg, v) in [("dy", dy), ("dx", &dx.as_view())] {
        check::shape(op, arg, v, s.shape())?;
        check::dtype(op, arg, v, s.dtype())?;
    }
    check::elementwise_output(op, "dx", dx, &[("dy", *dy), ("saved", *s)])
}

/// N, channels with a slope of their own, and elements of each.
fn slopes(op: &'static str, x: &View<'_>, a: &View<'_>) -> Result<[usize; 3]> {
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    check::dtype(op, "a", a, x.dtype())?;
    check::contiguous(op, "a", a)?;
    let channels = x.shape().get(1).copied().unwrap_or(1);
    if a.shape().len() > 1 || (a.numel() != 1 && a.numel() != channels) {
        return Err(GpuError::invalid(
            op,
            "a",
            format!("1 or {channels} slopes"),
            format!("{:?}", a.shape()),
        ));
    }
    Ok(match (a.numel(), x.shape()) {
        (1, s) => [1, 1, s.iter().product()],
        (_, &[n, c, ref inner @ ..]) => [n, c, inner.iter().product()],
        (_, s) => [1, 1, s.iter().product()],
    })
}

/// Checks of [`ActivationOps::prelu`](super::ActivationOps::prelu); N, channels, elements.
pub(crate) fn check_prelu(x: &View<'_>, a: &View<'_>, y: &ViewMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "prelu";
    let shape = slopes(OP, x, a)?;
    let v = y.as_view();
    check::shape(OP, "y", &v, x.shape())?;
    check::dtype(OP, "y", &v, x.dtype())?;
    check::contiguous(OP, "y", &v)?;
    check::elementwise_output(OP, "y", y, &[("x", *x)])?;
    check::separate_output(OP, "y", y, &[("a", *a)])?;
    Ok(shape)
}

/// Checks of [`ActivationOps::prelu_bwd`](super::ActivationOps::prelu_bwd); N, channels, elements.
pub(crate) fn check_prelu_bwd(
    dy: &View<'_>,
    x: &View<'_>,
    a: &View<'_>,
    dx: Option<&GradMut<'_>>,
    da: Option<&GradMut<'_>>,
) -> Result<[usize; 3]> {
    const OP: &str = "prelu_bwd";
    let shape = slopes(OP, x, a)?;
    check::shape(OP, "dy", dy, x.shape())?;
    check::dtype(OP, "dy", dy, x.dtype())?;
    check::contiguous(OP, "dy", dy)?;
    let inputs = [("dy", *dy), ("x", *x), ("a", *a)];
    for (arg, g, like) in [("dx", dx, x), ("da", da, a)] {
        let Some(g) = g else { continue };
        let v = g.out.as_view();
        check::shape(OP, arg, &v, like.shape())?;
        check::dtype(OP, arg, &v, x.dtype())?;
        check::contiguous(OP, arg, &v)?;
        check::separate_output(OP, arg, &g.out, &inputs)?;
    }
    if let (Some(dx), Some(da)) = (dx, da) {
        check::separate_output(OP, "da", &da.out, &[("dx", dx.out.as_view())])?;
    }
    Ok(shape)
}
