//! Rotary positions of queries and keys.

use serde::Deserialize;
use trefoil::DType;
use trefoil::ops::attention::{Rope, RopeLayout};

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::InitContext;

/// How rotary frequencies are lowered for texts longer than those of the first training, transformers' rope type `llama3` (Llama 3.1): to
/// 1 / `factor` where fewer than `low_freq_factor` turns fit into `original_max_position_embeddings` tokens, not at all where more than
/// `high_freq_factor` do, and linearly in the number of turns between.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// The low frequencies are divided by it.
    pub factor: f64,
    /// Turns up to which a frequency is low.
    pub low_freq_factor: f64,
    /// Turns from which on a frequency is high, more than `low_freq_factor`.
    pub high_freq_factor: f64,
    /// The longest text of the first training.
    pub original_max_position_embeddings: usize,
}

impl RopeScaling {
    fn is_valid(&self) -> bool {
        let numbers = [self.factor, self.low_freq_factor, self.high_freq_factor];
        numbers.iter().all(|x| x.is_finite() && *x > 0.0)
            && self.low_freq_factor < self.high_freq_factor
            && self.original_max_position_embeddings > 0
    }

    /// A frequency in radians per token, lowered.
    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
        let kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let kept = kept.clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / self.factor)
    }
}

/// The rotation of heads by their positions.
#[derive(Debug)]
pub(crate) struct Rotary {
    rope: Rope,
    /// Frequencies `[D / 2]` in radians per token, where they are not those of the operation.
    scaled: Option<Tensor>,
}

const OP: &str = "MultiHeadAttention";

impl Rotary {
    /// For heads of size `d`. Errors: an odd size, a base not above 0.
    pub(crate) fn new(d: usize, layout: RopeLayout, base: f64) -> Result<Self> {
        if !d.is_multiple_of(2) || base.is_nan() || base <= 0.0 || base.is_infinite() {
            let got = format!("head size {d}, base {base}");
            return Err(invalid(OP, "rope", "an even head size and a finite base above 0", got));
        }
        Ok(Rotary { rope: Rope::new().layout(layout).base(base), scaled: None })
    }

    /// With other frequencies. Errors: numbers not above 0, bounds in the wrong order.
    pub(crate) fn scaled(mut self, cx: &InitContext, d: usize, scaling: &RopeScaling) -> Result<Self> {
        if !scaling.is_valid() {
            let want = "finite numbers above 0, and low_freq_factor below high_freq_factor";
            return Err(invalid(OP, "rope_scaling", want, format!("{scaling:?}")));
        }
        let base = self.rope.base;
        let all = (0..d / 2).map(|i| scaling.apply(base.powf(-2.0 * i as f64 / d as f64)));
        self.scaled = Some(match cx.param_dtype().accumulator() {
            DType::F64 => Tensor::from_slice(cx.device(), &all.collect::<Vec<f64>>(), &[d / 2])?,
            _ => Tensor::from_slice(cx.device(), &all.map(|f| f as f32).collect::<Vec<_>>(), &[d / 2])?,
        });
        Ok(self)
    }

    /// Heads `[B, H, L, D]`, the first of which has position `past`, rotated.
    pub(crate) fn turn(&self, x: &Tensor, past: usize) -> Result<Tensor> {
        let Some(frequencies) = &self.scaled else {
            return x.transpose(1, 2)?.rope(&self.rope.offset(past as i64), None)?.transpose(1, 2);
        };
        let (l, d) = (x.shape()[2], x.shape()[3]);
        let positions = Tensor::arange(x.device(), frequencies.dtype(), past as f64, 1.0, l)?.unsqueeze(1)?;
        let angles = positions.mul(frequencies)?;
        let (cos, sin) = (angles.cos()?.to_dtype(x.dtype())?, angles.sin()?.to_dtype(x.dtype())?);
        let half = self.rope.layout == RopeLayout::Half;
        let (a, b) = match half {
            true => (x.narrow(3, 0, d / 2)?, x.narrow(3, d / 2, d / 2)?),
            false => (x.slice(3, 0, d, 2)?, x.slice(3, 1, d, 2)?),
        };
        let y = a.mul(&cos)?.sub(&b.mul(&sin)?)?;
        let z = a.mul(&sin)?.add(&b.mul(&cos)?)?;
        if half { Tensor::concat(3, &[&y, &z]) } else { Tensor::stack(4, &[&y, &z])?.flatten(3, 4) }
    }
}
