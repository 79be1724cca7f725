//! The family traits for [`Engine`](crate::Engine): validation, choice of variant, launch. Written once for all drivers.

mod activation;
mod attention;
mod conv;
mod conv_causal;
mod conv_deform;
#[cfg(all(test, feature = "driver-opencl"))]
mod conv_tests;
mod conv_weight;
mod core;
mod distance;
pub(crate) mod elementwise;
mod embedding;
mod gated;
pub(crate) mod gemm;
#[cfg(all(test, feature = "driver-opencl"))]
mod gemm_tests;
mod gnn;
mod gnn_aggregate;
mod gnn_attention;
mod gnn_heat;
mod gnn_plan;
mod grid_sample;
mod index;
mod lm;
mod loss;
mod loss_batch;
mod loss_margin;
mod loss_rows;
mod loss_seq;
mod loss_stft;
mod mesh;
#[cfg(all(test, feature = "driver-opencl"))]
mod movement_tests;
mod norm;
mod norm_bwd;
mod norm_bwd_even;
mod norm_even;
mod optimizer;
mod optimizer_forms;
mod order;
mod pool;
mod quantised;
mod random;
mod reduce;
#[cfg(all(test, feature = "driver-opencl"))]
mod reduce_tests;
mod resample;
mod rnn;
mod rnn_bwd;
mod rnn_conv;
mod scan;
mod scatter;
mod shape;
mod softmax;
pub(crate) mod sort;
mod strided;
#[cfg(all(test, feature = "driver-opencl"))]
mod window_tests;
