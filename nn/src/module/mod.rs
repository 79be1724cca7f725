//! Layers as a concept: the trait, parameters and their initial values, state dictionaries, forward hooks.

pub mod auxiliary;
pub(crate) mod field;
pub(crate) mod hooks;
pub(crate) mod init;
pub(crate) mod layer;
pub(crate) mod layer_ext;
pub(crate) mod param;
pub(crate) mod state;

pub use self::field::{BufferField, LayerField};
pub use self::init::{Init, InitContext};
pub use self::layer::{Entry, Layer, LocalLearning, Visitor};
pub(crate) use self::layer::{has_learning_rule, set_training_of};
pub use self::layer_ext::LayerExt;
pub use self::param::Param;
pub(crate) use self::param::parametrized;
pub use self::state::StateDict;
pub(crate) use self::state::{Snapshot, check_fit, check_names, check_unique};
