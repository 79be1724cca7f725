//! Movement and creation.
//!
//! Each movement is a map from coordinates of the output to a position of the input; its gradient reads the same map and sums.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::values::{Values, change, copy};
use crate::cpu::{HostElement, Kernels, gather, gather_f64, gather_index, store_grad, update, with_dtype};
use crate::error::Result;
use crate::layout::MAX_RANK;
use crate::ops::shape::*;

/// Calls `f(position, coordinates)` for a shape in row-major order.
pub(in crate::cpu) fn each(shape: &[usize], mut f: impl FnMut(usize, &[usize]) -> Result<()>) -> Result<()> {
    let (mut at, rank) = ([0; MAX_RANK], shape.len());
    for i in 0..shape.iter().product() {
        f(i, &at[..rank])?;
        for a in (0..shape.len()).rev() {
            at[a] += 1;
            if at[a] < shape[a] {
                break;
            }
            at[a] = 0;
        }
    }
    Ok(())
}

/// Row-major position of coordinates.
pub(in crate::cpu) fn position(shape: &[usize], at: impl IntoIterator<Item = usize>) -> usize {
    shape.iter().zip(at).fold(0, |p, (n, i)| p * n + i)
}

/// Stores values, exactly or added to what is there.
pub(in crate::cpu) fn put<T: HostElement>(op: &'static str, y: &GradMut<'_>, data: &[T]) -> Result<()> {
    update::<T>(op, &y.out, |i, old| {
        *old = if y.accumulate { T::from_f64(old.to_f64() + data[i].to_f64()) } else { data[i] }
    })
}

/// y[p] = x[source(p)], or `outside` where there is no source.
fn rearrange(
    op: &'static str,
    x: View<'_>,
    y: &GradMut<'_>,
    outside: f64,
    source: &dyn Fn(&[usize]) -> Option<usize>,
) -> Result<()> {
    with_dtype!(x.dtype(), T => {
        let from = gather::<T>(op, x)?;
        let mut to = filled(y.out.numel(), <T as HostElement>::from_f64(outside))?;
        each(y.out.shape(), |i, at| {
            source(at).into_iter().for_each(|s| to[i] = from[s]);
            Ok(())
        })?;
        put(op, y, &to)
    })
}

/// dx[q] (+)= the sum of dy[p] over all p with source(p) = q.
fn rearrange_bwd(
    op: &'static str,
    dy: View<'_>,
    dx: &GradMut<'_>,
    source: &dyn Fn(&[usize]) -> Option<usize>,
) -> Result<()> {
    let from = gather_f64(op, dy)?;
    let mut sums = filled(dx.out.numel(), 0.0)?;
    each(dy.shape(), |i, at| {
        if let Some(s) = source(at) {
            sums[s] += from[i]
        }
        Ok(())
    })?;
    store_grad(op, dx, &sums)
}

/// The cell of an axis of size n, padded by `before` and `after`, that position `at` of the padded axis shows.
fn pad_source(mode: PadMode, n: usize, (before, after): (isize, isize), at: usize) -> Option<usize> {
    let (q, n) = (at as isize - before, n as isize);
    let s = match mode {
        PadMode::Constant(_) => return (0..n).contains(&q).then_some(q as usize),
        PadMode::Reflect if q < 0 => -q,
        PadMode::Reflect if q >= n => 2 * (n - 1) - q,
        PadMode::Reflect => q,
        PadMode::Replicate => q.clamp(0, n - 1),
        // What negative pads crop does not take part in the wrapping.
        PadMode::Circular => {
            let first = (-before).max(0);
            first + (q - first).rem_euclid(n - first + after.min(0))
        }
    };
    Some(s as usize)
}

fn pad_map(mode: PadMode, pads: &[(isize, isize)], shape: &[usize]) -> impl Fn(&[usize]) -> Option<usize> {
    move |at| {
        let mut p = 0;
        for ((&n, &around), &i) in shape.iter().zip(pads).zip(at) {
            p = p * n + pad_source(mode, n, around, i)?;
        }
        Some(p)
    }
}

