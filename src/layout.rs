//! Shapes and strides, without data.

use std::fmt;
use std::ops::Deref;

/// Largest rank of a tensor.
pub const MAX_RANK: usize = 8;

/// Bound on what a [`Layout`] describes: its number of elements, its strides and the last element that it reaches are all smaller. Sums and
/// products of them then fit 64 bits, also in bytes (at most 8 per element) and in the signed offsets of kernels.
pub const MAX_ELEMENTS: usize = 1 << 59;

/// Why a layout cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More axes than [`MAX_RANK`].
    #[error("rank {0} is above {MAX_RANK}")]
    Rank(usize),
    /// Sizes and strides differ in number.
    #[error("{sizes} sizes with {strides} strides")]
    StrideCount {
        /// Number of sizes.
        sizes: usize,
        /// Number of strides.
        strides: usize,
    },
    /// Elements, strides or the last element reached are not below [`MAX_ELEMENTS`].
    #[error("it would have, or reach, 2^59 elements or more")]
    TooLarge,
    /// There is no such axis.
    #[error("axis {axis} of rank {rank}")]
    Axis {
        /// The axis.
        axis: usize,
        /// Number of axes.
        rank: usize,
    },
    /// A part of an axis that is not inside it, or a step of 0.
    #[error("elements {start}..{end} by {step} of an axis of size {size}")]
    Part {
        /// First element.
        start: usize,
        /// Element after the last.
        end: usize,
        /// Distance between neighbours.
        step: usize,
        /// Size of the axis.
        size: usize,
    },
    /// The axes are not each of the layout's axes once.
    #[error("not a permutation of the axes")]
    Permutation,
    /// An axis that is neither equal in size nor 1, or too few axes.
    #[error("the shape does not broadcast")]
    Broadcast,
    /// Another number of elements, or strides that need a copy.
    #[error("the shape needs another number of elements, or a copy")]
    Reshape,
    /// An axis to be removed that is longer than 1.
    #[error("axis {axis} has size {size}, not 1")]
    NotSingle {
        /// The axis.
        axis: usize,
        /// Its size.
        size: usize,
    },
}

type Result<T, E = LayoutError> = std::result::Result<T, E>;

/// Up to [`MAX_RANK`] sizes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    len: u8,
    v: [usize; MAX_RANK],
}

impl Dims {
    /// The sizes of `s`, or `None` if there are more than [`MAX_RANK`].
    pub fn new(s: &[usize]) -> Option<Self> {
        if s.len() > MAX_RANK {
            return None;
        }
        let mut v = [0; MAX_RANK];
        v[..s.len()].copy_from_slice(s);
        Some(Dims { len: s.len() as u8, v })
    }

    /// Product of the sizes, 1 for rank 0. [`MAX_ELEMENTS`], which no tensor has, where it is not below that.
    pub fn numel(&self) -> usize {
        if self.contains(&0) {
            return 0;
        }
        self.iter().fold(1usize, |a, &n| a.saturating_mul(n)).min(MAX_ELEMENTS)
    }

    /// Whether the product of the sizes that are not 0, and so of any part of them, is below [`MAX_ELEMENTS`].
    fn bounded(&self) -> bool {
        let n = self.iter().filter(|&&n| n != 0).try_fold(1usize, |a, &n| a.checked_mul(n));
        n.is_some_and(|n| n < MAX_ELEMENTS)
    }

    fn ranked(s: &[usize]) -> Result<Self> {
        Dims::new(s).ok_or(LayoutError::Rank(s.len()))
    }

    fn push(&mut self, x: usize) -> Result<()> {
        let n = self.len as usize;
        *self.v.get_mut(n).ok_or(LayoutError::Rank(n + 1))? = x;
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, at: usize) {
        self.v.copy_within(at + 1.., at);
        self.len -= 1;
        self.v[self.len as usize] = 0;
    }

    /// `at` is at most the length.
    fn insert(&mut self, at: usize, x: usize) -> Result<()> {
        let n = self.len as usize;
        if n == MAX_RANK {
            return Err(LayoutError::Rank(n + 1));
        }
        self.v.copy_within(at..MAX_RANK - 1, at + 1);
        self.v[at] = x;
        self.len += 1;
        Ok(())
    }
}

