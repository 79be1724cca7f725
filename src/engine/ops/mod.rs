//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

use super::*;

mod activation;
mod core;
mod elementwise;
mod gemm;
mod index;
mod loss;
#[cfg(test)]
mod movement_tests;
mod optimizer;
mod random;
mod reduce;
mod shape;
mod strided;
