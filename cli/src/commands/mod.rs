//! The commands, one module for each.

pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod data;
pub(crate) mod devices;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod init;
pub(crate) mod plot;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod report;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod summary;
pub(crate) mod train;
pub(crate) mod tune;
