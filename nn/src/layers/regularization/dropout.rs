//! Dropout.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trefoil::ops::random::Rng;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{InitContext, Layer, Visitor};

/// Inverted dropout (Srivastava et al., 2014), `torch.nn.Dropout`: in training each element is kept with probability 1 - p and divided by
/// it; in evaluation nothing happens. Each layer draws from a random stream of its own; the position in it is part of the saved state.
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    seed: u64,
    stream: u64,
    offset: AtomicU64,
    training: AtomicBool,
}

/// Keeps the streams of dropout apart from those of parameters.
const DROPOUT: u64 = 1 << 62;

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
        Ok(Dropout {
            p,
            seed: cx.seed(),
            stream: DROPOUT | cx.next_stream(),
            offset: AtomicU64::new(0),
            training: AtomicBool::new(true),
        })
    }
}

impl Layer for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.training.load(Ordering::Relaxed) || self.p == 0.0 {
            return Ok(x.clone());
        }
        let offset = self.offset.fetch_add(x.numel().div_ceil(4) as u64, Ordering::Relaxed);
        x.dropout(self.p, Rng::new(self.seed).at(self.stream, offset))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.counter("offset", &self.offset);
        v.training(&self.training);
    }
}
