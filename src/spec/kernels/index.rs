//! Kernels of `kernels/common/index`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{ALL, FLOATS64, REDUCIBLE, U8, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `index_select`.
    IndexSelectArgs {
        x: In("gk_t"),
        index: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        items: I64,
        wide: I32,
        wide_index: I32,
        size: I64,
        shape: Dims,
        magic: Dims,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gather_axis`.
    GatherAxisArgs {
        x: In("gk_t"),
        index: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        n: I64,
        wide_index: I32,
        size: I64,
        step: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sx: Dims,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `index_fill`.
    IndexFillArgs {
        index: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        items: I64,
        wide: I32,
        wide_index: I32,
        size: I64,
        shape: Dims,
        magic: Dims,
        lo: U32,
        hi: U32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `scatter_last`.
    ScatterLastArgs {
        keys: In("int"),
        positions: In("int"),
        src: In("gk_t"),
        y: Out("gk_t"),
        items: I64,
        wide: I32,
        wide_keys: I32,
        limit: I64,
        shape: Dims,
        magic: Dims,
    }
}

kernel_args! {
    /// Arguments of `scatter_last_bwd`.
    ScatterLastBwdArgs {
        keys: In("int"),
        positions: In("int"),
        dy: In("gk_t"),
        dsrc: Out("gk_t"),
        n: I64,
        wide_keys: I32,
        limit: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `mark_keys`.
    MarkKeysArgs {
        keys: In("int"),
        mask: Out("gk_u8"),
        n: I64,
        wide_keys: I32,
        limit: I64,
    }
}

kernel_args! {
    /// Arguments of `copy_unmarked`.
    CopyUnmarkedArgs {
        x: In("gk_t"),
        mask: In("gk_u8"),
        y: Out("gk_t"),
        n: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `one_hot`.
    OneHotArgs {
        ids: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        n: I64,
        wide: I32,
        wide_index: I32,
        classes: I64,
        magic: I64,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `count_true`.
    CountTrueArgs {
        x: In("gk_t"),
        partial: Out("gk_i64"),
        n: I64,
        chunk: I64,
    }
}

kernel_args! {
    /// Arguments of `masked_move`.
    MaskedMoveArgs {
        mask: In("gk_u8"),
        partial: In("gk_i64"),
        x: In("gk_t"),
        y: Out("gk_t"),
        count: Out("gk_i64"),
        err: Out("int"),
        n: I64,
        chunk: I64,
        room: I64,
        mode: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `nonzero`.
    NonzeroArgs {
        x: In("gk_t"),
        partial: In("gk_i64"),
        index: Out("gk_i64"),
        count: Out("gk_i64"),
        err: Out("int"),
        n: I64,
        chunk: I64,
        room: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `scatter_reduce`.
    ScatterReduceArgs {
        keys: In("int"),
        positions: In("int"),
        src: In("gk_t"),
        tie: In("gk_t"),
        y: Out("gk_t"),
        stat: Out("gk_f"),
        head: Out("gk_f"),
        tail: Out("gk_f"),
        n: I64,
        run: I64,
        outer: I64,
        inner: I64,
        limit: I64,
        wide_keys: I32,
        wide: I32,
        how: I32,
        value: I32,
        include: I32,
        alpha: Real,
    }
}

kernel_args! {
    /// Arguments of `scatter_reduce_cells`.
    ScatterReduceCellsArgs {
        keys: In("int"),
        positions: In("int"),
        src: In("gk_t"),
        tie: In("gk_t"),
        y: Out("gk_t"),
        stat: Out("gk_f"),
        head: Out("gk_f"),
        tail: Out("gk_f"),
        n: I64,
        limit: I64,
        wide_keys: I32,
        how: I32,
        value: I32,
        include: I32,
        alpha: Real,
    }
}

kernel_args! {
    /// Arguments of `scatter_reduce_combine`.
    ScatterReduceCombineArgs {
        keys: In("int"),
        y: Out("gk_t"),
        stat: Out("gk_f"),
        head: In("gk_f"),
        tail: In("gk_f"),
        n: I64,
        run: I64,
        outer: I64,
        inner: I64,
        limit: I64,
        wide_keys: I32,
        wide: I32,
        how: I32,
        include: I32,
        alpha: Real,
    }
}

kernel_args! {
    /// Arguments of `reduce_bwd_base`.
    ReduceBwdBaseArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        y: In("gk_t"),
        counts: In("gk_f"),
        marks: In("gk_f"),
        products: In("gk_f"),
        dx: Out("gk_t"),
        n: I64,
        how: I32,
        include: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `reduce_bwd_source`.
    ReduceBwdSourceArgs {
        keys: In("int"),
        dy: In("gk_t"),
        x: In("gk_t"),
        src: In("gk_t"),
        y: In("gk_t"),
        counts: In("gk_f"),
        marks: In("gk_f"),
        products: In("gk_f"),
        dsrc: Out("gk_t"),
        n: I64,
        wide_keys: I32,
        limit: I64,
        how: I32,
        include: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Index;
    INDEX_SELECT: IndexSelectArgs = "index/index.c" "index_select" [(ALL, &[])];
    GATHER_AXIS: GatherAxisArgs = "index/index.c" "gather_axis" [(ALL, &[])];
    INDEX_FILL: IndexFillArgs = "index/index.c" "index_fill" [(ALL, &[])];
    SCATTER_LAST: ScatterLastArgs = "index/index.c" "scatter_last" [(ALL, &[])];
    SCATTER_LAST_BWD: ScatterLastBwdArgs = "index/index.c" "scatter_last_bwd" [(ALL, &[])];
    MARK_KEYS: MarkKeysArgs = "index/index.c" "mark_keys" [(U8, &[])];
    COPY_UNMARKED: CopyUnmarkedArgs = "index/index.c" "copy_unmarked" [(ALL, &[])];
    ONE_HOT: OneHotArgs = "index/index.c" "one_hot" [(ALL, &[])];
    COUNT_TRUE: CountTrueArgs = "index/index.c" "count_true" [(ALL, &[])];
    MASKED_MOVE: MaskedMoveArgs = "index/index.c" "masked_move" [(ALL, &[])];
    NONZERO: NonzeroArgs = "index/index.c" "nonzero" [(ALL, &[])];
    SCATTER_REDUCE: ScatterReduceArgs = "index/scatter.c" "scatter_reduce" [(REDUCIBLE, &[])];
    SCATTER_REDUCE_CELLS: ScatterReduceCellsArgs = "index/scatter.c" "scatter_reduce_cells" [(REDUCIBLE, &[])];
    SCATTER_REDUCE_COMBINE: ScatterReduceCombineArgs = "index/scatter.c" "scatter_reduce_combine" [(REDUCIBLE, &[])];
    REDUCE_BWD_BASE: ReduceBwdBaseArgs = "index/scatter.c" "reduce_bwd_base" [(FLOATS64, &[])];
    REDUCE_BWD_SOURCE: ReduceBwdSourceArgs = "index/scatter.c" "reduce_bwd_source" [(FLOATS64, &[])];
}
