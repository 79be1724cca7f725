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

impl IndexOps for Engine {
    fn index_select(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn index_add(
        &self,
        axis: usize,
        alpha: f64,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn index_copy(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn index_fill(&self, axis: usize, value: f64, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn gather(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn scatter(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn scatter_bwd(
        &self,
        axis: usize,
        dy: View<'_>,
        index: View<'_>,
        dx: Option<GradMut<'_>>,
        dsrc: Option<GradMut<'_>>,
    ) -> Result<()> {
        todo!()
    }
    fn scatter_reduce(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn scatter_reduce_bwd(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        io: ScatterReduceBwd<'_>,
    ) -> Result<()> {
        todo!()
    }
    fn index_put(&self, accumulate: bool, index: &[View<'_>], v: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn masked_scatter(&self, mask: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn masked_select(&self, mask: View<'_>, x: View<'_>, y: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn masked_select_bwd(&self, mask: View<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn nonzero(&self, x: View<'_>, index: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn one_hot(&self, ids: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
}
