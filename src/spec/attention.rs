//! Functions of `kernels/common/attention`: widths of heads for which the kernels are compiled.

/// Columns of a result per block.
pub(crate) const HEAD_WIDTHS: &[&str] = &["gk_head64", "gk_head128"];
/// The same on matrix cores, in f32 alone: 32 numbers of 16 bits are shorter than a row of a panel of local memory, which has 128 bytes.
pub(crate) const NARROW_HEADS: &[&str] = &["gk_head32"];
/// On matrix cores: columns of a head that tiles have room for, and whether all rules of the scores apply, or a factor and a window alone.
pub(crate) const MATRIX_HEADS: &[&str] = &["gk_head64", "gk_head128", "gk_head64_rules", "gk_head128_rules"];

/// Columns of a head in decoding on matrix cores.
pub(crate) const DECODE_WIDTHS: &[&str] = &["gk_decode64", "gk_decode128"];
