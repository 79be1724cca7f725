//! Stub.
#![allow(unused_imports, unused_variables)]
use super::strided::*;
use super::*;
use crate::backend::IGpuBackend;
use crate::buffer::*;
use crate::cpu::{HostElement, with_dtype};
use crate::device::*;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::*;
use std::sync::Arc;

/// The bytes of a number stored as `dtype`: rounded to nearest even, integers truncated and saturated.
fn element_bytes(dtype: DType, value: f64) -> Vec<u8> {
    with_dtype!(dtype, T => bytemuck::bytes_of(&<T as HostElement>::from_f64(value)).to_vec())
}

impl ShapeOps for Engine {
    fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_strided_copy(&x, &y)?;
        let v = y.out.as_view();
        self.own("strided_copy", "x", &x)?;
        self.own("strided_copy", "y", &v)?;
        self.move_axes(&x, 0, &v, Axis::of(&x, &v), y.accumulate)
    }
    fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()> {
        check_fill(&y)?;
        let v = y.as_view();
        self.own("fill", "y", &v)?;
        self.fill_pattern(&element_bytes(v.dtype(), value), &v)
    }

    fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()> {
        check_fill_bytes(pattern, &y)?;
        let v = y.as_view();
        self.own("fill_bytes", "y", &v)?;
        self.fill_pattern(pattern, &v)
    }

    fn arange(&self, start: f64, step: f64, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn linspace(&self, start: f64, end: f64, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn pad(&self, mode: PadMode, pads: &[(isize, isize)], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn pad_bwd(&self, mode: PadMode, pads: &[(isize, isize)], dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn flip(&self, axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn roll(&self, shifts: &[isize], axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn triangle(&self, side: Triangle, k: isize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn repeat_interleave(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn repeat_interleave_bwd(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        dy: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn unfold_bwd(&self, axis: usize, size: usize, step: usize, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
}
