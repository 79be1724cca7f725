//! Random tensors and dropout, from counters: the same (seed, stream, offset) gives the same numbers on every backend.

mod dropout;
mod gumbel;

use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::random::{BiasDropout, Distribution, DropoutMask, Rng, Weights};

use crate::core::autograd::{BackwardCtx, Map, linear_map, out};
use crate::core::capture;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device};
use crate::functional::operand::{Inputs, operand, view, whole};

/// Numbers of inputs and outputs that a weight of this shape connects.
fn fans(op: &'static str, shape: &[usize]) -> Result<(f64, f64)> {
    let (o, i, inner) = match shape {
        [] => return Err(invalid(op, "shape", "at least one axis", "a scalar")),
        &[n] => (n, n, &[][..]),
        [o, i, inner @ ..] => (*o, *i, inner),
    };
    let taps: f64 = inner.iter().map(|&n| n as f64).product();
    let (fan_in, fan_out) = (i as f64 * taps, o as f64 * taps);
    if fan_in == 0.0 || fan_out == 0.0 {
        return Err(invalid(op, "shape", "sizes of at least 1", format!("{shape:?}")));
    }
    Ok((fan_in, fan_out))
}

/// x with the mask of a dropout, which is its own adjoint; can be differentiated.
fn dropped(x: &Tensor, p: f64, rng: Rng<'static>) -> Result<Tensor> {
    let mask: Map = Arc::new(move |x: &Tensor| {
        let (x, y) = (x.contiguous()?, x.like(x.shape())?);
        let (xo, yo) = (x.operand(), y.operand());
        x.device().dropout_bwd(p, DropoutMask::Regenerate(rng), xo.view()?, yo.grad(false)?)?;
        Ok(y)
    });
    linear_map("dropout", x, mask.clone(), mask)
}

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
        let cell = capture::cell(device, &rng)?;
        device.random(dist, capture::moved(rng, &cell)?, y.operand().view_mut()?)?;
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

    /// Uniform draws from [0, 1) of this tensor's shape, dtype and device.
    pub fn rand_like(&self, rng: Rng<'_>) -> Result<Tensor> {
        Tensor::rand(self.device(), self.dtype(), self.shape(), 0.0, 1.0, rng)
    }

    /// Standard normal draws of this tensor's shape, dtype and device.
    pub fn randn_like(&self, rng: Rng<'_>) -> Result<Tensor> {
        Tensor::randn(self.device(), self.dtype(), self.shape(), rng)
    }

    /// Weights `[out, in, ..]` from U(-a, a), a = sqrt(6 / (fan_in + fan_out)); Glorot and Bengio (2010), `xavier_uniform_`. Fans count the
    /// inner axes in, and both are n for a vector of n. Errors: a scalar, fans of 0.
    #[doc(alias = "glorot")]
    pub fn xavier_uniform(device: &Device, dtype: DType, shape: &[usize], rng: Rng<'_>) -> Result<Tensor> {
        let (fan_in, fan_out) = fans("xavier_uniform", shape)?;
        let a = (6.0 / (fan_in + fan_out)).sqrt();
        Tensor::rand(device, dtype, shape, -a, a, rng)
    }

    /// Weights `[out, in, ..]` from N(0, 2 / fan_in); He et al. (2015), `kaiming_normal_`. Fans as in
    /// [`xavier_uniform`](Tensor::xavier_uniform).
    #[doc(alias = "kaiming_normal")]
    #[doc(alias = "he_initialization")]
    pub fn he_normal(device: &Device, dtype: DType, shape: &[usize], rng: Rng<'_>) -> Result<Tensor> {
        let (fan_in, _) = fans("he_normal", shape)?;
        Tensor::random(
            device,
            dtype,
            shape,
            Distribution::Normal { mean: 0.0, std: (2.0 / fan_in).sqrt() },
            rng,
        )
    }

    /// Masks (u8) that are 1 with the probabilities in this tensor.
    pub fn bernoulli(&self, rng: Rng<'_>) -> Result<Tensor> {
        let p = self.detach().contiguous()?;
        let y = Tensor::empty(self.device(), DType::U8, self.shape())?;
        let cell = capture::cell(self.device(), &rng)?;
        let rng = capture::moved(rng, &cell)?;
        self.device().bernoulli(p.operand().view()?, rng, y.operand().view_mut()?)?;
        Ok(y)
    }

    /// `n` positions (i64 `[rows, n]`) for each row of weights `[rows, K]`, drawn with replacement in proportion to them. Errors: another rank;
    /// a row without weight is reported by the next call that waits.
    pub fn multinomial(&self, n: usize, rng: Rng<'_>) -> Result<Tensor> {
        let &[rows, _] = self.shape() else {
            return Err(invalid(
                "multinomial",
                "self",
                "weights [rows, K]",
                format!("shape {:?}", self.shape()),
            ));
        };
        let w = self.detach().contiguous()?;
        let y = Tensor::empty(self.device(), DType::I64, &[rows, n])?;
        let cell = capture::cell(self.device(), &rng)?;
        let rng = capture::moved(rng, &cell)?;
        self.device().categorical(Weights::Probs(w.operand().view()?), rng, y.operand().view_mut()?)?;
        Ok(y)
    }

    /// A random order of 0..n (i64).
    pub fn permutation(device: &Device, n: usize, rng: Rng<'_>) -> Result<Tensor> {
        let y = Tensor::empty(device, DType::I64, &[n])?;
        let cell = capture::cell(device, &rng)?;
        device.permutation(capture::moved(rng, &cell)?, y.operand().view_mut()?)?;
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
        let cell = capture::cell(self.device(), &rng)?;
        let drawn = capture::moved(rng, &cell)?;
        self.device().dropout(p, drawn, x.operand().view()?, y.operand().view_mut()?, None)?;
        let y = y.record("dropout", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = dropped(&cx.dy()?, p, rng)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let cell = capture::cell(dy.device(), &rng)?;
                let mask = DropoutMask::Regenerate(capture::moved(rng, &cell)?);
                Ok(dy.device().dropout_bwd(p, mask, dy.operand().view()?, dx.out()?)?)
            }
        });
        y.in_format(self.memory_format())
    }

    /// residual + dropout(x + bias): the bias `[F]` along the last axis is added to this tensor `[.., F]`, each element kept with
    /// probability 1 - p and divided by it or else 0, and the residual of this tensor's shape added, in one pass over floats. The backward
    /// draws the mask again from `rng`. Source the fused epilogue of transformer blocks (Megatron-LM). Errors: `Invalid` for p outside of
    /// [0, 1], shapes and dtypes that do not fit.
    pub fn bias_dropout(
        &self,
        bias: &Tensor,
        residual: Option<&Tensor>,
        p: f64,
        rng: Rng<'static>,
    ) -> Result<Tensor> {
        const OP: &str = "bias_dropout";
        for t in [Some(bias), residual].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        let (x, bias, residual) = (self.contiguous()?, bias.contiguous()?, whole(residual)?);
        let y = x.like(x.shape())?;
        let (xo, bo, ro, yo) = (x.operand(), bias.operand(), operand(residual.as_ref()), y.operand());
        let mut io = BiasDropout::new(xo.view()?, bo.view()?, yo.view_mut()?);
        io.residual = view(&ro)?;
        let cell = capture::cell(y.device(), &rng)?;
        y.device().bias_dropout(p, capture::moved(rng, &cell)?, io)?;
        let mut inputs = Inputs { list: vec![&x, &bias] };
        let ir = inputs.push(residual.as_ref());
        Ok(y.record(OP, &inputs.list, || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dy = cx.dy()?;
                    let dx = dropped(&dy, p, rng)?;
                    cx.give(ir, dy)?;
                    let db = dx.sum_to_shape(&dx.shape()[dx.rank() - 1..])?;
                    cx.give(0, dx)?;
                    return cx.give(1, db);
                }
                let (dx, db) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let cell = capture::cell(dy.device(), &rng)?;
                let mask = DropoutMask::Regenerate(capture::moved(rng, &cell)?);
                dy.device().bias_dropout_bwd(p, mask, dy.operand().view()?, out(&dx)?, out(&db)?)?;
                cx.give(ir, dy)
            }
        }))
    }
}
