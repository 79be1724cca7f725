//! Gated units, parametric relu and masked softmax: operands and checks.

use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::activation::Activation;

/// The two operands of a gated unit.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
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
#[non_exhaustive]
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

op_family! {
    /// Gated linear units: GLU, SwiGLU, GeGLU and their kin.
    pub trait GatedOps : Activation => GATED_OPS {
        /// Gated units of Shazeer (2020): one factor times the activation of the other. Contiguous operands. With sigmoid it is `F.glu`, with gelu
        /// GEGLU, with swish SwiGLU, with relu ReGLU. Errors: an axis of odd size, shapes, an activation that is not fused, overlap.
        fn gated(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`GatedOps::gated`]: dup = dy * act(gate), dgate = dy * up * act'(gate).
        fn gated_bwd(&self, act: Activation, dy: View<'_>, input: GatedInput<'_>, grads: GatedGrad<'_>) -> Result<()>;
    }
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

/// Checks of [`GatedOps::gated`].
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

/// Checks of [`GatedOps::gated_bwd`].
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
