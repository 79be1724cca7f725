//! Kernels of `kernels/common/optimizer`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::optimizer::{ADAPTIVE_RULES, RULES};
use crate::spec::{F32, FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `adaptive_step`.
    AdaptiveStepArgs {
        table: In("gk_i64"),
        tensors: I32,
        w: Out("gk_t"),
        g: In("gk_t"),
        s0: Out("gk_f"),
        s1: Out("gk_f"),
        s2: Out("gk_f"),
        s3: Out("gk_f"),
        copy: Out("gk_u16"),
        master: I32,
        copy_kind: I32,
        lr_dev: In("float"),
        step: In("gk_i64"),
        inv_scale: In("float"),
        found_inf: In("float"),
        memory: In("gk_f"),
        partial: Out("gk_f"),
        numbers: In("gk_f"),
    }
    args {
        lr: Real,
        c1: Real,
        c2: Real,
        c3: Real,
        log1: Real,
        log2: Real,
        log3: Real,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
        p5: Real,
        p6: Real,
        p7: Real,
        maximize: I32,
        first: I32,
    }
}

kernel_args! {
    /// Arguments of `adaptive_dot`.
    AdaptiveDotArgs {
        table: In("gk_i64"),
        tensors: I32,
        w: In("gk_t"),
        g: In("gk_t"),
        s0: In("gk_f"),
        master: I32,
        inv_scale: In("float"),
        maximize: I32,
        kind: I32,
        decay: Real,
        partial: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `adaptive_memory`.
    AdaptiveMemoryArgs {
        partial: In("gk_f"),
        blocks: In("gk_i64"),
        parts: I32,
        kind: I32,
        memory: Out("gk_f"),
        lr_dev: In("float"),
        step: In("gk_i64"),
        found_inf: In("float"),
        numbers: In("gk_f"),
        lr: Real,
        first: I32,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
    }
}

kernel_args! {
    /// Arguments of `gradient_norm_partial`.
    GradientNormPartialArgs {
        table: In("gk_i64"),
        tensors: I32,
        g: In("gk_t"),
        partial: Out("gk_f"),
        kind: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `gradient_norm_final`.
    GradientNormFinalArgs {
        partial: In("gk_f"),
        n: I64,
        kind: I32,
        p: Real,
        max_norm: Real,
        total: Out("float"),
        coef: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `grad_scale`.
    GradScaleArgs {
        table: In("gk_i64"),
        tensors: I32,
        g: Out("gk_t"),
        coef: In("gk_f"),
        mode: I32,
        bound: Real,
    }
}

kernel_args! {
    /// Arguments of `unit_clip`.
    UnitClipArgs {
        w: In("gk_t"),
        g: Out("gk_t"),
        master: I32,
        units: I64,
        len: I64,
        k: Real,
        least: Real,
    }
}

kernel_args! {
    /// Arguments of `grad_unscale`.
    GradUnscaleArgs {
        table: In("gk_i64"),
        tensors: I32,
        g: Out("gk_t"),
        scale: In("float"),
        found: Out("float"),
    }
}

kernel_args! {
    /// Arguments of `gradient_factor`.
    GradientFactorArgs {
        partial: In("gk_f"),
        n: I64,
        kind: I32,
        p: Real,
        max_norm: Real,
        total: Out("float"),
        factor: Out("float"),
        scale: Out("float"),
        good: Out("gk_i64"),
        found: Out("float"),
        inverse: Out("float"),
        step: Out("gk_i64"),
        skip: Out("float"),
        count: Out("gk_i64"),
        growth: F32,
        backoff: F32,
        interval: I64,
        least: F32,
    }
}

kernel_args! {
    /// Arguments of `loss_scale`.
    LossScaleArgs {
        scale: Out("float"),
        good: Out("gk_i64"),
        found: Out("float"),
        inverse: Out("float"),
        step: Out("gk_i64"),
        growth: F32,
        backoff: F32,
        interval: I64,
        least: F32,
    }
}

kernel_args! {
    /// Arguments of `trust_partial`.
    TrustPartialArgs {
        table: In("gk_i64"),
        w: In("gk_t"),
        g: In("gk_t"),
        s0: In("gk_f"),
        s1: In("gk_f"),
        step: In("gk_i64"),
        inv_scale: In("float"),
        partial: Out("gk_f"),
        numbers: In("gk_f"),
    }
    args {
        c1: Real,
        c2: Real,
        log1: Real,
        log2: Real,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
        p5: Real,
        tensors: I32,
        master: I32,
        maximize: I32,
        lamb: I32,
    }
}

kernel_args! {
    /// Arguments of `trust_finish`.
    TrustFinishArgs {
        table: In("gk_i64"),
        tensors: I32,
        partial: In("gk_f"),
        lamb: I32,
        eta: Real,
        wd: Real,
        eps: Real,
        bound: Real,
        ratio: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `nadam_scalars`.
    NadamScalarsArgs {
        step: In("gk_i64"),
        b1: Real,
        psi: Real,
        factors: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `radam_scalars`.
    RadamScalarsArgs {
        step: In("gk_i64"),
        lambda: Real,
        most: Real,
        rest: Real,
        factor: Out("gk_f"),
    }
}

kernel_args! {
    /// Arguments of `optimizer_step`.
    OptimizerStepArgs {
        table: In("gk_i64"),
        tensors: I32,
        w: Out("gk_t"),
        g: In("gk_t"),
        s0: Out("gk_f"),
        s1: Out("gk_f"),
        s2: Out("gk_f"),
        copy: Out("gk_u16"),
        master: I32,
        copy_kind: I32,
        lr_dev: In("float"),
        step: In("gk_i64"),
        inv_scale: In("float"),
        found_inf: In("float"),
        extra: In("gk_f"),
        per_tensor: I32,
        numbers: In("gk_f"),
    }
    args {
        lr: Real,
        t: Real,
        c1: Real,
        c2: Real,
        log1: Real,
        log2: Real,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
        p5: Real,
        q0: Real,
        q1: Real,
        maximize: I32,
        first: I32,
        flag: I32,
        parts: I32,
    }
}

kernel_args! {
    /// Arguments of `adam_packed`.
    AdamPackedArgs {
        table: In("gk_i64"),
        tensors: I32,
        w: Out("gk_t"),
        g: In("gk_t"),
        m: Out("gk_u8"),
        v: Out("gk_u8"),
        scales: Out("float"),
        copy: Out("gk_u16"),
        codes: I32,
        master: I32,
        copy_kind: I32,
        lr_dev: In("float"),
        step: In("gk_i64"),
        inv_scale: In("float"),
        found_inf: In("float"),
        decoupled: I32,
        random: I32,
        more: In("gk_i64"),
        numbers: In("gk_f"),
    }
    args {
        seed: I64,
        stream: I64,
        offset: I64,
        lr: Real,
        c1: Real,
        c2: Real,
        log1: Real,
        log2: Real,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
        p5: Real,
        maximize: I32,
        first_tensor: I32,
    }
}

kernel_args! {
    /// Arguments of `optimizer_sparse_rows`.
    OptimizerSparseRowsArgs {
        keys: In("int"),
        positions: In("gk_u32"),
        w: Out("gk_t"),
        rows: In("gk_t"),
        s0: Out("gk_f"),
        s1: Out("gk_f"),
        s2: Out("gk_f"),
        copy: Out("gk_u16"),
        master: I32,
        copy_kind: I32,
        lr_dev: In("float"),
        step: In("gk_i64"),
        inv_scale: In("float"),
        found_inf: In("float"),
        extra: In("gk_f"),
        n: I64,
        limit: I64,
        width: I64,
        lanes: I32,
        wide: I32,
        rule: I32,
        states: I32,
    }
    args {
        lr: Real,
        t: Real,
        c1: Real,
        c2: Real,
        log1: Real,
        log2: Real,
        p0: Real,
        p1: Real,
        p2: Real,
        p3: Real,
        p4: Real,
        p5: Real,
        q0: Real,
        q1: Real,
        maximize: I32,
        first: I32,
        flag: I32,
    }
}

kernel_table! {
    Optimizer;
    ADAPTIVE_STEP: AdaptiveStepArgs = "optimizer/adaptive.c" "adaptive_step" [(FLOATS64, ADAPTIVE_RULES)];
    ADAPTIVE_DOT: AdaptiveDotArgs = "optimizer/adaptive_memory.c" "adaptive_dot" [(FLOATS64, &[])];
    ADAPTIVE_MEMORY: AdaptiveMemoryArgs = "optimizer/adaptive_memory.c" "adaptive_memory" [(FLOATS64, &[])];
    GRADIENT_NORM_PARTIAL: GradientNormPartialArgs = "optimizer/gradient_norm.c" "gradient_norm_partial" [(FLOATS64, &[])];
    GRADIENT_NORM_FINAL: GradientNormFinalArgs = "optimizer/gradient_norm.c" "gradient_norm_final" [(FLOATS64, &[])];
    GRAD_SCALE: GradScaleArgs = "optimizer/gradient_norm.c" "grad_scale" [(FLOATS64, &[])];
    UNIT_CLIP: UnitClipArgs = "optimizer/gradient_norm.c" "unit_clip" [(FLOATS64, &[])];
    GRAD_UNSCALE: GradUnscaleArgs = "optimizer/gradient_norm.c" "grad_unscale" [(FLOATS64, &[])];
    GRADIENT_FACTOR: GradientFactorArgs = "optimizer/gradient_norm.c" "gradient_factor" [(FLOATS64, &[])];
    LOSS_SCALE: LossScaleArgs = "optimizer/gradient_norm.c" "loss_scale" [(F32, &[])];
    TRUST_PARTIAL: TrustPartialArgs = "optimizer/gradient_norm.c" "trust_partial" [(FLOATS64, &[])];
    TRUST_FINISH: TrustFinishArgs = "optimizer/gradient_norm.c" "trust_finish" [(FLOATS64, &[])];
    NADAM_SCALARS: NadamScalarsArgs = "optimizer/gradient_norm.c" "nadam_scalars" [(FLOATS64, &[])];
    RADAM_SCALARS: RadamScalarsArgs = "optimizer/gradient_norm.c" "radam_scalars" [(FLOATS64, &[])];
    OPTIMIZER_STEP: OptimizerStepArgs = "optimizer/optimizer.c" "optimizer_step" [(FLOATS64, RULES)];
    ADAM_PACKED: AdamPackedArgs = "optimizer/packed.c" "adam_packed" [(FLOATS, &[])];
    OPTIMIZER_SPARSE_ROWS: OptimizerSparseRowsArgs = "optimizer/sparse.c" "optimizer_sparse_rows" [(FLOATS64, &[])];
}
