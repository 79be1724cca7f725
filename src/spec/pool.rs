//! Kernels of `kernels/common/pool.c` and `pool_halve.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Pool;
    MAX_POOL = "pool/pool.c" "max_pool", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), index: Out("int"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32];
    AVG_POOL = "pool/pool.c" "avg_pool", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32, include_pad: I32, divisor: Real];
    MAX_POOL_PATCH = "pool/pool.c" "max_pool_patch", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), index: Out("int"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, side: I32];
    AVG_POOL_PATCH = "pool/pool.c" "avg_pool_patch", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, side: I32, divisor: Real];
    MAX_POOL_ROWS = "pool/pool.c" "max_pool_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), index: Out("int"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32, lanes: I32];
    AVG_POOL_ROWS = "pool/pool.c" "avg_pool_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32, include_pad: I32, divisor: Real, lanes: I32];
    MAX_POOL_BWD = "pool/pool.c" "max_pool_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), index: In("int"), dx: Out("gk_t"), err: Out("int"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32, wide: I32, accumulate: I32, code: I32];
    AVG_POOL_BWD = "pool/pool.c" "avg_pool_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dx: Out("gk_t"), n: I64, size: Dims, magic: Dims, win: Dims, pad: Dims, adaptive: I32, include_pad: I32, divisor: Real, wide: I32, accumulate: I32];
    MAX_POOL_HALVE = "pool/halving.c" "max_pool_halve", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), index: Out("int"), n: I64, size: Dims, by: Dims, side: I32];
    AVG_POOL_HALVE = "pool/halving.c" "avg_pool_halve", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, size: Dims, by: Dims, side: I32, divisor: Real];
    MAX_POOL_HALVE_BWD = "pool/halving.c" "max_pool_halve_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), index: In("int"), dx: Out("gk_t"), err: Out("int"), n: I64, size: Dims, by: Dims, side: I32, accumulate: I32, code: I32];
    AVG_POOL_HALVE_BWD = "pool/halving.c" "avg_pool_halve_bwd", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), dx: Out("gk_t"), n: I64, size: Dims, by: Dims, side: I32, divisor: Real, accumulate: I32];
}
