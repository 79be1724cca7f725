//! Examination of indices before they are used, where structures are made from them once, and of values while they are used.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::index_check::{self, Range, Values};
use crate::core::tensor::{Tensor, is_trial};

/// Error unless every index is in 0..limit, or `ignore`; `place` says where the one at a position stands. Waits for the device.
pub(crate) fn check_range(
    op: &'static str,
    index: &Tensor,
    limit: usize,
    ignore: Option<i64>,
    place: impl FnOnce(usize) -> String,
) -> Result<()> {
    if index.numel() == 0 || is_trial(index.device()) {
        return Ok(());
    }
    let wide = index.detach().to_dtype(DType::I64)?;
    let mut bad = wide.lt_scalar(0.0)?.logical_or(&wide.ge_scalar(limit as f64)?)?;
    if let Some(value) = ignore {
        bad = bad.logical_and(&wide.ne_scalar(value as f64)?)?;
    }
    if bad.any(&(0..bad.rank() as isize).collect::<Vec<_>>(), false)?.item::<u8>()? == 0 {
        return Ok(());
    }
    let range = Range { op, limit, ignore, labels: false };
    match range.first_bad(index)? {
        Some((at, value)) => Err(range.error(place(at), value)),
        None => Ok(()),
    }
}

/// Has the device examine values: `good` (u8) says of each element of x whether it is allowed. Others are reported by the next call that
/// waits, as [`NnError::Value`](crate::NnError::Value).
pub(crate) fn check_values(x: &Tensor, good: &Tensor, values: Values) -> Result<()> {
    if x.numel() == 0 {
        return Ok(());
    }
    index_check::note_values(x, values);
    let all: Vec<isize> = (0..good.rank() as isize).collect();
    // A table of one entry has no entry 1.
    let entry = good.all(&all, false)?.logical_not()?.to_dtype(DType::I64)?.reshape(&[1])?;
    Tensor::zeros(x.device(), DType::F32, &[1])?.index_select(0, &entry)?;
    Ok(())
}

/// Error unless a tensor holds i32 or i64.
pub(crate) fn check_index(op: &'static str, arg: &'static str, t: &Tensor) -> Result<()> {
    match t.dtype().is_index() {
        true => Ok(()),
        false => Err(invalid(op, arg, "i32 or i64", t.dtype().name())),
    }
}
