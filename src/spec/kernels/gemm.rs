//! Kernels of `kernels/common/gemm`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::gemm::OUTPUTS;
use crate::spec::{F32, FLOATS, FLOATS64, HALVES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `bilinear_ragged_bwd`.
    BilinearRaggedBwdArgs {
        dy: In("gk_t"),
        w: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        offsets: In("int"),
        da: Out("gk_t"),
        db: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        steps: Dims,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_cluster_nn`, `gemm_cluster_nt`, `gemm_cluster_tn`, `gemm_bf16x6_nn`, `gemm_bf16x6_nt`, `gemm_bf16x6_tn`, `gemm_bf16x6_pair_nn`, `gemm_bf16x6_pair_nt`, `gemm_bf16x6_pair_tn`, `gemm_bf16x6_cluster_nn`, `gemm_bf16x6_cluster_nt`, `gemm_bf16x6_cluster_tn`, `gemm_bf16x6_128_nn`, `gemm_bf16x6_128_nt`, `gemm_bf16x6_128_tn`.
    GemmClusterArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        c: In("gk_o"),
        bias: In("gk_t"),
        residual: In("gk_o"),
        scale: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
        size: Dims,
        sa: Dims,
        sb: Dims,
        sc: Dims,
        sr: Dims,
        sv: Dims,
        sy: Dims,
        sz: Dims,
        alpha: Real,
        beta: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `gemm_tile128`, `gemm_tile64`, `gemm_skinny`, `gemm_matrix_nn`, `gemm_matrix_nt`, `gemm_matrix_tn`.
    GemmTileArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        c: In("gk_o"),
        bias: In("gk_t"),
        residual: In("gk_o"),
        scale: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
        part: Out("gk_f"),
        size: Dims,
        sa: Dims,
        sb: Dims,
        sc: Dims,
        sr: Dims,
        sv: Dims,
        sy: Dims,
        sz: Dims,
        alpha: Real,
        beta: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `gemm_finish`.
    GemmFinishArgs {
        part: In("gk_f"),
        c: In("gk_o"),
        bias: In("gk_t"),
        residual: In("gk_o"),
        scale: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
        size: Dims,
        sc: Dims,
        sr: Dims,
        sv: Dims,
        sy: Dims,
        sz: Dims,
        alpha: Real,
        beta: Real,
        act: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `gemm_specialized_nn`, `gemm_specialized_nt`, `gemm_specialized_tn`.
    GemmSpecializedArgs {
        a: Map,
        b: Map,
        c: In("gk_o"),
        bias: In("gk_t"),
        residual: In("gk_o"),
        scale: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
    }
    args {
        size: Dims,
        steps: Dims,
        alpha: Real,
        beta: Real,
        p: Real,
        act: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_specialized_nn`, `gemm_ragged_specialized_nt`, `gemm_ragged_bwd_specialized`.
    GemmRaggedSpecializedArgs {
        a: Map,
        b: Map,
        offsets: In("int"),
        c: In("gk_o"),
        bias: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
        err: Out("int"),
        code: I32,
    }
    args {
        size: Dims,
        steps: Dims,
        alpha: Real,
        beta: Real,
        p: Real,
        act: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_wide_nn`, `gemm_wide_nt`, `gemm_wide_tn`.
    GemmWideArgs {
        a: Map,
        b: Map,
        bias: In("gk_t"),
        y: Out("gk_t"),
        size: Dims,
        row: I64,
        batch: I64,
        alpha: Real,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_bwd_wide`.
    GemmRaggedBwdWideArgs {
        a: Map,
        b: Map,
        offsets: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        row: I64,
        batch: I64,
        alpha: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_narrow_bwd`.
    GemmNarrowBwdArgs {
        dy: In("gk_t"),
        saved: In("gk_t"),
        x: In("gk_t"),
        b: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        size: Dims,
        steps: Dims,
        alpha: Real,
        act: I32,
        p: Real,
        from_y: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_narrow_combine`.
    GemmNarrowCombineArgs {
        part: In("gk_f"),
        db: Out("gk_t"),
        dbias: Out("gk_t"),
        size: Dims,
        alpha: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_repitch`.
    GemmRepitchArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        rows: I64,
        cols: I64,
        ldx: I64,
        pitch: I64,
    }
}

kernel_args! {
    /// Arguments of `gemm_parts`.
    GemmPartsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        outer: I64,
        inner: I64,
        ldx: I64,
        batch_step: I64,
        row: I64,
        part: I64,
        of_b: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged`, `gemm_ragged_by_rows`.
    GemmRaggedArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        offsets: In("int"),
        bias: In("gk_t"),
        y: Out("gk_o"),
        z: Out("gk_o"),
        err: Out("int"),
        size: Dims,
        sa: Dims,
        sb: Dims,
        sv: Dims,
        sy: Dims,
        sz: Dims,
        alpha: Real,
        act: I32,
        p: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_bias`.
    GemmRaggedBiasArgs {
        p: In("gk_t"),
        offsets: In("int"),
        d: Out("gk_t"),
        part: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_bias_parts`.
    GemmRaggedBiasPartsArgs {
        part: In("gk_f"),
        d: Out("gk_t"),
        n: I64,
        groups: I64,
        parts: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_bwd`, `gemm_ragged_bwd_by_group`.
    GemmRaggedBwdArgs {
        p: In("gk_t"),
        q: In("gk_t"),
        offsets: In("int"),
        d: Out("gk_o"),
        err: Out("int"),
        size: Dims,
        sp: Dims,
        sq: Dims,
        sd: Dims,
        alpha: Real,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_matrix`, `gemm_ragged_matrix_terms`.
    GemmRaggedMatrixArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        offsets: In("int"),
        bias: In("gk_t"),
        y: Out("gk_t"),
        z: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        steps: Dims,
        alpha: Real,
        act: I32,
        p: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gemm_ragged_bwd_matrix`.
    GemmRaggedBwdMatrixArgs {
        p: In("gk_t"),
        q: In("gk_t"),
        offsets: In("int"),
        d: Out("gk_t"),
        err: Out("int"),
        size: Dims,
        steps: Dims,
        alpha: Real,
        accumulate: I32,
        code: I32,
    }
}

kernel_table! {
    Gemm;
    BILINEAR_RAGGED_BWD: BilinearRaggedBwdArgs = "gemm/bilinear.c" "bilinear_ragged_bwd" [(FLOATS, &[])];
    GEMM_CLUSTER_NN: GemmClusterArgs = "gemm/cluster.c" "gemm_cluster_nn" [(F32, OUTPUTS)];
    GEMM_CLUSTER_NT: GemmClusterArgs = "gemm/cluster.c" "gemm_cluster_nt" [(F32, OUTPUTS)];
    GEMM_CLUSTER_TN: GemmClusterArgs = "gemm/cluster.c" "gemm_cluster_tn" [(F32, OUTPUTS)];
    GEMM_TILE128: GemmTileArgs = "gemm/gemm.c" "gemm_tile128" [(FLOATS, OUTPUTS)];
    GEMM_TILE64: GemmTileArgs = "gemm/gemm.c" "gemm_tile64" [(FLOATS64, OUTPUTS)];
    GEMM_SKINNY: GemmTileArgs = "gemm/gemm.c" "gemm_skinny" [(FLOATS64, OUTPUTS)];
    GEMM_FINISH: GemmFinishArgs = "gemm/gemm.c" "gemm_finish" [(FLOATS64, OUTPUTS)];
    GEMM_MATRIX_NN: GemmTileArgs = "gemm/matrix.c" "gemm_matrix_nn" [(HALVES, OUTPUTS)];
    GEMM_MATRIX_NT: GemmTileArgs = "gemm/matrix.c" "gemm_matrix_nt" [(HALVES, OUTPUTS)];
    GEMM_MATRIX_TN: GemmTileArgs = "gemm/matrix.c" "gemm_matrix_tn" [(HALVES, OUTPUTS)];
    GEMM_BF16X6_NN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_nn" [(F32, OUTPUTS)];
    GEMM_BF16X6_NT: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_nt" [(F32, OUTPUTS)];
    GEMM_BF16X6_TN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_tn" [(F32, OUTPUTS)];
    GEMM_BF16X6_PAIR_NN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_pair_nn" [(F32, OUTPUTS)];
    GEMM_BF16X6_PAIR_NT: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_pair_nt" [(F32, OUTPUTS)];
    GEMM_BF16X6_PAIR_TN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_pair_tn" [(F32, OUTPUTS)];
    GEMM_BF16X6_CLUSTER_NN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_cluster_nn" [(F32, OUTPUTS)];
    GEMM_BF16X6_CLUSTER_NT: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_cluster_nt" [(F32, OUTPUTS)];
    GEMM_BF16X6_CLUSTER_TN: GemmClusterArgs = "gemm/matrix_bf16x6.c" "gemm_bf16x6_cluster_tn" [(F32, OUTPUTS)];
    GEMM_BF16X6_128_NN: GemmClusterArgs = "gemm/matrix_bf16x6_128.c" "gemm_bf16x6_128_nn" [(F32, OUTPUTS)];
    GEMM_BF16X6_128_NT: GemmClusterArgs = "gemm/matrix_bf16x6_128.c" "gemm_bf16x6_128_nt" [(F32, OUTPUTS)];
    GEMM_BF16X6_128_TN: GemmClusterArgs = "gemm/matrix_bf16x6_128.c" "gemm_bf16x6_128_tn" [(F32, OUTPUTS)];
    GEMM_SPECIALIZED_NN: GemmSpecializedArgs = "gemm/matrix_specialized.c" "gemm_specialized_nn" [(HALVES, OUTPUTS)];
    GEMM_SPECIALIZED_NT: GemmSpecializedArgs = "gemm/matrix_specialized.c" "gemm_specialized_nt" [(HALVES, OUTPUTS)];
    GEMM_SPECIALIZED_TN: GemmSpecializedArgs = "gemm/matrix_specialized.c" "gemm_specialized_tn" [(HALVES, OUTPUTS)];
    GEMM_RAGGED_SPECIALIZED_NN: GemmRaggedSpecializedArgs = "gemm/matrix_specialized.c" "gemm_ragged_specialized_nn" [(HALVES, OUTPUTS)];
    GEMM_RAGGED_SPECIALIZED_NT: GemmRaggedSpecializedArgs = "gemm/matrix_specialized.c" "gemm_ragged_specialized_nt" [(HALVES, OUTPUTS)];
    GEMM_RAGGED_BWD_SPECIALIZED: GemmRaggedSpecializedArgs = "gemm/matrix_specialized.c" "gemm_ragged_bwd_specialized" [(HALVES, OUTPUTS)];
    GEMM_WIDE_NN: GemmWideArgs = "gemm/matrix_wide.c" "gemm_wide_nn" [(HALVES, &[])];
    GEMM_WIDE_NT: GemmWideArgs = "gemm/matrix_wide.c" "gemm_wide_nt" [(HALVES, &[])];
    GEMM_WIDE_TN: GemmWideArgs = "gemm/matrix_wide.c" "gemm_wide_tn" [(HALVES, &[])];
    GEMM_RAGGED_BWD_WIDE: GemmRaggedBwdWideArgs = "gemm/matrix_wide.c" "gemm_ragged_bwd_wide" [(HALVES, &[])];
    GEMM_NARROW_BWD: GemmNarrowBwdArgs = "gemm/narrow.c" "gemm_narrow_bwd" [(F32, &[])];
    GEMM_NARROW_COMBINE: GemmNarrowCombineArgs = "gemm/narrow.c" "gemm_narrow_combine" [(F32, &[])];
    GEMM_REPITCH: GemmRepitchArgs = "gemm/pad.c" "gemm_repitch" [(FLOATS, &[])];
    GEMM_PARTS: GemmPartsArgs = "gemm/parts.c" "gemm_parts" [(F32, &[])];
    GEMM_RAGGED: GemmRaggedArgs = "gemm/ragged.c" "gemm_ragged" [(FLOATS64, OUTPUTS)];
    GEMM_RAGGED_BY_ROWS: GemmRaggedArgs = "gemm/ragged.c" "gemm_ragged_by_rows" [(FLOATS64, OUTPUTS)];
    GEMM_RAGGED_BIAS: GemmRaggedBiasArgs = "gemm/ragged_bias.c" "gemm_ragged_bias" [(FLOATS64, &[])];
    GEMM_RAGGED_BIAS_PARTS: GemmRaggedBiasPartsArgs = "gemm/ragged_bias.c" "gemm_ragged_bias_parts" [(FLOATS64, &[])];
    GEMM_RAGGED_BWD: GemmRaggedBwdArgs = "gemm/ragged_bwd.c" "gemm_ragged_bwd" [(FLOATS64, &[])];
    GEMM_RAGGED_BWD_BY_GROUP: GemmRaggedBwdArgs = "gemm/ragged_bwd.c" "gemm_ragged_bwd_by_group" [(FLOATS64, &[])];
    GEMM_RAGGED_MATRIX: GemmRaggedMatrixArgs = "gemm/ragged_matrix.c" "gemm_ragged_matrix" [(HALVES, &[])];
    GEMM_RAGGED_MATRIX_TERMS: GemmRaggedMatrixArgs = "gemm/ragged_matrix.c" "gemm_ragged_matrix_terms" [(HALVES, &[])];
    GEMM_RAGGED_BWD_MATRIX: GemmRaggedBwdMatrixArgs = "gemm/ragged_matrix.c" "gemm_ragged_bwd_matrix" [(HALVES, &[])];
}
