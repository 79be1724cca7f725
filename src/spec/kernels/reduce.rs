//! Kernels of `kernels/common/reduce`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::reduce::{BACKWARD_ARG, BACKWARD_DOT, BACKWARD_FLOATS, FLOAT_REDUCTIONS, INT_REDUCTIONS, MASK_REDUCTIONS};
use crate::spec::{FLOATS64, INTS, U8, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `reduce_bwd`.
    ReduceBwdArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        y: In("gk_t"),
        s: In("gk_f"),
        t: In("gk_f"),
        dx: Out("gk_t"),
        n: I64,
        rank: I32,
        wide: I32,
        accumulate: I32,
    }
    args {
        shape: Dims,
        sdx: Dims,
        sdy: Dims,
        sx: Dims,
        sy: Dims,
        ss: Dims,
        step_s: I64,
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `arg_reduce_bwd`.
    ArgReduceBwdArgs {
        dy: In("gk_t"),
        index: In("gk_u8"),
        dx: Out("gk_t"),
        err: Out("int"),
        n: I64,
        size: I64,
        rank: I32,
        shape: Dims,
        sdx: Dims,
        sdy: Dims,
        si: Dims,
        sc: Dims,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
    args {
        step: Dims,
        items: I32,
    }
}

kernel_args! {
    /// Arguments of `dot_bwd`.
    DotBwdArgs {
        dy: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        da: Out("gk_t"),
        db: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        sdy: Dims,
        sa: Dims,
        sb: Dims,
        sda: Dims,
        sdb: Dims,
        wide: I32,
        acc_a: I32,
        acc_b: I32,
    }
}

kernel_args! {
    /// Arguments of `column_sums`.
    ColumnSumsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        step: I64,
        chunk: I64,
        items: I32,
        wide: I32,
        step_y: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `reduce_rows`.
    ReduceRowsArgs {
        x: In("gk_t"),
        x2: In("gk_t"),
        y: Out("gk_u8"),
        z: Out("gk_u8"),
        part: Out("gk_state"),
        outputs: I64,
        n: I64,
        chunk: I64,
        splits: I32,
        lanes: I32,
        mode: I32,
        kept_rank: I32,
        red_rank: I32,
    }
    args {
        kept: Dims,
        kx: Dims,
        kx2: Dims,
        ky: Dims,
        kz: Dims,
        red: Dims,
        rx: Dims,
        rx2: Dims,
        count: I64,
        p: Real,
        q: Real,
        phase: I32,
        form: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `reduce_columns`.
    ReduceColumnsArgs {
        x: In("gk_t"),
        x2: In("gk_t"),
        y: Out("gk_u8"),
        z: Out("gk_u8"),
        part: Out("gk_state"),
        outputs: I64,
        n: I64,
        chunk: I64,
        splits: I32,
        tx: I32,
        wide: I32,
        kept_rank: I32,
        red_rank: I32,
    }
    args {
        kept: Dims,
        kx: Dims,
        kx2: Dims,
        ky: Dims,
        kz: Dims,
        red: Dims,
        rx: Dims,
        rx2: Dims,
        count: I64,
        step_y: I64,
        step_z: I64,
        p: Real,
        q: Real,
        form: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `reduce_combine`.
    ReduceCombineArgs {
        part: In("gk_state"),
        y: Out("gk_u8"),
        z: Out("gk_u8"),
        outputs: I64,
        splits: I32,
        lanes: I32,
        kept_rank: I32,
    }
    args {
        kept: Dims,
        ky: Dims,
        kz: Dims,
        count: I64,
        so: I64,
        sk: I64,
        p: Real,
        q: Real,
        form: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Reduce;
    REDUCE_BWD: ReduceBwdArgs = "reduce/backward.c" "reduce_bwd" [(FLOATS64, BACKWARD_FLOATS)];
    ARG_REDUCE_BWD: ArgReduceBwdArgs = "reduce/backward.c" "arg_reduce_bwd" [(FLOATS64, BACKWARD_ARG)];
    DOT_BWD: DotBwdArgs = "reduce/backward.c" "dot_bwd" [(FLOATS64, BACKWARD_DOT)];
    COLUMN_SUMS: ColumnSumsArgs = "reduce/column_sums.c" "column_sums" [(FLOATS64, &[])];
    REDUCE_ROWS: ReduceRowsArgs = "reduce/reduce.c" "reduce_rows" [(FLOATS64, FLOAT_REDUCTIONS), (INTS, INT_REDUCTIONS), (U8, MASK_REDUCTIONS)];
    REDUCE_COLUMNS: ReduceColumnsArgs = "reduce/reduce.c" "reduce_columns" [(FLOATS64, FLOAT_REDUCTIONS), (INTS, INT_REDUCTIONS), (U8, MASK_REDUCTIONS)];
    REDUCE_COMBINE: ReduceCombineArgs = "reduce/reduce.c" "reduce_combine" [(FLOATS64, FLOAT_REDUCTIONS), (INTS, INT_REDUCTIONS), (U8, MASK_REDUCTIONS)];
}
