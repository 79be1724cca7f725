//! Host memory whose size a caller controls: every allocation is fallible, and refused beyond what the machine has.
//!
//! A view can name far more elements than its buffer holds (stride 0 repeats one), so a copy of it can have any size. Rust's own vectors abort
//! the process where there is no memory; these give [`GpuError::OutOfMemory`]. Elsewhere in this module clippy refuses the allocating methods
//! of the standard library (`clippy.toml` lists them).
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use bytemuck::{NoUninit, Zeroable};
use rayon::prelude::*;

use crate::device::{memory_figure, physical_memory};
use crate::error::{GpuError, Result};

/// Requests from this size on are held against the memory that is free at the time, which costs a read of `/proc/meminfo`.
const LARGE: usize = 64 << 20;

/// Bytes of physical memory.
fn total() -> usize {
    physical_memory().map_or(isize::MAX as usize, |b| b as usize)
}

/// Bytes that are free at the time, if the system tells.
fn available() -> Option<usize> {
    memory_figure("MemAvailable").map(|b| b as usize)
}

/// The error of a request for `n` elements of `size` bytes; `in_use` is what the whole machine uses.
#[cold]
#[inline(never)]
fn out_of_memory(n: usize, size: usize) -> GpuError {
    let in_use = available().map_or(0, |free| total().saturating_sub(free));
    GpuError::OutOfMemory { requested: n.saturating_mul(size), in_use, cached: 0 }
}

/// Whether the machine has room for `n` elements of `size` bytes. Linux by itself grants more than there is and ends processes later.
fn has_room(n: usize, size: usize) -> bool {
    match n.checked_mul(size) {
        Some(bytes) if bytes < LARGE => true,
        Some(bytes) => has_large_room(bytes),
        None => false,
    }
}

#[cold]
#[inline(never)]
fn has_large_room(bytes: usize) -> bool {
    bytes <= total() && available().is_none_or(|free| bytes <= free)
}

/// Makes room for `more` elements behind those of `v`, at least doubling it.
#[inline]
fn reserve<T>(v: &mut Vec<T>, more: usize) -> Result<()> {
    if more <= v.capacity() - v.len() { Ok(()) } else { grow(v, more) }
}

/// Apart from where it is called, as it is rarely reached.
#[inline(never)]
fn grow<T>(v: &mut Vec<T>, more: usize) -> Result<()> {
    let n = v.len().saturating_add(more);
    if has_room(n, size_of::<T>()) && v.try_reserve(more).is_ok() {
        return Ok(());
    }
    Err(out_of_memory(n, size_of::<T>()))
}

/// An empty vector with room for `n` elements.
pub(in crate::cpu) fn with_capacity<T>(n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    reserve(&mut v, n)?;
    Ok(v)
}

/// `n` equal numbers. Zeros come from the system as such and cost nothing until they are touched.
pub(in crate::cpu) fn filled<T: NoUninit + Zeroable>(n: usize, value: T) -> Result<Vec<T>> {
    if bytemuck::bytes_of(&value).iter().any(|&b| b != 0) {
        return repeated(n, value);
    }
    let zeros = has_room(n, size_of::<T>()).then(|| bytemuck::allocation::try_zeroed_vec(n).ok());
    zeros.flatten().ok_or_else(|| out_of_memory(n, size_of::<T>()))
}

/// `n` clones of a value.
pub(in crate::cpu) fn repeated<T: Clone>(n: usize, value: T) -> Result<Vec<T>> {
    let mut v = with_capacity(n)?;
    v.resize(n, value);
    Ok(v)
}

/// A vector that grows.
pub(in crate::cpu) trait Grow<T> {
    /// Appends an element.
    fn try_push(&mut self, x: T) -> Result<()>;

    /// Appends the elements of an iterator.
    fn try_extend(&mut self, items: impl IntoIterator<Item = T>) -> Result<()>;
}

impl<T> Grow<T> for Vec<T> {
    #[inline]
    fn try_push(&mut self, x: T) -> Result<()> {
        if self.len() == self.capacity() {
            reserve(self, 1)?;
        }
        self.push(x);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, items: impl IntoIterator<Item = T>) -> Result<()> {
        let items = items.into_iter();
        let (least, most) = items.size_hint();
        reserve(self, least)?;
        if most == Some(least) {
            self.extend(items);
            return Ok(());
        }
        for x in items {
            self.try_push(x)?;
        }
        Ok(())
    }
}

/// Iterators into vectors.
pub(in crate::cpu) trait TryVec: Iterator + Sized {
    /// The elements.
    #[inline]
    fn try_vec(self) -> Result<Vec<Self::Item>> {
        let mut v = Vec::new();
        v.try_extend(self)?;
        Ok(v)
    }

    /// The elements, or the first error among them.
    #[inline]
    fn try_vec_ok<T>(self) -> Result<Vec<T>>
    where
        Self: Iterator<Item = Result<T>>,
    {
        let mut v = with_capacity(self.size_hint().0)?;
        for x in self {
            v.try_push(x?)?;
        }
        Ok(v)
    }
}

impl<I: Iterator> TryVec for I {}

/// Parallel iterators into vectors.
pub(in crate::cpu) trait TryParVec: IndexedParallelIterator {
    /// The elements in order.
    fn try_vec(self) -> Result<Vec<Self::Item>> {
        let mut v = with_capacity(self.len())?;
        self.collect_into_vec(&mut v);
        Ok(v)
    }
}

impl<I: IndexedParallelIterator> TryParVec for I {}

/// Slices into vectors.
pub(in crate::cpu) trait TryToVec<T> {
    /// A copy.
    fn try_to_vec(&self) -> Result<Vec<T>>;
}

impl<T: Clone> TryToVec<T> for [T] {
    #[inline]
    fn try_to_vec(&self) -> Result<Vec<T>> {
        let mut v = with_capacity(self.len())?;
        v.extend_from_slice(self);
        Ok(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_machine_are_errors_with_their_size() {
        let sizes = |e: Result<Vec<f64>>| match e {
            Err(GpuError::OutOfMemory { requested, .. }) => requested,
            other => panic!("{other:?}"),
        };
        assert_eq!(sizes(filled(1 << 42, 0.0)), 1 << 45);
        assert_eq!(sizes(filled(1 << 42, 1.0)), 1 << 45);
        assert_eq!(sizes(with_capacity(usize::MAX)), usize::MAX);
        assert_eq!(sizes((0..1u64 << 50).map(|i| i as f64).try_vec()), 1 << 53);
        assert!(std::iter::repeat_n(Ok(0.0), 1 << 50).try_vec_ok::<f64>().is_err());
        assert!((0..1usize << 50).into_par_iter().try_vec().is_err());
    }

    #[test]
    fn vectors_hold_what_was_asked_for() -> Result<()> {
        assert_eq!(filled(3, 0u8)?, [0; 3]);
        assert_eq!(filled(2, -1i64)?, [-1; 2]);
        assert_eq!(repeated(2, None::<u8>)?, [None; 2]);
        assert_eq!((0..9).filter(|i| i % 2 == 0).try_vec()?, [0, 2, 4, 6, 8]);
        assert_eq!([1, 2, 3][1..].try_to_vec()?, [2, 3]);
        assert!([Ok(1), Err(GpuError::Config("no".into()))].into_iter().try_vec_ok().is_err());
        Ok(())
    }
}
