//! Kernels of `kernels/common/optimizer.c`.

use super::{FLOATS64, kernels};

/// Update rules, by the name of their C function.
pub(crate) const RULES: &[&str] = &["gk_rule_sgd", "gk_rule_momentum", "gk_rule_adam", "gk_rule_adamw"];

kernels! {
    family: Optimizer;
    OPTIMIZER_STEP = "optimizer.c" "optimizer_step", dtypes: FLOATS64, ops: RULES,
        args: [table: In("gk_i64"), tensors: I32, w: Out("gk_t"), g: In("gk_t"), s0: Out("gk_f"), s1: Out("gk_f"), copy: Out("gk_u16"), master: I32, copy_kind: I32, lr_dev: In("float"), step: In("gk_i64"), inv_scale: In("float"), found_inf: In("float"), maximize: I32, lr: Real, c1: Real, c2: Real, log1: Real, log2: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, first: I32, flag: I32];
    NORM_PARTIAL = "optimizer.c" "norm_partial", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, g: In("gk_t"), partial: Out("gk_f"), kind: I32, p: Real];
    NORM_FINISH = "optimizer.c" "norm_finish", dtypes: FLOATS64, ops: &[],
        args: [partial: In("gk_f"), n: I64, kind: I32, p: Real, max_norm: Real, total: Out("float"), coef: Out("gk_f")];
    GRAD_SCALE = "optimizer.c" "grad_scale", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, g: Out("gk_t"), coef: In("gk_f"), mode: I32, bound: Real];
}
