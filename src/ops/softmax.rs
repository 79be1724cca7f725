//! Softmax: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

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
    /// Softmax and log-softmax along an axis, and softmax of masked attention scores.
    pub trait SoftmaxOps : Softmax => SOFTMAX_OPS {
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
    }
}

fn extents(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

/// Checks of [`SoftmaxOps::softmax`]; [outer, size of the axis, inner].
pub(crate) fn check_softmax(axis: usize, x: &View<'_>, y: &ViewMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "softmax";
    let v = y.as_view();
    check::axis(OP, x, axis)?;
    check::float(OP, "x", x)?;
    check::dtype(OP, "y", &v, x.dtype())?;
    check::shape(OP, "y", &v, x.shape())?;
    check::contiguous(OP, "x", x)?;
    check::contiguous(OP, "y", &v)?;
    check::elementwise_output(OP, "y", y, &[("x", *x)])?;
    Ok(extents(x.shape(), axis))
}

/// Checks of [`SoftmaxOps::softmax_bwd`]; [outer, size of the axis, inner].
pub(crate) fn check_softmax_bwd(
    axis: usize,
    dy: &View<'_>,
    y: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "softmax_bwd";
    let v = dx.out.as_view();
    check::axis(OP, y, axis)?;
    check::float(OP, "y", y)?;
    for (arg, v) in [("dy", dy), ("dx", &v)] {
        check::dtype(OP, arg, v, y.dtype())?;
        check::shape(OP, arg, v, y.shape())?;
    }
    for (arg, v) in [("dy", dy), ("y", y), ("dx", &v)] {
        check::contiguous(OP, arg, v)?;
    }
    check::elementwise_output(OP, "dx", &dx.out, &[("dy", *dy), ("y", *y)])?;
    Ok(extents(y.shape(), axis))
}

fn last_axis(op: &'static str, x: &View<'_>) -> Result<[usize; 2]> {
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    match x.shape().split_last() {
        Some((&k, rows)) => Ok([rows.iter().product(), k]),
        None => Err(GpuError::invalid(op, "x", "at least one axis", "a scalar")),
    }
}

/// Checks of [`SoftmaxOps::masked_softmax`]; rows and columns.
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

/// Checks of [`SoftmaxOps::masked_softmax_bwd`]; rows and columns.
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
