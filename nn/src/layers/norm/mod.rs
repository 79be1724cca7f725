//! Normalization.

pub(crate) mod channel_norm;
pub(crate) mod layer_norm;
pub(crate) mod spectral_norm;
