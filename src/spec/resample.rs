//! Functions of `kernels/common/resample`.

/// Ways of reading between cells.
pub(crate) const SAMPLE_MODES: &[&str] = &["gk_sample_nearest", "gk_sample_linear", "gk_sample_cubic"];
