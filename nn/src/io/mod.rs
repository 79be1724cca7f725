//! Files of weights and checkpoints.

pub mod checkpoint;
pub(crate) mod durable;
mod foreign;
mod gguf;
pub(crate) mod load;
pub(crate) mod names;
#[cfg(feature = "archives")]
mod pickle;
#[cfg(feature = "archives")]
mod pytorch;
pub(crate) mod record;
pub(crate) mod save;
pub mod state_file;
pub mod state_map;
mod stored;
pub(crate) mod tensor_file;
