//! Attention and transformers.

pub(crate) mod cache;
pub(crate) mod cross;
pub(crate) mod decoder;
pub(crate) mod multi_head;
pub(crate) mod projections;
pub(crate) mod rotary;
pub(crate) mod scores;
pub(crate) mod transformer;
