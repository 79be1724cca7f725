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

impl ElementwiseOps for CpuBackend {
    fn unary(&self, op: Unary, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        todo!()
    }
    fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn binary_bwd(&self, op: Binary, io: BinaryBwd<'_>) -> Result<()> {
        todo!()
    }
    fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()> {
        todo!()
    }
    fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
}
