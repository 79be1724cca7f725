//! Dropout.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::regularization::noise::RandomStream;
use crate::module::{InitContext, Layer, Visitor};

/// Inverted dropout (Srivastava et al., 2014), `torch.nn.Dropout`: in training each element is kept with probability 1 - p and divided by
/// it; in evaluation nothing happens. Each layer draws from a random stream of its own; the position in it is part of the saved state.
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    rng: RandomStream,
    training: AtomicBool,
}

impl Dropout {
    /// Drops with probability `p`. Errors: `p` outside of [0, 1] or NaN.
    pub fn new(cx: &InitContext, p: f64) -> Result<Self> {
        Dropout::of(cx, "p", p)
    }

    /// The dropout of a layer whose own argument `dropout` is the probability.
    pub(crate) fn part(cx: &InitContext, p: f64) -> Result<Self> {
        Dropout::of(cx, "dropout", p)
    }

    fn of(cx: &InitContext, arg: &'static str, p: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&p) {
            return Err(invalid("Dropout", arg, "a probability in [0, 1]", format!("{p}")));
        }
        Ok(Dropout { p, rng: RandomStream::new(cx), training: AtomicBool::new(true) })
    }
}

impl Layer for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.training.load(Ordering::Relaxed) || self.p == 0.0 {
            return Ok(x.clone());
        }
        x.dropout(self.p, self.rng.take(x.numel()))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.rng.visit(v);
        v.training(&self.training);
    }
}
