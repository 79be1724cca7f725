//! Stub.
#![allow(unused_imports, unused_variables)]
use super::*;
use crate::backend::IGpuBackend;
use crate::buffer::*;
use crate::device::*;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::*;
use std::sync::Arc;

impl ShapeOps for Engine {
    fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()> {
        todo!()
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
