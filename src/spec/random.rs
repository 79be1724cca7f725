//! Kernels of `kernels/common/random.c`.

use super::{FLOATS, FLOATS64, kernels};
use crate::dtype::DType;

/// Continuous distributions, by the name of their C function.
pub(crate) const DISTRIBUTIONS: &[&str] =
    &["gk_rand_uniform", "gk_rand_normal", "gk_rand_exponential", "gk_rand_gumbel"];

kernels! {
    family: Random;
    RANDOM_FLOAT = "random/random.c" "random_float", dtypes: FLOATS64, ops: DISTRIBUTIONS,
        args: [y: Out("gk_t"), n: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64"), p: Real, q: Real];
    BERNOULLI = "random/random.c" "random_bernoulli", dtypes: FLOATS, ops: &[],
        args: [p: In("gk_t"), y: Out("gk_u8"), n: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64"), prob: F32];
    DROPOUT = "random/random.c" "dropout", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), mask: Out("gk_u8"), n: I64, wide: I32, seed: I64, stream: I64, offset: I64, more: In("gk_i64"), keep: F32, scale: Real, accumulate: I32];
    BIAS_DROPOUT = "random/random.c" "bias_dropout", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), bias: In("gk_t"), r: In("gk_t"), y: Out("gk_t"), mask: Out("gk_u8"), n: I64, cols: I64, wide: I32, seed: I64,
               stream: I64, offset: I64, more: In("gk_i64"), keep: F32, scale: Real];
    DROPOUT_MASKED = "random/random.c" "dropout_masked", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), mask: In("gk_u8"), y: Out("gk_t"), n: I64, scale: Real, accumulate: I32];
    CATEGORICAL_SUMS = "random/random.c" "categorical_sums", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), cum: Out("float"), rows: I64, len: I64, err: Out("int"), code: I32];
    CATEGORICAL_SEARCH = "random/random.c" "categorical_search", dtypes: FLOATS64, ops: &[],
        args: [cum: In("float"), y: Out("int"), wide: I32, rows: I64, len: I64, count: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64")];
    CATEGORICAL_GUMBEL = "random/random.c" "categorical_gumbel", dtypes: FLOATS64, ops: &[],
        args: [logits: In("gk_t"), y: Out("int"), wide: I32, rows: I64, len: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64")];
    RANDOM_INT = "random/random.c" "random_int", dtypes: &[DType::I32, DType::I64], ops: &[],
        args: [y: Out("gk_t"), n: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64"), lo: I64, range: U32];
    RANDOM_KEYS = "random/random.c" "random_keys", dtypes: &[DType::I64], ops: &[],
        args: [keys: Out("gk_i64"), n: I64, seed: I64, stream: I64, offset: I64, more: In("gk_i64")];
}
