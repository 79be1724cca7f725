//! Layers of graphs.

pub(crate) mod attention;
mod cache;
pub(crate) mod convolutional;
pub(crate) mod isomorphism;
pub(crate) mod sage;
