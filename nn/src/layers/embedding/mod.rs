//! Embeddings of ids, positions, times and image patches.

pub(crate) mod lookup;
pub(crate) mod patch;
pub(crate) mod positional;
pub(crate) mod time;
