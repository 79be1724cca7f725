//! Kernels of `kernels/common/loss_margin.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Loss;
    MARGIN_ITEMS = "loss/margin.c" "margin_items", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: In("gk_t"), ref: In("gk_t"), kl: In("gk_t"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, lanes: I32, kind: I32, p0: Real, p1: Real, p2: Real, loss: Out("gk_t"), item: Out("gk_f"), weight: Out("gk_f")];
    MARGIN_GRAD = "loss/margin.c" "margin_grad", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), y: In("gk_t"), ref: In("gk_t"), kl: In("gk_t"), ids: In("int"), wide: I32, err: Out("int"), code: I32, rows: I64, len: I64, lanes: I32, kind: I32, p0: Real, p1: Real, p2: Real, gy: In("gk_t"), each: I32, narrow: I32, factor: Real, dx: Out("gk_t"), accumulate: I32];
}
