//! Reports on models: summaries, comparisons, statistics of activations and gradients, curves.

pub mod compare;
pub(crate) mod flops;
pub mod inspect;
pub mod plot;
pub mod profile;
pub mod summary;
