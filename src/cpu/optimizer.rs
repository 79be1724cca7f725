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

impl OptimizerOps for CpuBackend {
    fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()> { todo!() }
    fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()> { todo!() }
    fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()> { todo!() }
}
