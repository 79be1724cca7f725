//! Stub.
#![allow(unused_imports, unused_variables)]
use super::*;
use crate::buffer::*;
use crate::device::*;
use crate::ops::*;
use crate::dtype::DType;
use crate::error::Result;
use std::sync::Arc;
use crate::backend::IGpuBackend;

impl GemmOps for Engine {
    fn gemm(&self, p: &Gemm, io: GemmIo<'_>) -> Result<()> { todo!() }
    fn gemm_bwd(&self, p: &Gemm, io: GemmBwd<'_>) -> Result<()> { todo!() }
    fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()> { todo!() }
    fn gemm_ragged(&self, p: &Gemm, a: View<'_>, b: View<'_>, offsets: View<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
}
