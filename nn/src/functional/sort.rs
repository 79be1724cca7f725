//! Order and running sums: sort, top-k, search, prefix sums, segments.

mod histogram;
mod order;
mod unique;

pub use self::histogram::Histogram;
pub use self::order::QuantileInterpolation;
pub use self::unique::Unique;

use trefoil::DType;
use trefoil::ops::scan::{CumSum, SegmentReduce, SegmentReduceBwd};
use trefoil::ops::sort::SortIo;

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};
use crate::functional::operand::{operand, view, whole};

impl Tensor {
    /// Values in order along an axis, and where they were (i64). Stable; NaN counts as the largest. The gradient goes back to those places.
    pub fn sort(&self, along: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        let at = axis("sort", along, self.rank())?;
        let x = self.contiguous()?;
        let (y, index) = (self.like(self.shape())?, Tensor::empty(self.device(), DType::I64, self.shape())?);
        let (xo, yo, io) = (x.operand(), y.operand(), index.operand());
        let io = SortIo::new(xo.view()?).y(yo.view_mut()?).index(io.view_mut()?);
        self.device().sort(at, descending, io)?;
        Ok((y.ordered(self, at, &index), index))
    }

    /// Records values that stood at `index` of `x`.
    fn ordered(self, x: &Tensor, at: usize, index: &Tensor) -> Tensor {
        self.record("sort", &[x], || {
            let index = Saved::new(index);
            let full = x.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dy = cx.dy()?;
                    let zeros = Tensor::zeros(dy.device(), dy.dtype(), &full)?;
                    let dx = zeros.scatter(at as isize, index.get(cx)?, &dy)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, index) = (cx.dy()?.contiguous()?, index.get(cx)?.operand());
                Ok(dy.device().sort_bwd(at, dy.operand().view()?, index.view()?, dx.out()?)?)
            }
        })
    }

    /// Positions (i64) that sort an axis.
    pub fn argsort(&self, along: isize, descending: bool) -> Result<Tensor> {
        let at = axis("argsort", along, self.rank())?;
        let x = self.detach().contiguous()?;
        let index = Tensor::empty(self.device(), DType::I64, self.shape())?;
        let (xo, io) = (x.operand(), index.operand());
        self.device().sort(at, descending, SortIo::new(xo.view()?).index(io.view_mut()?))?;
        Ok(index)
    }

    /// The `k` largest (smallest) values of an axis in order, and their positions (i64). Errors: `k` above the size of the axis.
    pub fn topk(&self, k: usize, along: isize, largest: bool) -> Result<(Tensor, Tensor)> {
        let at = axis("topk", along, self.rank())?;
        let mut shape = self.shape().to_vec();
        if k > shape[at] {
            return Err(invalid("topk", "k", format!("at most {}", shape[at]), format!("{k}")));
        }
        shape[at] = k;
        let x = self.contiguous()?;
        let (y, index) = (self.like(&shape)?, Tensor::empty(self.device(), DType::I64, &shape)?);
        let (xo, yo, io) = (x.operand(), y.operand(), index.operand());
        self.device().topk(at, largest, xo.view()?, yo.view_mut()?, io.view_mut()?)?;
        Ok((y.ordered(self, at, &index), index))
    }

    /// Where each of `values` (i64 positions of their shape) would be inserted into this tensor, sorted along its last axis: before equal
    /// ones, or behind them with `right`. Oracle `torch.searchsorted`.
    #[doc(alias = "searchsorted")]
    #[doc(alias = "bucketize")]
    pub fn search_sorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        same_device("search_sorted", self, values)?;
        let (sorted, v) = (self.detach().contiguous()?, values.detach().contiguous()?);
        let index = Tensor::empty(self.device(), DType::I64, values.shape())?;
        let (so, vo, io) = (sorted.operand(), v.operand(), index.operand());
        self.device().search_sorted(right, so.view()?, vo.view()?, io.view_mut()?)?;
        Ok(index)
    }

    /// Assignment of least cost: for problems `[B, R, C]`, or one `[R, C]`, of this tensor, floats, the column (i64 `[B, R]` or `[R]`) of each
    /// row, such that no two rows have one column and the sum of their costs is the smallest. As many rows have one as the smaller side is
    /// long, the others -1. With `counts` (i32 or i64 `[B]`) only the first rows of each problem take part. A cost that is not finite forbids
    /// the pair. Exact up to rounding; stays on the device; no gradient. Source `scipy.optimize.linear_sum_assignment`. Errors: `Invalid` for
    /// shapes and dtypes that do not fit, sides from 2^24 on; a count out of range is reported when the device is next waited for.
    pub fn linear_assignment(&self, counts: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "linear_assignment";
        if let Some(c) = counts {
            same_device(OP, self, c)?;
        }
        let cost = self.detach().contiguous()?;
        let cost = if let &[r, c] = cost.shape() { cost.reshape(&[1, r, c])? } else { cost };
        let &[problems, rows, _] = cost.shape() else {
            return Err(invalid(OP, "cost", "shape [B, R, C] or [R, C]", format!("{:?}", self.shape())));
        };
        let counts = whole(counts)?;
        let column = Tensor::empty(self.device(), DType::I64, &[problems, rows])?;
        let (co, no, to) = (cost.operand(), operand(counts.as_ref()), column.operand());
        self.device().linear_assignment(co.view()?, view(&no)?, to.view_mut()?)?;
        if self.rank() == 2 { column.reshape(&[rows]) } else { Ok(column) }
    }

    /// Sums of all elements of an axis up to each one. Integers give i64.
    pub fn cumsum(&self, along: isize) -> Result<Tensor> {
        self.cumsum_with(CumSum::new(), along)
    }

    /// As [`cumsum`](Tensor::cumsum), from the other end or without each sum's own element.
    pub fn cumsum_with(&self, p: CumSum, along: isize) -> Result<Tensor> {
        let at = axis("cumsum", along, self.rank())?;
        let x = self.contiguous()?;
        let dtype = if self.dtype().is_float() { self.dtype() } else { DType::I64 };
        let y = Tensor::empty(self.device(), dtype, self.shape())?;
        self.device().cumsum(p, at, x.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("cumsum", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.cumsum_with(p.backward(), at as isize)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().cumsum(p.backward(), at, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Reduces the rows `offsets[s] <= r < offsets[s + 1]` of `[n, ..]` to row s of `[M, ..]`; `offsets` (i32 or i64, `[M + 1]`) rise from 0
    /// to n. Errors: a scalar; offsets that are not a vector. Offsets that do not rise are reported by the next call that waits.
    pub fn segment_reduce(&self, op: SegmentReduce, offsets: &Tensor) -> Result<Tensor> {
        const OP: &str = "segment_reduce";
        same_device(OP, self, offsets)?;
        let (Some((_, row)), &[ends]) = (self.shape().split_first(), offsets.shape()) else {
            let got = format!("shapes {:?} and {:?}", self.shape(), offsets.shape());
            return Err(invalid(OP, "offsets", "rows [n, ..] and a vector of offsets", got));
        };
        if ends == 0 {
            return Err(invalid(OP, "offsets", "at least one offset", "none"));
        }
        let (x, offsets) = (self.contiguous()?, offsets.detach().contiguous()?);
        let y = self.like(&[&[ends - 1], row].concat())?;
        let (xo, oo, yo) = (x.operand(), offsets.operand(), y.operand());
        self.device().segment_reduce(op, xo.view()?, oo.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[self], || {
            let (x, offsets) = (Saved::new(&x), Saved::new(&offsets));
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (x, offsets, d) = (x.get(cx)?.operand(), offsets.get(cx)?.operand(), dy.operand());
                let io = SegmentReduceBwd::new(d.view()?, offsets.view()?, dx.out()?).x(x.view()?);
                Ok(dy.device().segment_reduce_bwd(op, io)?)
            }
        }))
    }
}
