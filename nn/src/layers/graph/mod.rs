//! Layers of graphs.

pub(crate) mod attention;
pub(in crate::layers) mod cache;
pub(crate) mod convolutional;
pub(crate) mod isomorphism;
pub(crate) mod message_passing;
pub(crate) mod random_walk;
pub(crate) mod sage;
pub(crate) mod transformer;
