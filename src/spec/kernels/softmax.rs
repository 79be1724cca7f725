//! Kernels of `kernels/common/softmax`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::softmax::SOFTMAXES;
use crate::spec::{FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `softmax_columns`.
    SoftmaxColumnsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        outer: I64,
        cols: I64,
        inner: I64,
        tx: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_columns`.
    SoftmaxBwdColumnsArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        dx: Out("gk_t"),
        outer: I64,
        cols: I64,
        inner: I64,
        tx: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_masked`.
    SoftmaxMaskedArgs {
        x: In("gk_t"),
        mask: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
        scale: Real,
        rank: I32,
        sizes: Dims,
        steps: Dims,
        step: I32,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_masked_bwd`.
    SoftmaxMaskedBwdArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        dx: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
        scale: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_registers1`, `softmax_registers2`, `softmax_registers4`, `softmax_registers8`.
    SoftmaxRegistersArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I32,
        lanes: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_registers1`, `softmax_bwd_registers2`, `softmax_bwd_registers4`.
    SoftmaxBwdRegistersArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        dx: Out("gk_t"),
        rows: I64,
        cols: I32,
        lanes: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_cluster16`, `softmax_cluster64`.
    SoftmaxClusterArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        cols: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_cluster16`, `softmax_bwd_cluster64`.
    SoftmaxBwdClusterArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        dx: Out("gk_t"),
        cols: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_rows`.
    SoftmaxRowsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_rows`.
    SoftmaxBwdRowsArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        dx: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_partial`.
    SoftmaxPartialArgs {
        x: In("gk_t"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        splits: I32,
        chunk: I64,
        wide: I32,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_combine`.
    SoftmaxCombineArgs {
        part: In("gk_f"),
        norms: Out("gk_f"),
        rows: I64,
        splits: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_apply`.
    SoftmaxApplyArgs {
        x: In("gk_t"),
        norms: In("gk_f"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        splits: I32,
        chunk: I64,
        wide: I32,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_partial`.
    SoftmaxBwdPartialArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        splits: I32,
        chunk: I64,
        wide: I32,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_apply`.
    SoftmaxBwdApplyArgs {
        dy: In("gk_t"),
        y: In("gk_t"),
        part: In("gk_f"),
        dx: Out("gk_t"),
        rows: I64,
        cols: I64,
        splits: I32,
        chunk: I64,
        wide: I32,
        phase: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Softmax;
    SOFTMAX_COLUMNS: SoftmaxColumnsArgs = "softmax/columns.c" "softmax_columns" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_COLUMNS: SoftmaxBwdColumnsArgs = "softmax/columns.c" "softmax_bwd_columns" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_MASKED: SoftmaxMaskedArgs = "softmax/masked.c" "softmax_masked" [(FLOATS64, &[])];
    SOFTMAX_MASKED_BWD: SoftmaxMaskedBwdArgs = "softmax/masked.c" "softmax_masked_bwd" [(FLOATS64, &[])];
    SOFTMAX_REGISTERS1: SoftmaxRegistersArgs = "softmax/registers.c" "softmax_registers1" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_REGISTERS2: SoftmaxRegistersArgs = "softmax/registers.c" "softmax_registers2" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_REGISTERS4: SoftmaxRegistersArgs = "softmax/registers.c" "softmax_registers4" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_REGISTERS8: SoftmaxRegistersArgs = "softmax/registers.c" "softmax_registers8" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_REGISTERS1: SoftmaxBwdRegistersArgs = "softmax/registers.c" "softmax_bwd_registers1" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_REGISTERS2: SoftmaxBwdRegistersArgs = "softmax/registers.c" "softmax_bwd_registers2" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_REGISTERS4: SoftmaxBwdRegistersArgs = "softmax/registers.c" "softmax_bwd_registers4" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_CLUSTER16: SoftmaxClusterArgs = "softmax/registers.c" "softmax_cluster16" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_CLUSTER16: SoftmaxBwdClusterArgs = "softmax/registers.c" "softmax_bwd_cluster16" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_CLUSTER64: SoftmaxClusterArgs = "softmax/registers.c" "softmax_cluster64" [(FLOATS, SOFTMAXES)];
    SOFTMAX_BWD_CLUSTER64: SoftmaxBwdClusterArgs = "softmax/registers.c" "softmax_bwd_cluster64" [(FLOATS, SOFTMAXES)];
    SOFTMAX_ROWS: SoftmaxRowsArgs = "softmax/rows.c" "softmax_rows" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_ROWS: SoftmaxBwdRowsArgs = "softmax/rows.c" "softmax_bwd_rows" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_PARTIAL: SoftmaxPartialArgs = "softmax/rows.c" "softmax_partial" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_COMBINE: SoftmaxCombineArgs = "softmax/rows.c" "softmax_combine" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_APPLY: SoftmaxApplyArgs = "softmax/rows.c" "softmax_apply" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_PARTIAL: SoftmaxBwdPartialArgs = "softmax/rows.c" "softmax_bwd_partial" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_APPLY: SoftmaxBwdApplyArgs = "softmax/rows.c" "softmax_bwd_apply" [(FLOATS64, SOFTMAXES)];
}
