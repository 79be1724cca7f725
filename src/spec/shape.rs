//! Kernels of `kernels/common/shape.c`.

use super::{ALL, FLOATS64, kernels};

kernels! {
    family: Shape;
    COPY_ND = "shape/shape.c" "copy_nd", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sx: Dims, sy: Dims, accumulate: I32];
    COPY_TILES = "shape/shape.c" "copy_tiles", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), tiles: I64, na: I64, nb: I64, sxa: I64, syb: I64, rank: I32, shape: Dims, sx: Dims, sy: Dims, wide: I32, accumulate: I32];
    FILL_FLAT = "shape/shape.c" "fill_flat", dtypes: ALL, ops: &[],
        args: [y: Out("gk_t"), n: I64, head: I64, lo: U32, hi: U32];
    FILL_ND = "shape/shape.c" "fill_nd", dtypes: ALL, ops: &[],
        args: [y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sy: Dims, lo: U32, hi: U32];
    ARANGE = "shape/shape.c" "arange", dtypes: ALL, ops: &[],
        args: [y: Out("gk_t"), n: I64, sy: I64, start: Real, step: Real];
    LINSPACE = "shape/shape.c" "linspace", dtypes: FLOATS64, ops: &[],
        args: [y: Out("gk_t"), n: I64, sy: I64, start: Real, end: Real, step: Real];
    CONCAT = "shape/shape.c" "concat", dtypes: ALL, ops: &[],
        args: [x0: In("gk_t"), x1: In("gk_t"), x2: In("gk_t"), x3: In("gk_t"), x4: In("gk_t"), x5: In("gk_t"), x6: In("gk_t"), x7: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, shape: Dims, magic: Dims, ends: Dims, row: I64, first: I64];
    PAD_ND = "shape/shape.c" "pad_nd", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sx: Dims, sy: Dims, size: Dims, before: Dims, mode: I32, lo: U32, hi: U32, accumulate: I32];
    PAD_BWD_ND = "shape/shape.c" "pad_bwd_nd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dx: Out("gk_t"), n: I64, rank: I32, shape: Dims, magic: Dims, sdy: Dims, sdx: Dims, padded: Dims, before: Dims, mode: I32, accumulate: I32];
    RUN_SUM = "shape/shape.c" "run_sum", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), offsets: In("gk_i64"), dx: Out("gk_t"), n: I64, rank: I32, shape: Dims, magic: Dims, sdy: Dims, sdx: Dims, axis: I32, mode: I32, len: I64, step: I64, places: I64, stride: I64, accumulate: I32];
    TRIANGLE_ND = "shape/shape.c" "triangle_nd", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sx: Dims, sy: Dims, upper: I32, k: I64, accumulate: I32];
}
