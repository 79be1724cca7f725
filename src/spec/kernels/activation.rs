//! Kernels of `kernels/common/activation`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::activation::ACTIVATIONS;
use crate::spec::{FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `activation_bias_bwd`.
    ActivationBiasBwdArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        offsets: In("int"),
        dx: Out("gk_t"),
        dbias: Out("gk_t"),
        part: Out("gk_f"),
        err: Out("int"),
        size: Dims,
        accumulate: I32,
        p: Real,
        q: Real,
        s: Real,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `gated`.
    GatedArgs {
        gate: In("gk_t"),
        up: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        cols: I64,
        stride: I64,
        wide: I32,
        act: I32,
    }
}

kernel_args! {
    /// Arguments of `gated_bwd`.
    GatedBwdArgs {
        dy: In("gk_t"),
        gate: In("gk_t"),
        up: In("gk_t"),
        dgate: Out("gk_t"),
        dup: Out("gk_t"),
        n: I64,
        cols: I64,
        stride: I64,
        wide: I32,
        act: I32,
        accumulate_gate: I32,
        accumulate_up: I32,
    }
}

kernel_args! {
    /// Arguments of `prelu`.
    PreluArgs {
        x: In("gk_t"),
        a: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        cols: I64,
        slopes: I64,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `prelu_bwd_rows`.
    PreluBwdRowsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        a: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        slopes: I64,
        splits: I32,
        chunk: I64,
        lanes: I32,
        wide: I32,
        phase: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `prelu_bwd_columns`.
    PreluBwdColumnsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        a: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        n: I64,
        cols: I64,
        inner: I64,
        chunk: I64,
        chunks: I32,
        tx: I32,
        wide: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `activation_combine`.
    ActivationCombineArgs {
        part: In("gk_f"),
        da: Out("gk_t"),
        outer: I64,
        sets: I64,
        inner: I64,
        tx: I32,
        accumulate: I32,
    }
}

kernel_table! {
    Activation;
    ACTIVATION_BIAS_BWD: ActivationBiasBwdArgs = "activation/bias.c" "activation_bias_bwd" [(FLOATS64, ACTIVATIONS)];
    GATED: GatedArgs = "activation/gated.c" "gated" [(FLOATS64, &[])];
    GATED_BWD: GatedBwdArgs = "activation/gated.c" "gated_bwd" [(FLOATS64, &[])];
    PRELU: PreluArgs = "activation/gated.c" "prelu" [(FLOATS64, &[])];
    PRELU_BWD_ROWS: PreluBwdRowsArgs = "activation/gated.c" "prelu_bwd_rows" [(FLOATS64, &[])];
    PRELU_BWD_COLUMNS: PreluBwdColumnsArgs = "activation/gated.c" "prelu_bwd_columns" [(FLOATS64, &[])];
    ACTIVATION_COMBINE: ActivationCombineArgs = "activation/gated.c" "activation_combine" [(FLOATS64, &[])];
}
