//! Transformations of layouts, drawn from bytes, and what each of them means element by element.

use arbitrary::{Result, Unstructured};
use trefoil::{Layout, LayoutError, MAX_ELEMENTS};

/// Most elements whose places are written down one by one.
const SMALL: usize = 1 << 11;

/// One transformation.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Permute(Vec<usize>),
    Transpose(usize, usize),
    Slice(usize, usize, usize, usize),
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Unsqueeze(usize),
    Squeeze(usize),
    Broadcast(Vec<usize>),
    Reshape(Vec<usize>),
    Diagonal(isize, usize, usize),
    Unfold(usize, usize, usize),
    Shifted(usize),
}

/// A number that is mostly small, and sometimes one that wraps around when it is multiplied.
pub(crate) fn number(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.int_in_range(0..=15u8)? {
        0 => usize::MAX - u.int_in_range(0..=64usize)?,
        1 => (1usize << u.int_in_range(0..=63u32)?).wrapping_sub(u.int_in_range(0..=1)?),
        2 => u.arbitrary()?,
        3 => u.int_in_range(0..=100)?,
        _ => u.int_in_range(0..=5)?,
    })
}

fn numbers(u: &mut Unstructured<'_>, most: usize) -> Result<Vec<usize>> {
    (0..u.int_in_range(0..=most)?).map(|_| number(u)).collect()
}

/// Sizes that have `n` elements, if it can be done by chance.
fn factors(u: &mut Unstructured<'_>, mut n: usize) -> Result<Vec<usize>> {
    let mut sizes = vec![];
    while n > 1 && sizes.len() < 5 {
        let part = u.int_in_range(1..=n.min(12))?;
        if n.is_multiple_of(part) {
            sizes.push(part);
            n /= part;
        }
        if u.is_empty() {
            break;
        }
    }
    sizes.push(n);
    Ok(sizes)
}

impl Step {
    /// One that often applies to `l`.
    pub(crate) fn draw(u: &mut Unstructured<'_>, l: &Layout) -> Result<Self> {
        let axis = |u: &mut Unstructured<'_>| match l.rank() {
            0 => number(u),
            n if u.ratio(15, 16)? => u.int_in_range(0..=n - 1),
            _ => number(u),
        };
        Ok(match u.int_in_range(0..=11u8)? {
            0 => {
                let mut perm: Vec<usize> = (0..l.rank()).collect();
                (1..perm.len()).try_for_each(|i| u.int_in_range(0..=i).map(|j| perm.swap(i, j)))?;
                Step::Permute(if u.ratio(1, 16)? { numbers(u, 9)? } else { perm })
            }
            1 => Step::Transpose(axis(u)?, axis(u)?),
            2 => Step::Slice(axis(u)?, number(u)?, number(u)?, number(u)?),
            3 => Step::Narrow(axis(u)?, number(u)?, number(u)?),
            4 => Step::Select(axis(u)?, number(u)?),
            5 => Step::Unsqueeze(axis(u)?),
            6 => Step::Squeeze(axis(u)?),
            7 => {
                let lead = numbers(u, 2)?;
                let kept = l.shape().iter().map(|&n| if n == 1 { number(u) } else { Ok(n) });
                Step::Broadcast(lead.into_iter().map(Ok).chain(kept).collect::<Result<_>>()?)
            }
            8 => Step::Reshape(if u.ratio(1, 8)? { numbers(u, 9)? } else { factors(u, l.numel())? }),
            9 => {
                let k = number(u)? as isize;
                Step::Diagonal(if u.arbitrary()? { k } else { k.wrapping_neg() }, axis(u)?, axis(u)?)
            }
            10 => Step::Unfold(axis(u)?, number(u)?, number(u)?),
            _ => Step::Shifted(number(u)?),
        })
    }

    /// What the library makes of it.
    pub(crate) fn apply(&self, l: &Layout) -> std::result::Result<Layout, LayoutError> {
        match self {
            Step::Permute(p) => l.permute(p),
            Step::Transpose(a, b) => l.transpose(*a, *b),
            Step::Slice(axis, start, end, step) => l.slice(*axis, *start, *end, *step),
            Step::Narrow(axis, start, len) => l.narrow(*axis, *start, *len),
            Step::Select(axis, at) => l.select(*axis, *at),
            Step::Unsqueeze(axis) => l.unsqueeze(*axis),
            Step::Squeeze(axis) => l.squeeze(*axis),
            Step::Broadcast(shape) => l.broadcast_to(shape),
            Step::Reshape(shape) => l.reshape(shape),
            Step::Diagonal(k, a, b) => l.diagonal(*k, *a, *b),
            Step::Unfold(axis, size, step) => l.unfold(*axis, *size, *step),
            Step::Shifted(by) => l.shifted(*by),
        }
    }
}

