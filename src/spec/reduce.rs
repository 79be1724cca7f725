//! Functions of `kernels/common/reduce`.

/// Functions of floating-point numbers.
pub(crate) const FLOAT_REDUCTIONS: &[&str] = &[
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
pub(crate) const INT_REDUCTIONS: &[&str] =
    &["gk_red_sum", "gk_red_max", "gk_red_min", "gk_red_minmax", "gk_red_argmax", "gk_red_argmin"];
/// Functions of masks.
pub(crate) const MASK_REDUCTIONS: &[&str] = &["gk_red_any", "gk_red_all"];

/// Gradients of functions.
pub(crate) const BACKWARD_FLOATS: &[&str] = &[
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

/// Gradient of an extreme at a known position.
pub(crate) const BACKWARD_ARG: &[&str] = &["gk_redb_arg"];
/// Gradient of a dot product.
pub(crate) const BACKWARD_DOT: &[&str] = &["gk_redb_dot"];
