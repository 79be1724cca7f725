//! Normalizations as compositions.

use trefoil::ops::norm::{BatchNorm, GroupNorm, RowNorm};

use super::activation::composed;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

fn affine(y: Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = weight.map_or_else(|| Ok(y.clone()), |w| y.mul(w))?;
    bias.map_or_else(|| Ok(y.clone()), |b| y.add(b))
}

/// x without its mean, times 1 / sqrt(variance + eps), along axes.
fn standardized(x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    let d = x.sub(&x.mean_axes(axes, true)?)?;
    d.mul(&d.square()?.mean_axes(axes, true)?.add_scalar(eps)?.rsqrt()?)
}

/// Layer and RMS normalization.
pub(crate) fn row(p: &RowNorm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let axes: Vec<isize> = (1..=p.axes as isize).map(|i| -i).collect();
    let y = match p.rms {
        true => x.mul(&x.square()?.mean_axes(&axes, true)?.add_scalar(p.eps)?.rsqrt()?)?,
        false => standardized(x, &axes, p.eps)?,
    };
    let weight = match weight {
        Some(w) if p.gamma_offset != 0.0 => Some(w.add_scalar(p.gamma_offset)?),
        w => w.cloned(),
    };
    composed(p.act, &affine(y, weight.as_ref(), bias)?)
}

/// A vector `[C]` as it broadcasts over `[N, C, S..]`.
fn channels(t: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank];
    shape[1] = t.numel();
    t.reshape(&shape)
}

fn per_channel(x: &Tensor, y: Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let [weight, bias] = [weight, bias].map(|t| t.map(|t| channels(t, x.rank())).transpose());
    affine(y, weight?.as_ref(), bias?.as_ref())
}

/// Group and instance normalization.
pub(crate) fn group(
    p: &GroupNorm,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let n = x.shape()[0];
    let rows = x.reshape(&[n, p.groups, x.numel().checked_div(n * p.groups).unwrap_or(0)])?;
    let y = standardized(&rows, &[-1], p.eps)?.reshape(x.shape())?;
    composed(p.act, &per_channel(x, y, weight, bias)?)
}

/// Batch normalization by the statistics of the batch, or by a given mean and reciprocal standard deviation `[C]`.
pub(crate) fn batch(
    p: &BatchNorm,
    x: &Tensor,
    given: Option<[&Tensor; 2]>,
    residual: Option<&Tensor>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let y = match given {
        Some([mean, rstd]) => x.sub(&channels(mean, x.rank())?)?.mul(&channels(rstd, x.rank())?)?,
        None => {
            let axes: Vec<isize> = (0..x.rank() as isize).filter(|&i| i != 1).collect();
            standardized(x, &axes, p.eps)?
        }
    };
    let y = per_channel(x, y, weight, bias)?;
    let y = residual.map_or_else(|| Ok(y.clone()), |r| y.add(r))?;
    composed(p.act, &y)
}
