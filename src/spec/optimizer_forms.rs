//! Kernels of `kernels/common/optimizer_more.c`, `optimizer_memory.c`, `optimizer_rows.c` and `optimizer_packed.c`.

use super::{FLOATS, FLOATS64, kernels};

/// Update rules, by the name of their C function.
pub(crate) const MORE_RULES: &[&str] = &[
    "gk_rule_adan",
    "gk_rule_sophia",
    "gk_rule_curvature",
    "gk_rule_hyper",
    "gk_rule_free_sgd",
    "gk_rule_free_adamw",
    "gk_rule_dadapt_sgd",
    "gk_rule_dadapt_adam",
    "gk_rule_prodigy",
];

/// Rules with a sparse form, in the order of the numbers in `optimizer_rows.c`.
pub(crate) const SPARSE_RULES: &[&str] = &[
    "gk_rule_sgd",
    "gk_rule_momentum",
    "gk_rule_adam",
    "gk_rule_adamw",
    "gk_rule_amsgrad",
    "gk_rule_nadam",
    "gk_rule_radam",
    "gk_rule_asgd",
    "gk_rule_rprop",
    "gk_rule_adamax",
    "gk_rule_rmsprop",
    "gk_rule_rmsprop_momentum",
    "gk_rule_rmsprop_centered",
    "gk_rule_rmsprop_centered_momentum",
    "gk_rule_adagrad",
    "gk_rule_adadelta",
    "gk_rule_lion",
    "gk_rule_ftrl",
    "gk_rule_prox_elastic",
    "gk_rule_prox_box",
];

kernels! {
    family: Optimizer;
    OPTIMIZER_STEP_MORE = "optimizer/adaptive.c" "optimizer_step_more", dtypes: FLOATS64, ops: MORE_RULES,
        args: [table: In("gk_i64"), tensors: I32, w: Out("gk_t"), g: In("gk_t"), s0: Out("gk_f"), s1: Out("gk_f"), s2: Out("gk_f"), s3: Out("gk_f"), copy: Out("gk_u16"), master: I32, copy_kind: I32, lr_dev: In("float"), step: In("gk_i64"), inv_scale: In("float"), found_inf: In("float"), memory: In("gk_f"), partial: Out("gk_f"), maximize: I32, lr: Real, c1: Real, c2: Real, c3: Real, log1: Real, log2: Real, log3: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, p6: Real, p7: Real, first: I32];
    MEMORY_DOT = "optimizer/adaptive_memory.c" "memory_dot", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, w: In("gk_t"), g: In("gk_t"), s0: In("gk_f"), master: I32, inv_scale: In("float"), maximize: I32, kind: I32, decay: Real, partial: Out("gk_f")];
    MEMORY_FINISH = "optimizer/adaptive_memory.c" "memory_finish", dtypes: FLOATS64, ops: &[],
        args: [partial: In("gk_f"), blocks: In("gk_i64"), parts: I32, kind: I32, memory: Out("gk_f"), lr_dev: In("float"), step: In("gk_i64"), found_inf: In("float"), lr: Real, first: I32, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real];
    OPTIMIZER_ROWS = "optimizer/sparse.c" "optimizer_rows", dtypes: FLOATS64, ops: &[],
        args: [keys: In("int"), positions: In("gk_u32"), w: Out("gk_t"), rows: In("gk_t"), s0: Out("gk_f"), s1: Out("gk_f"), s2: Out("gk_f"), copy: Out("gk_u16"), master: I32, copy_kind: I32, lr_dev: In("float"), step: In("gk_i64"), inv_scale: In("float"), found_inf: In("float"), extra: In("gk_f"), n: I64, limit: I64, width: I64, lanes: I32, wide: I32, rule: I32, states: I32, maximize: I32, lr: Real, t: Real, c1: Real, c2: Real, log1: Real, log2: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, q0: Real, q1: Real, first: I32, flag: I32];
    ADAM_PACKED = "optimizer/packed.c" "adam_packed", dtypes: FLOATS, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, w: Out("gk_t"), g: In("gk_t"), m: Out("gk_u8"), v: Out("gk_u8"), scales: Out("float"), copy: Out("gk_u16"), codes: I32, master: I32, copy_kind: I32, lr_dev: In("float"), step: In("gk_i64"), inv_scale: In("float"), found_inf: In("float"), maximize: I32, decoupled: I32, lr: Real, c1: Real, c2: Real, log1: Real, log2: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, random: I32, seed: I64, stream: I64, offset: I64, more: In("gk_i64"), first_tensor: I32];
}
