//! Kernels of `kernels/common/sort`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{ALL, FLOATS64, I64, INDICES, kernel_args, kernel_table};

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
    /// Arguments of `sort_count`.
    SortCountArgs {
        keys: In("gk_t"),
        counts: Out("int"),
        cols: I64,
        tiles: I64,
        shift: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_scatter`.
    SortScatterArgs {
        keys: In("gk_t"),
        positions: In("int"),
        counts: In("int"),
        offsets: In("gk_i64"),
        keys_out: Out("gk_t"),
        positions_out: Out("int"),
        cols: I64,
        tiles: I64,
        shift: I32,
    }
}

kernel_args! {
    /// Arguments of `sort_small`.
    SortSmallArgs {
        keys: In("gk_t"),
        keys_out: Out("gk_t"),
        positions_out: Out("int"),
        n: I32,
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
    /// Arguments of `order_rows`.
    OrderRowsArgs {
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
    /// Arguments of `order_select`.
    OrderSelectArgs {
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
    /// Arguments of `order_keys`.
    OrderKeysArgs {
        x: In("gk_t"),
        keys: Out("gk_key"),
        n: I64,
        descending: I32,
    }
}

kernel_args! {
    /// Arguments of `order_finish`.
    OrderFinishArgs {
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
    /// Arguments of `order_scatter`.
    OrderScatterArgs {
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
    /// Arguments of `order_search`.
    OrderSearchArgs {
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
    SCAN_SUMS: ScanSumsArgs = "sort/radix.c" "scan_sums" [(I64, &[])];
    SCAN_APPLY: ScanApplyArgs = "sort/radix.c" "scan_apply" [(I64, &[])];
    REPEAT_TABLE: RepeatTableArgs = "sort/radix.c" "repeat_table" [(I64, &[])];
    SORT_COUNT: SortCountArgs = "sort/radix.c" "sort_count" [(INDICES, &[])];
    SORT_SCATTER: SortScatterArgs = "sort/radix.c" "sort_scatter" [(INDICES, &[])];
    SORT_SMALL: SortSmallArgs = "sort/radix.c" "sort_small" [(INDICES, &[])];
    SCATTER_KEYS: ScatterKeysArgs = "sort/radix.c" "scatter_keys" [(INDICES, &[])];
    PUT_KEYS: PutKeysArgs = "sort/radix.c" "put_keys" [(INDICES, &[])];
    ORDER_ROWS: OrderRowsArgs = "sort/sort.c" "order_rows" [(ALL, &[])];
    ORDER_SELECT: OrderSelectArgs = "sort/sort.c" "order_select" [(ALL, &[])];
    ORDER_KEYS: OrderKeysArgs = "sort/sort.c" "order_keys" [(ALL, &[])];
    ORDER_FINISH: OrderFinishArgs = "sort/sort.c" "order_finish" [(ALL, &[])];
    ORDER_SCATTER: OrderScatterArgs = "sort/sort.c" "order_scatter" [(FLOATS64, &[])];
    ORDER_SEARCH: OrderSearchArgs = "sort/sort.c" "order_search" [(ALL, &[])];
}
