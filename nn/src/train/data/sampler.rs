//! Which items an epoch serves, and in which order.

use trefoil::DType;
use trefoil::ops::random::{Distribution, Rng};

use super::Order;
use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// Which items an epoch serves. What is drawn depends on the epoch's [`Order`] only: on no thread, device or earlier epoch.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Sampler {
    /// Each item once, as stored or shuffled.
    #[default]
    All,
    /// Items drawn with replacement, all equally likely. Needs an order.
    Uniform {
        /// Items per epoch.
        draws: usize,
    },
    /// Items drawn with replacement with probabilities in proportion to their weights. Needs an order.
    Weighted {
        /// One weight per item, at least 0.
        weights: Vec<f64>,
        /// Items per epoch.
        draws: usize,
    },
    /// The share of one of several processes: every `world`-th item of the common order, from the `rank`-th on, as
    /// `torch.utils.data.DistributedSampler`. All shares have the same size.
    Distributed {
        /// This process, from 0.
        rank: usize,
        /// Number of processes.
        world: usize,
        /// Leaves out the last items if they do not suffice for all processes; otherwise items from the start of the order fill up.
        drop_last: bool,
    },
}

impl Sampler {
    /// Errors: settings that serve no item of `n`, weights that do not fit.
    pub(super) fn check(&self, n: usize) -> Result<()> {
        let fail = |arg, expected: &str, got: String| Err(invalid("Sampler", arg, expected, got));
        match self {
            Sampler::Weighted { weights, .. } if weights.len() != n => {
                fail("weights", &format!("one for each of {n} items"), format!("{}", weights.len()))
            }
            Sampler::Weighted { weights, .. } if !weights.iter().all(|w| w.is_finite() && *w >= 0.0) => {
                fail("weights", "finite weights of at least 0", "others".into())
            }
            Sampler::Weighted { weights, .. } if weights.iter().sum::<f64>() <= 0.0 => {
                fail("weights", "a weight above 0", "none".into())
            }
            Sampler::Distributed { rank, world, .. } if rank >= world => {
                fail("rank", "a rank below world", format!("rank {rank} of {world}"))
            }
            _ if self.count(n) == 0 => {
                fail("self", "at least one item per epoch", format!("{self:?} of {n}"))
            }
            _ => Ok(()),
        }
    }

    /// Items of an epoch over `n` items.
    pub fn count(&self, n: usize) -> usize {
        match *self {
            Sampler::All => n,
            Sampler::Uniform { draws } => {
                if n > 0 {
                    draws
                } else {
                    0
                }
            }
            Sampler::Weighted { draws, .. } => draws,
            Sampler::Distributed { world, drop_last: true, .. } => n.checked_div(world).unwrap_or(0),
            Sampler::Distributed { world, .. } => n.div_ceil(world.max(1)),
        }
    }

    /// The items of an epoch over `n` items, in order. The device draws and sorts; the same seed and epoch give the same items everywhere.
    /// Errors: settings that do not fit; a sampler that draws at random without an order.
    pub fn rows(&self, device: &Device, n: usize, order: Option<Order>) -> Result<Vec<usize>> {
        self.check(n)?;
        match self {
            Sampler::All => all(device, n, order),
            Sampler::Uniform { draws } => {
                let bits = bits(device, *draws, order)?;
                limits::collect(bits.into_iter().map(|b| ((u128::from(b) * n as u128) >> 64) as usize))
            }
            Sampler::Weighted { weights, draws } => {
                let mut sum = 0.0;
                let ends = limits::collect(weights.iter().map(|w| {
                    sum += w;
                    sum
                }))?;
                let last = weights.iter().rposition(|&w| w > 0.0).unwrap_or(0);
                let pick = |b: u64| {
                    let u = (b >> 11) as f64 / (1u64 << 53) as f64 * sum;
                    ends.partition_point(|&end| end <= u).min(last)
                };
                limits::collect(bits(device, *draws, order)?.into_iter().map(pick))
            }
            Sampler::Distributed { rank, world, .. } => {
                let all = all(device, n, order)?;
                limits::collect((0..self.count(n)).map(|i| all[(rank + i * world) % n]))
            }
        }
    }
}

fn all(device: &Device, n: usize, order: Option<Order>) -> Result<Vec<usize>> {
    let Some(o) = order else { return limits::collect(0..n) };
    let p = Tensor::permutation(device, n, o.rng())?.to_vec::<i64>()?;
    limits::collect(p.into_iter().map(|i| i as usize))
}

/// 64 random bits per draw.
fn bits(device: &Device, draws: usize, order: Option<Order>) -> Result<Vec<u64>> {
    let Some(o) = order else {
        return Err(invalid("Sampler", "order", "an order, from which the draws follow", "none"));
    };
    let rng: Rng<'static> = o.rng();
    let words = Tensor::random(device, DType::I32, &[draws.saturating_mul(2)], Distribution::Bits, rng)?
        .to_vec::<i32>()?;
    limits::collect(words.chunks_exact(2).map(|w| u64::from(w[0] as u32) << 32 | u64::from(w[1] as u32)))
}