impl Deref for Dims {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.v[..self.len as usize]
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Shape, strides and offset of a tensor over a flat buffer, all counted in elements.
///
/// Strides are never negative; stride 0 repeats an element (broadcast). Every layout keeps to [`MAX_ELEMENTS`], which constructors and
/// transformations check without overflow; they return a [`LayoutError`] where they do not apply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    shape: Dims,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// Row-major contiguous layout.
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        let dims = Dims::ranked(shape)?;
        if !dims.bounded() {
            return Err(LayoutError::TooLarge);
        }
        let mut strides = dims;
        let mut s = 1usize;
        for i in (0..shape.len()).rev() {
            strides.v[i] = s;
            s *= shape[i].max(1);
        }
        Ok(Layout { shape: dims, strides, offset: 0 })
    }

    /// Layout of [N, C, S..] whose channels lie side by side and nothing has gaps: row-major in the order [N, S.., C]. PyTorch's
    /// `torch.channels_last` and `channels_last_3d`. Errors: [`LayoutError::Axis`] for less than two axes.
    pub fn channels_last(shape: &[usize]) -> Result<Self> {
        let rank = shape.len();
        if rank < 2 {
            return Err(LayoutError::Axis { axis: 1, rank });
        }
        let mut sizes = Dims::ranked(shape)?;
        sizes.v[1..rank].rotate_left(1);
        let mut layout = Layout::contiguous(&sizes)?;
        layout.shape.v[1..rank].rotate_right(1);
        layout.strides.v[1..rank].rotate_right(1);
        Ok(layout)
    }

    /// Layout with explicit strides and offset.
    pub fn strided(shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(LayoutError::StrideCount { sizes: shape.len(), strides: strides.len() });
        }
        Layout { shape: Dims::ranked(shape)?, strides: Dims::ranked(strides)?, offset }.bounded()
    }

    /// The layout, if it keeps to [`MAX_ELEMENTS`].
    fn bounded(self) -> Result<Self> {
        let reach = |at: usize, (&n, &s): (&usize, &usize)| {
            n.saturating_sub(1).checked_mul(s).filter(|_| s < MAX_ELEMENTS).and_then(|d| at.checked_add(d))
        };
        let last = self.shape.iter().zip(self.strides.iter()).try_fold(self.offset, reach);
        match last {
            Some(last) if last < MAX_ELEMENTS && self.shape.bounded() => Ok(self),
            _ => Err(LayoutError::TooLarge),
        }
    }

    fn check_axis(&self, axis: usize) -> Result<()> {
        if axis < self.rank() { Ok(()) } else { Err(LayoutError::Axis { axis, rank: self.rank() }) }
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Steps between neighbours, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// First element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Whether the elements lie row-major without gaps (axes of size 1 may have any stride).
    pub fn is_contiguous(&self) -> bool {
        let mut s = 1;
        for (&n, &st) in self.shape.iter().zip(self.strides.iter()).rev() {
            if n == 0 {
                return true;
            }
            if n != 1 {
                if st != s {
                    return false;
                }
                s *= n;
            }
        }
        true
    }

    /// Whether the elements lie as [`channels_last`](Layout::channels_last) says (axes of size 1 may have any stride). Where there is one
    /// channel, or one element per channel, a layout can be this and [contiguous](Layout::is_contiguous).
    pub fn is_channels_last(&self) -> bool {
        self.rank() >= 2 && self.channels_as_columns().is_ok_and(|l| l.is_contiguous())
    }

    /// [N, C, S..] as [N, S.., C].
    pub(crate) fn channels_as_columns(&self) -> Result<Self> {
        self.check_axis(1)?;
        let (mut out, rank) = (*self, self.rank());
        out.shape.v[1..rank].rotate_left(1);
        out.strides.v[1..rank].rotate_left(1);
        Ok(out)
    }

    /// Half-open range of buffer elements that the layout can touch; empty for a layout without elements.
    pub fn span(&self) -> std::ops::Range<usize> {
        if self.numel() == 0 {
            return self.offset..self.offset;
        }
        let last: usize = self.shape.iter().zip(self.strides.iter()).map(|(&n, &s)| (n - 1) * s).sum();
        self.offset..self.offset + last + 1
    }

    /// Whether two index tuples can address the same element (a stride of 0 on an axis longer than 1, or interleaved axes).
    /// Conservative: a layout that is reported free of overlap has none.
    pub fn may_overlap(&self) -> bool {
        // Most outputs: nothing to sort.
        if self.is_contiguous() || self.numel() == 0 {
            return false;
        }
        let mut axes: Vec<(usize, usize)> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).filter(|&(_, n)| n > 1).collect();
        axes.sort_unstable();
        let mut reach = 0;
        for (s, n) in axes {
            if s <= reach {
                return true;
            }
            reach += s * (n - 1);
        }
        false
    }

    /// The same layout `by` elements further on.
    pub fn shifted(mut self, by: usize) -> Result<Self> {
        self.offset = self.offset.checked_add(by).ok_or(LayoutError::TooLarge)?;
        self.bounded()
    }

    /// Axes in the order `perm`.
    pub fn permute(&self, perm: &[usize]) -> Result<Self> {
        if perm.len() != self.rank() {
            return Err(LayoutError::Permutation);
        }
        let mut seen = [false; MAX_RANK];
        let mut out = *self;
        for (i, &p) in perm.iter().enumerate() {
            if p >= perm.len() || std::mem::replace(&mut seen[p], true) {
                return Err(LayoutError::Permutation);
            }
            out.shape.v[i] = self.shape[p];
            out.strides.v[i] = self.strides[p];
        }
        Ok(out)
    }

    /// Axes `a` and `b` exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.check_axis(a)?;
        self.check_axis(b)?;
        let mut out = *self;
        out.shape.v.swap(a, b);
        out.strides.v.swap(a, b);
        Ok(out)
    }

    /// Elements `start, start+step, ...` below `end` along `axis`.
    pub fn slice(&self, axis: usize, start: usize, end: usize, step: usize) -> Result<Self> {
        self.check_axis(axis)?;
        let size = self.shape[axis];
        if step == 0 || start > end || end > size {
            return Err(LayoutError::Part { start, end, step, size });
        }
        let mut out = *self;
        out.shape.v[axis] = (end - start).div_ceil(step);
        out.strides.v[axis] = far(self.strides[axis], step);
        // A part without elements stays where the whole is: its first element could lie beyond the buffer.
        if out.numel() > 0 {
            out.offset += start * self.strides[axis];
        }
        Ok(out)
    }

    /// `len` elements from `start` along `axis`.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        self.slice(axis, start, start.saturating_add(len), 1)
    }

    /// Element `at` of `axis`; the axis disappears.
    pub fn select(&self, axis: usize, at: usize) -> Result<Self> {
        let mut out = self.narrow(axis, at, 1)?;
        out.shape.remove(axis);
        out.strides.remove(axis);
        Ok(out)
    }

    /// A new axis of size 1 before `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Result<Self> {
        if axis > self.rank() {
            return Err(LayoutError::Axis { axis, rank: self.rank() });
        }
        let mut out = *self;
        let stride = if axis < self.rank() { far(self.shape[axis].max(1), self.strides[axis]) } else { 1 };
        out.shape.insert(axis, 1)?;
        out.strides.insert(axis, stride)?;
        Ok(out)
    }

    /// Without `axis`, which must have size 1.
    pub fn squeeze(&self, axis: usize) -> Result<Self> {
        self.check_axis(axis)?;
        if self.shape[axis] != 1 {
            return Err(LayoutError::NotSingle { axis, size: self.shape[axis] });
        }
        let mut out = *self;
        out.shape.remove(axis);
        out.strides.remove(axis);
        Ok(out)
    }

    /// Broadcast to `shape` by NumPy's rule: aligned right, an axis of size 1 (or a missing one) repeats with stride 0.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self> {
        let dims = Dims::ranked(shape)?;
        let lead = shape.len().checked_sub(self.rank()).ok_or(LayoutError::Broadcast)?;
        let mut strides = Dims { len: dims.len, v: [0; MAX_RANK] };
        for (i, &wanted) in shape.iter().enumerate().skip(lead) {
            let (n, s) = (self.shape[i - lead], self.strides[i - lead]);
            if n == wanted {
                strides.v[i] = s;
            } else if n != 1 {
                return Err(LayoutError::Broadcast);
            }
        }
        Layout { shape: dims, strides, offset: self.offset }.bounded()
    }

    /// The same elements in row-major order under another shape, without copying.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let target = Layout::contiguous(shape)?;
        if target.numel() != self.numel() {
            return Err(LayoutError::Reshape);
        }
        let mut out = Layout { offset: self.offset, ..target };
        if self.is_contiguous() || self.numel() == 0 {
            return out.bounded();
        }
        // Merge the source's axes into runs that step uniformly, then cut the runs into the new axes.
        let old: Vec<(usize, usize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut j = shape.len();
        let mut i = old.len();
        while i > 0 {
            let (mut n, base) = old[i - 1];
            i -= 1;
            while i > 0 && old[i - 1].1 == base * n {
                n *= old[i - 1].0;
                i -= 1;
            }
            let mut stride = base;
            let mut left = n;
            while left > 1 {
                j = j.checked_sub(1).ok_or(LayoutError::Reshape)?;
                if left % shape[j] != 0 {
                    return Err(LayoutError::Reshape);
                }
                out.strides.v[j] = stride;
                stride *= shape[j];
                left /= shape[j];
            }
        }
        out.bounded()
    }

    /// Diagonal number `k` of axes `a` and `b` as a new last axis (`k` > 0 above the main diagonal).
    pub fn diagonal(&self, k: isize, a: usize, b: usize) -> Result<Self> {
        self.check_axis(a)?;
        self.check_axis(b)?;
        if a == b {
            return Err(LayoutError::Permutation);
        }
        let (ra, rb) = (self.shape[a], self.shape[b]);
        let (da, db) = if k >= 0 { (0, k as usize) } else { (k.unsigned_abs(), 0) };
        let n = ra.saturating_sub(da).min(rb.saturating_sub(db));
        let (sa, sb) = (self.strides[a], self.strides[b]);
        let mut out = *self;
        for ax in [a.max(b), a.min(b)] {
            out.shape.remove(ax);
            out.strides.remove(ax);
        }
        out.shape.push(n)?;
        out.strides.push((sa + sb).min(MAX_ELEMENTS - 1))?;
        // As in `slice`: other axes may be empty, too.
        if out.numel() > 0 {
            out.offset += da * sa + db * sb;
        }
        Ok(out)
    }

    /// Windows of `size` elements every `step` along `axis`; the window is appended as the last axis.
    pub fn unfold(&self, axis: usize, size: usize, step: usize) -> Result<Self> {
        self.check_axis(axis)?;
        let n = self.shape[axis];
        if step == 0 || size > n {
            return Err(LayoutError::Part { start: 0, end: size, step, size: n });
        }
        let mut out = *self;
        let stride = self.strides[axis];
        out.shape.v[axis] = (n - size) / step + 1;
        out.strides.v[axis] = far(stride, step);
        out.shape.push(size)?;
        out.strides.push(stride)?;
        out.bounded()
    }
}

