//! Training: data, losses, optimizers, metrics, the loop, and runs described by files.

pub(crate) mod capture;
mod checkpoint;
#[cfg(feature = "json")]
pub mod config;
pub mod data;
pub mod losses;
pub mod metrics;
pub mod model;
pub mod optim;
pub mod trainer;
