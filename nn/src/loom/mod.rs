//! Networks of Loom.
mod bundle;
mod definition;
mod flags;
mod keys;
mod layer;
mod loss;
mod network;
mod plan;
mod plan_softmax;

pub use bundle::Bundle;
pub use definition::{GridPosition, LayerDefinition, LoomConfig, Origin};
pub use flags::{Flag, Flags, Profile};
pub use layer::LoomLayer;
pub use loss::LoomCrossEntropy;
pub use network::{LoomNetwork, check};
pub use plan::Report;
