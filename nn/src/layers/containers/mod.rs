//! Layers of layers.

pub(crate) mod checkpoint_plan;
pub(crate) mod checkpointed;
pub(crate) mod lora;
pub(crate) mod merge;
pub(crate) mod parallel;
mod recompute;
pub(crate) mod residual;
pub(crate) mod sequential;
