//! Kernels of `kernels/common/conv`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{BF16, FLOATS, FLOATS64, HALVES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `conv_few_weights`.
    ConvFewWeightsArgs {
        w: In("gk_t"),
        wt: Out("gk_f"),
        n: I64,
        channels: I32,
        keep: I32,
        tile: Dims,
        win: Dims,
        geo: Dims,
    }
}

kernel_args! {
    /// Arguments of `conv_few`.
    ConvFewArgs {
        x: In("gk_t"),
        wt: In("gk_f"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        img: Dims,
        out: Dims,
        tile: Dims,
        accumulate: I32,
        act: I32,
        q_act: Real,
        taps: U32,
    }
}

kernel_args! {
    /// Arguments of `causal_conv`.
    CausalConvArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        bias: In("gk_t"),
        state: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        len: I64,
        channels: I64,
        k: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `causal_state`.
    CausalStateArgs {
        x: In("gk_t"),
        state: In("gk_t"),
        out: Out("gk_t"),
        rows: I64,
        len: I64,
        k: I32,
        same: I32,
    }
}

kernel_args! {
    /// Arguments of `causal_slope`.
    CausalSlopeArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        w: In("gk_t"),
        bias: In("gk_t"),
        state: In("gk_t"),
        dz: Out("gk_f"),
        n: I64,
        len: I64,
        channels: I64,
        k: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `causal_input`.
    CausalInputArgs {
        dy: In("gk_t"),
        dz: In("gk_f"),
        w: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        len: I64,
        channels: I64,
        k: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `causal_weight`.
    CausalWeightArgs {
        dy: In("gk_t"),
        dz: In("gk_f"),
        x: In("gk_t"),
        state: In("gk_t"),
        part: Out("gk_f"),
        images: I64,
        len: I64,
        channels: I64,
        k: I32,
        per: I64,
    }
}

kernel_args! {
    /// Arguments of `causal_combine`.
    CausalCombineArgs {
        part: In("gk_f"),
        dw: Out("gk_t"),
        dbias: Out("gk_t"),
        channels: I64,
        k: I32,
        splits: I32,
        accumulate_w: I32,
        accumulate_b: I32,
    }
}

kernel_args! {
    /// Arguments of `causal_runs`.
    CausalRunsArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        bias: In("gk_t"),
        state: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        runs: I64,
        channels: I64,
        by: Dims,
        k: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `causal_runs_bwd`.
    CausalRunsBwdArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        w: In("gk_t"),
        bias: In("gk_t"),
        state: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        n: I64,
        runs: I64,
        channels: I64,
        by: Dims,
        k: I32,
        act: I32,
        p: Real,
        per: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `im2col`.
    Im2colArgs {
        x: In("gk_t"),
        col: Out("gk_t"),
        n: I64,
        img: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        magic: Dims,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `col2im`.
    Col2imArgs {
        col: In("gk_t"),
        x: Out("gk_t"),
        n: I64,
        img: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        magic: Dims,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_plan`.
    ConvPlanArgs {
        w: In("gk_t"),
        plan: Out("int"),
        wt: Out("gk_f"),
        back: I32,
        m: I32,
        mpad: I32,
        r: I32,
        groups: I32,
        win: Dims,
        geo: Dims,
        img: Dims,
    }
}

kernel_args! {
    /// Arguments of `conv_tile128`, `conv_tile64w`, `conv_tile32`, `conv_tile16`, `conv_tile64`.
    ConvTileArgs {
        x: In("gk_t"),
        wt: In("gk_f"),
        plan: In("int"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        part: Out("gk_f"),
        img: Dims,
        out: Dims,
        step: Dims,
        phase: Dims,
        accumulate: I32,
        act: I32,
        q_act: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_split`.
    ConvSplitArgs {
        part: In("gk_f"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        out: Dims,
        phase: Dims,
        accumulate: I32,
        act: I32,
        q_act: Real,
    }
}

kernel_args! {
    /// Arguments of `deform_columns`.
    DeformColumnsArgs {
        x: In("gk_t"),
        offset: In("gk_t"),
        mask: In("gk_t"),
        col: Out("gk_t"),
        n: I64,
        geo: Dims,
        img: Dims,
        out: Dims,
    }
}

kernel_args! {
    /// Arguments of `deform_shifts`.
    DeformShiftsArgs {
        x: In("gk_t"),
        offset: In("gk_t"),
        mask: In("gk_t"),
        dcol: In("gk_f"),
        doffset: Out("gk_t"),
        dmask: Out("gk_t"),
        n: I64,
        geo: Dims,
        img: Dims,
        out: Dims,
        add_offset: I32,
        add_mask: I32,
    }
}

kernel_args! {
    /// Arguments of `deform_keys`.
    DeformKeysArgs {
        offset: In("gk_t"),
        mask: In("gk_t"),
        keys: Out("int"),
        weight: Out("gk_f"),
        n: I64,
        limit: I32,
        geo: Dims,
        img: Dims,
        out: Dims,
    }
}

kernel_args! {
    /// Arguments of `deform_starts`.
    DeformStartsArgs {
        keys: In("int"),
        start: Out("gk_i64"),
        n: I64,
        limit: I32,
    }
}

kernel_args! {
    /// Arguments of `deform_input`.
    DeformInputArgs {
        start: In("gk_i64"),
        positions: In("int"),
        weight: In("gk_f"),
        dcol: In("gk_f"),
        dx: Out("gk_t"),
        n: I64,
        img: Dims,
        out: Dims,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_depthwise`.
    ConvDepthwiseArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        wide: I32,
        back: I32,
        accumulate: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_depthwise_weight`.
    ConvDepthwiseWeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        part: Out("gk_f"),
        n: I64,
        per: I64,
        size: Dims,
        by: Dims,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_depthwise_large`.
    ConvDepthwiseLargeArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
        wide: I32,
        back: I32,
        accumulate: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_depthwise_large_weight`, `conv_depthwise_strided_weight`.
    ConvDepthwiseLargeWeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        part: Out("gk_f"),
        n: I64,
        per: I64,
        size: Dims,
        by: Dims,
        side: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_depthwise_strided`, `conv_depthwise_strided_adjoint`.
    ConvDepthwiseStridedArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
        wide: I32,
        accumulate: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_direct`, `conv_rows`.
    ConvDirectArgs {
        x: In("gk_t"),
        w: In("gk_t"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        img: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        back: I32,
        accumulate: I32,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_direct_weight`.
    ConvDirectWeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        part: Out("gk_f"),
        img: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        splits: I32,
        per: I64,
    }
}

kernel_args! {
    /// Arguments of `conv_matrix128`, `conv_matrix64`.
    ConvMatrixArgs {
        x: In("gk_t"),
        wt: In("gk_t"),
        scale: In("gk_t"),
        bias: In("gk_t"),
        residual: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        map: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        back: I32,
        wide: I32,
        accumulate: I32,
        act: I32,
        q_act: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_matrix_weights`.
    ConvMatrixWeightsArgs {
        w: In("gk_t"),
        wt: Out("gk_t"),
        n: I64,
        rows: I32,
        r: I32,
        channels: I32,
        taps: I32,
        back: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_matrix_weight`.
    ConvMatrixWeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        part: Out("gk_f"),
        map: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        size: Dims,
    }
}

kernel_args! {
    /// Arguments of `conv_parts_last`.
    ConvPartsLastArgs {
        x: In("float"),
        parts: Out("gk_t"),
        r: I32,
        places: I32,
        channels: I32,
        images: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_parts_few`.
    ConvPartsFewArgs {
        x: In("float"),
        parts: Out("gk_t"),
        r: I32,
        places: I32,
        channels: I32,
        images: I32,
        fold: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_parts`.
    ConvPartsArgs {
        x: In("float"),
        parts: Out("gk_t"),
        n: I64,
        pitch: I64,
    }
}

kernel_args! {
    /// Arguments of `conv_parts_weights`.
    ConvPartsWeightsArgs {
        w: In("float"),
        wt: Out("gk_t"),
        n: I64,
        rows: I32,
        r: I32,
        channels: I32,
        taps: I32,
        back: I32,
        across: I32,
        fold: I32,
    }
}

kernel_args! {
    /// Arguments of `conv_bf16x6`.
    ConvBf16x6Args {
        x: In("gk_t"),
        wt: In("gk_t"),
        scale: In("float"),
        bias: In("float"),
        residual: In("float"),
        y: Out("float"),
        z: Out("float"),
        map: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        back: I32,
        wide: I32,
        accumulate: I32,
        act: I32,
        q_act: Real,
    }
}

kernel_args! {
    /// Arguments of `conv_bf16x6_weight`.
    ConvBf16x6WeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        part: Out("float"),
        map: Dims,
        out: Dims,
        win: Dims,
        geo: Dims,
        size: Dims,
    }
}

kernel_args! {
    /// Arguments of `conv_weight128`, `conv_weight64`.
    ConvWeightArgs {
        x: In("gk_t"),
        dy: In("gk_t"),
        plan: In("int"),
        part: Out("gk_f"),
        img: Dims,
        out: Dims,
        step: Dims,
        size: Dims,
    }
}

kernel_args! {
    /// Arguments of `conv_combine`.
    ConvCombineArgs {
        part: In("gk_f"),
        dw: Out("gk_t"),
        n: I64,
        splits: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Conv;
    CONV_FEW_WEIGHTS: ConvFewWeightsArgs = "conv/adjoint_few.c" "conv_few_weights" [(FLOATS, &[])];
    CONV_FEW: ConvFewArgs = "conv/adjoint_few.c" "conv_few" [(FLOATS, &[])];
    CAUSAL_CONV: CausalConvArgs = "conv/causal.c" "causal_conv" [(FLOATS64, &[])];
    CAUSAL_STATE: CausalStateArgs = "conv/causal.c" "causal_state" [(FLOATS64, &[])];
    CAUSAL_SLOPE: CausalSlopeArgs = "conv/causal.c" "causal_slope" [(FLOATS64, &[])];
    CAUSAL_INPUT: CausalInputArgs = "conv/causal.c" "causal_input" [(FLOATS64, &[])];
    CAUSAL_WEIGHT: CausalWeightArgs = "conv/causal.c" "causal_weight" [(FLOATS64, &[])];
    CAUSAL_COMBINE: CausalCombineArgs = "conv/causal.c" "causal_combine" [(FLOATS64, &[])];
    CAUSAL_RUNS: CausalRunsArgs = "conv/causal.c" "causal_runs" [(FLOATS64, &[])];
    CAUSAL_RUNS_BWD: CausalRunsBwdArgs = "conv/causal.c" "causal_runs_bwd" [(FLOATS64, &[])];
    IM2COL: Im2colArgs = "conv/columns.c" "im2col" [(FLOATS64, &[])];
    COL2IM: Col2imArgs = "conv/columns.c" "col2im" [(FLOATS64, &[])];
    CONV_PLAN: ConvPlanArgs = "conv/conv.c" "conv_plan" [(FLOATS64, &[])];
    CONV_TILE128: ConvTileArgs = "conv/conv.c" "conv_tile128" [(FLOATS, &[])];
    CONV_TILE64W: ConvTileArgs = "conv/conv.c" "conv_tile64w" [(FLOATS, &[])];
    CONV_TILE32: ConvTileArgs = "conv/conv.c" "conv_tile32" [(FLOATS, &[])];
    CONV_TILE16: ConvTileArgs = "conv/conv.c" "conv_tile16" [(FLOATS, &[])];
    CONV_TILE64: ConvTileArgs = "conv/conv.c" "conv_tile64" [(FLOATS64, &[])];
    CONV_SPLIT: ConvSplitArgs = "conv/conv.c" "conv_split" [(FLOATS64, &[])];
    DEFORM_COLUMNS: DeformColumnsArgs = "conv/deformable.c" "deform_columns" [(FLOATS64, &[])];
    DEFORM_SHIFTS: DeformShiftsArgs = "conv/deformable.c" "deform_shifts" [(FLOATS64, &[])];
    DEFORM_KEYS: DeformKeysArgs = "conv/deformable.c" "deform_keys" [(FLOATS64, &[])];
    DEFORM_STARTS: DeformStartsArgs = "conv/deformable.c" "deform_starts" [(FLOATS64, &[])];
    DEFORM_INPUT: DeformInputArgs = "conv/deformable.c" "deform_input" [(FLOATS64, &[])];
    CONV_DEPTHWISE: ConvDepthwiseArgs = "conv/depthwise.c" "conv_depthwise" [(FLOATS64, &[])];
    CONV_DEPTHWISE_WEIGHT: ConvDepthwiseWeightArgs = "conv/depthwise.c" "conv_depthwise_weight" [(FLOATS64, &[])];
    CONV_DEPTHWISE_LARGE: ConvDepthwiseLargeArgs = "conv/depthwise_large.c" "conv_depthwise_large" [(FLOATS64, &[])];
    CONV_DEPTHWISE_LARGE_WEIGHT: ConvDepthwiseLargeWeightArgs = "conv/depthwise_large.c" "conv_depthwise_large_weight" [(FLOATS64, &[])];
    CONV_DEPTHWISE_STRIDED: ConvDepthwiseStridedArgs = "conv/depthwise_strided.c" "conv_depthwise_strided" [(FLOATS64, &[])];
    CONV_DEPTHWISE_STRIDED_ADJOINT: ConvDepthwiseStridedArgs = "conv/depthwise_strided.c" "conv_depthwise_strided_adjoint" [(FLOATS64, &[])];
    CONV_DEPTHWISE_STRIDED_WEIGHT: ConvDepthwiseLargeWeightArgs = "conv/depthwise_strided.c" "conv_depthwise_strided_weight" [(FLOATS64, &[])];
    CONV_DIRECT: ConvDirectArgs = "conv/direct.c" "conv_direct" [(FLOATS64, &[])];
    CONV_ROWS: ConvDirectArgs = "conv/direct.c" "conv_rows" [(FLOATS64, &[])];
    CONV_DIRECT_WEIGHT: ConvDirectWeightArgs = "conv/direct.c" "conv_direct_weight" [(FLOATS64, &[])];
    CONV_MATRIX128: ConvMatrixArgs = "conv/matrix.c" "conv_matrix128" [(HALVES, &[])];
    CONV_MATRIX64: ConvMatrixArgs = "conv/matrix.c" "conv_matrix64" [(HALVES, &[])];
    CONV_MATRIX_WEIGHTS: ConvMatrixWeightsArgs = "conv/matrix.c" "conv_matrix_weights" [(HALVES, &[])];
    CONV_MATRIX_WEIGHT: ConvMatrixWeightArgs = "conv/matrix.c" "conv_matrix_weight" [(HALVES, &[])];
    CONV_PARTS_LAST: ConvPartsLastArgs = "conv/matrix_bf16x6.c" "conv_parts_last" [(BF16, &[])];
    CONV_PARTS_FEW: ConvPartsFewArgs = "conv/matrix_bf16x6.c" "conv_parts_few" [(BF16, &[])];
    CONV_PARTS: ConvPartsArgs = "conv/matrix_bf16x6.c" "conv_parts" [(BF16, &[])];
    CONV_PARTS_WEIGHTS: ConvPartsWeightsArgs = "conv/matrix_bf16x6.c" "conv_parts_weights" [(BF16, &[])];
    CONV_BF16X6: ConvBf16x6Args = "conv/matrix_bf16x6.c" "conv_bf16x6" [(BF16, &[])];
    CONV_BF16X6_WEIGHT: ConvBf16x6WeightArgs = "conv/matrix_bf16x6.c" "conv_bf16x6_weight" [(BF16, &[])];
    CONV_WEIGHT128: ConvWeightArgs = "conv/weight.c" "conv_weight128" [(FLOATS, &[])];
    CONV_WEIGHT64: ConvWeightArgs = "conv/weight.c" "conv_weight64" [(FLOATS64, &[])];
    CONV_COMBINE: ConvCombineArgs = "conv/weight.c" "conv_combine" [(FLOATS64, &[])];
}
