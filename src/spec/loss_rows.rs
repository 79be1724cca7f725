//! Kernels of `kernels/common/loss_rows.c`.

use super::{FLOATS64, kernels};

/// Row losses, by the prefix of their C functions.
pub(crate) const ROW_LOSSES: &[&str] = &[
    "gk_row_triplet",
    "gk_row_contrastive",
    "gk_row_cosine",
    "gk_row_cosine_embedding",
    "gk_row_nce",
    "gk_row_capsule",
    "gk_row_categorical",
    "gk_row_kl",
    "gk_row_nll",
    "gk_row_focal",
    "gk_row_ordinal",
    "gk_row_distillation",
    "gk_row_dino",
    "gk_row_arcface",
    "gk_row_z",
    "gk_row_multi_margin",
    "gk_row_multilabel_margin",
    "gk_row_multilabel_soft",
    "gk_row_dice",
    "gk_row_tversky",
    "gk_row_box",
    "gk_row_quantum",
    "gk_row_depth",
    "gk_row_patch",
    "gk_row_gaussian_kl",
    "gk_row_rmse",
    "gk_row_elastic",
    "gk_row_gaussian_nll",
    "gk_row_ranking",
    "gk_row_preference",
    "gk_row_bce_pos",
    "gk_row_quantiles",
    "gk_row_adversarial",
];

kernels! {
    family: Loss;
    ROW_PARTIAL = "loss/rows.c" "row_partial", dtypes: FLOATS64, ops: ROW_LOSSES,
        args: [x0: In("gk_t"), x1: In("gk_t"), x2: In("gk_t"), x3: In("gk_t"), mask: In("gk_u8"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, width: I64, classes: I64, ignore: I64, roles: I64, lanes: I32, p0: Real, p1: Real, p2: Real, p3: Real, flags: I32, chunks: I64, partial: Out("gk_f")];
    ROW_ITEMS = "loss/rows.c" "row_items", dtypes: FLOATS64, ops: ROW_LOSSES,
        args: [x0: In("gk_t"), x1: In("gk_t"), x2: In("gk_t"), x3: In("gk_t"), mask: In("gk_u8"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, width: I64, classes: I64, ignore: I64, roles: I64, lanes: I32, p0: Real, p1: Real, p2: Real, p3: Real, flags: I32, chunks: I64, partial: In("gk_f"), y: Out("gk_t"), item: Out("gk_f"), weight: Out("gk_f")];
    ROW_GRAD = "loss/rows.c" "row_grad", dtypes: FLOATS64, ops: ROW_LOSSES,
        args: [x0: In("gk_t"), x1: In("gk_t"), x2: In("gk_t"), x3: In("gk_t"), mask: In("gk_u8"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, width: I64, classes: I64, ignore: I64, roles: I64, lanes: I32, p0: Real, p1: Real, p2: Real, p3: Real, flags: I32, chunks: I64, partial: In("gk_f"), gy: In("gk_t"), each: I32, gy_f32: I32, den: In("gk_f"), factor: Real, d0: Out("gk_t"), d1: Out("gk_t"), d2: Out("gk_t"), d3: Out("gk_t"), acc: I32];
    ROW_SHARED = "loss/rows.c" "row_shared", dtypes: FLOATS64, ops: ROW_LOSSES,
        args: [x0: In("gk_t"), x1: In("gk_t"), x2: In("gk_t"), x3: In("gk_t"), mask: In("gk_u8"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, width: I64, classes: I64, ignore: I64, roles: I64, lanes: I32, p0: Real, p1: Real, p2: Real, p3: Real, flags: I32, gy: In("gk_t"), each: I32, gy_f32: I32, factor: Real, d2: Out("gk_t"), acc: I32];
}
