//! Optimizers and learning-rate schedules.

mod arena;
mod optimizer;
mod schedule;

pub use optimizer::{Group, Optimizer};
pub use schedule::{Plateau, Schedule};
