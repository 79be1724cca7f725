//! Kernels of `kernels/common/rope.c`, `lm_loss.c`, `moe.c` and `moe_order.c`.

use super::{FLOATS64, kernels};
use crate::dtype::DType;

const I32: &[DType] = &[DType::I32];

kernels! {
    family: LanguageModel;
    ROPE = "attention/rope.c" "rope", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), positions: In("int"), table: In("gk_i64"), y: Out("gk_t"), size: Dims, sx: Dims, offset: I64, pairs: I32, wide: I32, lanes: I32, sign: Real, accumulate: I32];
    LM_ITEMS = "language_model/linear_cross_entropy.c" "lm_items", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_f"), ids: In("int"), probs: In("gk_t"), err: Out("int"), size: Dims, wide: I32, lanes: I32, ignore: I64, smooth: Real, zloss: Real, cap: Real, code: I32, items: Out("gk_f"), loss: Out("gk_t"), lse: Out("gk_f")];
    LM_COUNTED = "language_model/linear_cross_entropy.c" "lm_counted", dtypes: FLOATS64, ops: &[],
        args: [ids: In("int"), err: Out("int"), n: I64, classes: I64, wide: I32, ignore: I64, code: I32, items: Out("gk_f")];
    LM_GRAD = "language_model/linear_cross_entropy.c" "lm_grad", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_f"), ids: In("int"), probs: In("gk_t"), err: Out("int"), size: Dims, wide: I32, lanes: I32, ignore: I64, smooth: Real, zloss: Real, cap: Real, code: I32, gy: In("gk_t"), per_row: I32, is_f32: I32, den: In("gk_f"), factor: Real, dz: Out("gk_t")];
    MOE_ROUTER = "moe/moe.c" "moe_router", dtypes: FLOATS64, ops: &[],
        args: [logits: In("gk_t"), weights: Out("gk_t"), ids: Out("int"), tokens: I64, experts: I32, k: I32, lanes: I32, sigmoid: I32, renorm: I32];
    MOE_ROUTER_BWD = "moe/moe.c" "moe_router_bwd", dtypes: FLOATS64, ops: &[],
        args: [dweights: In("gk_t"), logits: In("gk_t"), ids: In("int"), dlogits: Out("gk_t"), err: Out("int"), tokens: I64, experts: I32, k: I32, lanes: I32, sigmoid: I32, renorm: I32, accumulate: I32, code: I32];
    MOE_GATHER = "moe/moe.c" "moe_gather", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), perm: In("int"), weights: In("gk_t"), y: Out("gk_t"), err: Out("int"), rows: I64, d: I64, k: I32, wide: I32, lanes: I32, accumulate: I32, code: I32];
    MOE_COMBINE = "moe/moe.c" "moe_combine", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), inverse: In("int"), weights: In("gk_t"), y: Out("gk_t"), tokens: I64, d: I64, k: I32, wide: I32, lanes: I32, accumulate: I32];
    MOE_DOT = "moe/moe.c" "moe_dot", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), x: In("gk_t"), inverse: In("int"), dw: Out("gk_t"), rows: I64, d: I64, k: I32, wide: I32, lanes: I32, accumulate: I32];
    MOE_COUNT = "moe/order.c" "moe_count", dtypes: I32, ops: &[],
        args: [ids: In("int"), counts: Out("int"), n: I64, experts: I32];
    MOE_OFFSETS = "moe/order.c" "moe_offsets", dtypes: I32, ops: &[],
        args: [counts: In("int"), offsets: Out("int"), experts: I32];
    MOE_ORDER = "moe/order.c" "moe_order", dtypes: I32, ops: &[],
        args: [ids: In("int"), offsets: In("int"), perm: Out("int"), n: I64, experts: I32];
    MOE_INVERSE = "moe/order.c" "moe_inverse", dtypes: I32, ops: &[],
        args: [perm: In("int"), inverse: Out("int"), err: Out("int"), n: I64, code: I32];
}
