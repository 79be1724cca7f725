//! Kernels of `kernels/common/gated.c` and `softmax_masked.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Activation;
    GATED = "activation/gated.c" "gated", dtypes: FLOATS64, ops: &[],
        args: [gate: In("gk_t"), up: In("gk_t"), y: Out("gk_t"), n: I64, cols: I64, stride: I64, wide: I32, act: I32];
    GATED_BWD = "activation/gated.c" "gated_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), gate: In("gk_t"), up: In("gk_t"), dgate: Out("gk_t"), dup: Out("gk_t"), n: I64, cols: I64, stride: I64, wide: I32,
               act: I32, accumulate_gate: I32, accumulate_up: I32];
    PRELU = "activation/gated.c" "prelu", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), a: In("gk_t"), y: Out("gk_t"), n: I64, cols: I64, slopes: I64, wide: I32];
    PRELU_BWD_ROWS = "activation/gated.c" "prelu_bwd_rows", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), a: In("gk_t"), dx: Out("gk_t"), part: Out("gk_f"), rows: I64, cols: I64, slopes: I64, splits: I32,
               chunk: I64, lanes: I32, wide: I32, phase: I32, accumulate: I32];
    PRELU_BWD_COLS = "activation/gated.c" "prelu_bwd_cols", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), a: In("gk_t"), dx: Out("gk_t"), part: Out("gk_f"), n: I64, cols: I64, inner: I64, chunk: I64,
               chunks: I32, tx: I32, wide: I32, accumulate: I32];
    PRELU_JOIN = "activation/gated.c" "prelu_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), da: Out("gk_t"), outer: I64, sets: I64, inner: I64, tx: I32, accumulate: I32];
    SOFTMAX_MASKED = "softmax/masked.c" "softmax_masked", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), mask: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, phase: I32, scale: Real, rank: I32,
               sizes: Dims, steps: Dims, step: I32, aligned: I32];
    SOFTMAX_MASKED_BWD = "softmax/masked.c" "softmax_masked_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, phase: I32, scale: Real,
               accumulate: I32];
}
