//! Functions of `kernels/common/softmax`.

/// The two normalisations.
pub(crate) const SOFTMAXES: &[&str] = &["gk_softmax", "gk_log_softmax"];
