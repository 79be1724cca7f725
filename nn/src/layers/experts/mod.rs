//! Mixtures of experts.

pub(crate) mod expert;
pub(crate) mod mixture;
pub(crate) mod mlp;
