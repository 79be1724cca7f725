//! Spikes, and gradients in place of theirs.

use std::f64::consts::PI;

use crate::core::autograd::{BackwardCtx, CustomOp, apply};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

const OP: &str = "spike";

/// The derivative that stands for that of a spike, a step at z = 0 (Neftci et al., 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Surrogate {
    /// (alpha / 2) / (1 + (pi alpha z / 2)^2); `snntorch.surrogate.atan`.
    Atan {
        /// Sharpness, above 0.
        alpha: f64,
    },
    /// 1 / (1 + slope |z|)^2; `snntorch.surrogate.fast_sigmoid`.
    FastSigmoid {
        /// Sharpness, above 0.
        slope: f64,
    },
    /// The derivative of sigmoid(slope z); `snntorch.surrogate.sigmoid`.
    Sigmoid {
        /// Sharpness, above 0.
        slope: f64,
    },
}

impl Default for Surrogate {
    fn default() -> Self {
        Surrogate::Atan { alpha: 2.0 }
    }
}

impl Surrogate {
    /// Error unless the sharpness is a finite number above 0.
    pub(super) fn check(self, op: &'static str) -> Result<()> {
        let (Surrogate::Atan { alpha: k }
        | Surrogate::FastSigmoid { slope: k }
        | Surrogate::Sigmoid { slope: k }) = self;
        if k > 0.0 && k.is_finite() {
            return Ok(());
        }
        Err(invalid(op, "surrogate", "a sharpness above 0", format!("{k}")))
    }

    /// 1 where z is above 0, 0 elsewhere, NaN for NaN; with the gradient of the surrogate.
    pub(super) fn spike(self, z: &Tensor) -> Result<Tensor> {
        apply(Spike(self), std::slice::from_ref(z))?
            .pop()
            .ok_or_else(|| invalid(OP, "outputs", "one", "none"))
    }
}

struct Spike(Surrogate);

impl CustomOp for Spike {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        save.push(inputs[0].clone());
        Ok(vec![inputs[0].sign()?.relu()?])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let (z, dy) = (&saved[0], cx.dy()?);
        let dz = match self.0 {
            Surrogate::Atan { alpha } => {
                let under = z.mul_scalar(0.5 * PI * alpha)?.square()?.add_scalar(1.0)?;
                dy.mul_scalar(0.5 * alpha)?.div(&under)?
            }
            Surrogate::FastSigmoid { slope } => {
                dy.div(&z.abs()?.mul_scalar(slope)?.add_scalar(1.0)?.square()?)?
            }
            Surrogate::Sigmoid { slope } => {
                let s = z.mul_scalar(slope)?.sigmoid()?;
                dy.mul_scalar(slope)?.mul(&s)?.mul(&s.rsub_scalar(1.0)?)?
            }
        };
        cx.give(0, dz)
    }
}
