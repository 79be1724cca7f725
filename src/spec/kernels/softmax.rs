//! Kernels of `kernels/common/softmax`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::softmax::SOFTMAXES;
use crate::spec::{FLOATS, FLOATS64, kernel_args, kernel_table};

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
    /// Arguments of `softmax_short1`, `softmax_short2`, `softmax_short4`, `softmax_short8`.
    SoftmaxShortArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I32,
        lanes: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_short1`, `softmax_bwd_short2`, `softmax_bwd_short4`.
    SoftmaxBwdShortArgs {
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
    /// Arguments of `softmax_held16`, `softmax_held64`.
    SoftmaxHeldArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        cols: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `softmax_bwd_held16`, `softmax_bwd_held64`.
    SoftmaxBwdHeldArgs {
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
    /// Arguments of `softmax_part`.
    SoftmaxPartArgs {
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
    /// Arguments of `softmax_join`.
    SoftmaxJoinArgs {
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
    /// Arguments of `softmax_bwd_part`.
    SoftmaxBwdPartArgs {
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

kernel_args! {
    /// Arguments of `softmax_cols`.
    SoftmaxColsArgs {
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
    /// Arguments of `softmax_bwd_cols`.
    SoftmaxBwdColsArgs {
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

kernel_table! {
    Softmax;
    SOFTMAX_MASKED: SoftmaxMaskedArgs = "softmax/masked.c" "softmax_masked" [(FLOATS64, &[])];
    SOFTMAX_MASKED_BWD: SoftmaxMaskedBwdArgs = "softmax/masked.c" "softmax_masked_bwd" [(FLOATS64, &[])];
    SOFTMAX_SHORT1: SoftmaxShortArgs = "softmax/softmax.c" "softmax_short1" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_SHORT2: SoftmaxShortArgs = "softmax/softmax.c" "softmax_short2" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_SHORT4: SoftmaxShortArgs = "softmax/softmax.c" "softmax_short4" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_SHORT8: SoftmaxShortArgs = "softmax/softmax.c" "softmax_short8" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_SHORT1: SoftmaxBwdShortArgs = "softmax/softmax.c" "softmax_bwd_short1" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_SHORT2: SoftmaxBwdShortArgs = "softmax/softmax.c" "softmax_bwd_short2" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_SHORT4: SoftmaxBwdShortArgs = "softmax/softmax.c" "softmax_bwd_short4" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_HELD16: SoftmaxHeldArgs = "softmax/softmax.c" "softmax_held16" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_HELD16: SoftmaxBwdHeldArgs = "softmax/softmax.c" "softmax_bwd_held16" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_HELD64: SoftmaxHeldArgs = "softmax/softmax.c" "softmax_held64" [(FLOATS, SOFTMAXES)];
    SOFTMAX_BWD_HELD64: SoftmaxBwdHeldArgs = "softmax/softmax.c" "softmax_bwd_held64" [(FLOATS, SOFTMAXES)];
    SOFTMAX_ROWS: SoftmaxRowsArgs = "softmax/softmax.c" "softmax_rows" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_ROWS: SoftmaxBwdRowsArgs = "softmax/softmax.c" "softmax_bwd_rows" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_PART: SoftmaxPartArgs = "softmax/softmax.c" "softmax_part" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_JOIN: SoftmaxJoinArgs = "softmax/softmax.c" "softmax_join" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_APPLY: SoftmaxApplyArgs = "softmax/softmax.c" "softmax_apply" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_PART: SoftmaxBwdPartArgs = "softmax/softmax.c" "softmax_bwd_part" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_APPLY: SoftmaxBwdApplyArgs = "softmax/softmax.c" "softmax_bwd_apply" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_COLS: SoftmaxColsArgs = "softmax/softmax.c" "softmax_cols" [(FLOATS64, SOFTMAXES)];
    SOFTMAX_BWD_COLS: SoftmaxBwdColsArgs = "softmax/softmax.c" "softmax_bwd_cols" [(FLOATS64, SOFTMAXES)];
}