impl Kernels {
    /// For each position of the repeated axis the element that it copies; positions beyond the counts have none.
    fn repeat_sources(
        &self,
        op: &'static str,
        repeats: usize,
        counts: Option<View<'_>>,
        n: usize,
        size: usize,
    ) -> Result<Vec<Option<usize>>> {
        let Some(counts) = counts else { return (0..size).map(|j| Some(j / repeats)).try_vec() };
        let counts = gather_index(op, counts)?;
        // No more than what is shown: a wild count must not exhaust the memory.
        let mut from = with_capacity(size)?;
        let mut total = 0usize;
        for (i, c) in counts.iter().enumerate().take(n) {
            let c = c.unwrap_or(0);
            total = total.saturating_add(c);
            from.try_extend(std::iter::repeat_n(Some(i), c.min(size - from.len())))?;
        }
        if total != size || counts.contains(&None) {
            self.flag_index_error(op);
        }
        from.try_extend(std::iter::repeat_n(None, size - from.len()))?;
        Ok(from)
    }
}

fn along(shape: &[usize], axis: usize, table: Vec<Option<usize>>) -> impl Fn(&[usize]) -> Option<usize> {
    move |at| {
        let s = table[at[axis]]?;
        Some(position(shape, at.iter().enumerate().map(|(a, &i)| if a == axis { s } else { i })))
    }
}

