//! Buffers with shapes, and lists of optional operands with their gradients.

use trefoil::{Buffer, DType, GradMut, Result, View};

use crate::Context;

/// A buffer and the shape that it is used with.
pub(super) struct Shaped {
    pub(super) data: Buffer,
    pub(super) shape: Vec<usize>,
}

impl Shaped {
    pub(super) fn normal(cx: &Context<'_>, dtype: DType, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: cx.normal(dtype, shape.iter().product())?, shape: shape.to_vec() })
    }

    pub(super) fn positive(cx: &Context<'_>, dtype: DType, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: cx.positive(dtype, shape.iter().product())?, shape: shape.to_vec() })
    }

    pub(super) fn ids(cx: &Context<'_>, below: usize, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: cx.ids(shape.iter().product(), below)?, shape: shape.to_vec() })
    }

    pub(super) fn view(&self) -> Result<View<'_>> {
        self.data.shaped(&self.shape)
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.len() * self.data.dtype().size()
    }
}

pub(super) type Operands<const N: usize> = [Option<Shaped>; N];
pub(super) type Buffers<const N: usize> = [Option<Buffer>; N];

pub(super) fn views<const N: usize>(x: &Operands<N>) -> Result<[Option<View<'_>>; N]> {
    let mut out = [None; N];
    for (o, v) in out.iter_mut().zip(x) {
        *o = v.as_ref().map(Shaped::view).transpose()?;
    }
    Ok(out)
}

/// Buffers for the gradients of the operands whose places are listed.
pub(super) fn gradients<const N: usize>(
    cx: &Context<'_>,
    x: &Operands<N>,
    places: &[usize],
) -> Result<Buffers<N>> {
    let mut out = [const { None }; N];
    for &i in places {
        out[i] = x[i].as_ref().map(|v| cx.empty(v.data.dtype(), v.data.len())).transpose()?;
    }
    Ok(out)
}

pub(super) fn gradient_views<'a, const N: usize>(
    x: &Operands<N>,
    dx: &'a mut Buffers<N>,
) -> Result<[Option<GradMut<'a>>; N]> {
    let mut out = [const { None }; N];
    for ((o, x), d) in out.iter_mut().zip(x).zip(dx) {
        if let (Some(x), Some(d)) = (x, d) {
            *o = Some(d.shaped_mut(&x.shape)?.into());
        }
    }
    Ok(out)
}

pub(super) fn traffic<const N: usize>(x: &Operands<N>, dx: &Buffers<N>) -> usize {
    let inputs: usize = x.iter().flatten().map(Shaped::bytes).sum();
    inputs + dx.iter().flatten().map(|d| d.len() * d.dtype().size()).sum::<usize>()
}
