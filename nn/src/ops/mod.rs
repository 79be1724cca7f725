//! Tensor operations with gradients, as methods of [`Tensor`](crate::Tensor).

mod activation;
mod conv;
mod elementwise;
mod gemm;
mod index;
mod pool;
mod random;
mod reduce;
mod resample;
mod shape;
