//! Kernels of `kernels/common/elementwise.c`.

use super::{FLOATS64, kernels};

/// Functions of one value, by the name of their C function.
pub(crate) const UNARY: &[&str] = &[
    "gk_op_neg",
    "gk_op_exp",
    "gk_op_isnan",
    "gk_act_relu",
    "gk_act_leaky_relu",
    "gk_act_gelu",
    "gk_act_gelu_tanh",
    "gk_act_sigmoid",
    "gk_act_tanh",
    "gk_act_swish",
    "gk_act_hardswish",
];
/// Functions of two values.
pub(crate) const BINARY: &[&str] = &["gk_op_add", "gk_op_mul"];
/// Functions of three values.
pub(crate) const TERNARY: &[&str] = &["gk_op_addcmul"];

kernels! {
    family: Elementwise;
    UNARY_FLAT = "elementwise.c" "unary_flat", dtypes: FLOATS64, ops: UNARY,
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, p: Real, q: Real, s: Real];
    UNARY_ND = "elementwise.c" "unary_nd", dtypes: FLOATS64, ops: UNARY,
        args: [x: In("gk_t"), y: Out("gk_t"), n: I64, rank: I32, shape: Dims, sx: Dims, sy: Dims, p: Real, q: Real, s: Real];
    UNARY_MASK = "elementwise.c" "unary_mask", dtypes: FLOATS64, ops: UNARY,
        args: [x: In("gk_t"), y: Out("gk_u8"), n: I64, rank: I32, shape: Dims, sx: Dims, sy: Dims, p: Real, q: Real, s: Real];
    UNARY_BWD_FLAT = "elementwise.c" "unary_bwd_flat", dtypes: FLOATS64, ops: UNARY,
        args: [dy: In("gk_t"), x: In("gk_t"), dx: Out("gk_t"), n: I64, wide: I32, accumulate: I32, p: Real, q: Real, s: Real];
    UNARY_BWD_ND = "elementwise.c" "unary_bwd_nd", dtypes: FLOATS64, ops: UNARY,
        args: [dy: In("gk_t"), x: In("gk_t"), dx: Out("gk_t"), n: I64, rank: I32, shape: Dims, sdy: Dims, sx: Dims, sdx: Dims, accumulate: I32, p: Real, q: Real, s: Real];
    BINARY_FLAT = "elementwise.c" "binary_flat", dtypes: FLOATS64, ops: BINARY,
        args: [a: In("gk_t"), b: In("gk_t"), y: Out("gk_t"), n: I64, wide: I32, p: Real, q: Real];
    BINARY_ND = "elementwise.c" "binary_nd", dtypes: FLOATS64, ops: BINARY,
        args: [a: In("gk_t"), b: In("gk_t"), y: Out("gk_t"), n: I64, rank: I32, shape: Dims, sa: Dims, sb: Dims, sy: Dims, wide: I32, p: Real, q: Real];
    BINARY_MASK = "elementwise.c" "binary_mask", dtypes: FLOATS64, ops: BINARY,
        args: [a: In("gk_t"), b: In("gk_t"), y: Out("gk_u8"), n: I64, rank: I32, shape: Dims, sa: Dims, sb: Dims, sy: Dims, p: Real, q: Real];
    BINARY_BWD_ND = "elementwise.c" "binary_bwd_nd", dtypes: FLOATS64, ops: BINARY,
        args: [dy: In("gk_t"), a: In("gk_t"), b: In("gk_t"), da: Out("gk_t"), db: Out("gk_t"), n: I64, rank: I32, shape: Dims, sdy: Dims, sa: Dims, sb: Dims, sda: Dims, sdb: Dims, wide: I32, acc_a: I32, acc_b: I32, p: Real, q: Real];
    TERNARY_ND = "elementwise.c" "ternary_nd", dtypes: FLOATS64, ops: TERNARY,
        args: [a: In("gk_t"), b: In("gk_t"), c: In("gk_t"), y: Out("gk_t"), n: I64, rank: I32, shape: Dims, sa: Dims, sb: Dims, sc: Dims, sy: Dims, p: Real];
    TERNARY_BWD_ND = "elementwise.c" "ternary_bwd_nd", dtypes: FLOATS64, ops: TERNARY,
        args: [dy: In("gk_t"), a: In("gk_t"), b: In("gk_t"), c: In("gk_t"), da: Out("gk_t"), db: Out("gk_t"), dc: Out("gk_t"), n: I64, rank: I32, shape: Dims, sdy: Dims, sa: Dims, sb: Dims, sc: Dims, p: Real];
}