impl ShapeOps for Kernels {
    fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_strided_copy(&x, &y)?;
        let _timed = self.count("strided_copy");
        with_dtype!(x.dtype(), T => copy::<T>("strided_copy", x, &y))
    }

    fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "concat";
        check_concat(axis, xs, &y)?;
        let _timed = self.count("concat");
        let width = |s: &[usize]| s[axis..].iter().product::<usize>();
        let wide = width(y.shape());
        let block = |v: &View<'_>| v.block().id();
        with_dtype!(y.dtype(), T => {
            // Each operand with the columns of the rows of y that it fills.
            let (mut parts, mut end) = (with_capacity(xs.len())?, 0);
            for (i, x) in xs.iter().enumerate() {
                let others = xs.iter().enumerate().filter(|(j, _)| *j != i);
                let shared = others.map(|(_, x)| block(x)).chain([y.block().id()]).any(|b| b == block(x));
                let values = if shared { Values::Copied(gather::<T>(OP, *x)?) } else { Values::new(OP, *x, &[])? };
                let first = end;
                end += width(x.shape());
                parts.try_push((first..end, values))?;
            }
            change::<T>(OP, &y, |mut at, mut y| {
                while !y.is_empty() {
                    let (row, column) = (at / wide, at % wide);
                    let Some((columns, x)) = parts.get(parts.partition_point(|(c, _)| c.end <= column)) else { return };
                    let n = (columns.end - column).min(y.len());
                    let (to, rest) = y.split_at_mut(n);
                    to.copy_from_slice(&x[row * columns.len() + column - columns.start..][..n]);
                    (at, y) = (at + n, rest);
                }
            })
        })
    }

    fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()> {
        check_fill(&y)?;
        let _timed = self.count("fill");
        with_dtype!(y.dtype(), T => change::<T>("fill", &y, |_, y| y.fill(HostElement::from_f64(value))))
    }

    fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()> {
        check_fill_bytes(pattern, &y)?;
        let _timed = self.count("fill_bytes");
        with_dtype!(y.dtype(), T => {
            let value: T = bytemuck::pod_read_unaligned(pattern);
            change::<T>("fill_bytes", &y, |_, y| y.fill(value))
        })
    }

    fn arange(&self, start: f64, step: f64, y: ViewMut<'_>) -> Result<()> {
        check_arange(start, step, &y)?;
        let _timed = self.count("arange");
        with_dtype!(y.dtype(), T => {
            update::<T>("arange", &y, |i, e| *e = HostElement::from_f64(start + i as f64 * step))
        })
    }

    fn linspace(&self, start: f64, end: f64, y: ViewMut<'_>) -> Result<()> {
        check_linspace(start, end, &y)?;
        let _timed = self.count("linspace");
        let n = y.numel();
        let step = (end - start) / (n.max(2) - 1) as f64;
        let value = |i: usize| match i {
            0 => start,
            i if i < n / 2 => start + i as f64 * step,
            i => end - (n - 1 - i) as f64 * step,
        };
        with_dtype!(y.dtype(), T => update::<T>("linspace", &y, |i, e| *e = HostElement::from_f64(value(i))))
    }

    fn pad(&self, mode: PadMode, pads: &[(isize, isize)], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_pad(mode, pads, &x, &y)?;
        let _timed = self.count("pad");
        let outside = if let PadMode::Constant(v) = mode { v } else { 0.0 };
        rearrange("pad", x, &y.into(), outside, &pad_map(mode, pads, x.shape()))
    }

    fn pad_bwd(&self, mode: PadMode, pads: &[(isize, isize)], dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_pad_bwd(mode, pads, &dy, &dx)?;
        let _timed = self.count("pad_bwd");
        rearrange_bwd("pad_bwd", dy, &dx, &pad_map(mode, pads, dx.out.shape()))
    }

    fn flip(&self, axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_flip(axes, &x, &y)?;
        let _timed = self.count("flip");
        let shape = x.shape();
        let mirror = |(a, &i): (usize, &usize)| if axes.contains(&a) { shape[a] - 1 - i } else { i };
        rearrange("flip", x, &y, 0.0, &|at| Some(position(shape, at.iter().enumerate().map(mirror))))
    }

    fn roll(&self, shifts: &[isize], axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_roll(shifts, axes, &x, &y)?;
        let _timed = self.count("roll");
        let shape = x.shape();
        let back = |(a, &i): (usize, &usize)| match axes.iter().position(|&b| b == a) {
            Some(k) => (i as i128 - shifts[k] as i128).rem_euclid(shape[a] as i128) as usize,
            None => i,
        };
        rearrange("roll", x, &y, 0.0, &|at| Some(position(shape, at.iter().enumerate().map(back))))
    }

    fn triangle(&self, side: Triangle, k: isize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_triangle(&x, &y)?;
        let _timed = self.count("triangle");
        let shape = x.shape();
        rearrange("triangle", x, &y, 0.0, &|at| {
            let d = (at[at.len() - 1] as isize - at[at.len() - 2] as isize).cmp(&k);
            let keep = if side == Triangle::Lower { d.is_le() } else { d.is_ge() };
            keep.then(|| position(shape, at.iter().copied()))
        })
    }

    fn repeat_interleave(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "repeat_interleave";
        check_repeat_interleave(axis, repeats, counts.as_ref(), &x, &y)?;
        let _timed = self.count("repeat_interleave");
        let from = self.repeat_sources(OP, repeats, counts, x.shape()[axis], y.shape()[axis])?;
        rearrange(OP, x, &y.into(), 0.0, &along(x.shape(), axis, from))
    }

    fn repeat_interleave_bwd(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        dy: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "repeat_interleave_bwd";
        check_repeat_interleave_bwd(axis, repeats, counts.as_ref(), &dy, &dx)?;
        let _timed = self.count("repeat_interleave_bwd");
        let from = self.repeat_sources(OP, repeats, counts, dx.out.shape()[axis], dy.shape()[axis])?;
        rearrange_bwd(OP, dy, &dx, &along(dx.out.shape(), axis, from))
    }

    fn unfold_bwd(&self, axis: usize, size: usize, step: usize, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_unfold_bwd(axis, size, step, &dy, &dx)?;
        let _timed = self.count("unfold_bwd");
        let shape = dx.out.shape();
        rearrange_bwd("unfold_bwd", dy, &dx, &|at| {
            let (window, at) = at.split_last()?;
            let cell = |(a, &i): (usize, &usize)| if a == axis { i * step + window } else { i };
            Some(position(shape, at.iter().enumerate().map(cell)))
        })
    }
}
