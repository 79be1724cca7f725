//! Kernels of `kernels/common/gemm.c`.

use super::{FLOATS, FLOATS64, kernels};

/// Type of the outputs: that of A, or f32.
pub(crate) const OUT: &[&str] = &["gk_out_same", "gk_out_f32"];

kernels! {
    family: Gemm;
    GEMM_TILE128 = "gemm/gemm.c" "gemm_tile128", dtypes: FLOATS, ops: OUT,
        args: [a: In("gk_t"), b: In("gk_t"), c: In("gk_o"), bias: In("gk_t"), residual: In("gk_o"), scale: In("gk_t"), y: Out("gk_o"), z: Out("gk_o"), part: Out("gk_f"), size: Dims, sa: Dims, sb: Dims, sc: Dims, sr: Dims, sv: Dims, sy: Dims, sz: Dims, alpha: Real, beta: Real, act: I32, p: Real];
    GEMM_TILE64 = "gemm/gemm.c" "gemm_tile64", dtypes: FLOATS64, ops: OUT,
        args: [a: In("gk_t"), b: In("gk_t"), c: In("gk_o"), bias: In("gk_t"), residual: In("gk_o"), scale: In("gk_t"), y: Out("gk_o"), z: Out("gk_o"), part: Out("gk_f"), size: Dims, sa: Dims, sb: Dims, sc: Dims, sr: Dims, sv: Dims, sy: Dims, sz: Dims, alpha: Real, beta: Real, act: I32, p: Real];
    GEMM_SKINNY = "gemm/gemm.c" "gemm_skinny", dtypes: FLOATS64, ops: OUT,
        args: [a: In("gk_t"), b: In("gk_t"), c: In("gk_o"), bias: In("gk_t"), residual: In("gk_o"), scale: In("gk_t"), y: Out("gk_o"), z: Out("gk_o"), part: Out("gk_f"), size: Dims, sa: Dims, sb: Dims, sc: Dims, sr: Dims, sv: Dims, sy: Dims, sz: Dims, alpha: Real, beta: Real, act: I32, p: Real];
    GEMM_FINISH = "gemm/gemm.c" "gemm_finish", dtypes: FLOATS64, ops: OUT,
        args: [part: In("gk_f"), c: In("gk_o"), bias: In("gk_t"), residual: In("gk_o"), scale: In("gk_t"), y: Out("gk_o"), z: Out("gk_o"), size: Dims, sc: Dims, sr: Dims, sv: Dims, sy: Dims, sz: Dims, alpha: Real, beta: Real, act: I32, p: Real];
    GEMM_RAGGED = "gemm/gemm.c" "gemm_ragged", dtypes: FLOATS64, ops: OUT,
        args: [a: In("gk_t"), b: In("gk_t"), offsets: In("int"), y: Out("gk_o"), err: Out("int"), size: Dims, sa: Dims, sb: Dims, sy: Dims, alpha: Real, code: I32];
}
