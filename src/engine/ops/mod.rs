//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

mod activation;
mod core;
pub(crate) mod elementwise;
pub(crate) mod gemm;
#[cfg(all(test, feature = "opencl"))]
mod gemm_tests;
mod index;
mod loss;
mod loss_batch;
mod loss_rows;
mod loss_seq;
#[cfg(all(test, feature = "opencl"))]
mod movement_tests;
mod optimizer;
mod random;
mod reduce;
#[cfg(all(test, feature = "opencl"))]
mod reduce_tests;
mod scatter;
mod shape;
mod softmax;
pub(crate) mod sort;
mod strided;
