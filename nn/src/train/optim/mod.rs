//! Optimizers and learning-rate schedules.

mod arena;
mod collected;
mod matrix;
mod numbers;
mod optimizer;
mod recorded;
mod rules;
mod scaler;
mod schedule;
mod second_order;
mod sparse;
mod step;

pub use matrix::{Adafactor, Muon, newton_schulz};
pub use optimizer::{Group, Optimizer};
pub(crate) use recorded::Forecast;
pub use rules::with_weight_decay;
pub use schedule::{Plateau, Schedule};
pub use second_order::{
    ClosureOptimizer, Method, Outcome, Stop, Termination, admm_lasso, coordinate_descent_lasso,
    linear_conjugate_gradient,
};
pub use sparse::SparseOptimizer;
pub use trefoil::ops::optimizer::{AdaptiveRule, ClipAdaptive, LossScale, OptimRule, Prox};
