//! Gather and scatter along an axis. Indices are i32 or i64. What is out of range reads 0, writes nothing, and is reported by the next call
//! that waits for the device.

use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::index::{ScatterReduce, ScatterReduceBwd};

use crate::core::autograd::{BackwardCtx, Saved, linear_map, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};

/// The elements of `dy` that a scatter wrote, 0 for sources that later ones replaced, which can be differentiated.
fn scatter_adjoint(at: usize, dy: &Tensor, index: &Tensor) -> Result<Tensor> {
    let (full, ix, back) = (dy.shape().to_vec(), index.clone(), index.clone());
    let take = move |dy: &Tensor| {
        let (dy, ds) = (dy.contiguous()?, dy.like(ix.shape())?);
        let [dyo, io, so] = [&dy, &ix, &ds].map(Tensor::operand);
        dy.device().scatter_bwd(at, dyo.view()?, io.view()?, None, Some(so.grad(false)?))?;
        Ok(ds)
    };
    let put = move |u: &Tensor| Tensor::zeros(u.device(), u.dtype(), &full)?.scatter(at as isize, &back, u);
    linear_map("scatter", dy, Arc::new(take), Arc::new(put))
}

impl Tensor {
    /// Rows `index` (a vector) of an axis.
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
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, index) = (cx.dy()?, index.get(cx)?);
                    let zeros = Tensor::zeros(dy.device(), dy.dtype(), &full)?;
                    let dx = zeros.index_add(at as isize, index, &dy)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                dx.prepare()?;
                let (dy, ix) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                let dst = dx.tensor().operand();
                Ok(dy.device().index_add(at, 1.0, ix.view()?, dy.operand().view()?, dst.view_mut()?)?)
            }
        }))
    }

    /// `y[p] = x[p with p[axis] replaced by index[p]]`.
    #[doc(alias = "take_along_dim")]
    pub fn gather(&self, along: isize, index: &Tensor) -> Result<Tensor> {
        same_device("gather", self, index)?;
        let at = axis("gather", along, self.rank())?;
        let (x, ix) = (self.contiguous()?, index.contiguous()?);
        let y = self.like(index.shape())?;
        self.device().gather(at, x.operand().view()?, ix.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("gather", &[self], || {
            let index = Saved::new(&ix);
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, index) = (cx.dy()?, index.get(cx)?);
                    let zeros = Tensor::zeros(dy.device(), dy.dtype(), &full)?;
                    let dx = zeros.scatter_add(at as isize, index, &dy)?;
                    return cx.give(0, dx);
                }
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
                if cx.create_graph() {
                    let ds = dy.index_select(at as isize, index.get(cx)?)?;
                    return cx.give(1, ds);
                }
                if let Some(ds) = cx.target(1)? {
                    let ix = index.get(cx)?.operand();
                    dy.device().index_select(at, dy.operand().view()?, ix.view()?, ds.out()?)?;
                }
                Ok(())
            }
        }))
    }

    /// A copy of this tensor with its rows `index` along an axis replaced by those of `src`; the last of equal indices counts. Equal indices
    /// all get the gradient of the row that counts.
    pub fn index_copy(&self, along: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        same_device("index_copy", self, index)?;
        same_device("index_copy", self, src)?;
        let at = axis("index_copy", along, self.rank())?;
        let (ix, s) = (index.contiguous()?, src.contiguous()?);
        let y = self.detach().copy()?;
        let (io, so, yo) = (ix.operand(), s.operand(), y.operand());
        self.device().index_copy(at, io.view()?, so.view()?, yo.view_mut()?)?;
        Ok(y.record("index_copy", &[self, src], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, ix) = (cx.dy()?.contiguous()?, index.get(cx)?.clone());
                if cx.needs(0) {
                    cx.give(0, dy.index_fill(at as isize, &ix, 0.0)?)?;
                }
                if cx.create_graph() {
                    return cx.give(1, dy.index_select(at as isize, &ix)?);
                }
                if let Some(ds) = cx.target(1)? {
                    dy.device().index_select(at, dy.operand().view()?, ix.operand().view()?, ds.out()?)?;
                }
                Ok(())
            }
        }))
    }

    /// A copy of this tensor with `value` in its rows `index` along an axis.
    pub fn index_fill(&self, along: isize, index: &Tensor, value: f64) -> Result<Tensor> {
        same_device("index_fill", self, index)?;
        let at = axis("index_fill", along, self.rank())?;
        let ix = index.contiguous()?;
        let y = self.detach().copy()?;
        self.device().index_fill(at, value, ix.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("index_fill", &[self], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.index_fill(at as isize, index.get(cx)?, 0.0)?;
                cx.give(0, dx)
            }
        }))
    }

    /// A copy of this tensor with `y[p with p[axis] replaced by index[p]] = src[p]`, `src` of index's shape; of several for one place the
    /// last in row-major order counts.
    pub fn scatter(&self, along: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        same_device("scatter", self, index)?;
        same_device("scatter", self, src)?;
        let at = axis("scatter", along, self.rank())?;
        let (ix, s) = (index.contiguous()?, src.contiguous()?);
        let y = self.detach().copy()?;
        let (io, so, yo) = (ix.operand(), s.operand(), y.operand());
        self.device().scatter(at, io.view()?, so.view()?, yo.view_mut()?)?;
        Ok(y.record("scatter", &[self, src], || {
            let index = Saved::new(&ix);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, index) = (cx.dy()?, index.get(cx)?);
                    let zeros = Tensor::zeros(dy.device(), dy.dtype(), index.shape())?;
                    cx.give(0, dy.scatter(at as isize, index, &zeros)?)?;
                    let ds = scatter_adjoint(at, &dy, index)?;
                    return cx.give(1, ds);
                }
                let (dx, ds) = (cx.target(0)?, cx.target(1)?);
                let (dy, ix) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                Ok(dy.device().scatter_bwd(at, dy.operand().view()?, ix.view()?, out(&dx)?, out(&ds)?)?)
            }
        }))
    }

    /// A copy of this tensor with `src[p]` added to the element that `index[p]` names along an axis.
    pub fn scatter_add(&self, along: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.scatter_reduce(ScatterReduce::Sum, along, index, src, true)
    }

    /// The elements of `src` that `index` sends to the same place along an axis, combined by `how`; with `include_self` this tensor's element
    /// takes part, otherwise it stays only where nothing arrives.
    pub fn scatter_reduce(
        &self,
        how: ScatterReduce,
        along: isize,
        index: &Tensor,
        src: &Tensor,
        include_self: bool,
    ) -> Result<Tensor> {
        same_device("scatter_reduce", self, index)?;
        same_device("scatter_reduce", self, src)?;
        let at = axis("scatter_reduce", along, self.rank())?;
        let (x, ix, s) = (self.contiguous()?, index.contiguous()?, src.contiguous()?);
        let y = self.detach().copy()?;
        let (io, so, yo) = (ix.operand(), s.operand(), y.operand());
        self.device().scatter_reduce(how, at, include_self, io.view()?, so.view()?, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("scatter_reduce", &[self, src], || {
            let [x, ix, s, y] = [&x, &ix, &s, &plain].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() && how == ScatterReduce::Sum && include_self {
                    let (dy, index) = (cx.dy()?, ix.get(cx)?);
                    cx.give(0, dy.clone())?;
                    return cx.give(1, dy.gather(at as isize, index)?);
                }
                let (dx, ds) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, ix) = (x.get(cx)?.operand(), ix.get(cx)?.operand());
                let (s, y, dyo) = (s.get(cx)?.operand(), y.get(cx)?.operand(), dy.operand());
                let io = ScatterReduceBwd::new(dyo.view()?, x.view()?, ix.view()?, s.view()?, y.view()?)
                    .dx(out(&dx)?)
                    .dsrc(out(&ds)?);
                Ok(dy.device().scatter_reduce_bwd(how, at, include_self, io)?)
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
