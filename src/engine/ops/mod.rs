//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

use super::*;

mod activation;
mod core;
mod elementwise;
pub(crate) mod gemm;
mod index;
mod loss;
mod optimizer;
mod random;
mod reduce;
mod shape;
