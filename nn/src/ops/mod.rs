//! Tensor operations with gradients, as methods of [`Tensor`](crate::Tensor).

mod activation;
mod activation_more;
mod attention;
mod conv;
mod elementwise;
mod embedding;
mod entmax;
mod gated;
mod gemm;
mod index;
mod lm;
mod norm;
pub(crate) mod operand;
mod pool;
mod radial;
mod random;
mod reduce;
mod resample;
mod rnn;
mod select;
mod shape;
mod sort;

pub use self::attention::ScaledDotProductAttention;
pub(crate) use self::attention::packed_heads;
pub(crate) use self::elementwise::broadcast;
pub(crate) use self::entmax::sparsemax_support;
pub use self::lm::LinearCrossEntropyLoss;
pub use self::norm::{BatchNormStats, RunningStats};
pub(crate) use self::radial::Radial;
pub(crate) use self::rnn::check_lengths;
pub use self::rnn::{ConvLstmParams, RnnParams, RnnState, sequence_lengths};
