//! Random numbers and dropout, all from Philox4x32-10 (Salmon et al., 2011), equal on every backend.
//!
//! Element i uses block `offset + i/4` (mod 2^64) and word `i % 4` of philox(counter = [block lo, block hi, stream lo, stream hi],
//! key = [seed lo, seed hi]). A call over n elements consumes ceil(n/4) blocks unless stated.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

/// Where a random call reads its numbers.
#[derive(Debug, Clone, Copy)]
pub struct Rng<'a> {
    /// Key.
    pub seed: u64,
    /// Upper half of the counter: an independent sequence.
    pub stream: u64,
    /// Lower half of the counter at which the call starts.
    pub offset: u64,
    /// One i64 on the device that is added to `offset`, so that a recorded launch can draw new numbers.
    pub device_offset: Option<View<'a>>,
}

impl Rng<'_> {
    /// Seed with stream 0 and offset 0.
    pub const fn new(seed: u64) -> Self {
        Rng { seed, stream: 0, offset: 0, device_offset: None }
    }

    /// The same with another stream and offset.
    pub const fn at(mut self, stream: u64, offset: u64) -> Self {
        self.stream = stream;
        self.offset = offset;
        self
    }
}

/// Distributions of [`RandomOps::random`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Raw words as i32 bit patterns.
    Bits,
    /// [lo, hi)
    Uniform {
        /// lower bound, included
        lo: f64,
        /// upper bound, excluded
        hi: f64,
    },
    /// Box-Muller on word pairs
    Normal {
        /// mean
        mean: f64,
        /// standard deviation
        std: f64,
    },
    /// u8: u < p
    Bernoulli {
        /// probability of 1
        p: f64,
    },
    /// integers in [lo, hi) (i32 or i64) by multiply-high
    Int {
        /// lower bound, included
        lo: i64,
        /// upper bound, excluded; hi - lo at most 2^32
        hi: i64,
    },
    /// -ln(u)/rate, u in (0, 1]
    Exponential {
        /// rate, above 0
        rate: f64,
    },
    /// -ln(-ln u)
    Gumbel,
}

/// The keep mask that dropout's backward uses.
#[derive(Debug, Clone, Copy)]
pub enum DropoutMask<'a> {
    /// u8 mask written by the forward.
    Saved(View<'a>),
    /// Regenerated from the forward's generator state.
    Regenerate(Rng<'a>),
}

/// Weights of [`RandomOps::categorical`].
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Non-negative weights [rows, K]: inverse CDF over running f32 sums.
    Probs(View<'a>),
    /// Logits [rows, K]: Gumbel-max with element row*K + k (one sample per row).
    Logits(View<'a>),
}

op_family! {
    /// Random numbers. Contiguous outputs. Oracle: the definitions above.
    pub trait RandomOps : Random => RANDOM_OPS {
        /// Fills y with independent draws; dtypes as the distribution says (floats for the continuous ones).
        fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y[i] = u_i < p[i] (u8) with a tensor of probabilities of y's shape.
        fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// A permutation of 0..n (i32 or i64): element i has the key (w[2i], w[2i+1], i); y lists the elements by rising key. Consumes ceil(n/2) blocks.
        fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y [rows, n] (i64 or i32) samples per row. Probs: sample i = row*n + j counts the k with cum_k <= u_i * total; a row without weight is `IndexOutOfRange`.
        fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y = keep ? x/(1-p) : 0, keep iff u < 1-p (both f32); optionally the u8 mask. p in [0, 1], p = 1 gives zeros. Oracle: mask from the definition.
        fn dropout(&self, p: f64, rng: Rng<'_>, x: View<'_>, y: ViewMut<'_>, mask: Option<ViewMut<'_>>) -> Result<()>;
        /// dx = keep ? dy/(1-p) : 0.
        fn dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}
