//! Kernels of `kernels/common/norm`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::norm::EPILOGUES;
use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `norm_rows_aligned`, `norm_rows_aligned_looped`, `norm_rows_aligned_add`.
    NormRowsAlignedArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: Out("gk_t"),
        s: Out("gk_t"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        rows: I32,
        items: I32,
        bits: I32,
        raw: I32,
        eps: Real,
        offset: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_partial_aligned`.
    NormPartialAlignedArgs {
        x: In("gk_t"),
        part: Out("gk_f"),
        runs: I32,
        items: I32,
        splits: I32,
        chunk: I32,
        bits: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_apply_aligned`, `norm_apply_aligned_add`.
    NormApplyAlignedArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        y: Out("gk_t"),
        runs: I32,
        items: I32,
        splits: I32,
        chunk: I32,
        bits: I32,
        channels: I32,
        share: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_sets_aligned`.
    NormSetsAlignedArgs {
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: Out("gk_t"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        sets: I32,
        share: I32,
        channels: I32,
        items: I32,
        bits: I32,
        eps: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_partial`.
    NormBwdPartialArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        inner: I64,
        groups: I64,
        share: I64,
        splits: I32,
        lanes: I32,
        wide: I32,
        affine: I32,
        act: I32,
    }
    args {
        chunk: I64,
        second: I64,
        offset: Real,
        p: Real,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_coefficients`.
    NormBwdCoefficientsArgs {
        part: In("gk_f"),
        gamma: In("gk_t"),
        coef: Out("gk_f"),
        outer: I64,
        sets: I64,
        inner: I64,
        second: I64,
        tx: I32,
        cg: I64,
        splits: I64,
        groups: I64,
        n: Real,
        raw: I32,
        offset: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_params`.
    NormBwdParamsArgs {
        part: In("gk_f"),
        dgamma: Out("gk_t"),
        dbeta: Out("gk_t"),
        outer: I64,
        sets: I64,
        inner: I64,
        second: I64,
        tx: I32,
        accumulate_gamma: I32,
        accumulate_beta: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_apply`.
    NormBwdApplyArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        coef: In("gk_f"),
        add: In("gk_t"),
        dx: Out("gk_t"),
        dr: Out("gk_t"),
        n: I64,
        cols: I64,
        inner: I64,
        groups: I64,
        share: I64,
        wide: I32,
        affine: I32,
        alone: I32,
        act: I32,
        accumulate: I32,
        accumulate_r: I32,
    }
    args {
        offset: Real,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_columns`.
    NormBwdColumnsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        part: Out("gk_f"),
        n: I64,
        cols: I64,
        inner: I64,
        chunk: I64,
        chunks: I32,
        second: I64,
        tx: I32,
        wide: I32,
        affine: I32,
        offset: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_rows_16`, `norm_bwd_rows_32`.
    NormBwdRowsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        add: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        rows: I32,
        items: I32,
        bits: I32,
        second: I64,
        raw: I32,
        offset: Real,
        act: I32,
        p: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_sets`.
    NormBwdSetsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        add: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        sets: I32,
        share: I32,
        channels: I32,
        items: I32,
        bits: I32,
        second: I64,
        act: I32,
        p: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_partial_aligned`.
    NormBwdPartialAlignedArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        part: Out("gk_f"),
        runs: I32,
        items: I32,
        splits: I32,
        chunk: I32,
        bits: I32,
        channels: I32,
        share: I32,
        second: I64,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_apply_aligned`.
    NormBwdApplyAlignedArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        coef: In("gk_f"),
        add: In("gk_t"),
        dx: Out("gk_t"),
        dr: Out("gk_t"),
        runs: I32,
        items: I32,
        splits: I32,
        chunk: I32,
        bits: I32,
        channels: I32,
        share: I32,
        act: I32,
        p: Real,
        accumulate: I32,
        accumulate_r: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_moments_channels`.
    NormMomentsChannelsArgs {
        x: In("gk_t"),
        part: Out("gk_f"),
        n: I64,
        items: I32,
        tx: I32,
        chunk: I64,
    }
}

kernel_args! {
    /// Arguments of `norm_combine_channels`.
    NormCombineChannelsArgs {
        part: In("gk_f"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        running_mean: Out("gk_f"),
        running_var: Out("gk_f"),
        counter: In("gk_i64"),
        chunks: I32,
        fold: I32,
        channels: I32,
        tx: I32,
        chunk: I64,
        rest: I64,
        n: I64,
        eps: Real,
        momentum: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_apply_channels`.
    NormApplyChannelsArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        y: Out("gk_t"),
        n: I64,
        items: I32,
        channels: I32,
        tx: I32,
        chunk: I64,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_sums_channels`.
    NormBwdSumsChannelsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        part: Out("gk_f"),
        n: I64,
        items: I32,
        channels: I32,
        tx: I32,
        chunk: I64,
        second: I64,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_join_channels`.
    NormBwdJoinChannelsArgs {
        part: In("gk_f"),
        gamma: In("gk_t"),
        coef: Out("gk_f"),
        dgamma: Out("gk_t"),
        dbeta: Out("gk_t"),
        chunks: I32,
        channels: I32,
        tx: I32,
        n: Real,
        accumulate_gamma: I32,
        accumulate_beta: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_bwd_apply_channels`.
    NormBwdApplyChannelsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: In("gk_t"),
        r: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        coef: In("gk_f"),
        dx: Out("gk_t"),
        dr: Out("gk_t"),
        n: I64,
        items: I32,
        channels: I32,
        tx: I32,
        chunk: I64,
        alone: I32,
        act: I32,
        p: Real,
        accumulate: I32,
        accumulate_r: I32,
    }
}

kernel_args! {
    /// Arguments of `l2_registers`.
    L2RegistersArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        items: I64,
        lanes: I32,
        eps: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `l2_rows`.
    L2RowsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `l2_bwd_rows`.
    L2BwdRowsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        dx: Out("gk_t"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        eps: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `l2_columns`.
    L2ColumnsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        y: Out("gk_t"),
        outer: I64,
        cols: I64,
        inner: I64,
        tx: I32,
        wide: I32,
        eps: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_rows`, `norm_rows_looped`.
    NormRowsArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        y: Out("gk_t"),
        s: Out("gk_t"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        var: Out("gk_f"),
        rows: I64,
        cols: I64,
        inner: I64,
        lanes: I32,
        wide: I32,
        affine: I32,
        raw: I32,
        act: I32,
    }
    args {
        groups: I64,
        cg: I64,
        eps: Real,
        offset: Real,
        p: Real,
        phase: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_partial`.
    NormPartialArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        splits: I32,
        chunk: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
        raw: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_columns`.
    NormColumnsArgs {
        x: In("gk_t"),
        part: Out("gk_f"),
        n: I64,
        cols: I64,
        chunk: I64,
        chunks: I32,
        tx: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `norm_combine`.
    NormCombineArgs {
        part: In("gk_f"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        running_mean: Out("gk_f"),
        running_var: Out("gk_f"),
        counter: In("gk_i64"),
        outer: I64,
        sets: I64,
        inner: I64,
        tx: I32,
        chunk: I64,
        total: I64,
        by_outer: I32,
        n: Real,
        raw: I32,
        eps: Real,
        momentum: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_running`.
    NormRunningArgs {
        mean: In("gk_f"),
        var: In("gk_f"),
        running_mean: Out("gk_f"),
        running_var: Out("gk_f"),
        counter: In("gk_i64"),
        instances: I64,
        channels: I64,
        n: Real,
        momentum: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_given`.
    NormGivenArgs {
        running_mean: In("gk_f"),
        running_var: In("gk_f"),
        mean: Out("gk_f"),
        rstd: Out("gk_f"),
        n: I64,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `norm_count`.
    NormCountArgs {
        counter: Out("gk_i64"),
    }
}

kernel_args! {
    /// Arguments of `norm_apply`.
    NormApplyArgs {
        x: In("gk_t"),
        r: In("gk_t"),
        gamma: In("gk_t"),
        beta: In("gk_t"),
        mean: In("gk_f"),
        rstd: In("gk_f"),
        y: Out("gk_t"),
        s: Out("gk_t"),
        n: I64,
        cols: I64,
        inner: I64,
        groups: I64,
        cg: I64,
        by_channel: I32,
        late: I32,
        wide: I32,
        affine: I32,
        offset: Real,
        act: I32,
        p: Real,
    }
}

kernel_table! {
    Norm;
    NORM_ROWS_ALIGNED: NormRowsAlignedArgs = "norm/aligned.c" "norm_rows_aligned" [(FLOATS64, EPILOGUES)];
    NORM_ROWS_ALIGNED_LOOPED: NormRowsAlignedArgs = "norm/aligned.c" "norm_rows_aligned_looped" [(FLOATS64, EPILOGUES)];
    NORM_ROWS_ALIGNED_ADD: NormRowsAlignedArgs = "norm/aligned.c" "norm_rows_aligned_add" [(FLOATS64, EPILOGUES)];
    NORM_PARTIAL_ALIGNED: NormPartialAlignedArgs = "norm/aligned.c" "norm_partial_aligned" [(FLOATS64, EPILOGUES)];
    NORM_APPLY_ALIGNED: NormApplyAlignedArgs = "norm/aligned.c" "norm_apply_aligned" [(FLOATS64, EPILOGUES)];
    NORM_APPLY_ALIGNED_ADD: NormApplyAlignedArgs = "norm/aligned.c" "norm_apply_aligned_add" [(FLOATS64, EPILOGUES)];
    NORM_SETS_ALIGNED: NormSetsAlignedArgs = "norm/aligned.c" "norm_sets_aligned" [(FLOATS64, EPILOGUES)];
    NORM_BWD_PARTIAL: NormBwdPartialArgs = "norm/backward.c" "norm_bwd_partial" [(FLOATS64, EPILOGUES)];
    NORM_BWD_COEFFICIENTS: NormBwdCoefficientsArgs = "norm/backward.c" "norm_bwd_coefficients" [(FLOATS64, EPILOGUES)];
    NORM_BWD_PARAMS: NormBwdParamsArgs = "norm/backward.c" "norm_bwd_params" [(FLOATS64, EPILOGUES)];
    NORM_BWD_APPLY: NormBwdApplyArgs = "norm/backward.c" "norm_bwd_apply" [(FLOATS64, EPILOGUES)];
    NORM_BWD_COLUMNS: NormBwdColumnsArgs = "norm/backward.c" "norm_bwd_columns" [(FLOATS64, EPILOGUES)];
    NORM_BWD_ROWS_16: NormBwdRowsArgs = "norm/backward_aligned.c" "norm_bwd_rows_16" [(FLOATS64, EPILOGUES)];
    NORM_BWD_ROWS_32: NormBwdRowsArgs = "norm/backward_aligned.c" "norm_bwd_rows_32" [(FLOATS64, EPILOGUES)];
    NORM_BWD_SETS: NormBwdSetsArgs = "norm/backward_aligned.c" "norm_bwd_sets" [(FLOATS64, EPILOGUES)];
    NORM_BWD_PARTIAL_ALIGNED: NormBwdPartialAlignedArgs = "norm/backward_aligned.c" "norm_bwd_partial_aligned" [(FLOATS64, EPILOGUES)];
    NORM_BWD_APPLY_ALIGNED: NormBwdApplyAlignedArgs = "norm/backward_aligned.c" "norm_bwd_apply_aligned" [(FLOATS64, EPILOGUES)];
    NORM_MOMENTS_CHANNELS: NormMomentsChannelsArgs = "norm/channels_last.c" "norm_moments_channels" [(FLOATS64, EPILOGUES)];
    NORM_COMBINE_CHANNELS: NormCombineChannelsArgs = "norm/channels_last.c" "norm_combine_channels" [(FLOATS64, EPILOGUES)];
    NORM_APPLY_CHANNELS: NormApplyChannelsArgs = "norm/channels_last.c" "norm_apply_channels" [(FLOATS64, EPILOGUES)];
    NORM_BWD_SUMS_CHANNELS: NormBwdSumsChannelsArgs = "norm/channels_last.c" "norm_bwd_sums_channels" [(FLOATS64, EPILOGUES)];
    NORM_BWD_JOIN_CHANNELS: NormBwdJoinChannelsArgs = "norm/channels_last.c" "norm_bwd_join_channels" [(FLOATS64, EPILOGUES)];
    NORM_BWD_APPLY_CHANNELS: NormBwdApplyChannelsArgs = "norm/channels_last.c" "norm_bwd_apply_channels" [(FLOATS64, EPILOGUES)];
    L2_REGISTERS: L2RegistersArgs = "norm/l2.c" "l2_registers" [(FLOATS64, &[])];
    L2_ROWS: L2RowsArgs = "norm/l2.c" "l2_rows" [(FLOATS64, &[])];
    L2_BWD_ROWS: L2BwdRowsArgs = "norm/l2.c" "l2_bwd_rows" [(FLOATS64, &[])];
    L2_COLUMNS: L2ColumnsArgs = "norm/l2.c" "l2_columns" [(FLOATS64, &[])];
    NORM_ROWS: NormRowsArgs = "norm/norm.c" "norm_rows" [(FLOATS64, EPILOGUES)];
    NORM_ROWS_LOOPED: NormRowsArgs = "norm/norm.c" "norm_rows_looped" [(FLOATS64, EPILOGUES)];
    NORM_PARTIAL: NormPartialArgs = "norm/norm.c" "norm_partial" [(FLOATS64, EPILOGUES)];
    NORM_COLUMNS: NormColumnsArgs = "norm/norm.c" "norm_columns" [(FLOATS64, EPILOGUES)];
    NORM_COMBINE: NormCombineArgs = "norm/norm.c" "norm_combine" [(FLOATS64, EPILOGUES)];
    NORM_RUNNING: NormRunningArgs = "norm/norm.c" "norm_running" [(FLOATS64, EPILOGUES)];
    NORM_GIVEN: NormGivenArgs = "norm/norm.c" "norm_given" [(FLOATS64, EPILOGUES)];
    NORM_COUNT: NormCountArgs = "norm/norm.c" "norm_count" [(FLOATS64, EPILOGUES)];
    NORM_APPLY: NormApplyArgs = "norm/norm.c" "norm_apply" [(FLOATS64, EPILOGUES)];
}
