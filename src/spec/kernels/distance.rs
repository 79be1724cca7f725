//! Kernels of `kernels/common/distance`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `distance_tile`.
    DistanceTileArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        len: I64,
        packed: I32,
        mode: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `distance_bwd`.
    DistanceBwdArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        da: Out("gk_t"),
        part: Out("gk_f"),
        batches: I64,
        rows: I64,
        others: I64,
        len: I64,
        step: I64,
        next: I64,
        splits: I32,
        packed: I32,
        mode: I32,
        p: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `distance_combine`.
    DistanceCombineArgs {
        part: In("gk_f"),
        da: Out("gk_t"),
        n: I64,
        splits: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `similarity`.
    SimilarityArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        items: I64,
        len: I64,
        inner: I64,
        lanes: I32,
        wide: I32,
        mode: I32,
        p: Real,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `similarity_bwd`.
    SimilarityBwdArgs {
        dy: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        da: Out("gk_t"),
        db: Out("gk_t"),
        items: I64,
        len: I64,
        inner: I64,
        lanes: I32,
        wide: I32,
        mode: I32,
        p: Real,
        eps: Real,
        add_a: I32,
        add_b: I32,
    }
}

kernel_table! {
    Distance;
    DISTANCE_TILE: DistanceTileArgs = "distance/distance.c" "distance_tile" [(FLOATS64, &[])];
    DISTANCE_BWD: DistanceBwdArgs = "distance/distance.c" "distance_bwd" [(FLOATS64, &[])];
    DISTANCE_COMBINE: DistanceCombineArgs = "distance/distance.c" "distance_combine" [(FLOATS64, &[])];
    SIMILARITY: SimilarityArgs = "distance/distance.c" "similarity" [(FLOATS64, &[])];
    SIMILARITY_BWD: SimilarityBwdArgs = "distance/distance.c" "similarity_bwd" [(FLOATS64, &[])];
}
