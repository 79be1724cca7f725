//! Optimizers that evaluate the loss as often as they need: line searches, curvature, least squares, constraints.
//!
//! A [`ClosureOptimizer`] runs a [`Method`] on the parameters of a model. It is given a closure that computes the loss (for
//! [`Method::LevenbergMarquardt`] the residuals), and calls it at points of its choice; the closure must be a function: one batch, dropout
//! off or with a fixed generator, no running statistics. Vectors stay on the device. The host reads a few numbers, at most 64 bytes at
//! a time: once per evaluation, once per iteration, and once per product with the Hessian where there are some.
//!
//! ```
//! use trefoil::{Registry, Selector, ops::activation::Activation};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::optim::{ClosureOptimizer, Method, Stop};
//! use trefoil_nn::{InitContext, Layer, MseLoss, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = InitContext::new(&device, 1);
//! let model = Sequential::new()
//!     .push(Dense::new(&cx, 2, 4)?.activation(Activation::Tanh))
//!     .push(Dense::new(&cx, 4, 1)?);
//! let x = Tensor::from_slice(&device, &[0f32, 0., 0., 1., 1., 0., 1., 1.], &[4, 2])?;
//! let y = Tensor::from_slice(&device, &[0f32, 1., 1., 0.], &[4, 1])?;
//!
//! let mut optimizer = ClosureOptimizer::new(&model, Method::lbfgs())?;
//! let done = optimizer.minimize(&Stop::iterations(50), || MseLoss::default().forward(&model.forward(&x)?, &y))?;
//! assert!(done.loss < 0.01, "{done:?}");
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

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
