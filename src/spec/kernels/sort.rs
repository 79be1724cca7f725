//! Kernels of `kernels/common/sort`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{ALL, FLOATS64, I64, INDICES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `linear_assignment`.
    LinearAssignmentArgs {
        cost: In("gk_t"),
        counts: In("int"),
        prices: Out("gk_f"),
        links: Out("int"),
        column: Out("gk_i64"),
        err: Out("int"),
        problems: I64,
        rows: I32,
        columns: I32,
        wide: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `scan_sums`.
    ScanSumsArgs {
        x: In("int"),
        partial: Out("gk_i64"),
        n: I64,
        chunk: I64,
    }
}

kernel_args! {
    /// Arguments of `scan_apply`.
    ScanApplyArgs {
        x: In("int"),
        partial: In("gk_i64"),
        out: Out("gk_i64"),
        n: I64,
        chunk: I64,
    }
}

kernel_args! {
    /// Arguments of `repeat_table`.
    RepeatTableArgs {
        counts: In("int"),
        offsets: In("gk_i64"),
        table: Out("gk_i64"),
        err: Out("int"),
        n: I64,
        size: I64,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `radix_count`.
    RadixCountArgs {
        keys: In("gk_t"),
        counts: Out("int"),
        cols: I64,
        tiles: I64,
        shift: I32,
    }
}

kernel_args! {
    /// Arguments of `radix_sums`.
    RadixSumsArgs {
        counts: In("int"),
        sums: Out("int"),
        tiles: I64,
        per: I64,
        parts: I64,
    }
}

kernel_args! {
    /// Arguments of `radix_places`.
    RadixPlacesArgs {
        sums: In("int"),
        counts: Out("int"),
        cols: I64,
        tiles: I64,
        per: I64,
        parts: I64,
    }
}

kernel_args! {
    /// Arguments of `radix_scatter`.
    RadixScatterArgs {
        keys: In("gk_t"),
        positions: In("int"),
        counts: In("int"),
        keys_out: Out("gk_t"),
        positions_out: Out("int"),
        cols: I64,
        tiles: I64,
        shift: I32,
        count: I32,
    }
}

kernel_args! {
    /// Arguments of `radix_rows`.
    RadixRowsArgs {
        keys: In("gk_t"),
        keys_out: Out("gk_t"),
        positions_out: Out("int"),
        n: I32,
        each: I32,
        bits: I32,
    }
}

kernel_args! {
    /// Arguments of `scatter_keys`.
    ScatterKeysArgs {
        index: In("int"),
        keys: Out("gk_t"),
        err: Out("int"),
        n: I64,
        wide: I32,
        size: I64,
        step: I64,
        none: I64,
        mask: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sy: Dims,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `put_keys`.
    PutKeysArgs {
        index: In("int"),
        keys: Out("gk_t"),
        err: Out("int"),
        n: I64,
        wide: I32,
        size: I64,
        first: I32,
        last: I32,
        none: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        si: Dims,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_rows`.
    SortRowsArgs {
        x: In("gk_t"),
        from: In("int"),
        y: Out("gk_t"),
        index: Out("int"),
        rows: I64,
        cols: I32,
        n: I32,
        keep: I32,
        descending: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_select`.
    SortSelectArgs {
        x: In("gk_t"),
        from: In("int"),
        y: Out("gk_t"),
        index: Out("int"),
        cols: I64,
        splits: I32,
        count: I32,
        n: I32,
        descending: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_keys`.
    SortKeysArgs {
        x: In("gk_t"),
        keys: Out("gk_key"),
        n: I64,
        descending: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_finish`.
    SortFinishArgs {
        keys: In("gk_key"),
        positions: In("int"),
        x: In("gk_t"),
        y: Out("gk_t"),
        index: Out("int"),
        n: I64,
        cols: I64,
        keep: I64,
        descending: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_scatter`.
    SortScatterArgs {
        dy: In("gk_t"),
        index: In("int"),
        dx: Out("gk_t"),
        err: Out("int"),
        n: I64,
        keep: I64,
        size: I64,
        inner: I64,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_search`.
    SortSearchArgs {
        sorted: In("gk_t"),
        values: In("gk_t"),
        index: Out("int"),
        n: I64,
        edges: I64,
        per: I64,
        right: I32,
        wide: I32,
    }
}

kernel_table! {
    Sort;
    LINEAR_ASSIGNMENT: LinearAssignmentArgs = "sort/assignment.c" "linear_assignment" [(FLOATS64, &[])];
    SCAN_SUMS: ScanSumsArgs = "sort/radix.c" "scan_sums" [(I64, &[])];
    SCAN_APPLY: ScanApplyArgs = "sort/radix.c" "scan_apply" [(I64, &[])];
    REPEAT_TABLE: RepeatTableArgs = "sort/radix.c" "repeat_table" [(I64, &[])];
    RADIX_COUNT: RadixCountArgs = "sort/radix.c" "radix_count" [(INDICES, &[])];
    RADIX_SUMS: RadixSumsArgs = "sort/radix.c" "radix_sums" [(INDICES, &[])];
    RADIX_PLACES: RadixPlacesArgs = "sort/radix.c" "radix_places" [(INDICES, &[])];
    RADIX_SCATTER: RadixScatterArgs = "sort/radix.c" "radix_scatter" [(INDICES, &[])];
    RADIX_ROWS: RadixRowsArgs = "sort/radix.c" "radix_rows" [(INDICES, &[])];
    SCATTER_KEYS: ScatterKeysArgs = "sort/radix.c" "scatter_keys" [(INDICES, &[])];
    PUT_KEYS: PutKeysArgs = "sort/radix.c" "put_keys" [(INDICES, &[])];
    SORT_ROWS: SortRowsArgs = "sort/sort.c" "sort_rows" [(ALL, &[])];
    SORT_SELECT: SortSelectArgs = "sort/sort.c" "sort_select" [(ALL, &[])];
    SORT_KEYS: SortKeysArgs = "sort/sort.c" "sort_keys" [(ALL, &[])];
    SORT_FINISH: SortFinishArgs = "sort/sort.c" "sort_finish" [(ALL, &[])];
    SORT_SCATTER: SortScatterArgs = "sort/sort.c" "sort_scatter" [(FLOATS64, &[])];
    SORT_SEARCH: SortSearchArgs = "sort/sort.c" "sort_search" [(ALL, &[])];
}
