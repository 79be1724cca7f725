//! Fully connected layers and their relatives.

pub(crate) mod dense;
pub(crate) mod feed_forward;
pub(crate) mod gated;
pub(crate) mod hyperbolic;
pub(crate) mod octonion;
pub(crate) mod rbf;
pub(crate) mod sparse;
