//! Gather and scatter along an axis. Indices are i32 or i64.

use trefoil::DType;
use trefoil::ops::ScatterReduce;

use crate::autograd::{BackwardCtx, Saved};
use crate::error::{Result, invalid};
use crate::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// Rows `index` (a vector) of an axis. Indices out of range read 0 and are reported by the next call that waits.
    pub fn index_select(&self, along: isize, index: &Tensor) -> Result<Tensor> {
        same_device("index_select", self, index)?;
        let at = axis("index_select", along, self.rank())?;
        if index.rank() != 1 {
            return Err(invalid("index_select", "index", "a vector", format!("shape {:?}", index.shape())));
        }
        let mut shape = self.shape().to_vec();
        shape[at] = index.numel();
        let (x, ix) = (self.contiguous()?, index.contiguous()?);
        let y = self.like(&shape)?;
        self.device().index_select(
            at,
            x.operand().view()?,
            ix.operand().view()?,
            y.operand().grad(false)?,
        )?;
        Ok(y.record("index_select", &[self], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                dx.prepare()?;
                let (dy, ix) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                let dst = dx.tensor().operand();
                Ok(dy.device().index_add(at, 1.0, ix.view()?, dy.operand().view()?, dst.view_mut()?)?)
            }
        }))
    }

    /// `y[p] = x[p with p[axis] replaced by index[p]]`.
    pub fn gather(&self, along: isize, index: &Tensor) -> Result<Tensor> {
        same_device("gather", self, index)?;
        let at = axis("gather", along, self.rank())?;
        let (x, ix) = (self.contiguous()?, index.contiguous()?);
        let y = self.like(index.shape())?;
        self.device().gather(at, x.operand().view()?, ix.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("gather", &[self], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                dx.prepare()?;
                let (dy, ix) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                let dst = dx.tensor().operand();
                let (src, dst) = (dy.operand(), dst.view_mut()?);
                Ok(dy.device().scatter_reduce(ScatterReduce::Sum, at, true, ix.view()?, src.view()?, dst)?)
            }
        }))
    }

    /// A copy of this tensor with `src` added to its rows `index` along an axis.
    pub fn index_add(&self, along: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        same_device("index_add", self, index)?;
        same_device("index_add", self, src)?;
        let at = axis("index_add", along, self.rank())?;
        let (ix, s) = (index.contiguous()?, src.contiguous()?);
        let y = self.detach().copy()?;
        let (io, so, yo) = (ix.operand(), s.operand(), y.operand());
        self.device().index_add(at, 1.0, io.view()?, so.view()?, yo.view_mut()?)?;
        Ok(y.record("index_add", &[self, src], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?.contiguous()?;
                cx.give(0, dy.clone())?;
                if let Some(ds) = cx.target(1)? {
                    let ix = index.get(cx)?.operand();
                    dy.device().index_select(at, dy.operand().view()?, ix.view()?, ds.out()?)?;
                }
                Ok(())
            }
        }))
    }

    /// One-hot rows of class ids: `[..] -> [.., classes]` in `dtype`. An id out of range gives zeros.
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        let shape = [self.shape(), &[classes]].concat();
        let x = self.contiguous()?;
        let y = Tensor::empty(self.device(), dtype, &shape)?;
        self.device().one_hot(x.operand().view()?, y.operand().view_mut()?)?;
        Ok(y)
    }
}
