//! Kernels of `kernels/common/ctc.c`.

use super::{FLOATS64, kernels};

kernels! {
    family: Loss;
    CTC_ALPHA = "loss/ctc.c" "ctc_alpha", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), targets: In("int"), wide_t: I32, il: In("int"), wide_il: I32, tl: In("int"), wide_tl: I32, err: Out("int"), code: I32, T: I64, B: I64, C: I64, st: I64, sb: I64, S: I64, most: I64, L: I64, blank: I64, alpha: Out("gk_f"), nll: Out("gk_f")];
    CTC_ITEMS = "loss/ctc.c" "ctc_items", dtypes: FLOATS64, ops: &[],
        args: [nll: In("gk_f"), tl: In("int"), wide_tl: I32, B: I64, zero_infinity: I32, per_label: I32, y: Out("gk_t"), item: Out("gk_f"), weight: Out("gk_f")];
    CTC_GRAD = "loss/ctc.c" "ctc_grad", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), targets: In("int"), wide_t: I32, il: In("int"), wide_il: I32, tl: In("int"), wide_tl: I32, T: I64, B: I64, C: I64, st: I64, sb: I64, S: I64, most: I64, L: I64, blank: I64, alpha: Out("gk_f"), nll: In("gk_f"), beta: Out("gk_f"), gy: In("gk_t"), each: I32, gy_f32: I32, factor: Real, per_label: I32, zero_infinity: I32, dx: Out("gk_t"), accumulate: I32];
    RNNT_LSE = "loss/ctc.c" "rnnt_lse", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), lse: Out("gk_f"), rows: I64, C: I64, lanes: I32];
    RNNT_LATTICE = "loss/ctc.c" "rnnt_lattice", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), lse: In("gk_f"), targets: In("int"), wide_t: I32, il: In("int"), wide_il: I32, tl: In("int"), wide_tl: I32, err: Out("int"), code: I32, B: I64, T: I64, U: I64, C: I64, blank: I64, alpha: Out("gk_f"), beta: Out("gk_f"), nll: Out("gk_f")];
    RNNT_GRAD = "loss/ctc.c" "rnnt_grad", dtypes: FLOATS64, ops: &[],
        args: [x: In("gk_t"), lse: In("gk_f"), targets: In("int"), wide_t: I32, il: In("int"), wide_il: I32, tl: In("int"), wide_tl: I32, B: I64, T: I64, U: I64, C: I64, blank: I64, alpha: In("gk_f"), beta: In("gk_f"), nll: In("gk_f"), gy: In("gk_t"), each: I32, gy_f32: I32, factor: Real, dx: Out("gk_t"), accumulate: I32];
}
