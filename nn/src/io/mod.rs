//! Files of weights and checkpoints.

pub mod checkpoint;
pub(crate) mod durable;
mod foreign;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod save;
pub mod state_file;
pub mod state_map;
pub(crate) mod tensor_file;
