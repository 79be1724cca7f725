//! Shapes and strides, without data.

use std::fmt;
use std::ops::Deref;

/// Largest rank of a tensor.
pub const MAX_RANK: usize = 8;

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

    /// Product of the sizes; 1 for rank 0.
    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    fn push(&mut self, x: usize) -> Option<()> {
        let n = self.len as usize;
        *self.v.get_mut(n)? = x;
        self.len += 1;
        Some(())
    }

    fn remove(&mut self, at: usize) {
        self.v.copy_within(at + 1.., at);
        self.len -= 1;
        self.v[self.len as usize] = 0;
    }

    fn insert(&mut self, at: usize, x: usize) -> Option<()> {
        if self.len as usize == MAX_RANK || at > self.len as usize {
            return None;
        }
        self.v.copy_within(at..MAX_RANK - 1, at + 1);
        self.v[at] = x;
        self.len += 1;
        Some(())
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
/// Strides are never negative; stride 0 repeats an element (broadcast). Every transformation returns `None` when it does
/// not apply, so that the caller can say which of its arguments was at fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    shape: Dims,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// Row-major contiguous layout; `None` for a rank above [`MAX_RANK`] or a size that does not fit 63 bits.
    pub fn contiguous(shape: &[usize]) -> Option<Self> {
        let dims = Dims::new(shape)?;
        shape
            .iter()
            .filter(|&&s| s != 0)
            .try_fold(1usize, |a, &s| a.checked_mul(s))
            .filter(|&n| n < 1 << 62)?;
        let mut strides = dims;
        let mut s = 1usize;
        for i in (0..shape.len()).rev() {
            strides.v[i] = s;
            s *= shape[i].max(1);
        }
        Some(Layout { shape: dims, strides, offset: 0 })
    }

    /// Layout with explicit strides and offset.
    pub fn strided(shape: &[usize], strides: &[usize], offset: usize) -> Option<Self> {
        if shape.len() != strides.len() {
            return None;
        }
        Some(Layout { shape: Dims::new(shape)?, strides: Dims::new(strides)?, offset })
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
        if self.numel() == 0 {
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
    pub fn shifted(mut self, by: usize) -> Self {
        self.offset += by;
        self
    }

    /// Axes in the order `perm`.
    pub fn permute(&self, perm: &[usize]) -> Option<Self> {
        if perm.len() != self.rank() {
            return None;
        }
        let mut seen = [false; MAX_RANK];
        let mut out = *self;
        for (i, &p) in perm.iter().enumerate() {
            if p >= perm.len() || std::mem::replace(&mut seen[p], true) {
                return None;
            }
            out.shape.v[i] = self.shape[p];
            out.strides.v[i] = self.strides[p];
        }
        Some(out)
    }

    /// Axes `a` and `b` exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Option<Self> {
        if a >= self.rank() || b >= self.rank() {
            return None;
        }
        let mut out = *self;
        out.shape.v.swap(a, b);
        out.strides.v.swap(a, b);
        Some(out)
    }

    /// Elements `start, start+step, ...` below `end` along `axis`.
    pub fn slice(&self, axis: usize, start: usize, end: usize, step: usize) -> Option<Self> {
        let n = *self.shape.get(axis)?;
        if step == 0 || start > end || end > n {
            return None;
        }
        let mut out = *self;
        out.shape.v[axis] = (end - start).div_ceil(step);
        out.strides.v[axis] *= step;
        // A part without elements stays where the whole is: its first element could lie beyond the buffer.
        if out.numel() > 0 {
            out.offset += start * self.strides[axis];
        }
        Some(out)
    }

    /// `len` elements from `start` along `axis`.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Option<Self> {
        self.slice(axis, start, start.checked_add(len)?, 1)
    }

    /// Element `at` of `axis`; the axis disappears.
    pub fn select(&self, axis: usize, at: usize) -> Option<Self> {
        let mut out = self.narrow(axis, at, 1)?;
        out.shape.remove(axis);
        out.strides.remove(axis);
        Some(out)
    }

    /// A new axis of size 1 before `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Option<Self> {
        let mut out = *self;
        let stride = if axis < self.rank() { self.shape[axis].max(1) * self.strides[axis] } else { 1 };
        out.shape.insert(axis, 1)?;
        out.strides.insert(axis, stride)?;
        Some(out)
    }

    /// Without `axis`, which must have size 1.
    pub fn squeeze(&self, axis: usize) -> Option<Self> {
        if self.shape.get(axis) != Some(&1) {
            return None;
        }
        let mut out = *self;
        out.shape.remove(axis);
        out.strides.remove(axis);
        Some(out)
    }

    /// Broadcast to `shape` by NumPy's rule: aligned right, an axis of size 1 (or a missing one) repeats with stride 0.
    pub fn broadcast_to(&self, shape: &[usize]) -> Option<Self> {
        let dims = Dims::new(shape)?;
        let lead = shape.len().checked_sub(self.rank())?;
        let mut strides = Dims { len: dims.len, v: [0; MAX_RANK] };
        for (i, &wanted) in shape.iter().enumerate().skip(lead) {
            let (n, s) = (self.shape[i - lead], self.strides[i - lead]);
            if n == wanted {
                strides.v[i] = s;
            } else if n != 1 {
                return None;
            }
        }
        Some(Layout { shape: dims, strides, offset: self.offset })
    }

    /// The same elements in row-major order under another shape, without copying; `None` if the sizes differ or the strides forbid it.
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        let target = Layout::contiguous(shape)?;
        if target.numel() != self.numel() {
            return None;
        }
        if self.is_contiguous() || self.numel() == 0 {
            return Some(target.shifted(self.offset));
        }
        // Merge the source's axes into runs that step uniformly, then cut the runs into the new axes.
        let old: Vec<(usize, usize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut out = target.shifted(self.offset);
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
                j = j.checked_sub(1)?;
                if left % shape[j] != 0 {
                    return None;
                }
                out.strides.v[j] = stride;
                stride *= shape[j];
                left /= shape[j];
            }
        }
        Some(out)
    }

    /// Diagonal number `k` of axes `a` and `b` as a new last axis (`k` > 0 above the main diagonal).
    pub fn diagonal(&self, k: isize, a: usize, b: usize) -> Option<Self> {
        if a == b || a >= self.rank() || b >= self.rank() {
            return None;
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
        out.strides.push(sa + sb)?;
        // As in `slice`: other axes may be empty, too.
        if out.numel() > 0 {
            out.offset += da * sa + db * sb;
        }
        Some(out)
    }

    /// Windows of `size` elements every `step` along `axis`; the window is appended as the last axis.
    pub fn unfold(&self, axis: usize, size: usize, step: usize) -> Option<Self> {
        let n = *self.shape.get(axis)?;
        if step == 0 || size > n {
            return None;
        }
        let mut out = *self;
        let stride = self.strides[axis];
        out.shape.v[axis] = (n - size) / step + 1;
        out.strides.v[axis] = stride * step;
        out.shape.push(size)?;
        out.strides.push(stride)?;
        Some(out)
    }
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
        assert!(t.reshape(&[6, 4]).is_none());
        assert_eq!(offsets(&t.reshape(&[3, 2, 2, 2]).unwrap()), offsets(&t));
        let b = Layout::contiguous(&[1, 4]).unwrap().broadcast_to(&[3, 4]).unwrap();
        assert_eq!(offsets(&b.reshape(&[3, 2, 2]).unwrap()), offsets(&b));
        assert!(b.reshape(&[12]).is_none());
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
            Some(0..0)
        );
        assert_eq!(m.transpose(0, 1).unwrap().span(), 0..12);
        assert_eq!(m.narrow(0, 3, 0).unwrap().offset(), 0);
        assert_eq!(Layout::contiguous(&[2, 0, 9]).unwrap().narrow(2, 8, 1).unwrap().span(), 0..0);
        assert_eq!(&*broadcast_shapes(&[4, 1, 3], &[2, 1]).unwrap(), [4, 2, 3]);
        assert_eq!(broadcast_shapes(&[4, 2, 3], &[5, 3]), Err(1));
    }
}
