//! Gated units, parametric relu and masked softmax: operands and checks.

use super::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::Activation;

/// The two operands of a gated unit.
#[derive(Debug, Clone, Copy)]
pub enum GatedInput<'a> {
    /// The halves of one contiguous tensor along an axis: y = first * act(second), or with `gate_first` y = act(first) * second.
    Halves {
        /// The tensor; the axis has an even size.
        x: View<'a>,
        /// Axis that is halved.
        axis: usize,
        /// Whether the first half is the gate.
        gate_first: bool,
    },
    /// Two contiguous tensors of one shape.
    Two {
        /// What the activation is applied to.
        gate: View<'a>,
        /// What it multiplies.
        up: View<'a>,
    },
}

/// Gradients of a gated unit, in the form of its operands.
#[derive(Debug)]
pub enum GatedGrad<'a> {
    /// Gradient of the tensor with both halves.
    Halves(GradMut<'a>),
    /// Gradients of the two tensors.
    Two {
        /// of the gate
        gate: Option<GradMut<'a>>,
        /// of the other factor
        up: Option<GradMut<'a>>,
    },
}

/// A gated unit in rows: `outer` rows of `cols`, `stride` elements apart in the operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatedPlan<'a> {
    pub(crate) gate: View<'a>,
    pub(crate) up: View<'a>,
    pub(crate) outer: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    /// Element of the gate and of the other factor within a shared tensor.
    pub(crate) at: [usize; 2],
}

fn gate_act(op: &'static str, act: Activation) -> Result<()> {
    match act {
        Activation::Identity
        | Activation::Relu
        | Activation::Gelu
        | Activation::GeluTanh
        | Activation::Sigmoid
        | Activation::Tanh
        | Activation::Hardswish => Ok(()),
        Activation::Swish { beta: 1.0 } => Ok(()),
        other => {
            let want = "identity, relu, gelu, gelu_tanh, sigmoid, tanh, swish with beta 1 or hardswish";
            Err(GpuError::invalid(op, "act", want, format!("{other:?}")))
        }
    }
}

fn plan<'a>(op: &'static str, input: &GatedInput<'a>, y: &View<'_>) -> Result<GatedPlan<'a>> {
    let p = match *input {
        GatedInput::Two { gate, up } => {
            check::float(op, "gate", &gate)?;
            check::contiguous(op, "gate", &gate)?;
            check::shape(op, "up", &up, gate.shape())?;
            check::dtype(op, "up", &up, gate.dtype())?;
            check::contiguous(op, "up", &up)?;
            check::shape(op, "y", y, gate.shape())?;
            let n = gate.numel();
            GatedPlan { gate, up, outer: 1, cols: n, stride: n, at: [0, 0] }
        }
        GatedInput::Halves { x, axis, gate_first } => {
            check::float(op, "x", &x)?;
            check::contiguous(op, "x", &x)?;
            check::axis(op, &x, axis)?;
            let s = x.shape();
            if !s[axis].is_multiple_of(2) {
                return Err(GpuError::invalid(op, "x", "an even size of the axis", format!("{s:?}")));
            }
            let mut half = s.to_vec();
            half[axis] /= 2;
            check::shape(op, "y", y, &half)?;
            let cols = half[axis..].iter().product();
            let at = if gate_first { [0, cols] } else { [cols, 0] };
            GatedPlan { gate: x, up: x, outer: s[..axis].iter().product(), cols, stride: 2 * cols, at }
        }
    };
    check::dtype(op, "y", y, p.gate.dtype())?;
    check::contiguous(op, "y", y)?;
    Ok(p)
}

/// Checks of [`ActivationOps::gated`](super::ActivationOps::gated).
pub(crate) fn check_gated<'a>(
    act: Activation,
    input: &GatedInput<'a>,
    y: &ViewMut<'_>,
) -> Result<GatedPlan<'a>> {
    const OP: &str = "gated";
    gate_act(OP, act)?;
    let p = plan(OP, input, &y.as_view())?;
    check::separate_output(OP, "y", y, &[("gate", p.gate), ("up", p.up)])?;
    Ok(p)
}

