//! Layers of meshes.

mod collapse;
pub(crate) mod diffusion;
pub(crate) mod edge_conv;
mod filter;
mod host;
mod implicit;
pub(crate) mod pool;
pub(crate) mod spiral;
pub(crate) mod surface;
