//! The commands, one module for each.

pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod plot;
pub(crate) mod profile;
pub(crate) mod status;
pub(crate) mod summary;
pub(crate) mod train;
