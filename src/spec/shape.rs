//! Kernels of `kernels/common/shape.c`.

use super::{ALL, kernels};

kernels! {
    family: Shape;
    COPY_ND = "shape.c" "copy_nd", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sx: Dims, sy: Dims, accumulate: I32];
    COPY_TILES = "shape.c" "copy_tiles", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), tiles: I64, na: I64, nb: I64, sxa: I64, syb: I64, rank: I32, shape: Dims, sx: Dims, sy: Dims, wide: I32, accumulate: I32];
    FILL_FLAT = "shape.c" "fill_flat", dtypes: ALL, ops: &[],
        args: [y: Out("gk_t"), n: I64, head: I64, lo: U32, hi: U32];
    FILL_ND = "shape.c" "fill_nd", dtypes: ALL, ops: &[],
        args: [y: Out("gk_t"), n: I64, wide: I32, rank: I32, shape: Dims, magic: Dims, sy: Dims, lo: U32, hi: U32];
}
