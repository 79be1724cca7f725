//! Kernels of `kernels/common/linalg`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{REALS, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `cholesky_block`.
    CholeskyBlockArgs {
        l: Out("gk_t"),
        info: Out("int"),
        sl: Dims,
        n: I64,
        first: I64,
        batch: I64,
    }
}

kernel_args! {
    /// Arguments of `jacobi_load`.
    JacobiLoadArgs {
        x: In("gk_t"),
        scale: In("gk_t"),
        a: Out("gk_t"),
        v: Out("gk_t"),
        moved: Out("int"),
        batch: I64,
        n: I64,
        side: I64,
        upper: I32,
        sweeps: I32,
    }
}

kernel_args! {
    /// Arguments of `jacobi_pairs`.
    JacobiPairsArgs {
        a: In("gk_t"),
        scale: In("gk_t"),
        moved: Out("int"),
        turns: Out("gk_t"),
        batch: I64,
        side: I32,
        round: I32,
        sweep: I32,
    }
}

kernel_args! {
    /// Arguments of `jacobi_both`.
    JacobiBothArgs {
        turns: In("gk_t"),
        moved: In("int"),
        a: Out("gk_t"),
        batch: I64,
        side: I32,
        round: I32,
        sweep: I32,
    }
}

kernel_args! {
    /// Arguments of `jacobi_columns`.
    JacobiColumnsArgs {
        turns: In("gk_t"),
        moved: In("int"),
        v: Out("gk_t"),
        batch: I64,
        side: I32,
        round: I32,
        sweep: I32,
    }
}

kernel_args! {
    /// Arguments of `jacobi_values`.
    JacobiValuesArgs {
        a: In("gk_t"),
        scale: In("gk_t"),
        moved: In("int"),
        w: Out("gk_t"),
        rank: Out("int"),
        info: Out("int"),
        batch: I64,
        n: I64,
        side: I64,
        sweeps: I32,
    }
}

kernel_args! {
    /// Arguments of `jacobi_vectors`.
    JacobiVectorsArgs {
        v: In("gk_t"),
        rank: In("int"),
        y: Out("gk_t"),
        batch: I64,
        n: I64,
        side: I64,
    }
}

kernel_args! {
    /// Arguments of `ldl_factor`.
    LdlFactorArgs {
        a: Out("gk_t"),
        pivots: Out("int"),
        info: Out("int"),
        batch: I64,
        n: I32,
    }
}

