//! Kernels of `kernels/common/embedding.c`.

use super::{FLOATS64, kernels};
use crate::dtype::DType;

kernels! {
    family: Embedding;
    EMBEDDING_KEYS = "embedding/embedding.c" "embedding_keys", dtypes: &[DType::I32, DType::I64], ops: &[],
        args: [ids: In("int"), keys: Out("gk_t"), err: Out("int"), n: I64, wide: I32, rows: I64, padding: I64, none: I64, code: I32];
    EMBEDDING_ROWS = "embedding/embedding.c" "embedding_rows", dtypes: &[DType::I32], ops: &[],
        args: [table: In("gk_t"), ids: In("int"), y: Out("gk_t"), err: Out("int"), items: I64, rows: I64, row: I32, by: I64, wide: I32, code: I32];
    EMBEDDING_CLEAR = "embedding/embedding.c" "embedding_clear", dtypes: &[DType::I32], ops: &[],
        args: [keys: In("int"), table: Out("gk_t"), n: I64, rows: I64, row: I32, by: I64, wide_keys: I32];
    EMBEDDING_RENORM = "embedding/embedding.c" "embedding_renorm", dtypes: FLOATS64, ops: &[],
        args: [table: Out("gk_t"), mark: In("gk_u8"), rows: I64, width: I64, lanes: I32, most: Real, p: Real, kind: I32];
}
