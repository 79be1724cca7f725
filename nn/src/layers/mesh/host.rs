//! Values that layers of meshes examine on the host, once per mesh.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial};

/// All elements of a tensor of floats. Waits for the device.
pub(super) fn floats(t: &Tensor) -> Result<Vec<f64>> {
    match t.dtype() {
        DType::F64 => t.to_vec::<f64>(),
        _ => Ok(t.detach().to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
    }
}

/// All elements of a tensor of integers. Waits for the device.
pub(super) fn integers(t: &Tensor) -> Result<Vec<i64>> {
    t.to_dtype(DType::I64)?.to_vec::<i64>()
}

/// Error with the first element of a vector for which `holds` is not true. Waits for the device.
pub(super) fn check_each(
    op: &'static str,
    arg: &'static str,
    t: &Tensor,
    expected: &str,
    holds: impl Fn(f64) -> bool,
) -> Result<()> {
    if is_trial(t.device()) {
        return Ok(());
    }
    match floats(t)?.into_iter().enumerate().find(|(_, v)| !holds(*v)) {
        Some((at, v)) => Err(invalid(op, arg, expected, format!("{v} at position {at}"))),
        None => Ok(()),
    }
}
