//! Optimizers that evaluate the loss as often as they need: line searches, curvature, least squares, constraints.
//!
//! A [`ClosureOptimizer`] runs a [`Method`] on the parameters of a model. It is given a closure that computes the loss (for
//! [`Method::LevenbergMarquardt`] the residuals), and calls it at points of its choice; the closure must be a function: one batch, dropout
//! off or with a fixed generator, no running statistics. Vectors stay on the device. The host reads a few numbers, at most 64 bytes at
//! a time: once per evaluation, once per iteration, and once per product with the Hessian where there are some.

mod admm;
mod conjugate;
mod coordinate;
mod dense;
mod driver;
mod least_squares;
mod line_search;
mod method;
mod newton;
mod quasi_newton;
mod space;

pub use self::admm::admm_lasso;
pub use self::conjugate::linear_conjugate_gradient;
pub use self::coordinate::coordinate_descent_lasso;
pub use self::driver::ClosureOptimizer;
pub use self::method::{Method, Outcome, Stop, Termination};
