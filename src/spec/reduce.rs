//! Kernels of `kernels/common/reduce.c` and `reduce_bwd.c`.

use super::{FLOATS64, INTS, kernels};
use crate::dtype::DType;

/// Functions of floating-point numbers.
pub(crate) const FLOAT_OPS: &[&str] = &[
    "gk_red_sum",
    "gk_red_mean",
    "gk_red_sumsq",
    "gk_red_norm0",
    "gk_red_norm1",
    "gk_red_norm2",
    "gk_red_normp",
    "gk_red_dot",
    "gk_red_prod",
    "gk_red_factors",
    "gk_red_max",
    "gk_red_min",
    "gk_red_maxabs",
    "gk_red_minabs",
    "gk_red_max_ties",
    "gk_red_min_ties",
    "gk_red_maxabs_ties",
    "gk_red_minabs_ties",
    "gk_red_minmax",
    "gk_red_argmax",
    "gk_red_argmin",
    "gk_red_var",
    "gk_red_std",
    "gk_red_logvar",
    "gk_red_meanvar",
    "gk_red_lse",
];
/// Functions of integers.
pub(crate) const INT_OPS: &[&str] =
    &["gk_red_sum", "gk_red_max", "gk_red_min", "gk_red_minmax", "gk_red_argmax", "gk_red_argmin"];
/// Functions of masks.
pub(crate) const MASK_OPS: &[&str] = &["gk_red_any", "gk_red_all"];

macro_rules! reductions {
    ($($rows:ident $cols:ident $join:ident: $dtypes:expr, $ops:expr;)*) => {
        kernels! {
            family: Reduce;
            $(
                $rows = "reduce.c" "reduce_rows", dtypes: $dtypes, ops: $ops,
                    args: [x: In("gk_t"), x2: In("gk_t"), y: Out("gk_u8"), z: Out("gk_u8"), part: Out("gk_state"), outputs: I64, n: I64, chunk: I64,
                           count: I64, splits: I32, lanes: I32, mode: I32, phase: I32, kept_rank: I32, kept: Dims, kx: Dims, kx2: Dims, ky: Dims,
                           kz: Dims, red_rank: I32, red: Dims, rx: Dims, rx2: Dims, form: I32, accumulate: I32, p: Real, q: Real];
                $cols = "reduce.c" "reduce_cols", dtypes: $dtypes, ops: $ops,
                    args: [x: In("gk_t"), x2: In("gk_t"), y: Out("gk_u8"), z: Out("gk_u8"), part: Out("gk_state"), outputs: I64, n: I64, chunk: I64,
                           count: I64, splits: I32, tx: I32, wide: I32, step_y: I64, step_z: I64, kept_rank: I32, kept: Dims, kx: Dims, kx2: Dims,
                           ky: Dims, kz: Dims, red_rank: I32, red: Dims, rx: Dims, rx2: Dims, form: I32, accumulate: I32, p: Real, q: Real];
                $join = "reduce.c" "reduce_join", dtypes: $dtypes, ops: $ops,
                    args: [part: In("gk_state"), y: Out("gk_u8"), z: Out("gk_u8"), outputs: I64, count: I64, splits: I32, so: I64, sk: I64, lanes: I32,
                           kept_rank: I32, kept: Dims, ky: Dims, kz: Dims, form: I32, accumulate: I32, p: Real, q: Real];
            )*
        }
    };
}
reductions! {
    ROWS COLS JOIN: FLOATS64, FLOAT_OPS;
    ROWS_INT COLS_INT JOIN_INT: INTS, INT_OPS;
    ROWS_MASK COLS_MASK JOIN_MASK: &[DType::U8], MASK_OPS;
}
