//! Functions of `kernels/common/gemm`.

/// Type of the outputs: that of A, or f32.
pub(crate) const OUTPUTS: &[&str] = &["gk_out_same", "gk_out_f32"];
