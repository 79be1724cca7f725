//! Kernels of `kernels/common/pool`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `max_pool_halve`, `max_pool_slide`.
    MaxPoolHalveArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        index: Out("int"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool_halve`, `avg_pool_slide`.
    AvgPoolHalveArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
        divisor: Real,
    }
}

kernel_args! {
    /// Arguments of `max_pool_halve_bwd`.
    MaxPoolHalveBwdArgs {
        dy: In("gk_t"),
        index: In("int"),
        dx: Out("gk_t"),
        err: Out("int"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool_halve_bwd`.
    AvgPoolHalveBwdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        size: Dims,
        by: Dims,
        side: I32,
        divisor: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `max_pool`.
    MaxPoolArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        index: Out("int"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool`.
    AvgPoolArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
        include_pad: I32,
        divisor: Real,
    }
}

kernel_args! {
    /// Arguments of `max_pool_patch`.
    MaxPoolPatchArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        index: Out("int"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        side: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool_patch`.
    AvgPoolPatchArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        side: I32,
        divisor: Real,
    }
}

kernel_args! {
    /// Arguments of `max_pool_rows`.
    MaxPoolRowsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        index: Out("int"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
        lanes: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool_rows`.
    AvgPoolRowsArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
        include_pad: I32,
        divisor: Real,
        lanes: I32,
    }
}

kernel_args! {
    /// Arguments of `max_pool_bwd`.
    MaxPoolBwdArgs {
        dy: In("gk_t"),
        index: In("int"),
        dx: Out("gk_t"),
        err: Out("int"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
        wide: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `avg_pool_bwd`.
    AvgPoolBwdArgs {
        dy: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        size: Dims,
        magic: Dims,
        win: Dims,
        pad: Dims,
        adaptive: I32,
        include_pad: I32,
        divisor: Real,
        wide: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Pool;
    MAX_POOL_HALVE: MaxPoolHalveArgs = "pool/halving.c" "max_pool_halve" [(FLOATS64, &[])];
    AVG_POOL_HALVE: AvgPoolHalveArgs = "pool/halving.c" "avg_pool_halve" [(FLOATS64, &[])];
    MAX_POOL_HALVE_BWD: MaxPoolHalveBwdArgs = "pool/halving.c" "max_pool_halve_bwd" [(FLOATS64, &[])];
    AVG_POOL_HALVE_BWD: AvgPoolHalveBwdArgs = "pool/halving.c" "avg_pool_halve_bwd" [(FLOATS64, &[])];
    MAX_POOL: MaxPoolArgs = "pool/pool.c" "max_pool" [(FLOATS64, &[])];
    AVG_POOL: AvgPoolArgs = "pool/pool.c" "avg_pool" [(FLOATS64, &[])];
    MAX_POOL_PATCH: MaxPoolPatchArgs = "pool/pool.c" "max_pool_patch" [(FLOATS64, &[])];
    AVG_POOL_PATCH: AvgPoolPatchArgs = "pool/pool.c" "avg_pool_patch" [(FLOATS64, &[])];
    MAX_POOL_ROWS: MaxPoolRowsArgs = "pool/pool.c" "max_pool_rows" [(FLOATS64, &[])];
    AVG_POOL_ROWS: AvgPoolRowsArgs = "pool/pool.c" "avg_pool_rows" [(FLOATS64, &[])];
    MAX_POOL_BWD: MaxPoolBwdArgs = "pool/pool.c" "max_pool_bwd" [(FLOATS64, &[])];
    AVG_POOL_BWD: AvgPoolBwdArgs = "pool/pool.c" "avg_pool_bwd" [(FLOATS64, &[])];
    MAX_POOL_SLIDE: MaxPoolHalveArgs = "pool/sliding.c" "max_pool_slide" [(FLOATS64, &[])];
    AVG_POOL_SLIDE: AvgPoolHalveArgs = "pool/sliding.c" "avg_pool_slide" [(FLOATS64, &[])];
}
