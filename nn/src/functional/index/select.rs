//! Elements by masks and by tuples of indices.

use trefoil::DType;

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::elementwise::arithmetic::broadcast;

/// The front of a buffer whose count the device knows; waits for it.
pub(crate) fn front(all: &Tensor, count: &Tensor) -> Result<Tensor> {
    let n = usize::try_from(count.item::<i64>()?).unwrap_or(0);
    all.narrow(0, 0, n.min(all.shape()[0]))
}

impl Tensor {
    /// This tensor and a u8 mask, broadcast to one shape.
    fn with_mask(&self, op: &'static str, mask: &Tensor) -> Result<(Tensor, Tensor)> {
        same_device(op, self, mask)?;
        let shape = broadcast(op, self.shape(), mask.shape())?;
        Ok((self.expand(&shape)?, mask.expand(&shape)?.contiguous()?))
    }

    /// The elements whose mask (u8) is true, in row-major order, as a vector; both broadcast. How many they are is known to the device alone:
    /// the call waits for it and transfers that number. `torch.masked_select`.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let (x, mask) = self.with_mask("masked_select", mask)?;
        let (all, count) = (self.like(&[x.numel()])?, Tensor::empty(self.device(), DType::I64, &[1])?);
        let (m, xo, yo, n) = (mask.operand(), x.operand(), all.operand(), count.operand());
        self.device().masked_select(m.view()?, xo.view()?, yo.view_mut()?, n.view_mut()?)?;
        Ok(front(&all, &count)?.record("masked_select", &[&x], || {
            let mask = Saved::new(&mask);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, mask) = (cx.dy()?.contiguous()?, mask.get(cx)?.operand());
                Ok(dy.device().masked_select_bwd(mask.view()?, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// A copy with the elements whose mask (u8) is true replaced by those of `src`, in order; the mask broadcasts. A source that is too short
    /// is reported by the next call that waits. `Tensor.masked_scatter`.
    pub fn masked_scatter(&self, mask: &Tensor, src: &Tensor) -> Result<Tensor> {
        same_device("masked_scatter", self, src)?;
        let (x, mask) = self.with_mask("masked_scatter", mask)?;
        let src = src.contiguous()?;
        let y = x.detach().copy()?;
        let (m, so, yo) = (mask.operand(), src.operand(), y.operand());
        self.device().masked_scatter(m.view()?, so.view()?, yo.view_mut()?)?;
        let shape = src.shape().to_vec();
        Ok(y.record("masked_scatter", &[&x, &src], || {
            let mask = Saved::new(&mask);
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, mask) = (cx.dy()?.contiguous()?, mask.get(cx)?.clone());
                if cx.needs(0) {
                    cx.give(0, dy.masked_fill(&mask, 0.0)?)?;
                }
                if cx.needs(1) {
                    // Elements of the source that were not used get 0. The mask may choose more than the source has (an error that the
                    // forward reported), so the vector has room for all.
                    let used: usize = shape.iter().product();
                    let all = Tensor::zeros(dy.device(), dy.dtype(), &[dy.numel().max(used)])?;
                    let count = Tensor::empty(dy.device(), DType::I64, &[1])?;
                    let (m, d, a, n) = (mask.operand(), dy.operand(), all.operand(), count.operand());
                    dy.device().masked_select(m.view()?, d.view()?, a.view_mut()?, n.view_mut()?)?;
                    cx.give(1, all.narrow(0, 0, used)?.reshape(&shape)?)?;
                }
                Ok(())
            }
        }))
    }

    /// Positions (i64 `[n, rank]`, row-major) of the elements that are not 0. Waits for the device, which alone knows n. `torch.nonzero`.
    pub fn nonzero(&self) -> Result<Tensor> {
        let x = self.detach().contiguous()?;
        let all = Tensor::empty(self.device(), DType::I64, &[x.numel(), x.rank()])?;
        let count = Tensor::empty(self.device(), DType::I64, &[1])?;
        let (xo, io, n) = (x.operand(), all.operand(), count.operand());
        self.device().nonzero(xo.view()?, io.view_mut()?, n.view_mut()?)?;
        front(&all, &count)
    }

    /// Positions in the leading axes, one index tensor for each, as positions in those axes merged; -1 where one is out of range.
    fn merged_positions(&self, op: &'static str, indices: &[&Tensor]) -> Result<Tensor> {
        if indices.is_empty() || indices.len() > self.rank() {
            let expected = format!("1 to {} index tensors", self.rank());
            return Err(invalid(op, "indices", expected, format!("{}", indices.len())));
        }
        let mut at: Option<(Tensor, Tensor)> = None;
        for (i, &n) in indices.iter().zip(self.shape()) {
            same_device(op, self, i)?;
            if !i.dtype().is_index() {
                return Err(invalid(op, "indices", "i32 or i64", i.dtype().name()));
            }
            let i = i.detach().to_dtype(DType::I64)?;
            let fits = i.ge_scalar(0.0)?.logical_and(&i.lt_scalar(n as f64)?)?;
            at = Some(match at {
                None => (i, fits),
                Some((a, ok)) => {
                    let size = Tensor::full(self.device(), DType::I64, &[], n as f64)?;
                    (a.mul(&size)?.add(&i)?, ok.logical_and(&fits)?)
                }
            });
        }
        let Some((at, fits)) = at else { return Err(invalid(op, "indices", "at least one", "none")) };
        at.masked_fill(&fits.logical_not()?, -1.0)
    }

    /// `x[i0, i1, ..]`: index tensors for the leading axes broadcast together, the other axes follow. Oracle `torch.Tensor.__getitem__` with a
    /// tuple of index tensors (without negative ones). Out of range reads 0 and is reported by the next call that waits. Errors: no index
    /// tensor or more than axes, dtypes other than i32 and i64.
    #[doc(alias = "__getitem__")]
    pub fn index(&self, indices: &[&Tensor]) -> Result<Tensor> {
        let at = self.merged_positions("index", indices)?;
        let (lead, rest) = self.shape().split_at(indices.len());
        let rows = self.reshape(&[&[lead.iter().product()], rest].concat())?;
        let y = rows.index_select(0, &at.reshape(&[at.numel()])?)?;
        y.reshape(&[at.shape(), rest].concat())
    }

    /// A copy with `x[i0, i1, ..] = values`, or with them added where `accumulate` is set: index tensors for the leading axes broadcast
    /// together, and `values` to their shape followed by the other axes. Without `accumulate` the last of equal positions counts, and the
    /// gradient of `values` is that of the position for each of them. Oracle `torch.index_put`.
    pub fn index_put(&self, indices: &[&Tensor], values: &Tensor, accumulate: bool) -> Result<Tensor> {
        const OP: &str = "index_put";
        same_device(OP, self, values)?;
        let indices: Vec<Tensor> = indices.iter().map(|i| i.detach().contiguous()).collect::<Result<_>>()?;
        let mut common: Vec<usize> = vec![];
        for i in &indices {
            same_device(OP, self, i)?;
            common = broadcast(OP, &common, i.shape())?.to_vec();
        }
        let Some(rest) = self.shape().get(indices.len()..) else {
            let expected = format!("1 to {} index tensors", self.rank());
            return Err(invalid(OP, "indices", expected, format!("{}", indices.len())));
        };
        let v = values.expand(&[&common, rest].concat())?;
        let put = move |indices: &[Tensor], accumulate: bool, v: &Tensor, y: &Tensor| -> Result<()> {
            let ops: Vec<_> = indices.iter().map(Tensor::operand).collect();
            let views = ops.iter().map(|o| o.view()).collect::<Result<Vec<_>>>()?;
            let (vo, yo) = (v.operand(), y.operand());
            Ok(y.device().index_put(accumulate, &views, vo.view()?, yo.view_mut()?)?)
        };
        let y = self.detach().copy()?;
        put(&indices, accumulate, &v, &y)?;
        Ok(y.record(OP, &[self, &v], || {
            let saved: Vec<Saved> = indices.iter().map(Saved::new).collect();
            let shape = v.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                let indices = saved.iter().map(|s| s.get(cx).cloned()).collect::<Result<Vec<_>>>()?;
                if cx.needs(0) && accumulate {
                    cx.give(0, dy.clone())?;
                } else if cx.needs(0) && cx.create_graph() {
                    let zeros = Tensor::zeros(dy.device(), dy.dtype(), &shape)?;
                    let dx = dy.index_put(&indices.iter().collect::<Vec<_>>(), &zeros, false)?;
                    cx.give(0, dx)?;
                } else if cx.needs(0) {
                    let dx = dy.copy()?;
                    put(&indices, false, &Tensor::zeros(dy.device(), dy.dtype(), &shape)?, &dx)?;
                    cx.give(0, dx)?;
                }
                if cx.needs(1) {
                    let dv = dy.index(&indices.iter().collect::<Vec<_>>())?;
                    cx.give(1, dv)?;
                }
                Ok(())
            }
        }))
    }
}
