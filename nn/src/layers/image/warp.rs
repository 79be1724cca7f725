//! What layers that sample images at moved positions share.

use trefoil::DType;
use trefoil::ops::shape::PadMode;

use crate::core::error::Result;
use crate::core::tensor::{Device, Tensor};

/// The affine map `[2, 3]` that leaves positions as they are, made on the device.
pub(super) fn identity(device: &Device, dtype: DType) -> Result<Tensor> {
    Tensor::eye(device, dtype, 2)?.pad(PadMode::Constant(0.0), &[(0, 0), (0, 1)])
}

/// Numbers of 16 bits in f32, others as they are: with 16 bits, positions in wide images would be off by whole cells.
pub(super) fn widened(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(if x.dtype().size() == 2 { DType::F32 } else { x.dtype() })
}
