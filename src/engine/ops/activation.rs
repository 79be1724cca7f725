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

impl ActivationOps for Engine {
    fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.softmax_impl(kind, axis, x, y)
    }
    fn softmax_bwd(
        &self,
        kind: Softmax,
        axis: usize,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        self.softmax_bwd_impl(kind, axis, dy, y, dx)
    }
}
