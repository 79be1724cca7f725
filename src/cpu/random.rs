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

impl RandomOps for CpuBackend {
    fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
    fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
    fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
    fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
    fn dropout(&self, p: f64, rng: Rng<'_>, x: View<'_>, y: ViewMut<'_>, mask: Option<ViewMut<'_>>) -> Result<()> { todo!() }
    fn dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> { todo!() }
}
