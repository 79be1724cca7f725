//! Checks of the softmax operations.

use super::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

fn extents(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

/// Checks of [`ActivationOps::softmax`](super::ActivationOps::softmax); [outer, size of the axis, inner].
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

/// Checks of [`ActivationOps::softmax_bwd`](super::ActivationOps::softmax_bwd); [outer, size of the axis, inner].
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
