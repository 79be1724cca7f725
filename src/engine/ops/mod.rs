//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

mod activation;
mod attention;
mod conv;
mod core;
mod distance;
pub(crate) mod elementwise;
mod embedding;
pub(crate) mod gemm;
mod graph;
mod index;
mod language_model;
mod loss;
mod mesh;
mod moe;
mod norm;
mod optimizer;
pub(crate) use self::optimizer::step_numbers;
mod pool;
mod quantized;
mod random;
mod reduce;
mod resample;
mod rnn;
mod scan;
mod shape;
mod softmax;
pub(crate) mod sort;
