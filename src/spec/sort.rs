//! Kernels of `kernels/common/sort.c`.

use super::kernels;
use crate::dtype::DType;

/// Key types: 32 and 64 bits.
const KEYS: &[DType] = &[DType::I32, DType::I64];

kernels! {
    family: Index;
    SCAN_SUMS = "sort/radix.c" "scan_sums", dtypes: &[DType::I64], ops: &[],
        args: [x: In("int"), partial: Out("gk_i64"), n: I64, chunk: I64];
    SCAN_APPLY = "sort/radix.c" "scan_apply", dtypes: &[DType::I64], ops: &[],
        args: [x: In("int"), partial: In("gk_i64"), out: Out("gk_i64"), n: I64, chunk: I64];
    REPEAT_TABLE = "sort/radix.c" "repeat_table", dtypes: &[DType::I64], ops: &[],
        args: [counts: In("int"), offsets: In("gk_i64"), table: Out("gk_i64"), err: Out("int"), n: I64, size: I64, code: I32];
    SORT_COUNT = "sort/radix.c" "sort_count", dtypes: KEYS, ops: &[],
        args: [keys: In("gk_t"), counts: Out("int"), cols: I64, tiles: I64, shift: I32];
    SORT_SCATTER = "sort/radix.c" "sort_scatter", dtypes: KEYS, ops: &[],
        args: [keys: In("gk_t"), positions: In("int"), counts: In("int"), offsets: In("gk_i64"), keys_out: Out("gk_t"), positions_out: Out("int"), cols: I64,
               tiles: I64, shift: I32];
    SORT_SMALL = "sort/radix.c" "sort_small", dtypes: KEYS, ops: &[],
        args: [keys: In("gk_t"), keys_out: Out("gk_t"), positions_out: Out("int"), n: I32, bits: I32];
    SCATTER_KEYS = "sort/radix.c" "scatter_keys", dtypes: KEYS, ops: &[],
        args: [index: In("int"), keys: Out("gk_t"), err: Out("int"), n: I64, wide: I32, size: I64, step: I64, none: I64, rank: I32, shape: Dims, magic: Dims, sy: Dims, code: I32];
    PUT_KEYS = "sort/radix.c" "put_keys", dtypes: KEYS, ops: &[],
        args: [index: In("int"), keys: Out("gk_t"), err: Out("int"), n: I64, wide: I32, size: I64, first: I32, last: I32, none: I64, rank: I32, shape: Dims, magic: Dims, si: Dims, code: I32];
}
