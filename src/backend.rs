//! The unified backend trait and its conveniences.

use crate::buffer::{Buffer, View, ViewMut};
use crate::dtype::{DType, Element};
use crate::error::{GpuError, Result};
use crate::ops::core::CoreOps;
use crate::ops::shape::ShapeOps;

/// Typed conveniences over [`CoreOps`].
pub trait BackendExt: CoreOps {
    /// A new buffer with these contents.
    fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer> {
        let mut b = self.alloc(T::DTYPE, data.len())?;
        self.write_bytes(b.view_mut(), bytemuck::cast_slice(data))?;
        Ok(b)
    }

    /// Contents of a contiguous view. Waits for the device.
    fn download<T: Element>(&self, v: View<'_>) -> Result<Vec<T>> {
        if v.dtype() != T::DTYPE {
            return Err(GpuError::invalid("download", "v", T::DTYPE.name(), v.dtype().name()));
        }
        let mut out = vec![<T as bytemuck::Zeroable>::zeroed(); v.numel()];
        self.read_bytes(v, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Overwrites a contiguous view.
    fn write<T: Element>(&self, dst: ViewMut<'_>, data: &[T]) -> Result<()> {
        if dst.dtype() != T::DTYPE {
            return Err(GpuError::invalid("write", "dst", T::DTYPE.name(), dst.dtype().name()));
        }
        self.write_bytes(dst, bytemuck::cast_slice(data))
    }

    /// A buffer of zeros.
    fn zeros(&self, dtype: DType, len: usize) -> Result<Buffer>
    where
        Self: ShapeOps,
    {
        let mut b = self.alloc(dtype, len)?;
        self.fill(0.0, b.view_mut())?;
        Ok(b)
    }
}

impl<T: ?Sized + CoreOps> BackendExt for T {}
