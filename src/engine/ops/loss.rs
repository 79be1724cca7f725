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

impl LossOps for Engine {
    fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()> { todo!() }
    fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()> { todo!() }
    fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()> { todo!() }
    fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()> { todo!() }
}
