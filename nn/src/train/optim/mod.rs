//! Optimizers and learning-rate schedules.

mod arena;
mod optimizer;
mod recorded;
mod rules;
mod scaler;
mod schedule;
mod sparse;

pub use optimizer::{Group, Optimizer};
pub use rules::with_weight_decay;
pub use schedule::{Plateau, Schedule};
pub use sparse::SparseOptimizer;
pub use trefoil::ops::optimizer::{AdaptiveRule, ClipAdaptive, LossScale, OptimRule, Prox};