/// The places of all elements in row-major order: what a layout means, without strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) shape: Vec<usize>,
    pub(crate) at: Vec<u128>,
}

/// What a step makes of places.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// The arguments do not fit.
    Wrong,
    /// Too many elements to be written down, or too far away.
    Large,
    Places(Places),
}

impl Places {
    /// The places of a layout, by its own strides; `None` if they are too many.
    pub(crate) fn of(l: &Layout) -> Option<Self> {
        let n = count(l.shape())?;
        let place = |i: usize| {
            let steps = index(l.shape(), i).into_iter().zip(l.strides());
            l.offset() as u128 + steps.map(|(i, &s)| i as u128 * s as u128).sum::<u128>()
        };
        Some(Places { shape: l.shape().to_vec(), at: (0..n).map(place).collect() })
    }

    /// New places of this shape, each that of an old index.
    fn gather(&self, shape: Vec<usize>, old: impl Fn(&[usize]) -> Vec<usize>) -> Meaning {
        let Some(n) = count(&shape) else { return Meaning::Large };
        let flat = |i: &[usize]| i.iter().zip(&self.shape).fold(0, |at, (i, n)| at * n + i);
        let at: Vec<u128> = (0..n).map(|i| self.at[flat(&old(&index(&shape, i)))]).collect();
        Places { shape, at }.checked()
    }

    fn checked(self) -> Meaning {
        let far = self.at.iter().any(|&at| at >= MAX_ELEMENTS as u128);
        let sizes = self.shape.iter().filter(|&&n| n != 0).try_fold(1usize, |a, &n| a.checked_mul(n));
        if self.shape.len() > trefoil::MAX_RANK {
            return Meaning::Wrong;
        }
        if far || sizes.is_none_or(|n| n >= MAX_ELEMENTS) { Meaning::Large } else { Meaning::Places(self) }
    }

