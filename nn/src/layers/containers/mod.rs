//! Layers of layers.

pub(crate) mod checkpointed;
pub(crate) mod lora;
pub(crate) mod merge;
pub(crate) mod parallel;
pub(crate) mod residual;
pub(crate) mod sequential;
