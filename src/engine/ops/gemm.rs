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

impl GemmOps for Engine {
    fn gemm(&self, p: &Gemm, io: GemmIo<'_>) -> Result<()> {
        todo!()
    }
    fn gemm_bwd(&self, p: &Gemm, io: GemmBwd<'_>) -> Result<()> {
        todo!()
    }
    fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()> {
        todo!()
    }
    fn gemm_ragged(
        &self,
        p: &Gemm,
        a: View<'_>,
        b: View<'_>,
        offsets: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        todo!()
    }
}
