//! Kernels of `kernels/common/softmax.c`.

use super::{FLOATS, FLOATS64, kernels};

/// The two normalisations.
pub(crate) const OPS: &[&str] = &["gk_softmax", "gk_log_softmax"];

kernels! {
    family: Activation;
    SHORT1 = "softmax/softmax.c" "softmax_short1", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32];
    SHORT2 = "softmax/softmax.c" "softmax_short2", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32];
    SHORT4 = "softmax/softmax.c" "softmax_short4", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32];
    SHORT8 = "softmax/softmax.c" "softmax_short8", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32];
    BWD_SHORT1 = "softmax/softmax.c" "softmax_bwd_short1", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32, accumulate: I32];
    BWD_SHORT2 = "softmax/softmax.c" "softmax_bwd_short2", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32, accumulate: I32];
    BWD_SHORT4 = "softmax/softmax.c" "softmax_bwd_short4", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I32, lanes: I32, wide: I32, accumulate: I32];
    HELD16 = "softmax/softmax.c" "softmax_held16", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), cols: I32, wide: I32];
    HELD64 = "softmax/softmax.c" "softmax_held64", dtypes: FLOATS, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), cols: I32, wide: I32];
    BWD_HELD16 = "softmax/softmax.c" "softmax_bwd_held16", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), cols: I32, wide: I32, accumulate: I32];
    BWD_HELD64 = "softmax/softmax.c" "softmax_bwd_held64", dtypes: FLOATS, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), cols: I32, wide: I32, accumulate: I32];
    ROWS = "softmax/softmax.c" "softmax_rows", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, phase: I32];
    BWD_ROWS = "softmax/softmax.c" "softmax_bwd_rows", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), rows: I64, cols: I64, lanes: I32, wide: I32, phase: I32, accumulate: I32];
    PART = "softmax/softmax.c" "softmax_part", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), part: Out("gk_f"), rows: I64, cols: I64, splits: I32, chunk: I64, wide: I32, phase: I32];
    JOIN = "softmax/softmax.c" "softmax_join", dtypes: FLOATS64, ops: OPS,
        args: [part: In("gk_f"), norms: Out("gk_f"), rows: I64, splits: I32];
    APPLY = "softmax/softmax.c" "softmax_apply", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), norms: In("gk_f"), y: Out("gk_t"), rows: I64, cols: I64, splits: I32, chunk: I64, wide: I32, phase: I32];
    BWD_PART = "softmax/softmax.c" "softmax_bwd_part", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), part: Out("gk_f"), rows: I64, cols: I64, splits: I32, chunk: I64, wide: I32, phase: I32];
    BWD_APPLY = "softmax/softmax.c" "softmax_bwd_apply", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), part: In("gk_f"), dx: Out("gk_t"), rows: I64, cols: I64, splits: I32, chunk: I64, wide: I32,
               phase: I32, accumulate: I32];
    COLS = "softmax/softmax.c" "softmax_cols", dtypes: FLOATS64, ops: OPS,
        args: [x: In("gk_t"), y: Out("gk_t"), outer: I64, cols: I64, inner: I64, tx: I32, wide: I32];
    BWD_COLS = "softmax/softmax.c" "softmax_bwd_cols", dtypes: FLOATS64, ops: OPS,
        args: [dy: In("gk_t"), y: In("gk_t"), dx: Out("gk_t"), outer: I64, cols: I64, inner: I64, tx: I32, wide: I32, accumulate: I32];
}
