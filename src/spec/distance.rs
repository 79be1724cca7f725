//! Kernels of `kernels/common/distance.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Distance;
    DISTANCE_TILE = "distance/distance.c" "distance_tile", dtypes: FLOATS64, ops: &[],
        args: [a: In("gk_t"), b: In("gk_t"), y: Out("gk_t"), rows: I64, cols: I64, len: I64, packed: I32, mode: I32, p: Real];
    DISTANCE_BWD = "distance/distance.c" "distance_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), y: In("gk_t"), a: In("gk_t"), b: In("gk_t"), da: Out("gk_t"), part: Out("gk_f"), batches: I64, rows: I64, others: I64, len: I64, step: I64, next: I64, splits: I32, packed: I32, mode: I32, p: Real, accumulate: I32];
    DISTANCE_JOIN = "distance/distance.c" "distance_join", dtypes: FLOATS64, ops: &[],
        args: [part: In("gk_f"), da: Out("gk_t"), n: I64, splits: I32, accumulate: I32];
    SIMILARITY = "distance/distance.c" "similarity", dtypes: FLOATS64, ops: &[],
        args: [a: In("gk_t"), b: In("gk_t"), y: Out("gk_t"), items: I64, len: I64, inner: I64, lanes: I32, wide: I32, mode: I32, p: Real, eps: Real];
    SIMILARITY_BWD = "distance/distance.c" "similarity_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), a: In("gk_t"), b: In("gk_t"), da: Out("gk_t"), db: Out("gk_t"), items: I64, len: I64, inner: I64, lanes: I32, wide: I32, mode: I32, p: Real, eps: Real, add_a: I32, add_b: I32];
}
