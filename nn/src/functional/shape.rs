//! Movement: views where a layout can express it, kernels elsewhere.

mod arrange;
mod grids;
mod part;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use trefoil::ops::shape::{PadMode, Triangle};
use trefoil::{DType, Layout, LayoutError, View};

use crate::core::autograd::{BackwardCtx, linear_map};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, MemoryFormat, Tensor, axes, axis, contiguous, same_device};
use crate::functional::position::Position;

/// The layout of a part from that of the whole.
type PartMap = dyn Fn(&Layout) -> std::result::Result<Layout, LayoutError> + Send + Sync;

/// Zeros of a shape with `dy` in the place of the part, which can be differentiated.
fn part_adjoint(op: &'static str, dy: &Tensor, full: &[usize], map: &Arc<PartMap>) -> Result<Tensor> {
    let (full, map) = (full.to_vec(), map.clone());
    let of = move |t: &Tensor| {
        let layout = map(t.layout()).map_err(|why| {
            invalid(op, "dx", "a layout like the forward's", format!("{:?}: {why}", t.layout()))
        })?;
        Ok::<_, NnError>(t.relayout(layout))
    };
    let take = of.clone();
    let put = move |dy: &Tensor| {
        let whole = Tensor::zeros(dy.device(), dy.dtype(), &full)?;
        of(&whole)?.assign(dy)?;
        Ok(whole)
    };
    linear_map(op, dy, Arc::new(put), Arc::new(move |u: &Tensor| take(&u.contiguous()?)?.copy()))
}

impl Tensor {
    /// The identity matrix `[n, n]`.
    pub fn eye(device: &Device, dtype: DType, n: usize) -> Result<Self> {
        Self::ones(device, dtype, &[n, n])?.tril(0)?.triu(0)
    }

    /// An additive attention mask `[n, n]`: -inf above the diagonal, 0 elsewhere.
    pub fn causal_mask(device: &Device, dtype: DType, n: usize) -> Result<Self> {
        Self::full(device, dtype, &[n, n], f64::NEG_INFINITY)?.triu(1)
    }

