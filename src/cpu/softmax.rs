//! Placeholder until the softmax kernels arrive.

use super::CpuBackend;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::*;

impl CpuBackend {
    pub(super) fn softmax_impl(&self, _kind: Softmax, _axis: usize, _x: View<'_>, _y: ViewMut<'_>) -> Result<()> {
        Err(GpuError::Unsupported { op: "softmax", device: self.id(), why: "not built yet".into() })
    }

    pub(super) fn softmax_bwd_impl(&self, _kind: Softmax, _axis: usize, _dy: View<'_>, _y: View<'_>, _dx: GradMut<'_>) -> Result<()> {
        Err(GpuError::Unsupported { op: "softmax_bwd", device: self.id(), why: "not built yet".into() })
    }
}
