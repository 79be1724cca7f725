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

/// Gradients of functions.
pub(crate) const BWD_OPS: &[&str] = &[
    "gk_redb_sum",
    "gk_redb_mean",
    "gk_redb_sumsq",
    "gk_redb_prod",
    "gk_redb_extreme",
    "gk_redb_magnitude",
    "gk_redb_var",
    "gk_redb_std",
    "gk_redb_logvar",
    "gk_redb_norm0",
    "gk_redb_norm1",
    "gk_redb_norm2",
    "gk_redb_normp",
    "gk_redb_lse",
];

macro_rules! reductions {
    ($($rows:ident $cols:ident $join:ident: $dtypes:expr, $ops:expr;)*) => {
        kernels! {
            family: Reduce;
            $(
                $rows = "reduce/reduce.c" "reduce_rows", dtypes: $dtypes, ops: $ops,
                    args: [x: In("gk_t"), x2: In("gk_t"), y: Out("gk_u8"), z: Out("gk_u8"), part: Out("gk_state"), outputs: I64, n: I64, chunk: I64,
                           count: I64, splits: I32, lanes: I32, mode: I32, phase: I32, kept_rank: I32, kept: Dims, kx: Dims, kx2: Dims, ky: Dims,
                           kz: Dims, red_rank: I32, red: Dims, rx: Dims, rx2: Dims, form: I32, accumulate: I32, p: Real, q: Real];
                $cols = "reduce/reduce.c" "reduce_cols", dtypes: $dtypes, ops: $ops,
                    args: [x: In("gk_t"), x2: In("gk_t"), y: Out("gk_u8"), z: Out("gk_u8"), part: Out("gk_state"), outputs: I64, n: I64, chunk: I64,
                           count: I64, splits: I32, tx: I32, wide: I32, step_y: I64, step_z: I64, kept_rank: I32, kept: Dims, kx: Dims, kx2: Dims,
                           ky: Dims, kz: Dims, red_rank: I32, red: Dims, rx: Dims, rx2: Dims, form: I32, accumulate: I32, p: Real, q: Real];
                $join = "reduce/reduce.c" "reduce_join", dtypes: $dtypes, ops: $ops,
                    args: [part: In("gk_state"), y: Out("gk_u8"), z: Out("gk_u8"), outputs: I64, count: I64, splits: I32, so: I64, sk: I64, lanes: I32,
                           kept_rank: I32, kept: Dims, ky: Dims, kz: Dims, form: I32, accumulate: I32, p: Real, q: Real];
            )*
            BWD = "reduce/backward.c" "reduce_bwd", dtypes: FLOATS64, ops: BWD_OPS,
                args: [dy: In("gk_t"), x: In("gk_t"), y: In("gk_t"), s: In("gk_f"), t: In("gk_f"), dx: Out("gk_t"), n: I64, rank: I32, shape: Dims,
                       sdx: Dims, sdy: Dims, sx: Dims, sy: Dims, ss: Dims, step_s: I64, wide: I32, accumulate: I32, p: Real, q: Real];
            ARG_BWD = "reduce/backward.c" "arg_reduce_bwd", dtypes: FLOATS64, ops: &["gk_redb_arg"],
                args: [dy: In("gk_t"), index: In("gk_u8"), dx: Out("gk_t"), err: Out("int"), n: I64, size: I64, rank: I32, shape: Dims, sdx: Dims,
                       sdy: Dims, si: Dims, sc: Dims, wide: I32, accumulate: I32, code: I32];
            DOT_BWD = "reduce/backward.c" "dot_bwd", dtypes: FLOATS64, ops: &["gk_redb_dot"],
                args: [dy: In("gk_t"), a: In("gk_t"), b: In("gk_t"), da: Out("gk_t"), db: Out("gk_t"), n: I64, rank: I32, shape: Dims, sdy: Dims,
                       sa: Dims, sb: Dims, sda: Dims, sdb: Dims, wide: I32, acc_a: I32, acc_b: I32];
        }
    };
}
reductions! {
    ROWS COLS JOIN: FLOATS64, FLOAT_OPS;
    ROWS_INT COLS_INT JOIN_INT: INTS, INT_OPS;
    ROWS_MASK COLS_MASK JOIN_MASK: &[DType::U8], MASK_OPS;
}
