//! Pooling over windows, over as many windows as the output has cells, and over whole planes.

mod windows;

use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::pool::{Pooling, Window};

use crate::core::autograd::{BackwardCtx, Saved, grad_enabled, linear_map};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// Shape [N, C, windows..] of a pooling of x [N, C, spatial..].
fn pooled(
    op: &'static str,
    x: &Tensor,
    size: impl FnOnce(&[usize]) -> Result<Vec<usize>>,
) -> Result<Vec<usize>> {
    match x.shape() {
        [n, c, spatial @ ..] if (1..=3).contains(&spatial.len()) => {
            Ok([&[*n, *c], size(spatial)?.as_slice()].concat())
        }
        other => {
            let expected = "shape [N, C, spatial..] with one to three spatial axes";
            Err(invalid(op, "x", expected, format!("{other:?}")))
        }
    }
}

fn sliding(op: &'static str, x: &Tensor, w: &Window) -> Result<Vec<usize>> {
    pooled(op, x, |spatial| Ok(w.output_size(spatial)?.to_vec()))
}

fn adaptive(op: &'static str, x: &Tensor, size: &[usize]) -> Result<Vec<usize>> {
    pooled(op, x, |spatial| match size.len() == spatial.len() {
        true => Ok(size.to_vec()),
        false => {
            Err(invalid(op, "size", format!("{} sizes, one per axis", spatial.len()), format!("{size:?}")))
        }
    })
}

impl Tensor {
    /// Maxima of windows, [N, C, spatial..] -> [N, C, windows..]; padding is never chosen; of equal elements the first is chosen and
    /// receives the gradient; NaN counts as the largest. Oracle `F.max_pool1d`, `2d`, `3d`. Errors: `Invalid` for windows that do not fit.
    pub fn max_pool(&self, window: &Window) -> Result<Tensor> {
        let tracked = grad_enabled() && self.requires_grad();
        Ok(self.max_over((*window).into(), &sliding("max_pool", self, window)?, tracked)?.0)
    }

    /// As [`max_pool`](Tensor::max_pool), with the positions of the maxima in their planes (i32, row-major over the unpadded axes).
    pub fn max_pool_with_index(&self, window: &Window) -> Result<(Tensor, Tensor)> {
        let (y, index) = self.max_over((*window).into(), &sliding("max_pool", self, window)?, true)?;
        Ok((y, index.unwrap_or_else(|| unreachable!("asked for"))))
    }

    /// Maxima of `size` windows that cover the plane: window i of m over n cells is [floor(i n / m), ceil((i + 1) n / m)). Oracle
    /// `F.adaptive_max_pool1d`, `2d`, `3d`. Errors: `Invalid` for rank or sizes of 0.
    pub fn adaptive_max_pool(&self, size: &[usize]) -> Result<Tensor> {
        let tracked = grad_enabled() && self.requires_grad();
        let shape = adaptive("adaptive_max_pool", self, size)?;
        Ok(self.max_over(Pooling::Adaptive, &shape, tracked)?.0)
    }

    /// As [`adaptive_max_pool`](Tensor::adaptive_max_pool), with the positions of the maxima in their planes (i32).
    pub fn adaptive_max_pool_with_index(&self, size: &[usize]) -> Result<(Tensor, Tensor)> {
        let shape = adaptive("adaptive_max_pool", self, size)?;
        let (y, index) = self.max_over(Pooling::Adaptive, &shape, true)?;
        Ok((y, index.unwrap_or_else(|| unreachable!("asked for"))))
    }

