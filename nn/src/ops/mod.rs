//! Tensor operations with gradients, as methods of [`Tensor`](crate::Tensor).

mod activation;
mod elementwise;
mod gemm;
mod index;
mod loss;
mod random;
mod reduce;
mod shape;

pub use self::loss::{CrossEntropyLoss, MseLoss};