/// The stride `a * b`. Where that is too large the axis has one element at most, whose stride does not matter.
fn far(a: usize, b: usize) -> usize {
    a.saturating_mul(b).min(MAX_ELEMENTS - 1)
}

/// Shape that two shapes broadcast to, or the first axis (counted from the right, 0 = last) at which they do not fit.
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Result<Dims, usize> {
    let rank = a.len().max(b.len());
    let mut out = Dims { len: rank as u8, v: [1; MAX_RANK] };
    if rank > MAX_RANK {
        return Err(MAX_RANK);
    }
    for i in 0..rank {
        let get = |s: &[usize]| if i < s.len() { s[s.len() - 1 - i] } else { 1 };
        let (x, y) = (get(a), get(b));
        out.v[rank - 1 - i] = match (x, y) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return Err(i),
        };
    }
    out.v[rank..].fill(0);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(l: &Layout) -> Vec<usize> {
        let mut out = vec![];
        let mut ix = vec![0; l.rank()];
        for _ in 0..l.numel() {
            out.push(l.offset() + ix.iter().zip(l.strides()).map(|(i, s)| i * s).sum::<usize>());
            for a in (0..l.rank()).rev() {
                ix[a] += 1;
                if ix[a] < l.shape()[a] {
                    break;
                }
                ix[a] = 0;
            }
        }
        out
    }

    #[test]
    fn reshape_keeps_row_major_order() {
        let l = Layout::contiguous(&[2, 3, 4]).unwrap();
        assert_eq!(offsets(&l.reshape(&[6, 4]).unwrap()), (0..24).collect::<Vec<_>>());
        let t = l.permute(&[1, 0, 2]).unwrap();
        assert_eq!(t.reshape(&[6, 4]), Err(LayoutError::Reshape));
        assert_eq!(offsets(&t.reshape(&[3, 2, 2, 2]).unwrap()), offsets(&t));
        let b = Layout::contiguous(&[1, 4]).unwrap().broadcast_to(&[3, 4]).unwrap();
        assert_eq!(offsets(&b.reshape(&[3, 2, 2]).unwrap()), offsets(&b));
        assert_eq!(b.reshape(&[12]), Err(LayoutError::Reshape));
    }

    #[test]
    fn channels_lie_side_by_side() {
        let l = Layout::channels_last(&[2, 3, 4, 5]).unwrap();
        assert_eq!((l.shape(), l.strides()), (&[2, 3, 4, 5][..], &[60, 1, 15, 3][..]));
        assert!(l.is_channels_last() && !l.is_contiguous() && !l.may_overlap());
        let rows = Layout::contiguous(&[2, 3, 4, 5]).unwrap();
        assert!(rows.is_contiguous() && !rows.is_channels_last());
        for both in [&[2, 3, 1, 1][..], &[2, 1, 4, 5], &[2, 3]] {
            let l = Layout::channels_last(both).unwrap();
            assert!(l.is_channels_last() && l.is_contiguous(), "{both:?}");
        }
        assert!(!l.slice(3, 0, 4, 1).unwrap().is_channels_last());
        assert_eq!(Layout::channels_last(&[3]), Err(LayoutError::Axis { axis: 1, rank: 1 }));
    }

    #[test]
    fn views_and_overlap() {
        let l = Layout::contiguous(&[5]).unwrap();
        let w = l.unfold(0, 3, 1).unwrap();
        assert_eq!(offsets(&w), [0, 1, 2, 1, 2, 3, 2, 3, 4]);
        assert!(w.may_overlap());
        assert!(!l.slice(0, 1, 5, 2).unwrap().may_overlap());
        let m = Layout::contiguous(&[3, 4]).unwrap();
        assert_eq!(offsets(&m.diagonal(1, 0, 1).unwrap()), [1, 6, 11]);
        assert_eq!(offsets(&m.diagonal(-1, 0, 1).unwrap()), [4, 9]);
        // An empty part stays within the buffer, whichever axis is empty.
        assert_eq!(
            Layout::contiguous(&[3, 0, 33]).and_then(|l| l.diagonal(1, 2, 0)).map(|l| l.span()),
            Ok(0..0)
        );
        assert_eq!(m.transpose(0, 1).unwrap().span(), 0..12);
        assert_eq!(m.narrow(0, 3, 0).unwrap().offset(), 0);
        assert_eq!(Layout::contiguous(&[2, 0, 9]).unwrap().narrow(2, 8, 1).unwrap().span(), 0..0);
        assert_eq!(&*broadcast_shapes(&[4, 1, 3], &[2, 1]).unwrap(), [4, 2, 3]);
        assert_eq!(broadcast_shapes(&[4, 2, 3], &[5, 3]), Err(1));
    }
}
