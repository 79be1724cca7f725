//! Convolutions.

pub(crate) mod convolutional;
pub(crate) mod deformable;
pub(crate) mod locally_connected;
pub(crate) mod separable;
pub(crate) mod transposed;
