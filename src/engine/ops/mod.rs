//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

use super::*;

mod activation;
mod core;
mod elementwise;
mod gemm;
mod index;
mod loss;
mod optimizer;
mod random;
mod reduce;
mod scatter;
mod shape;
#[cfg(test)]
mod movement_tests;
pub(crate) mod sort;
mod strided;
