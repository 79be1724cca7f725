//! Activations as layers.

pub(crate) mod elementwise;
pub(crate) mod softmax_variant;
