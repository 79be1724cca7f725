//! Noise and dropout.

pub(crate) mod dropout;
pub(crate) mod noise;
pub(crate) mod reparameterization;
