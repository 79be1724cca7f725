//! Random layers: additive noise, and the generator that random layers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trefoil::ops::random::{Distribution, Rng};

use crate::core::capture;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{InitContext, Layer, Visitor};

/// A layer's own random sequence and its position in it, which is part of the saved state.
#[derive(Debug)]
pub(crate) struct RandomStream {
    seed: u64,
    stream: u64,
    offset: Arc<AtomicU64>,
}

/// Keeps the streams of layers apart from those of parameters.
const LAYERS: u64 = 1 << 62;

impl RandomStream {
    pub(crate) fn new(cx: &InitContext) -> Self {
        RandomStream { seed: cx.seed(), stream: LAYERS | cx.next_stream(), offset: Arc::default() }
    }

    /// The generator for a call that draws `numbers` numbers, four to a block.
    pub(crate) fn take(&self, numbers: usize) -> Rng<'static> {
        capture::draws(self.seed, self.stream, &self.offset);
        let offset = self.offset.fetch_add(numbers.div_ceil(4) as u64, Ordering::Relaxed);
        Rng::new(self.seed).at(self.stream, offset)
    }

    /// Where the next call draws.
    pub(crate) fn position(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Goes back to a position, so that the next call draws what was drawn from there.
    pub(crate) fn rewind(&self, position: u64) {
        self.offset.store(position, Ordering::Relaxed);
    }

    pub(crate) fn visit(&self, v: &mut Visitor<'_>) {
        v.counter("offset", &self.offset);
    }
}

/// In training adds normal numbers to every element, Keras' `GaussianNoise`; the identity in evaluation. Gradients pass unchanged.
#[derive(Debug)]
pub struct GaussianNoise {
    mean: f64,
    std: f64,
    rng: RandomStream,
    training: AtomicBool,
}

impl GaussianNoise {
    /// Noise of mean 0 and this standard deviation. Errors: a negative or infinite deviation.
    pub fn new(cx: &InitContext, stddev: f64) -> Result<Self> {
        if !(stddev >= 0.0 && stddev.is_finite()) {
            return Err(invalid(
                "GaussianNoise",
                "stddev",
                "a finite number of at least 0",
                format!("{stddev}"),
            ));
        }
        Ok(GaussianNoise {
            mean: 0.0,
            std: stddev,
            rng: RandomStream::new(cx),
            training: AtomicBool::new(true),
        })
    }

    /// Sets the mean. Errors: a mean that is not finite.
    pub fn mean(mut self, mean: f64) -> Result<Self> {
        if !mean.is_finite() {
            return Err(invalid("GaussianNoise", "mean", "a finite number", format!("{mean}")));
        }
        self.mean = mean;
        Ok(self)
    }
}

impl Layer for GaussianNoise {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.training.load(Ordering::Relaxed) {
            return Ok(x.clone());
        }
        // A normal number takes up to two words of the generator.
        let rng = self.rng.take(2 * x.numel());
        let dist = Distribution::Normal { mean: self.mean, std: self.std };
        x.add(&Tensor::random(x.device(), x.dtype(), x.shape(), dist, rng)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        self.rng.visit(v);
        v.training(&self.training);
    }
}
