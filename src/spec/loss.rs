//! Kernels of `kernels/common/loss.c`.

use super::{FLOATS64, kernels};

/// Elementwise losses, by the name of their C function.
pub(crate) const LOSSES: &[&str] = &[
    "gk_loss_mse",
    "gk_loss_square",
    "gk_loss_mae",
    "gk_loss_smooth_l1",
    "gk_loss_huber",
    "gk_loss_log_cosh",
    "gk_loss_quantile",
    "gk_loss_charbonnier",
    "gk_loss_bias",
    "gk_loss_hinge",
    "gk_loss_squared_hinge",
    "gk_loss_modified_huber",
    "gk_loss_exponential",
    "gk_loss_soft_margin",
    "gk_loss_hinge_embedding",
    "gk_loss_wasserstein",
    "gk_loss_poisson",
    "gk_loss_kl",
    "gk_loss_born",
    "gk_loss_bce",
    "gk_loss_bce_logits",
    "gk_loss_focal_logits",
    "gk_loss_focal",
];

kernels! {
    family: Loss;
    LOSS_ITEMS = "loss/loss.c" "loss_items", dtypes: FLOATS64, ops: LOSSES,
        args: [p: In("gk_t"), t: In("gk_t"), weight: In("gk_t"), mask: In("gk_u8"), y: Out("gk_t"), n: I64, a: Real, b: Real, flags: I32];
    LOSS_PARTIAL = "loss/loss.c" "loss_partial", dtypes: FLOATS64, ops: LOSSES,
        args: [p: In("gk_t"), t: In("gk_t"), weight: In("gk_t"), mask: In("gk_u8"), partial: Out("gk_f"), n: I64, wide: I32, counted: I32, pa: Real, pb: Real, flags: I32];
    LOSS_BWD = "loss/loss.c" "loss_bwd", dtypes: FLOATS64, ops: LOSSES,
        args: [p: In("gk_t"), t: In("gk_t"), weight: In("gk_t"), mask: In("gk_u8"), gy: In("gk_t"), each: I32, gy_f32: I32, den: In("gk_f"), dp: Out("gk_t"), dt: Out("gk_t"), n: I64, wide: I32, acc_p: I32, acc_t: I32, factor: Real, pa: Real, pb: Real, flags: I32];
    PAIR_PARTIAL = "loss/loss.c" "pair_partial", dtypes: FLOATS64, ops: &[],
        args: [value: In("gk_f"), weight: In("gk_f"), partial: Out("gk_f"), n: I64];
    WEIGHT_PARTIAL = "loss/loss.c" "weight_partial", dtypes: FLOATS64, ops: &[],
        args: [weight: In("gk_t"), mask: In("gk_u8"), partial: Out("gk_f"), n: I64];
    PAIR_FINISH = "loss/loss.c" "pair_finish", dtypes: FLOATS64, ops: &[],
        args: [partial: In("gk_f"), n: I64, mean: I32, fixed: Real, least: Real, scale: Real, accumulate: I32, loss: Out("gk_f"), den: Out("gk_f")];
    XENT_ROWS = "loss/loss.c" "xent_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), ids: In("int"), wide_ids: I32, prob: In("gk_t"), probs: I32, w: In("gk_t"), lse: Out("gk_f"), y: Out("gk_t"), item: Out("gk_f"), weight: Out("gk_f"), err: Out("int"), code: I32, N: I64, C: I64, lanes: I32, wide: I32, ignore: I64, smooth: Real];
    XENT_INNER = "loss/loss.c" "xent_inner", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), ids: In("int"), wide_ids: I32, prob: In("gk_t"), probs: I32, w: In("gk_t"), lse: Out("gk_f"), y: Out("gk_t"), item: Out("gk_f"), weight: Out("gk_f"), err: Out("int"), code: I32, N: I64, C: I64, S: I64, ignore: I64, smooth: Real];
    XENT_WEIGHT_SUM = "loss/loss.c" "xent_weight_sum", dtypes: FLOATS64, ops: &[],
        args: [w: In("gk_t"), sum: Out("gk_f"), C: I64];
    XENT_PROB_SUM = "loss/loss.c" "xent_prob_sum", dtypes: FLOATS64, ops: &[],
        args: [prob: In("gk_t"), w: In("gk_t"), sum: Out("gk_f"), N: I64, C: I64, S: I64, smooth: Real];
    XENT_BWD_ROWS = "loss/loss.c" "xent_bwd_rows", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), ids: In("int"), wide_ids: I32, prob: In("gk_t"), probs: I32, w: In("gk_t"), wsums: In("gk_f"), lse: In("gk_f"), gy: In("gk_t"), each: I32, gy_f32: I32, den: In("gk_f"), dx: Out("gk_t"), err: Out("int"), code: I32, N: I64, C: I64, lanes: I32, wide: I32, ignore: I64, smooth: Real, accumulate: I32];
    XENT_BWD_INNER = "loss/loss.c" "xent_bwd_inner", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), ids: In("int"), wide_ids: I32, prob: In("gk_t"), probs: I32, w: In("gk_t"), wsums: In("gk_f"), lse: In("gk_f"), gy: In("gk_t"), each: I32, gy_f32: I32, den: In("gk_f"), dx: Out("gk_t"), err: Out("int"), code: I32, N: I64, C: I64, S: I64, ignore: I64, smooth: Real, accumulate: I32];
}
