//! Kernels of `kernels/common/index.c`.

use super::{ALL, FLOATS64, kernels};
use crate::dtype::DType;

/// Types that are reduced by destination.
const REDUCED: &[DType] = &[DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I64];

kernels! {
    family: Index;
    INDEX_SELECT = "index/index.c" "index_select", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), index: In("int"), y: Out("gk_t"), err: Out("int"), items: I64, wide: I32, wide_index: I32, size: I64, shape: Dims, magic: Dims, accumulate: I32, code: I32];
    GATHER_AXIS = "index/index.c" "gather_axis", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), index: In("int"), y: Out("gk_t"), err: Out("int"), n: I64, wide_index: I32, size: I64, step: I64, rank: I32, shape: Dims, magic: Dims, sx: Dims, accumulate: I32, code: I32];
    INDEX_FILL = "index/index.c" "index_fill", dtypes: ALL, ops: &[],
        args: [index: In("int"), y: Out("gk_t"), err: Out("int"), items: I64, wide: I32, wide_index: I32, size: I64, shape: Dims, magic: Dims, lo: U32, hi: U32, code: I32];
    SCATTER_LAST = "index/index.c" "scatter_last", dtypes: ALL, ops: &[],
        args: [keys: In("int"), positions: In("int"), src: In("gk_t"), y: Out("gk_t"), items: I64, wide: I32, wide_keys: I32, limit: I64, shape: Dims, magic: Dims];
    SCATTER_LAST_BWD = "index/index.c" "scatter_last_bwd", dtypes: ALL, ops: &[],
        args: [keys: In("int"), positions: In("int"), dy: In("gk_t"), dsrc: Out("gk_t"), n: I64, wide_keys: I32, limit: I64, accumulate: I32];
    MARK_KEYS = "index/index.c" "mark_keys", dtypes: &[DType::U8], ops: &[],
        args: [keys: In("int"), mask: Out("gk_u8"), n: I64, wide_keys: I32, limit: I64];
    COPY_UNMARKED = "index/index.c" "copy_unmarked", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), mask: In("gk_u8"), y: Out("gk_t"), n: I64, accumulate: I32];
    ONE_HOT = "index/index.c" "one_hot", dtypes: ALL, ops: &[],
        args: [ids: In("int"), y: Out("gk_t"), err: Out("int"), n: I64, wide_index: I32, classes: I64, code: I32];
    SEGMENT_REDUCE = "index/index.c" "segment_reduce", dtypes: REDUCED, ops: &[],
        args: [keys: In("int"), positions: In("int"), src: In("gk_t"), tie: In("gk_t"), y: Out("gk_t"), stat: Out("gk_f"), head: Out("gk_f"), tail: Out("gk_f"), n: I64, run: I64, outer: I64, inner: I64, limit: I64, wide_keys: I32, wide: I32, how: I32, value: I32, include: I32, alpha: Real];
    SEGMENT_JOIN = "index/index.c" "segment_join", dtypes: REDUCED, ops: &[],
        args: [keys: In("int"), y: Out("gk_t"), stat: Out("gk_f"), head: In("gk_f"), tail: In("gk_f"), n: I64, run: I64, outer: I64, inner: I64, limit: I64, wide_keys: I32, wide: I32, how: I32, include: I32, alpha: Real];
    REDUCE_BWD_BASE = "index/index.c" "reduce_bwd_base", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), y: In("gk_t"), counts: In("gk_f"), marks: In("gk_f"), products: In("gk_f"), dx: Out("gk_t"), n: I64, how: I32, include: I32, accumulate: I32];
    REDUCE_BWD_SOURCE = "index/index.c" "reduce_bwd_source", dtypes: FLOATS64, ops: &[],
        args: [keys: In("int"), dy: In("gk_t"), x: In("gk_t"), src: In("gk_t"), y: In("gk_t"), counts: In("gk_f"), marks: In("gk_f"), products: In("gk_f"), dsrc: Out("gk_t"), n: I64, wide_keys: I32, limit: I64, how: I32, include: I32, accumulate: I32];
    COUNT_TRUE = "index/index.c" "count_true", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), partial: Out("gk_i64"), n: I64, chunk: I64];
    MASKED_MOVE = "index/index.c" "masked_move", dtypes: ALL, ops: &[],
        args: [mask: In("gk_u8"), partial: In("gk_i64"), x: In("gk_t"), y: Out("gk_t"), count: Out("gk_i64"), err: Out("int"), n: I64, chunk: I64, room: I64, mode: I32, accumulate: I32, code: I32];
    NONZERO = "index/index.c" "nonzero", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), partial: In("gk_i64"), index: Out("gk_i64"), count: Out("gk_i64"), err: Out("int"), n: I64, chunk: I64, room: I64, rank: I32, shape: Dims, magic: Dims, code: I32];
}