    /// A view of part of this tensor (no element twice). Its gradient is added to the same part of the whole's gradient.
    fn part(
        &self,
        op: &'static str,
        what: String,
        map: impl Fn(&Layout) -> std::result::Result<Layout, LayoutError> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let map: Arc<PartMap> = Arc::new(map);
        let layout = map(self.layout())
            .map_err(|why| invalid(op, "self", what, format!("shape {:?}: {why}", self.shape())))?;
        Ok(self.relayout(layout).record(op, &[self], || {
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = part_adjoint(op, &cx.dy()?, &full, &map)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                dx.prepare()?;
                let layout = map(dx.tensor().layout()).map_err(|why| {
                    let got = format!("{:?}: {why}", dx.tensor().layout());
                    invalid(op, "dx", "a layout like the forward's", got)
                })?;
                let (dy, dst) = (cx.dy()?, dx.tensor().relayout(layout).operand());
                Ok(dy.device().strided_copy(dy.operand().view()?, dst.grad(true)?)?)
            }
        }))
    }

    /// The elements in row-major order: this tensor itself if it is contiguous, a copy otherwise.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        let y = self.like(self.shape())?;
        self.device().strided_copy(self.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("contiguous", &[self], || {
            |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                cx.give(0, dy)
            }
        }))
    }

    /// A copy with memory of its own.
    pub fn copy(&self) -> Result<Tensor> {
        let y = self.like(self.shape())?;
        self.device().strided_copy(self.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("copy", &[self], || {
            |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                cx.give(0, dy)
            }
        }))
    }

    /// The same elements in row-major order under another shape; a view where the strides allow it.
    #[doc(alias = "view")]
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        if contiguous("reshape", shape)?.numel() != self.numel() {
            let expected = format!("{} elements", self.numel());
            return Err(invalid("reshape", "shape", expected, format!("{shape:?} from {:?}", self.shape())));
        }
        let y = match self.layout().reshape(shape) {
            Ok(l) => self.relayout(l),
            Err(_) => {
                let c = self.detach().contiguous()?;
                c.relayout(contiguous("reshape", shape)?)
            }
        };
        Ok(y.record("reshape", &[self], || {
            let back = *self.layout();
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.reshape(back.shape())?;
                cx.give(0, dx)
            }
        }))
    }

    /// Axes `start..=end` merged into one.
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        let (s, e) = (axis("flatten", start, self.rank())?, axis("flatten", end, self.rank())?);
        if s > e {
            return Err(invalid("flatten", "start", format!("an axis not after {e}"), format!("{s}")));
        }
        let n: usize = self.shape()[s..=e].iter().product();
        let shape = [&self.shape()[..s], &[n], &self.shape()[e + 1..]].concat();
        self.reshape(&shape)
    }

    /// Axes in the order `perm`, a view.
    pub fn permute(&self, perm: &[isize]) -> Result<Tensor> {
        let perm = axes("permute", perm, self.rank())?;
        let layout = self.layout().permute(&perm).map_err(|_| {
            let expected = format!("each of the {} axes once", self.rank());
            invalid("permute", "perm", expected, format!("{perm:?}"))
        })?;
        let mut inverse = vec![0isize; perm.len()];
        for (i, &p) in perm.iter().enumerate() {
            inverse[p] = i as isize;
        }
        Ok(self.relayout(layout).record("permute", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.permute(&inverse)?;
                cx.give(0, dx)
            }
        }))
    }

    /// Two axes exchanged, a view.
    #[doc(alias = "swapaxes")]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (axis("transpose", a, self.rank())?, axis("transpose", b, self.rank())?);
        let mut perm: Vec<isize> = (0..self.rank() as isize).collect();
        perm.swap(a, b);
        self.permute(&perm)
    }

    /// Elements `start, start + step, ...` below `end` along an axis, a view.
    pub fn slice(&self, along: isize, start: usize, end: usize, step: usize) -> Result<Tensor> {
        let at = axis("slice", along, self.rank())?;
        let n = self.shape()[at];
        let what = format!("start <= end <= {n} and step > 0, not {start}..{end} by {step}");
        // Any step beyond the axis takes the first element alone, and strides stay small.
        let step = step.min(n.max(1));
        self.part("slice", what, move |l| l.slice(at, start, end, step))
    }

    /// `len` elements from `start` along an axis, a view. A negative start counts from the end. Errors: elements that the axis does not have.
    pub fn narrow(&self, along: isize, start: impl Position, len: usize) -> Result<Tensor> {
        let at = axis("narrow", along, self.rank())?;
        let start = start.resolve("narrow", "start", self.shape()[at], true)?;
        self.slice(along, start, start.saturating_add(len), 1)
    }

    /// Element `index` of an axis, which disappears; a view. A negative index counts from the end. Errors: an index that the axis does not
    /// have.
    pub fn select(&self, along: isize, index: impl Position) -> Result<Tensor> {
        let at = axis("select", along, self.rank())?;
        let index = index.resolve("select", "index", self.shape()[at], false)?;
        let what = format!("an index below {}, not {index}", self.shape()[at]);
        self.part("select", what, move |l| l.select(at, index))
    }

    /// The part `ranges[i]` of axis i for the first axes, a view. Errors: a range outside of its axis, more ranges than axes.
    pub fn shrink(&self, ranges: &[Range<usize>]) -> Result<Tensor> {
        let (ranges, what) = (ranges.to_vec(), format!("ranges within the shape, not {ranges:?}"));
        self.part("shrink", what, move |l| {
            ranges.iter().enumerate().try_fold(*l, |l, (i, r)| l.slice(i, r.start, r.end, 1))
        })
    }

    /// Every `steps[i]`-th element of axis i for the first axes, a view. Errors: a step of 0, more steps than axes.
    #[doc(alias = "stride_op")]
    pub fn subsample(&self, steps: &[usize]) -> Result<Tensor> {
        let what = format!("steps above 0 for axes of the shape, not {steps:?}");
        let steps: Vec<usize> = steps
            .iter()
            .enumerate()
            .map(|(i, &s)| s.min(self.shape().get(i).map_or(1, |&n| n.max(1))))
            .collect();
        self.part("subsample", what, move |l| {
            let size = |l: &Layout, i: usize| l.shape().get(i).copied().unwrap_or(0);
            steps.iter().enumerate().try_fold(*l, |l, (i, &s)| l.slice(i, 0, size(&l, i), s))
        })
    }

    /// Diagonal `k` of axes `a` and `b` as a new last axis, a view.
    pub fn diagonal(&self, k: isize, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (axis("diagonal", a, self.rank())?, axis("diagonal", b, self.rank())?);
        self.part("diagonal", "two different axes".into(), move |l| l.diagonal(k, a, b))
    }

    /// Parts of the given sizes along an axis, views. Errors: `Invalid` unless the sizes add up to the axis.
    pub fn split(&self, along: isize, sizes: &[usize]) -> Result<Vec<Tensor>> {
        let at = axis("split", along, self.rank())?;
        let total = sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s));
        if total != Some(self.shape()[at]) {
            let expected = format!("sizes that add up to {}", self.shape()[at]);
            return Err(invalid("split", "sizes", expected, format!("{sizes:?}")));
        }
        let mut start = 0;
        let mut part = |n: usize| {
            start += n;
            self.narrow(along, start - n, n)
        };
        sizes.iter().map(|&n| part(n)).collect()
    }

    /// At most `n` parts along an axis, views, of equal sizes but for the last. Errors: no parts.
    pub fn chunk(&self, along: isize, n: usize) -> Result<Vec<Tensor>> {
        let size = self.shape()[axis("chunk", along, self.rank())?];
        if n == 0 {
            return Err(invalid("chunk", "n", "at least 1", "0"));
        }
        let step = size.div_ceil(n).max(1);
        let sizes: Vec<usize> = (0..size.max(1)).step_by(step).map(|s| step.min(size - s)).collect();
        self.split(along, &sizes)
    }

    /// A new axis of size 1 before `at` (-1: as the last).
    pub fn unsqueeze(&self, at: isize) -> Result<Tensor> {
        let at = axis("unsqueeze", at, self.rank() + 1)?;
        let mut shape = self.shape().to_vec();
        shape.insert(at, 1);
        self.reshape(&shape)
    }

    /// Without an axis of size 1.
    pub fn squeeze(&self, at: isize) -> Result<Tensor> {
        let at = axis("squeeze", at, self.rank())?;
        let mut shape = self.shape().to_vec();
        if shape.remove(at) != 1 {
            return Err(invalid(
                "squeeze",
                "axis",
                "an axis of size 1",
                format!("size {}", self.shape()[at]),
            ));
        }
        self.reshape(&shape)
    }

    /// Repeated along axes of size 1 (or missing ones) without copying.
    #[doc(alias = "broadcast_to")]
    pub fn expand(&self, shape: &[usize]) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        let layout = self.layout().broadcast_to(shape).map_err(|why| {
            let expected = format!("a shape that {:?} broadcasts to", self.shape());
            invalid("expand", "shape", expected, format!("{shape:?}: {why}"))
        })?;
        Ok(self.relayout(layout).record("expand", &[self], || {
            let back = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.sum_to_shape(&back)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?;
                Ok(dy.device().sum_to_shape(dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// [`expand`](Tensor::expand)ed to another tensor's shape.
    pub fn expand_as(&self, other: &Tensor) -> Result<Tensor> {
        self.expand(other.shape())
    }

    /// The whole tensor repeated `times[i]` times along axis i. Errors: another number of counts than axes, a result that is too large.
    #[doc(alias = "tile")]
    pub fn repeat(&self, times: &[usize]) -> Result<Tensor> {
        if times.len() != self.rank() {
            let expected = format!("one count for each of the {} axes", self.rank());
            return Err(invalid("repeat", "times", expected, format!("{times:?}")));
        }
        let mut y = self.clone();
        for (i, &n) in times.iter().enumerate().filter(|(_, n)| **n != 1) {
            let mut shape = y.shape().to_vec();
            let Some(size) = shape[i].checked_mul(n) else {
                return Err(invalid(
                    "repeat",
                    "times",
                    "a size that fits",
                    format!("{n} times {}", shape[i]),
                ));
            };
            shape.insert(i, n);
            let wide = y.unsqueeze(i as isize)?.expand(&shape)?;
            shape.remove(i);
            shape[i] = size;
            y = wide.reshape(&shape)?;
        }
        Ok(y)
    }

    /// The last two axes exchanged, a view.
    #[doc(alias = "mT")]
    pub fn t(&self) -> Result<Tensor> {
        self.transpose(-2, -1)
    }

    /// Windows of `size` elements every `step` along an axis, appended as the last axis; a view.
    pub fn unfold(&self, along: isize, size: usize, step: usize) -> Result<Tensor> {
        let at = axis("unfold", along, self.rank())?;
        let layout = self.layout().unfold(at, size, step).map_err(|why| {
            let expected = format!("size <= {} and step > 0", self.shape()[at]);
            invalid("unfold", "size", expected, format!("size {size}, step {step}: {why}"))
        })?;
        Ok(self.relayout(layout).record("unfold", &[self], || {
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, full) = (cx.dy()?, full.clone());
                    let put = move |dy: &Tensor| {
                        let (dy, dx) = (dy.contiguous()?, dy.like(&full)?);
                        let (dyo, dxo) = (dy.operand(), dx.operand());
                        dy.device().unfold_bwd(at, size, step, dyo.view()?, dxo.grad(false)?)?;
                        Ok(dx)
                    };
                    let take = move |u: &Tensor| u.unfold(at as isize, size, step)?.copy();
                    let dx = linear_map("unfold", &dy, Arc::new(put), Arc::new(take))?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().unfold_bwd(at, size, step, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Tensors joined along an axis. Errors: `Invalid` for an empty list or sizes that differ on another axis.
    pub fn concat(along: isize, parts: &[&Tensor]) -> Result<Tensor> {
        let Some(first) = parts.first() else {
            return Err(invalid("concat", "parts", "at least one tensor", "none"));
        };
        let at = axis("concat", along, first.rank())?;
        let mut shape = first.shape().to_vec();
        shape[at] = 0;
        for p in parts {
            same_device("concat", first, p)?;
            if p.rank() != first.rank() {
                let expected = format!("tensors of rank {}", first.rank());
                return Err(invalid("concat", "parts", expected, format!("rank {}", p.rank())));
            }
            shape[at] += p.shape()[at];
        }
        let last = parts.iter().all(|p| p.memory_format() == MemoryFormat::ChannelsLast);
        let format = if last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
        let y = first.empty_in(format, first.dtype(), &shape)?;
        let ops: Vec<_> = parts.iter().map(|p| p.operand()).collect();
        let views = ops.iter().map(|o| o.view()).collect::<Result<Vec<_>>>()?;
        let to = y.operand();
        if last {
            // As contiguous tensors [N, S.., C].
            let order: Vec<usize> = (0..shape.len()).filter(|&a| a != 1).chain([1]).collect();
            let place = order.iter().position(|&a| a == at).unwrap_or(at);
            let turned: std::result::Result<Vec<View<'_>>, _> =
                views.iter().map(|v| v.map("parts", |l| l.permute(&order))).collect();
            let views = turned?;
            first.device().concat(place, &views, to.view_mut()?.map("y", |l| l.permute(&order))?)?;
        } else {
            first.device().concat(at, &views, to.view_mut()?)?;
        }
        let sizes: Vec<usize> = parts.iter().map(|p| p.shape()[at]).collect();
        Ok(y.record("concat", parts, || {
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                for (i, part) in dy.split(at as isize, &sizes)?.into_iter().enumerate() {
                    cx.give(i, part)?;
                }
                Ok(())
            }
        }))
    }

    /// Tensors of one shape joined along a new axis.
    pub fn stack(along: isize, parts: &[&Tensor]) -> Result<Tensor> {
        let wide = parts.iter().map(|p| p.unsqueeze(along)).collect::<Result<Vec<_>>>()?;
        Tensor::concat(along, &wide.iter().collect::<Vec<_>>())
    }

    /// Padded by `pads[i] = (before, after)` on axis i; negative crops.
    pub fn pad(&self, mode: PadMode, pads: &[(isize, isize)]) -> Result<Tensor> {
        if pads.len() != self.rank() {
            let expected = format!("one pair for each of the {} axes", self.rank());
            return Err(invalid("pad", "pads", expected, format!("{}", pads.len())));
        }
        let padded = |(&n, &(b, a)): (&usize, &(isize, isize))| {
            (n as isize).checked_add(b).and_then(|s| usize::try_from(s.checked_add(a)?).ok()).ok_or_else(
                || invalid("pad", "pads", format!("at least -{n} in all"), format!("{b} and {a}")),
            )
        };
        let shape = self.shape().iter().zip(pads).map(padded).collect::<Result<Vec<_>>>()?;
        let x = self.contiguous()?;
        let y = self.like(&shape)?;
        self.device().pad(mode, pads, x.operand().view()?, y.operand().view_mut()?)?;
        let pads = pads.to_vec();
        Ok(y.record("pad", &[self], || {
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, full, p, q) = (cx.dy()?, full.clone(), pads.clone(), pads.clone());
                    let put = move |dy: &Tensor| {
                        let (dy, dx) = (dy.contiguous()?, dy.like(&full)?);
                        dy.device().pad_bwd(mode, &p, dy.operand().view()?, dx.operand().grad(false)?)?;
                        Ok(dx)
                    };
                    // A constant is added to what is linear.
                    let linear = if let PadMode::Constant(_) = mode { PadMode::Constant(0.0) } else { mode };
                    let dx =
                        linear_map("pad", &dy, Arc::new(put), Arc::new(move |u: &Tensor| u.pad(linear, &q)))?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().pad_bwd(mode, &pads, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Reversed along axes.
    pub fn flip(&self, over: &[isize]) -> Result<Tensor> {
        let over = axes("flip", over, self.rank())?;
        let y = self.like(self.shape())?;
        self.device().flip(&over, self.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("flip", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.flip(&over.iter().map(|&i| i as isize).collect::<Vec<_>>())?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?;
                Ok(dy.device().flip(&over, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Rotated by `shifts[i]` along `over[i]`.
    pub fn roll(&self, shifts: &[isize], over: &[isize]) -> Result<Tensor> {
        let over = axes("roll", over, self.rank())?;
        let y = self.like(self.shape())?;
        self.device().roll(shifts, &over, self.operand().view()?, y.operand().grad(false)?)?;
        let back: Vec<isize> = shifts.iter().map(|s| -s).collect();
        Ok(y.record("roll", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.roll(&back, &over.iter().map(|&i| i as isize).collect::<Vec<_>>())?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?;
                Ok(dy.device().roll(&back, &over, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// The elements on and below diagonal `k` of the last two axes, zeros elsewhere.
    pub fn tril(&self, k: isize) -> Result<Tensor> {
        self.triangle(Triangle::Lower, k)
    }

    /// The elements on and above diagonal `k` of the last two axes, zeros elsewhere.
    pub fn triu(&self, k: isize) -> Result<Tensor> {
        self.triangle(Triangle::Upper, k)
    }

    fn triangle(&self, side: Triangle, k: isize) -> Result<Tensor> {
        let y = self.like(self.shape())?;
        self.device().triangle(side, k, self.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("triangle", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.triangle(side, k)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?;
                Ok(dy.device().triangle(side, k, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Each element of an axis repeated `repeats` times.
    pub fn repeat_interleave(&self, along: isize, repeats: usize) -> Result<Tensor> {
        let at = axis("repeat_interleave", along, self.rank())?;
        let mut shape = self.shape().to_vec();
        let Some(size) = shape[at].checked_mul(repeats) else {
            let got = format!("{repeats} times {}", shape[at]);
            return Err(invalid("repeat_interleave", "repeats", "a size that fits", got));
        };
        shape[at] = size;
        let x = self.contiguous()?;
        let y = self.like(&shape)?;
        self.device().repeat_interleave(at, repeats, None, x.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("repeat_interleave", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dy = cx.dy()?;
                    let mut shape = dy.shape().to_vec();
                    shape[at] = shape[at].checked_div(repeats).unwrap_or(0);
                    shape.insert(at + 1, repeats);
                    return cx.give(0, dy.reshape(&shape)?.sum_axes(&[at as isize + 1], false)?);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().repeat_interleave_bwd(at, repeats, None, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }
}
