//! Kernels of `kernels/common/embedding`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, I32, INDICES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `embedding_keys`.
    EmbeddingKeysArgs {
        ids: In("int"),
        keys: Out("gk_t"),
        err: Out("int"),
        n: I64,
        wide: I32,
        rows: I64,
        padding: I64,
        none: I64,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `embedding_rows`.
    EmbeddingRowsArgs {
        table: In("gk_t"),
        ids: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        items: I64,
        rows: I64,
        row: I32,
        by: I64,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `embedding_clear`.
    EmbeddingClearArgs {
        keys: In("int"),
        table: Out("gk_t"),
        n: I64,
        rows: I64,
        row: I32,
        by: I64,
        wide_keys: I32,
    }
}

kernel_args! {
    /// Arguments of `embedding_bwd_few`.
    EmbeddingBwdFewArgs {
        dy: In("gk_t"),
        ids: In("int"),
        dtable: Out("gk_t"),
        err: Out("int"),
        n: I32,
        wide: I32,
        rows: I32,
        padding: I32,
        width: I64,
        mean: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `embedding_renorm`.
    EmbeddingRenormArgs {
        table: Out("gk_t"),
        mark: In("gk_u8"),
        rows: I64,
        width: I64,
        lanes: I32,
        most: Real,
        p: Real,
        kind: I32,
    }
}

kernel_table! {
    Embedding;
    EMBEDDING_KEYS: EmbeddingKeysArgs = "embedding/embedding.c" "embedding_keys" [(INDICES, &[])];
    EMBEDDING_ROWS: EmbeddingRowsArgs = "embedding/embedding.c" "embedding_rows" [(I32, &[])];
    EMBEDDING_CLEAR: EmbeddingClearArgs = "embedding/embedding.c" "embedding_clear" [(I32, &[])];
    EMBEDDING_BWD_FEW: EmbeddingBwdFewArgs = "embedding/embedding.c" "embedding_bwd_few" [(FLOATS64, &[])];
    EMBEDDING_RENORM: EmbeddingRenormArgs = "embedding/embedding.c" "embedding_renorm" [(FLOATS64, &[])];
}
