//! Random tensors and dropout, from counters: the same (seed, stream, offset) gives the same numbers on every backend.

use trefoil::DType;
use trefoil::ops::{Distribution, DropoutMask, Rng};

use crate::autograd::BackwardCtx;
use crate::error::{Result, invalid};
use crate::tensor::{Device, Tensor};

impl Tensor {
    /// Independent draws of a distribution.
    pub fn random(
        device: &Device,
        dtype: DType,
        shape: &[usize],
        dist: Distribution,
        rng: Rng<'_>,
    ) -> Result<Tensor> {
        let y = Tensor::empty(device, dtype, shape)?;
        device.random(dist, rng, y.operand().view_mut()?)?;
        Ok(y)
    }

    /// Uniform draws from [lo, hi).
    pub fn rand(
        device: &Device,
        dtype: DType,
        shape: &[usize],
        lo: f64,
        hi: f64,
        rng: Rng<'_>,
    ) -> Result<Tensor> {
        Tensor::random(device, dtype, shape, Distribution::Uniform { lo, hi }, rng)
    }

    /// Standard normal draws.
    pub fn randn(device: &Device, dtype: DType, shape: &[usize], rng: Rng<'_>) -> Result<Tensor> {
        Tensor::random(device, dtype, shape, Distribution::Normal { mean: 0.0, std: 1.0 }, rng)
    }

    /// A random order of 0..n (i64).
    pub fn permutation(device: &Device, n: usize, rng: Rng<'_>) -> Result<Tensor> {
        let y = Tensor::empty(device, DType::I64, &[n])?;
        device.permutation(rng, y.operand().view_mut()?)?;
        Ok(y)
    }

    /// Each element kept with probability 1 - p and divided by it, 0 otherwise. The backward draws the same mask again from `rng`, which
    /// must not refer to a device offset. Consumes ceil(numel/4) blocks. Errors: p outside of [0, 1].
    pub fn dropout(&self, p: f64, rng: Rng<'static>) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(invalid("dropout", "p", "a probability in [0, 1]", format!("{p}")));
        }
        if p == 0.0 {
            return Ok(self.clone());
        }
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        self.device().dropout(p, rng, x.operand().view()?, y.operand().view_mut()?, None)?;
        Ok(y.record("dropout", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let mask = DropoutMask::Regenerate(rng);
                Ok(dy.device().dropout_bwd(p, mask, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }
}
