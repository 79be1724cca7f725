//! The unified backend trait and its conveniences.

use crate::buffer::{Buffer, View, ViewMut};
use crate::dtype::{DType, Element};
use crate::error::{GpuError, Result};
use crate::ops::core::{CaptureOps, CoreOps, Graph};
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

    /// [Records](CaptureOps::capture_calls) what `calls` calls on this handle, and gives the graph with what `calls` returned: the buffers that a
    /// replay writes, say.
    ///
    /// ```
    /// use trefoil::{CpuBackend, DType, ops::elementwise::Unary, prelude::*};
    ///
    /// let gpu = CpuBackend::new(); // or any device
    /// let x = gpu.zeros(DType::F32, 1000)?;
    /// let (graph, y) = gpu.capture(|gpu| {
    ///     let mut y = gpu.alloc(DType::F32, 1000)?;
    ///     gpu.unary(Unary::Exp, x.view(), y.view_mut())?;
    ///     Ok(y)
    /// })?;
    /// graph.replay()?; // y = exp(x)
    /// assert_eq!(gpu.download::<f32>(y.view())?, [1.0; 1000]);
    /// # Ok::<(), trefoil::GpuError>(())
    /// ```
    ///
    /// Errors: as [`CaptureOps::capture_calls`].
    fn capture<T>(&self, calls: impl FnOnce(&Self) -> Result<T>) -> Result<(Graph, T)>
    where
        Self: CaptureOps,
    {
        let (mut calls, mut made) = (Some(calls), None);
        let graph = self.capture_calls(&mut || {
            if let Some(calls) = calls.take() {
                made = Some(calls(self)?);
            }
            Ok(())
        })?;
        match made {
            Some(made) => Ok((graph, made)),
            None => Err(GpuError::Capture { op: "capture", why: "the backend did not make the calls" }),
        }
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
