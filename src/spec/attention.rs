//! Kernels of `kernels/common/attention.c`, `attention_bwd.c` and `attention_scores.c`.

use super::{FLOATS64, kernels};

/// Columns of a result per block.
pub(crate) const WIDTHS: &[&str] = &["gk_head64", "gk_head128"];

kernels! {
    family: Attention;
    ATTENTION_FWD = "attention/attention.c" "attention_fwd", dtypes: FLOATS64, ops: WIDTHS,
        args: [q: In("gk_t"), k: In("gk_t"), bias: In("gk_t"), mask: In("gk_u8"), lengths: In("int"), cu_q: In("int"), cu_k: In("int"), more: In("gk_i64"), err: Out("int"), size: Dims, sq: Dims, sm: Dims, tiles: I32, scale: Real, cap: Real, left: I32, right: I32, bottom: I32, seed: I64, stream: I64, offset: I64, keep: F32, kept: Real, code: I32, v: In("gk_t"), o: Out("gk_t"), lse: Out("gk_f"), sv: Dims, sl: Dims];
    ATTENTION_DKV = "attention/backward.c" "attention_dkv", dtypes: FLOATS64, ops: WIDTHS,
        args: [q: In("gk_t"), k: In("gk_t"), bias: In("gk_t"), mask: In("gk_u8"), lengths: In("int"), cu_q: In("int"), cu_k: In("int"), more: In("gk_i64"), err: Out("int"), size: Dims, sq: Dims, sm: Dims, tiles: I32, scale: Real, cap: Real, left: I32, right: I32, bottom: I32, seed: I64, stream: I64, offset: I64, keep: F32, kept: Real, code: I32, v: In("gk_t"), dout: In("gk_t"), lse: In("gk_f"), delta: In("gk_f"), sv: Dims, sl: Dims, sg: Dims, dk: Out("gk_t"), dv: Out("gk_t")];
    ATTENTION_DQ = "attention/backward.c" "attention_dq", dtypes: FLOATS64, ops: WIDTHS,
        args: [q: In("gk_t"), k: In("gk_t"), bias: In("gk_t"), mask: In("gk_u8"), lengths: In("int"), cu_q: In("int"), cu_k: In("int"), more: In("gk_i64"), err: Out("int"), size: Dims, sq: Dims, sm: Dims, tiles: I32, scale: Real, cap: Real, left: I32, right: I32, bottom: I32, seed: I64, stream: I64, offset: I64, keep: F32, kept: Real, code: I32, v: In("gk_t"), dout: In("gk_t"), lse: In("gk_f"), delta: In("gk_f"), sv: Dims, sl: Dims, sg: Dims, dq: Out("gk_t")];
    ATTENTION_DELTA = "attention/scores.c" "attention_delta", dtypes: FLOATS64, ops: &[],
        args: [dout: In("gk_t"), o: In("gk_t"), delta: Out("gk_f"), size: Dims, so: Dims, n: I64];
    ATTENTION_PROBS = "attention/scores.c" "attention_probs", dtypes: FLOATS64, ops: &[],
        args: [q: In("gk_t"), k: In("gk_t"), bias: In("gk_t"), mask: In("gk_u8"), lengths: In("int"), cu_q: In("int"), cu_k: In("int"), more: In("gk_i64"), err: Out("int"), size: Dims, sq: Dims, sm: Dims, tiles: I32, scale: Real, cap: Real, left: I32, right: I32, bottom: I32, seed: I64, stream: I64, offset: I64, keep: F32, kept: Real, code: I32, lse: In("gk_f"), sl: Dims, p: Out("gk_t")];
    ATTENTION_DBIAS = "attention/scores.c" "attention_dbias", dtypes: FLOATS64, ops: &[],
        args: [q: In("gk_t"), k: In("gk_t"), bias: In("gk_t"), mask: In("gk_u8"), lengths: In("int"), cu_q: In("int"), cu_k: In("int"), more: In("gk_i64"), err: Out("int"), size: Dims, sq: Dims, sm: Dims, tiles: I32, scale: Real, cap: Real, left: I32, right: I32, bottom: I32, seed: I64, stream: I64, offset: I64, keep: F32, kept: Real, code: I32, v: In("gk_t"), dout: In("gk_t"), lse: In("gk_f"), delta: In("gk_f"), sv: Dims, sl: Dims, sb: Dims, dbias: Out("gk_t"), accumulate: I32];
}
