//! Kernels of `kernels/common/loss_batch.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Loss;
    BATCH_PACK = "loss/batch.c" "batch_pack", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_t"), rows: I64, E: I64, at: I64, normalize: I32, packed: Out("gk_f"), norm: Out("gk_f")];
    BATCH_UNPACK = "loss/batch.c" "batch_unpack", dtypes: FLOATS64, ops: &[],
        args: [grad: In("gk_f"), packed: In("gk_f"), norm: In("gk_f"), rows: I64, E: I64, at: I64, normalize: I32, dz: Out("gk_t"), accumulate: I32];
    CONTRAST_ROWS = "loss/batch.c" "contrast_rows", dtypes: FLOATS64, ops: &[],
        args: [q: In("gk_f"), k: In("gk_f"), ids: In("int"), wide: I32, N: I64, M: I64, B: I64, E: I64, mode: I32, scale: Real, lse: Out("gk_f"), positives: Out("gk_f"), item: Out("gk_f"), weight: Out("gk_f")];
    CONTRAST_GRAD = "loss/batch.c" "contrast_grad", dtypes: FLOATS64, ops: &[],
        args: [q: In("gk_f"), k: In("gk_f"), ids: In("int"), wide: I32, N: I64, M: I64, B: I64, E: I64, mode: I32, scale: Real, lse: In("gk_f"), positives: In("gk_f"), gy: In("gk_t"), gy_f32: I32, den: In("gk_f"), keys: I32, accumulate: I32, out: Out("gk_f")];
    BARLOW_STATS = "loss/batch.c" "barlow_stats", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_t"), B: I64, E: I64, mean: Out("gk_f"), rstd: Out("gk_f")];
    BARLOW_MATRIX = "loss/batch.c" "barlow_matrix", dtypes: FLOATS64, ops: &[],
        args: [z1: In("gk_t"), z2: In("gk_t"), mean1: In("gk_f"), rstd1: In("gk_f"), mean2: In("gk_f"), rstd2: In("gk_f"), B: I64, E: I64, lambda: Real, slope: Out("gk_f"), item: Out("gk_f"), weight: Out("gk_f")];
    BARLOW_ROWS = "loss/batch.c" "barlow_rows", dtypes: FLOATS64, ops: &[],
        args: [slope: In("gk_f"), other: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"), B: I64, E: I64, second: I32, grad: Out("gk_f")];
    BARLOW_COLUMNS = "loss/batch.c" "barlow_columns", dtypes: FLOATS64, ops: &[],
        args: [z: In("gk_t"), mean: In("gk_f"), rstd: In("gk_f"), grad: In("gk_f"), B: I64, E: I64, gy: In("gk_t"), gy_f32: I32, dz: Out("gk_t"), accumulate: I32];
    RANK_ITEMS = "loss/batch.c" "rank_items", dtypes: FLOATS64, ops: &[],
        args: [s: In("gk_t"), rel: In("gk_t"), n: I64, item: Out("gk_f"), weight: Out("gk_f")];
    RANK_GRAD = "loss/batch.c" "rank_grad", dtypes: FLOATS64, ops: &[],
        args: [s: In("gk_t"), rel: In("gk_t"), n: I64, gy: In("gk_t"), gy_f32: I32, den: In("gk_f"), ds: Out("gk_t"), accumulate: I32];
    BALANCE_ITEMS = "loss/batch.c" "balance_items", dtypes: FLOATS64, ops: &[],
        args: [probs: In("gk_t"), ids: In("int"), wide: I32, err: Out("int"), code: I32, N: I64, E: I64, count: I64, share: Out("gk_f"), item: Out("gk_f"), weight: Out("gk_f")];
    BALANCE_GRAD = "loss/batch.c" "balance_grad", dtypes: FLOATS64, ops: &[],
        args: [share: In("gk_f"), N: I64, E: I64, gy: In("gk_t"), gy_f32: I32, dp: Out("gk_t"), accumulate: I32];
    LOVASZ_SLOPE = "loss/batch.c" "lovasz_slope", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), ids: In("int"), wide: I32, err: Out("int"), code: I32, N: I64, C: I64, slope: Out("gk_f")];
    LOVASZ_ITEMS = "loss/batch.c" "lovasz_items", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), ids: In("int"), wide: I32, N: I64, C: I64, slope: In("gk_f"), item: Out("gk_f"), weight: Out("gk_f")];
    LOVASZ_GRAD = "loss/batch.c" "lovasz_grad", dtypes: FLOATS64, ops: &[],
        args: [p: In("gk_t"), ids: In("int"), wide: I32, N: I64, C: I64, slope: In("gk_f"), gy: In("gk_t"), gy_f32: I32, den: In("gk_f"), dp: Out("gk_t"), accumulate: I32];
}
