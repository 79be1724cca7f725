//! Kernels of `kernels/common/quantised.c`.

use super::{FLOATS, FLOATS64, kernels};
use crate::dtype::DType;

kernels! {
    family: Gemm;
    QUANT_TILE = "quantized/quantized.c" "quant_tile", dtypes: FLOATS, ops: &[],
        args: [a: In("gk_u8"), b: In("gk_u8"), scale_a: In("gk_u8"), scale_b: In("gk_u8"), zero: In("gk_u8"), y: Out("gk_t"), m: I64, n: I64, k: I64, fa: Dims, fb: Dims];
    QUANT_INT = "quantized/quantized.c" "quant_int", dtypes: &[DType::F32], ops: &[],
        args: [a: In("gk_u8"), b: In("gk_u8"), scale_a: In("float"), scale_b: In("float"), y: Out("float"), m: I64, n: I64, k: I64];
    QUANT_ROWS = "quantized/quantized.c" "quant_rows", dtypes: FLOATS, ops: &[],
        args: [x: In("gk_t"), b: In("gk_u8"), scale: In("gk_u8"), zero: In("gk_u8"), y: Out("gk_t"), m: I32, n: I64, k: I64, form: Dims, wide: I32];
    SPARSE_PACK = "quantized/quantized.c" "sparse_pack", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), values: Out("gk_t"), index: Out("gk_u8"), groups: I64];
    SPARSE_UNPACK = "quantized/quantized.c" "sparse_unpack", dtypes: FLOATS64, ops: &[],
        args: [values: In("gk_t"), index: In("gk_u8"), y: Out("gk_t"), groups: I64];
}
