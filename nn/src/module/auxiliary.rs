//! Auxiliary losses: terms that layers add to the loss of a training step, such as the load balance of a mixture of experts.
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::layers::Dense;
//! use trefoil_nn::{Criterion, InitContext, Layer, MseLoss, Result, Tensor, Visitor, auxiliary};
//!
//! /// A dense layer whose outputs should be small.
//! #[derive(Debug)]
//! struct Small(Dense);
//!
//! impl Layer for Small {
//!     fn forward(&self, x: &Tensor) -> Result<Tensor> {
//!         let y = self.0.forward(x)?;
//!         auxiliary::add(|| y.square()?.mean()?.mul_scalar(0.1))?;
//!         Ok(y)
//!     }
//!     fn visit(&self, v: &mut Visitor<'_>) {
//!         v.flattened(&self.0);
//!     }
//! }
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let model = Small(Dense::new(&InitContext::new(&device, 1), 2, 1)?);
//! let (x, y) = (Tensor::ones(&device, trefoil::DType::F32, &[4, 2])?, Tensor::zeros(&device, trefoil::DType::F32, &[4, 1])?);
//! let (out, terms) = auxiliary::collect(|| model.forward(&x))?;
//! let loss = auxiliary::added_to(MseLoss::default().loss(&out, &y)?, &terms)?;
//! assert!((loss.item::<f32>()? - 1.1 * out.square()?.mean()?.item::<f32>()?).abs() < 1e-6);
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

use std::cell::RefCell;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

thread_local! {
    // The terms of the innermost `collect`; without one, nothing is computed.
    static TERMS: RefCell<Option<Vec<Tensor>>> = const { RefCell::new(None) };
}

/// Runs a forward pass and returns its result and the terms that layers added, in their order. [`Trainer`](crate::Trainer) and
/// [`Model::train_batch`](crate::Model::train_batch) do so by themselves.
pub fn collect<T>(forward: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Tensor>)> {
    /// Puts the terms of the pass around this one back, also when a panic of a user's layer unwinds.
    struct Restore(Option<Vec<Tensor>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            TERMS.with(|t| *t.borrow_mut() = self.0.take());
        }
    }
    let _outer = Restore(TERMS.with(|t| t.borrow_mut().replace(vec![])));
    let y = forward()?;
    Ok((y, TERMS.with(|t| t.borrow_mut().take()).unwrap_or_default()))
}

/// Whether terms are collected on this thread.
pub fn is_collecting() -> bool {
    TERMS.with(|t| t.borrow().is_some())
}

/// Adds a term to the loss, a scalar with its weight: what layers call in their forward pass. Where no terms are collected (inference, a loop
/// that does not ask for them), `term` is not computed. Errors: `Invalid` for a term that is no float scalar.
pub fn add(term: impl FnOnce() -> Result<Tensor>) -> Result<()> {
    if !is_collecting() {
        return Ok(());
    }
    let term = term()?;
    if term.rank() != 0 || !term.dtype().is_float() {
        let got = format!("{:?} of {}", term.shape(), term.dtype());
        return Err(invalid("auxiliary", "term", "a float scalar", got));
    }
    TERMS.with(|t| {
        if let Some(terms) = &mut *t.borrow_mut() {
            terms.push(term);
        }
    });
    Ok(())
}

/// The loss with all terms, in the dtype of the loss.
pub fn added_to(loss: Tensor, terms: &[Tensor]) -> Result<Tensor> {
    terms.iter().try_fold(loss, |sum, t| sum.add(&t.to_dtype(sum.dtype())?))
}
