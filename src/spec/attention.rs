//! Functions of `kernels/common/attention`: widths of heads for which the kernels are compiled.

/// Columns of a result per block.
pub(crate) const HEAD_WIDTHS: &[&str] = &["gk_head64", "gk_head128"];
