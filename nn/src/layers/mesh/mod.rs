//! Layers of meshes.

pub(crate) mod edge_conv;
mod filter;
pub(crate) mod spiral;
