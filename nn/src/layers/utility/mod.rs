//! Layers without parameters that reshape, select and reduce.

pub(crate) mod lambda;
pub(crate) mod sequence;
pub(crate) mod shape;
pub(crate) mod statistics;
