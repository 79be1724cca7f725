//! Kernels of `kernels/common/scan.c` and `kernels/common/segment.c`.

use super::{ALL, FLOATS64, kernels};

kernels! {
    family: Scan;
    SCAN_PART = "scan/scan.c" "scan_part", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), part: Out("gk_s"), cols: I64, chunk: I64, splits: I32, reverse: I32];
    SCAN_ROWS = "scan/scan.c" "scan_rows", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), part: In("gk_s"), y: Out("gk_t"), rows: I64, cols: I64, per: I32, chunk: I64, splits: I32, exclusive: I32, reverse: I32, mode: I32, wide: I32];
    SCAN_PART_COLS = "scan/scan.c" "scan_part_cols", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), part: Out("gk_s"), size: I64, inner: I64, tx: I32, chunk: I64, splits: I32, reverse: I32];
    SCAN_COLS = "scan/scan.c" "scan_cols", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), part: In("gk_s"), y: Out("gk_t"), size: I64, inner: I64, tx: I32, chunk: I64, splits: I32, exclusive: I32, reverse: I32, mode: I32];
    SEGMENT_REDUCE = "scan/segment.c" "segment_reduce", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), offsets: In("int"), y: Out("gk_t"), state: Out("gk_f"), part: Out("gk_f"), err: Out("int"), dims: Dims, mode: I32, eps: Real, code: I32];
    SEGMENT_JOIN = "scan/segment.c" "segment_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), offsets: In("int"), y: Out("gk_t"), state: Out("gk_f"), dims: Dims, mode: I32, eps: Real];
    SEGMENT_SPREAD = "scan/segment.c" "segment_spread", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), offsets: In("int"), state: In("gk_f"), dx: Out("gk_t"), err: Out("int"), dims: Dims, mode: I32, eps: Real, accumulate: I32, code: I32];
}
