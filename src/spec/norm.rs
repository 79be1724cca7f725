//! Functions of `kernels/common/norm`.

/// Units without and with an activation.
pub(crate) const EPILOGUES: &[&str] = &["gk_norm_plain", "gk_norm_act"];
