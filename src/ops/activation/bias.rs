//! Gradients of rows to which a bias and an activation were applied: operands and checks.

use super::{Activation, Saved, check_activation_bwd};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::gemm::check_offsets;

io_struct! {
    /// Operands of [`ActivationOps::activation_bias_bwd`](super::ActivationOps::activation_bias_bwd), floats of one dtype.
    #[derive(Debug)]
    pub struct ActivationBiasBwd<'a> {
        /// Upstream gradient [.., N]; of rank 2 with `offsets`.
        pub dy: View<'a>,
        /// What the activation's backward reads, of dY's shape.
        pub saved: Saved<'a>,
        /// Where groups of rows begin and the last one ends, i32 [G + 1], rising.
        pub offsets: Option<View<'a>>,
        /// Gradient of what the bias was added to, of dY's shape. May be `dy` or the saved tensor.
        pub dx: ViewMut<'a>,
        /// Gradient of the bias `[N]`, or with `offsets` [G, N], contiguous.
        pub dbias: GradMut<'a>,
    }
}

/// Checks of [`ActivationOps::activation_bias_bwd`](super::ActivationOps::activation_bias_bwd); rows, N and groups.
pub(crate) fn check_activation_bias_bwd(act: Activation, io: &ActivationBiasBwd<'_>) -> Result<[usize; 3]> {
    let op = "activation_bias_bwd";
    check_activation_bwd(op, act, &io.dy, &io.saved, &io.dx)?;
    let shape = io.dy.shape();
    let Some((&n, outer)) = shape.split_last() else {
        return Err(GpuError::invalid(op, "dy", "rank 1 or more", format!("shape {shape:?}")));
    };
    let dbias = io.dbias.out.as_view();
    let groups = match (io.offsets.is_some(), dbias.shape()) {
        (false, _) => 1,
        (true, &[groups, _]) if shape.len() == 2 => groups,
        (true, &[_, _]) => return Err(GpuError::invalid(op, "dy", "rank 2", format!("shape {shape:?}"))),
        (true, other) => return Err(GpuError::invalid(op, "dbias", "rank 2", format!("shape {other:?}"))),
    };
    let whole = [groups, n];
    check::shape(op, "dbias", &dbias, if io.offsets.is_some() { &whole } else { &whole[1..] })?;
    check::dtype(op, "dbias", &dbias, io.dy.dtype())?;
    let (Saved::Input(saved) | Saved::Output(saved)) = io.saved;
    let mut others = vec![("dy", io.dy), ("saved", saved), ("dx", io.dx.as_view())];
    if let Some(offsets) = io.offsets {
        check::contiguous(op, "dbias", &dbias)?;
        check_offsets(op, &offsets, groups)?;
        check::separate_output(op, "dx", &io.dx, &[("offsets", offsets)])?;
        others.push(("offsets", offsets));
    }
    check::separate_output(op, "dbias", &io.dbias.out, &others)?;
    Ok([outer.iter().product(), n, groups])
}
