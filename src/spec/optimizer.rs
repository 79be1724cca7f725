//! Kernels of `kernels/common/optimizer.c` and `optimizer_norm.c`.

use super::{FLOATS64, kernels};
use crate::dtype::DType;

/// Update rules, by the name of their C function.
pub(crate) const RULES: &[&str] = &[
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
    "gk_rule_lamb",
    "gk_rule_lars",
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
    OPTIMIZER_STEP = "optimizer/optimizer.c" "optimizer_step", dtypes: FLOATS64, ops: RULES,
        args: [table: In("gk_i64"), tensors: I32, w: Out("gk_t"), g: In("gk_t"), s0: Out("gk_f"), s1: Out("gk_f"), s2: Out("gk_f"), copy: Out("gk_u16"), master: I32, copy_kind: I32, lr_dev: In("float"), step: In("gk_i64"), inv_scale: In("float"), found_inf: In("float"), extra: In("gk_f"), per_tensor: I32, maximize: I32, lr: Real, t: Real, c1: Real, c2: Real, log1: Real, log2: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, q0: Real, q1: Real, first: I32, flag: I32];
    NORM_PARTIAL = "optimizer/gradient_norm.c" "norm_partial", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, g: In("gk_t"), partial: Out("gk_f"), kind: I32, p: Real];
    NORM_FINISH = "optimizer/gradient_norm.c" "norm_finish", dtypes: FLOATS64, ops: &[],
        args: [partial: In("gk_f"), n: I64, kind: I32, p: Real, max_norm: Real, total: Out("float"), coef: Out("gk_f")];
    GRAD_SCALE = "optimizer/gradient_norm.c" "grad_scale", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, g: Out("gk_t"), coef: In("gk_f"), mode: I32, bound: Real];
    UNIT_CLIP = "optimizer/gradient_norm.c" "unit_clip", dtypes: FLOATS64, ops: &[],
        args: [w: In("gk_t"), g: Out("gk_t"), master: I32, units: I64, len: I64, k: Real, least: Real];
    GRAD_UNSCALE = "optimizer/gradient_norm.c" "grad_unscale", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, g: Out("gk_t"), scale: In("float"), found: Out("float")];
    LOSS_SCALE = "optimizer/gradient_norm.c" "loss_scale", dtypes: &[DType::F32], ops: &[],
        args: [scale: Out("float"), good: Out("gk_i64"), found: Out("float"), inverse: Out("float"), step: Out("gk_i64"), growth: F32, backoff: F32, interval: I64, least: F32];
    RADAM_SCALARS = "optimizer/gradient_norm.c" "radam_scalars", dtypes: FLOATS64, ops: &[],
        args: [step: In("gk_i64"), lambda: Real, most: Real, rest: Real, factor: Out("gk_f")];
    TRUST_PARTIAL = "optimizer/gradient_norm.c" "trust_partial", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, w: In("gk_t"), g: In("gk_t"), s0: In("gk_f"), s1: In("gk_f"), master: I32, step: In("gk_i64"), inv_scale: In("float"), maximize: I32, lamb: I32, c1: Real, c2: Real, log1: Real, log2: Real, p0: Real, p1: Real, p2: Real, p3: Real, p4: Real, p5: Real, partial: Out("gk_f")];
    TRUST_FINISH = "optimizer/gradient_norm.c" "trust_finish", dtypes: FLOATS64, ops: &[],
        args: [table: In("gk_i64"), tensors: I32, partial: In("gk_f"), lamb: I32, eta: Real, wd: Real, eps: Real, bound: Real, ratio: Out("gk_f")];
    NADAM_SCALARS = "optimizer/gradient_norm.c" "nadam_scalars", dtypes: FLOATS64, ops: &[],
        args: [step: In("gk_i64"), b1: Real, psi: Real, factors: Out("gk_f")];
}
