//! Tensor operations with gradients, as methods of [`Tensor`](crate::Tensor).

mod activation;
mod attention;
mod conv;
pub(crate) mod derivatives;
mod distance;
mod elementwise;
mod embedding;
mod gemm;
mod graph;
mod index;
mod language_model;
mod mesh;
mod moe;
mod norm;
pub(crate) mod operand;
mod pool;
mod quantized;
mod random;
mod reduce;
mod resample;
mod rnn;
mod shape;
mod softmax;
mod sort;
mod state_space;

pub(crate) use self::attention::packed_heads;
pub use self::attention::{PagedCache, ScaledDotProductAttention};
pub(crate) use self::elementwise::arithmetic::broadcast;
pub(crate) use self::elementwise::radial::Radial;
pub use self::graph::{Graph, Groups};
pub(crate) use self::index::range::check_values;
pub use self::language_model::LinearCrossEntropyLoss;
pub use self::mesh::{HeatOperator, LaplacianWeights, Mesh, TriangleMesh};
pub use self::moe::MoeRouting;
pub use self::norm::{BatchNormStats, RunningStats};
pub use self::quantized::{QuantizedWeight, SemiSparse};
pub use self::rnn::{ConvLstmParams, RnnParams, RnnState, sequence_lengths};
pub(crate) use self::rnn::{check_lengths, steps_to_run};
#[cfg(feature = "loom")]
pub(crate) use self::softmax::sparsemax_support;
pub use self::state_space::SelectiveScanOptions;
