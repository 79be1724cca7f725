//! Kernels of `kernels/common/shape`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{ALL, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `copy_nd`.
    CopyNdArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sx: Dims,
        sy: Dims,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `copy_tiles`.
    CopyTilesArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        tiles: I64,
        na: I64,
        nb: I64,
        sxa: I64,
        syb: I64,
        rank: I32,
        shape: Dims,
        sx: Dims,
        sy: Dims,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `fill_flat`.
    FillFlatArgs {
        y: Out("gk_t"),
        n: I64,
        head: I64,
        lo: U32,
        hi: U32,
    }
}

kernel_args! {
    /// Arguments of `fill_nd`.
    FillNdArgs {
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sy: Dims,
        lo: U32,
        hi: U32,
    }
}

kernel_args! {
    /// Arguments of `arange`.
    ArangeArgs {
        y: Out("gk_t"),
        n: I64,
        sy: I64,
        wide: I32,
        start: Real,
        step: Real,
    }
}

kernel_args! {
    /// Arguments of `linspace`.
    LinspaceArgs {
        y: Out("gk_t"),
        n: I64,
        sy: I64,
        wide: I32,
        start: Real,
        end: Real,
        step: Real,
    }
}

kernel_args! {
    /// Arguments of `concat`.
    ConcatArgs {
        x0: In("gk_t"),
        x1: In("gk_t"),
        x2: In("gk_t"),
        x3: In("gk_t"),
        x4: In("gk_t"),
        x5: In("gk_t"),
        x6: In("gk_t"),
        x7: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        shape: Dims,
        magic: Dims,
        ends: Dims,
        row: I64,
        first: I64,
    }
}

kernel_args! {
    /// Arguments of `pad_nd`.
    PadNdArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
    }
    args {
        shape: Dims,
        magic: Dims,
        sx: Dims,
        sy: Dims,
        size: Dims,
        before: Dims,
        n: I64,
        lo: U32,
        hi: U32,
        wide: I32,
        rank: I32,
        mode: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `pad_bwd_nd`.
    PadBwdNdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sdy: Dims,
        sdx: Dims,
        padded: Dims,
        before: Dims,
        mode: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `run_sum`.
    RunSumArgs {
        dy: In("gk_t"),
        offsets: In("gk_i64"),
        dx: Out("gk_t"),
    }
    args {
        shape: Dims,
        magic: Dims,
        sdy: Dims,
        sdx: Dims,
        n: I64,
        len: I64,
        step: I64,
        by_step: I64,
        places: I64,
        stride: I64,
        rank: I32,
        axis: I32,
        mode: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `triangle_nd`.
    TriangleNdArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sx: Dims,
        sy: Dims,
        upper: I32,
        k: I64,
        accumulate: I32,
    }
}

kernel_table! {
    Shape;
    COPY_ND: CopyNdArgs = "shape/shape.c" "copy_nd" [(ALL, &[])];
    COPY_TILES: CopyTilesArgs = "shape/shape.c" "copy_tiles" [(ALL, &[])];
    FILL_FLAT: FillFlatArgs = "shape/shape.c" "fill_flat" [(ALL, &[])];
    FILL_ND: FillNdArgs = "shape/shape.c" "fill_nd" [(ALL, &[])];
    ARANGE: ArangeArgs = "shape/shape.c" "arange" [(ALL, &[])];
    LINSPACE: LinspaceArgs = "shape/shape.c" "linspace" [(FLOATS64, &[])];
    CONCAT: ConcatArgs = "shape/shape.c" "concat" [(ALL, &[])];
    PAD_ND: PadNdArgs = "shape/shape.c" "pad_nd" [(ALL, &[])];
    PAD_BWD_ND: PadBwdNdArgs = "shape/shape.c" "pad_bwd_nd" [(FLOATS64, &[])];
    RUN_SUM: RunSumArgs = "shape/shape.c" "run_sum" [(FLOATS64, &[])];
    TRIANGLE_ND: TriangleNdArgs = "shape/shape.c" "triangle_nd" [(ALL, &[])];
}