    fn max_over(
        &self,
        windows: Pooling,
        shape: &[usize],
        with_index: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let x = self.contiguous()?;
        let y = self.like(shape)?;
        let index = match with_index {
            true => Some(Tensor::empty(self.device(), DType::I32, shape)?),
            false => None,
        };
        let io = index.as_ref().map(Tensor::operand);
        let into = io.as_ref().map(|i| i.view_mut()).transpose()?;
        self.device().max_pool(windows, x.operand().view()?, y.operand().view_mut()?, into)?;
        let Some(index) = index else { return Ok((y.in_format(self.memory_format())?, None)) };
        let y = y.record("max_pool", &[self], || {
            let index = Saved::new(&index);
            let full = x.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (n, c, size) = (full[0], full[1], index.any().shape().to_vec());
                    let flat = [n, c, size[2..].iter().product()];
                    let places = index.get(cx)?.reshape(&flat)?;
                    let dy = cx.dy()?.reshape(&flat)?;
                    let planes = Tensor::zeros(dy.device(), dy.dtype(), &[n, c, full[2..].iter().product()])?;
                    return cx.give(0, planes.scatter_add(2, &places, &dy)?.reshape(&full)?);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, index) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                Ok(dy.device().max_pool_bwd(windows, dy.operand().view()?, index.view()?, dx.out()?)?)
            }
        });
        Ok((y.in_format(self.memory_format())?, Some(index)))
    }

    /// Means of windows, [N, C, spatial..] -> [N, C, windows..]. Oracle `F.avg_pool1d`, `2d`, `3d`. Errors: `Invalid` for windows that do
    /// not fit, or dilation.
    pub fn avg_pool(&self, window: &Window) -> Result<Tensor> {
        self.mean_over((*window).into(), &sliding("avg_pool", self, window)?)
    }

    /// Means of `size` windows that cover the plane, as in [`adaptive_max_pool`](Tensor::adaptive_max_pool). Oracle
    /// `F.adaptive_avg_pool1d`, `2d`, `3d`. Errors: `Invalid` for rank or sizes of 0.
    pub fn adaptive_avg_pool(&self, size: &[usize]) -> Result<Tensor> {
        self.mean_over(Pooling::Adaptive, &adaptive("adaptive_avg_pool", self, size)?)
    }

    fn mean_over(&self, windows: Pooling, shape: &[usize]) -> Result<Tensor> {
        let x = self.contiguous()?;
        let y = self.like(shape)?;
        self.device().avg_pool(windows, x.operand().view()?, y.operand().view_mut()?)?;
        let y = y.record("avg_pool", &[self], || {
            let (full, size) = (self.shape().to_vec(), shape.to_vec());
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, full, size) = (cx.dy()?, full.clone(), size.clone());
                    let put = move |dy: &Tensor| {
                        let (dy, dx) = (dy.contiguous()?, dy.like(&full)?);
                        dy.device().avg_pool_bwd(windows, dy.operand().view()?, dx.operand().grad(false)?)?;
                        Ok(dx)
                    };
                    let take = move |u: &Tensor| u.mean_over(windows, &size);
                    return cx.give(0, linear_map("avg_pool", &dy, Arc::new(put), Arc::new(take))?);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().avg_pool_bwd(windows, dy.operand().view()?, dx.out()?)?)
            }
        });
        y.in_format(self.memory_format())
    }

    /// Mean of each plane, [N, C, spatial..] -> [N, C]. Errors: `Invalid` for rank or empty planes.
    pub fn global_avg_pool(&self) -> Result<Tensor> {
        self.whole_planes("global_avg_pool")?.mean_axes(&[-1], false)
    }

    /// Maximum of each plane, [N, C, spatial..] -> [N, C]; the first of equals receives the gradient. Errors: as for
    /// [`global_avg_pool`](Tensor::global_avg_pool).
    pub fn global_max_pool(&self) -> Result<Tensor> {
        Ok(self.whole_planes("global_max_pool")?.max_with_index(-1)?.0)
    }

    /// [N, C, cells of a plane].
    fn whole_planes(&self, op: &'static str) -> Result<Tensor> {
        let shape = pooled(op, self, |spatial| Ok(vec![spatial.iter().product()]))?;
        if shape[2] == 0 {
            return Err(invalid(op, "x", "planes of at least one cell", format!("shape {:?}", self.shape())));
        }
        self.reshape(&shape)
    }
}
