//! Embeddings of ids, positions and image patches.

pub(crate) mod lookup;
pub(crate) mod patch;
pub(crate) mod positional;
