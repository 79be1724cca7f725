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

kernel_args! {
    /// Arguments of `distance_matrix`.
    DistanceMatrixArgs {
        queries: In("gk_t"),
        points: In("gk_t"),
        y: Out("gk_t"),
        count: I64,
        n: I64,
        len: I64,
        metric: I32,
    }
}

kernel_args! {
    /// Arguments of `nearest_lists`.
    NearestListsArgs {
        queries: In("gk_t"),
        points: In("gk_t"),
        keys: Out("gk_f"),
        ids: Out("int"),
        count: I64,
        n: I64,
        len: I64,
        metric: I32,
        k: I32,
        splits: I32,
    }
}

kernel_args! {
    /// Arguments of `nearest_merge`.
    NearestMergeArgs {
        keys: In("gk_f"),
        ids: In("int"),
        y: Out("gk_t"),
        index: Out("int"),
        count: I64,
        total: I32,
        k: I32,
        metric: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `pq_tables`.
    PqTablesArgs {
        queries: In("gk_t"),
        centroids: In("gk_t"),
        y: Out("gk_t"),
        count: I64,
        parts: I64,
        len: I64,
        metric: I32,
    }
}

kernel_args! {
    /// Arguments of `pq_scan`.
    PqScanArgs {
        tables: In("gk_t"),
        codes: In("gk_u8"),
        y: Out("gk_t"),
        count: I64,
        n: I64,
        parts: I64,
    }
}

kernel_table! {
    Distance;
    DISTANCE_TILE: DistanceTileArgs = "distance/distance.c" "distance_tile" [(FLOATS64, &[])];
    DISTANCE_BWD: DistanceBwdArgs = "distance/distance.c" "distance_bwd" [(FLOATS64, &[])];
    DISTANCE_COMBINE: DistanceCombineArgs = "distance/distance.c" "distance_combine" [(FLOATS64, &[])];
    SIMILARITY: SimilarityArgs = "distance/distance.c" "similarity" [(FLOATS64, &[])];
    SIMILARITY_BWD: SimilarityBwdArgs = "distance/distance.c" "similarity_bwd" [(FLOATS64, &[])];
    DISTANCE_MATRIX: DistanceMatrixArgs = "distance/search.c" "distance_matrix" [(FLOATS64, &[])];
    NEAREST_LISTS: NearestListsArgs = "distance/search.c" "nearest_lists" [(FLOATS64, &[])];
    NEAREST_MERGE: NearestMergeArgs = "distance/search.c" "nearest_merge" [(FLOATS64, &[])];
    PQ_TABLES: PqTablesArgs = "distance/search.c" "pq_tables" [(FLOATS64, &[])];
    PQ_SCAN: PqScanArgs = "distance/search.c" "pq_scan" [(FLOATS64, &[])];
}