/// Checks of [`ActivationOps::gated_bwd`](super::ActivationOps::gated_bwd).
pub(crate) fn check_gated_bwd<'a>(
    act: Activation,
    dy: &View<'a>,
    input: &GatedInput<'a>,
    grads: &GatedGrad<'a>,
) -> Result<GatedPlan<'a>> {
    const OP: &str = "gated_bwd";
    gate_act(OP, act)?;
    let p = plan(OP, input, dy)?;
    let inputs = [("dy", *dy), ("gate", p.gate), ("up", p.up)];
    let one = |arg, g: &GradMut<'_>| {
        let v = g.out.as_view();
        check::shape(OP, arg, &v, p.gate.shape())?;
        check::dtype(OP, arg, &v, p.gate.dtype())?;
        check::contiguous(OP, arg, &v)?;
        check::separate_output(OP, arg, &g.out, &inputs)
    };
    match (input, grads) {
        (GatedInput::Halves { .. }, GatedGrad::Halves(dx)) => one("dx", dx)?,
        (GatedInput::Two { .. }, GatedGrad::Two { gate, up }) => {
            gate.iter().try_for_each(|g| one("dgate", g))?;
            up.iter().try_for_each(|g| one("dup", g))?;
            if let (Some(a), Some(b)) = (gate, up) {
                check::separate_output(OP, "dup", &b.out, &[("dgate", a.out.as_view())])?;
            }
        }
        _ => return Err(GpuError::invalid(OP, "grads", "the form of the operands", "the other one")),
    }
    Ok(p)
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

fn last_axis(op: &'static str, x: &View<'_>) -> Result<[usize; 2]> {
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    match x.shape().split_last() {
        Some((&k, rows)) => Ok([rows.iter().product(), k]),
        None => Err(GpuError::invalid(op, "x", "at least one axis", "a scalar")),
    }
}

/// Checks of [`ActivationOps::masked_softmax`](super::ActivationOps::masked_softmax); rows and columns.
pub(crate) fn check_masked_softmax(
    x: &View<'_>,
    mask: Option<&View<'_>>,
    y: &ViewMut<'_>,
) -> Result<[usize; 2]> {
    const OP: &str = "masked_softmax";
    let shape = last_axis(OP, x)?;
    let v = y.as_view();
    check::shape(OP, "y", &v, x.shape())?;
    check::dtype(OP, "y", &v, x.dtype())?;
    check::contiguous(OP, "y", &v)?;
    check::elementwise_output(OP, "y", y, &[("x", *x)])?;
    if let Some(m) = mask {
        check::dtype(OP, "mask", m, x.dtype())?;
        if m.broadcast_to(x.shape()).is_err() {
            let want = format!("a shape that broadcasts to {:?}", x.shape());
            return Err(GpuError::invalid(OP, "mask", want, format!("{:?}", m.shape())));
        }
        check::separate_output(OP, "y", y, &[("mask", *m)])?;
    }
    Ok(shape)
}

/// Checks of [`ActivationOps::masked_softmax_bwd`](super::ActivationOps::masked_softmax_bwd); rows and columns.
pub(crate) fn check_masked_softmax_bwd(dy: &View<'_>, y: &View<'_>, dx: &GradMut<'_>) -> Result<[usize; 2]> {
    const OP: &str = "masked_softmax_bwd";
    let shape = last_axis(OP, y)?;
    for (arg, v) in [("dy", dy), ("dx", &dx.out.as_view())] {
        check::shape(OP, arg, v, y.shape())?;
        check::dtype(OP, arg, v, y.dtype())?;
        check::contiguous(OP, arg, v)?;
    }
    check::elementwise_output(OP, "dx", &dx.out, &[("dy", *dy), ("y", *y)])?;
    Ok(shape)
}