kernel_args! {
    /// Arguments of `ldl_convert`.
    LdlConvertArgs {
        ld: In("gk_t"),
        pivots: In("int"),
        l: Out("gk_t"),
        perm: Out("int"),
        pair: Out("int"),
        err: Out("int"),
        batch: I64,
        n: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `ldl_diagonal`.
    LdlDiagonalArgs {
        ld: In("gk_t"),
        pair: In("int"),
        x: Out("gk_t"),
        total: I64,
        n: I32,
        k: I64,
    }
}

kernel_args! {
    /// Arguments of `lu_panel`.
    LuPanelArgs {
        a: Out("gk_t"),
        pivots: Out("int"),
        info: Out("int"),
        batch: I64,
        rows: I32,
        cols: I64,
        count: I32,
        first: I32,
        width: I32,
    }
}

kernel_args! {
    /// Arguments of `lu_swap`.
    LuSwapArgs {
        pivots: In("int"),
        a: Out("gk_t"),
        batch: I64,
        rows: I32,
        cols: I64,
        count: I32,
        first: I32,
        width: I32,
    }
}

kernel_args! {
    /// Arguments of `lu_permutation`.
    LuPermutationArgs {
        pivots: In("int"),
        perm: Out("int"),
        err: Out("int"),
        batch: I64,
        n: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `lu_permute`.
    LuPermuteArgs {
        b: In("gk_t"),
        perm: In("int"),
        x: Out("gk_t"),
        total: I64,
        n: I32,
        k: I64,
        inverse: I32,
    }
}

kernel_args! {
    /// Arguments of `lu_det`.
    LuDetArgs {
        lu: In("gk_t"),
        pivots: In("int"),
        det: Out("gk_t"),
        sign: Out("gk_t"),
        logabs: Out("gk_t"),
        batch: I64,
        n: I32,
    }
}

kernel_args! {
    /// Arguments of `square_sums`.
    SquareSumsArgs {
        x: In("gk_t"),
        part: Out("gk_f"),
        n: I64,
        chunk: I64,
        splits: I64,
        work: I64,
    }
}

kernel_args! {
    /// Arguments of `over_norm`.
    OverNormArgs {
        x: In("gk_t"),
        part: In("gk_f"),
        y: Out("gk_t"),
        n: I64,
        chunk: I64,
        splits: I64,
        work: I64,
        eps: Real,
    }
}

kernel_args! {
    /// Arguments of `matrix_scale`.
    MatrixScaleArgs {
        x: In("gk_t"),
        scale: Out("gk_t"),
        batch: I64,
        rows: I64,
        cols: I64,
        keep: I32,
    }
}

kernel_args! {
    /// Arguments of `qr_panel`.
    QrPanelArgs {
        a: Out("gk_t"),
        v: Out("gk_t"),
        s: Out("gk_t"),
        batch: I64,
        rows: I32,
        cols: I64,
        count: I32,
        first: I32,
        width: I32,
    }
}

kernel_args! {
    /// Arguments of `svd_load`.
    SvdLoadArgs {
        x: In("gk_t"),
        scale: In("gk_t"),
        a: Out("gk_t"),
        v: Out("gk_t"),
        moved: Out("int"),
        sx: Dims,
        batch: I64,
        rows: I64,
        n: I64,
        high: I64,
        side: I64,
        sweeps: I32,
    }
}

kernel_args! {
    /// Arguments of `svd_pairs`.
    SvdPairsArgs {
        a: In("gk_t"),
        scale: In("gk_t"),
        moved: Out("int"),
        turns: Out("gk_t"),
        batch: I64,
        high: I64,
        side: I32,
        round: I32,
        sweep: I32,
    }
}

kernel_args! {
    /// Arguments of `svd_columns`.
    SvdColumnsArgs {
        turns: In("gk_t"),
        moved: In("int"),
        y: Out("gk_t"),
        batch: I64,
        high: I64,
        side: I32,
        round: I32,
        sweep: I32,
    }
}

kernel_args! {
    /// Arguments of `svd_values`.
    SvdValuesArgs {
        a: In("gk_t"),
        scale: In("gk_t"),
        moved: In("int"),
        length: Out("gk_t"),
        s: Out("gk_t"),
        rank: Out("int"),
        info: Out("int"),
        batch: I64,
        n: I64,
        high: I64,
        side: I64,
        sweeps: I32,
    }
}

kernel_args! {
    /// Arguments of `svd_vectors`.
    SvdVectorsArgs {
        x: In("gk_t"),
        length: In("gk_t"),
        scale: In("gk_t"),
        rank: In("int"),
        y: Out("gk_t"),
        sy: Dims,
        batch: I64,
        rows: I64,
        n: I64,
        high: I64,
        side: I64,
    }
}

kernel_args! {
    /// Arguments of `svd_signs`.
    SvdSignsArgs {
        r: In("gk_t"),
        y: Out("gk_t"),
        sy: Dims,
        batch: I64,
        rows: I64,
        n: I64,
    }
}

kernel_args! {
    /// Arguments of `triangular_solve`.
    TriangularSolveArgs {
        t: In("gk_t"),
        x: Out("gk_t"),
        st: Dims,
        sx: Dims,
        n: I64,
        k: I64,
        work: I64,
        unit: I32,
    }
}

kernel_args! {
    /// Arguments of `triangle`.
    TriangleArgs {
        x: In("gk_t"),
        info: In("int"),
        power: In("gk_t"),
        y: Out("gk_t"),
        sx: Dims,
        total: I64,
        rows: I64,
        cols: I64,
        keep: I32,
        diagonal: Real,
        scale: Real,
        symmetric: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `matrix_copy`.
    MatrixCopyArgs {
        x: In("gk_t"),
        scale: In("gk_t"),
        y: Out("gk_t"),
        sx: Dims,
        sy: Dims,
        rows: I64,
        cols: I64,
        work: I64,
    }
}

kernel_table! {
    Linalg;
    CHOLESKY_BLOCK: CholeskyBlockArgs = "linalg/cholesky.c" "cholesky_block" [(REALS, &[])];
    JACOBI_LOAD: JacobiLoadArgs = "linalg/jacobi.c" "jacobi_load" [(REALS, &[])];
    JACOBI_PAIRS: JacobiPairsArgs = "linalg/jacobi.c" "jacobi_pairs" [(REALS, &[])];
    JACOBI_BOTH: JacobiBothArgs = "linalg/jacobi.c" "jacobi_both" [(REALS, &[])];
    JACOBI_COLUMNS: JacobiColumnsArgs = "linalg/jacobi.c" "jacobi_columns" [(REALS, &[])];
    JACOBI_VALUES: JacobiValuesArgs = "linalg/jacobi.c" "jacobi_values" [(REALS, &[])];
    JACOBI_VECTORS: JacobiVectorsArgs = "linalg/jacobi.c" "jacobi_vectors" [(REALS, &[])];
    LDL_FACTOR: LdlFactorArgs = "linalg/ldl.c" "ldl_factor" [(REALS, &[])];
    LDL_CONVERT: LdlConvertArgs = "linalg/ldl.c" "ldl_convert" [(REALS, &[])];
    LDL_DIAGONAL: LdlDiagonalArgs = "linalg/ldl.c" "ldl_diagonal" [(REALS, &[])];
    LU_PANEL: LuPanelArgs = "linalg/lu.c" "lu_panel" [(REALS, &[])];
    LU_SWAP: LuSwapArgs = "linalg/lu.c" "lu_swap" [(REALS, &[])];
    LU_PERMUTATION: LuPermutationArgs = "linalg/lu.c" "lu_permutation" [(REALS, &[])];
    LU_PERMUTE: LuPermuteArgs = "linalg/lu.c" "lu_permute" [(REALS, &[])];
    LU_DET: LuDetArgs = "linalg/lu.c" "lu_det" [(REALS, &[])];
    SQUARE_SUMS: SquareSumsArgs = "linalg/newton_schulz.c" "square_sums" [(REALS, &[])];
    OVER_NORM: OverNormArgs = "linalg/newton_schulz.c" "over_norm" [(REALS, &[])];
    MATRIX_SCALE: MatrixScaleArgs = "linalg/qr.c" "matrix_scale" [(REALS, &[])];
    QR_PANEL: QrPanelArgs = "linalg/qr.c" "qr_panel" [(REALS, &[])];
    SVD_LOAD: SvdLoadArgs = "linalg/svd.c" "svd_load" [(REALS, &[])];
    SVD_PAIRS: SvdPairsArgs = "linalg/svd.c" "svd_pairs" [(REALS, &[])];
    SVD_COLUMNS: SvdColumnsArgs = "linalg/svd.c" "svd_columns" [(REALS, &[])];
    SVD_VALUES: SvdValuesArgs = "linalg/svd.c" "svd_values" [(REALS, &[])];
    SVD_VECTORS: SvdVectorsArgs = "linalg/svd.c" "svd_vectors" [(REALS, &[])];
    SVD_SIGNS: SvdSignsArgs = "linalg/svd.c" "svd_signs" [(REALS, &[])];
    TRIANGULAR_SOLVE: TriangularSolveArgs = "linalg/triangle.c" "triangular_solve" [(REALS, &[])];
    TRIANGLE: TriangleArgs = "linalg/triangle.c" "triangle" [(REALS, &[])];
    MATRIX_COPY: MatrixCopyArgs = "linalg/triangle.c" "matrix_copy" [(REALS, &[])];
}
