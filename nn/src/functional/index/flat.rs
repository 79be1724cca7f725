//! Elements by their row-major positions, rows by masks, and reductions by index.

use trefoil::DType;
use trefoil::ops::index::ScatterReduce;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// This tensor as a vector, and positions in it of which negative ones counted from the end.
    fn flat_positions(&self, op: &'static str, index: &Tensor) -> Result<[Tensor; 2]> {
        same_device(op, self, index)?;
        let index = index.detach().to_dtype(DType::I64)?;
        let from_end = index.add_scalar(self.numel() as f64)?;
        let index = from_end.where_(&index.lt_scalar(0.0)?, &index)?;
        Ok([self.reshape(&[self.numel()])?, index])
    }

    /// The elements at row-major positions, in the shape of `index` (integers, negative ones count from the end). Out of range reads 0 and is
    /// reported by the next call that waits. Source `torch.take`.
    pub fn take(&self, index: &Tensor) -> Result<Tensor> {
        let [flat, index] = self.flat_positions("take", index)?;
        flat.index(&[&index])
    }

    /// A copy in which the elements at row-major positions `index` (integers, negative ones count from the end) are those of `src`, in order, or
    /// have them added where `accumulate` is set. Of equal positions the last counts. Source `torch.Tensor.put_`. Errors: another number of
    /// elements in `src`.
    pub fn put(&self, index: &Tensor, src: &Tensor, accumulate: bool) -> Result<Tensor> {
        if src.numel() != index.numel() {
            let expected = format!("{} elements, as the index has", index.numel());
            return Err(invalid("put", "src", expected, format!("{}", src.numel())));
        }
        let [flat, index] = self.flat_positions("put", index)?;
        flat.index_put(&[&index], &src.reshape(index.shape())?, accumulate)?.reshape(self.shape())
    }

    /// `x[mask]` for a u8 mask of the leading axes: the parts whose mask is true, `[count, other axes..]`. Waits for the device, which alone knows
    /// the count. Source `torch.Tensor.__getitem__` with a boolean tensor. Errors: a mask of another shape than the leading axes, other dtypes.
    pub fn index_mask(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "index_mask";
        same_device(OP, self, mask)?;
        let Some(rest) = self.shape().strip_prefix(mask.shape()).filter(|_| mask.dtype() == DType::U8) else {
            let expected = format!("a u8 mask of the leading axes of {:?}", self.shape());
            return Err(invalid(OP, "mask", expected, format!("{} {:?}", mask.dtype(), mask.shape())));
        };
        let rows = mask.reshape(&[mask.numel()])?.nonzero()?.select(1, 0)?.contiguous()?;
        self.reshape(&[&[mask.numel()], rest].concat())?.index_select(0, &rows)
    }

    /// The rows of `src` that `index` (a vector) sends to the same row of an axis, combined by `how`; with `include_self` this tensor's row takes
    /// part, otherwise it stays only where nothing arrives. Source `torch.index_reduce`. Errors: an index that is no vector or of another length
    /// than the axis of `src`.
    pub fn index_reduce(
        &self,
        along: isize,
        index: &Tensor,
        src: &Tensor,
        how: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor> {
        const OP: &str = "index_reduce";
        let at = axis(OP, along, self.rank())?;
        if src.rank() != self.rank() || index.shape() != [src.shape()[at]] {
            let expected = format!("one position for each row of axis {at} of {:?}", src.shape());
            return Err(invalid(OP, "index", expected, format!("shape {:?}", index.shape())));
        }
        let mut shape = vec![1; self.rank()];
        shape[at] = index.numel();
        let index = index.reshape(&shape)?.expand(src.shape())?;
        self.scatter_reduce(how, along, &index, src, include_self)
    }
}