    /// What `step` means.
    pub(crate) fn after(&self, step: &Step) -> Meaning {
        let rank = self.shape.len();
        let has = |axis: usize| axis < rank;
        let with = |axis: usize, n: usize| {
            let mut shape = self.shape.clone();
            shape[axis] = n;
            shape
        };
        match *step {
            Step::Permute(ref p) => {
                let mut sorted = p.clone();
                sorted.sort_unstable();
                if sorted != (0..rank).collect::<Vec<_>>() {
                    return Meaning::Wrong;
                }
                let back = |new: &[usize]| {
                    (0..rank).map(|a| p.iter().position(|&x| x == a).map_or(0, |i| new[i])).collect()
                };
                self.gather(p.iter().map(|&a| self.shape[a]).collect(), back)
            }
            Step::Transpose(a, b) if has(a) && has(b) => {
                let swap = |v: &[usize]| {
                    let mut v = v.to_vec();
                    v.swap(a, b);
                    v
                };
                self.gather(swap(&self.shape), swap)
            }
            Step::Slice(axis, start, end, step)
                if has(axis) && step > 0 && start <= end && end <= self.shape[axis] =>
            {
                self.gather(with(axis, (end - start).div_ceil(step)), |new| {
                    set(new, axis, start + new[axis] * step)
                })
            }
            Step::Narrow(axis, start, len) => match start.checked_add(len) {
                Some(end) => self.after(&Step::Slice(axis, start, end, 1)),
                None => Meaning::Wrong,
            },
            Step::Select(axis, at) if has(axis) && at < self.shape[axis] => {
                self.gather(without(&self.shape, axis), |new| insert(new, axis, at))
            }
            Step::Unsqueeze(axis) if axis <= rank => {
                self.gather(insert(&self.shape, axis, 1), |new| without(new, axis))
            }
            Step::Squeeze(axis) if has(axis) && self.shape[axis] == 1 => {
                self.gather(without(&self.shape, axis), |new| insert(new, axis, 0))
            }
            Step::Broadcast(ref shape) if shape.len() >= rank => {
                let lead = shape.len() - rank;
                let fits = self.shape.iter().zip(&shape[lead..]).all(|(&n, &m)| n == m || n == 1);
                let back = |new: &[usize]| {
                    self.shape.iter().zip(&new[lead..]).map(|(&n, &i)| if n == 1 { 0 } else { i }).collect()
                };
                if fits { self.gather(shape.clone(), back) } else { Meaning::Wrong }
            }
            Step::Reshape(ref shape) if count(shape) == Some(self.at.len()) => {
                let new = Places { shape: shape.clone(), at: self.at.clone() };
                if new.is_strided() { new.checked() } else { Meaning::Wrong }
            }
            Step::Diagonal(k, a, b) if has(a) && has(b) && a != b => self.diagonal(k, a, b),
            Step::Unfold(axis, size, step) if has(axis) && step > 0 && size <= self.shape[axis] => {
                let mut shape = with(axis, (self.shape[axis] - size) / step + 1);
                shape.push(size);
                self.gather(shape, |new| set(&new[..rank], axis, new[axis] * step + new[rank]))
            }
            Step::Shifted(by) => {
                let at = self.at.iter().map(|&at| at + by as u128).collect();
                if by >= MAX_ELEMENTS {
                    Meaning::Large
                } else {
                    Places { shape: self.shape.clone(), at }.checked()
                }
            }
            _ => Meaning::Wrong,
        }
    }

    fn diagonal(&self, k: isize, a: usize, b: usize) -> Meaning {
        let (down, right) = if k < 0 { (k.unsigned_abs(), 0) } else { (0, k as usize) };
        let n = self.shape[a].saturating_sub(down).min(self.shape[b].saturating_sub(right));
        let mut shape = without(&without(&self.shape, a.max(b)), a.min(b));
        shape.push(n);
        let last = shape.len() - 1;
        self.gather(shape, |new| {
            let (low, high) = if a < b { ((a, down), (b, right)) } else { ((b, right), (a, down)) };
            let old = insert(&new[..last], low.0, low.1 + new[last]);
            insert(&old, high.0, high.1 + new[last])
        })
    }

    /// Whether some strides give these places.
    fn is_strided(&self) -> bool {
        let Some(&first) = self.at.first() else { return true };
        let inner: Vec<usize> = (0..self.shape.len()).map(|a| self.shape[a + 1..].iter().product()).collect();
        let steps: Option<Vec<u128>> = (0..self.shape.len())
            .map(|a| if self.shape[a] > 1 { self.at[inner[a]].checked_sub(first) } else { Some(0) })
            .collect();
        steps.is_some_and(|steps| {
            (0..self.at.len()).all(|i| {
                let sum: u128 = index(&self.shape, i).iter().zip(&steps).map(|(&i, s)| i as u128 * s).sum();
                self.at[i] == first + sum
            })
        })
    }
}

/// Number of elements, if it is small.
fn count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n)).filter(|&n| n <= SMALL)
}

/// The index of element number `i`.
fn index(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &n) in index.iter_mut().zip(shape).rev() {
        *at = i % n;
        i /= n;
    }
    index
}

fn set(v: &[usize], at: usize, x: usize) -> Vec<usize> {
    let mut v = v.to_vec();
    v[at] = x;
    v
}

fn insert(v: &[usize], at: usize, x: usize) -> Vec<usize> {
    let mut v = v.to_vec();
    v.insert(at, x);
    v
}

fn without(v: &[usize], at: usize) -> Vec<usize> {
    let mut v = v.to_vec();
    v.remove(at);
    v
}
