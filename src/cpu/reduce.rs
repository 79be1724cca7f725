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

impl ReduceOps for CpuBackend {
    fn reduce(&self, op: Reduce, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn reduce_bwd(
        &self,
        op: Reduce,
        axes: &[usize],
        dy: View<'_>,
        x: Option<View<'_>>,
        y: Option<View<'_>>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn arg_reduce(
        &self,
        op: ArgReduce,
        axis: usize,
        x: View<'_>,
        index: ViewMut<'_>,
        value: Option<ViewMut<'_>>,
    ) -> Result<()> {
        todo!()
    }
    fn arg_reduce_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn mean_var(
        &self,
        axes: &[usize],
        correction: f64,
        x: View<'_>,
        mean: ViewMut<'_>,
        var: ViewMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn min_max(&self, axes: &[usize], x: View<'_>, lo: ViewMut<'_>, hi: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn dot(&self, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn dot_bwd(
        &self,
        dy: View<'_>,
        a: View<'_>,
        b: View<'_>,
        da: Option<GradMut<'_>>,
        db: Option<GradMut<'_>>,
    ) -> Result<()> {
        todo!()
    }
    fn sum_to_shape(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
}
