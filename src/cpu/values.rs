//! Elements of operands in place, and loops over elements on several threads. No result depends on the number of threads.

use std::any::Any;
use std::cmp::Ordering;
use std::ops::{Deref, Range};
use std::sync::RwLockReadGuard;

use bytemuck::{Pod, cast_slice_mut};
use rayon::prelude::*;

use crate::buffer::{GradMut, HostData, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::{HostElement, gather, places, read, store, with_dtype, write, wrong_storage};
use crate::error::Result;
use crate::layout::{Layout, MAX_RANK};

/// Elements that a thread takes at least; fewer are done by the caller alone.
pub(in crate::cpu) const CHUNK: usize = 1 << 13;

/// A view's elements in row-major order: in place where they lie so, else a copy.
pub(in crate::cpu) enum Values<'a, T> {
    Held(RwLockReadGuard<'a, HostData>, Range<usize>),
    Copied(Vec<T>),
}

impl<'a, T: HostElement> Values<'a, T> {
    /// `others`: blocks of the operands that are locked besides this one. A block is never locked twice at a time: what lies in one of them
    /// is copied.
    pub(in crate::cpu) fn new(op: &'static str, v: View<'a>, others: &[u64]) -> Result<Self> {
        let l = v.layout();
        if !l.is_contiguous() || others.contains(&v.block().id()) {
            return gather(op, v).map(Values::Copied);
        }
        let (guard, range) = (read(op, &v)?, l.offset()..l.offset() + l.numel());
        match T::slice(&guard).and_then(|s| s.get(range.clone())) {
            Some(_) => Ok(Values::Held(guard, range)),
            None => Err(wrong_storage(op, v.dtype())),
        }
    }
}

impl<T: HostElement> Deref for Values<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            // `new` has looked.
            Values::Held(guard, range) => T::slice(guard).map_or(&[], |s| &s[range.clone()]),
            Values::Copied(v) => v,
        }
    }
}

/// How many chunks of a slice a thread takes at a time.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Share {
    least: usize,
}

impl Share {
    /// As many as there is reason to.
    pub(in crate::cpu) const ANY: Share = Share { least: 1 };

    pub(in crate::cpu) fn at_least(least: usize) -> Self {
        Share { least }
    }
}

/// A place for what a function needs beside its chunks, made once for several of them.
type AnyRoom = Box<dyn Any>;

/// What is done with a chunk of this number, in such a place.
type OnChunk<'f, R, T> = dyn Fn(&mut R, usize, &mut [T]) -> Result<()> + Sync + 'f;

/// What is done with chunks of two slices.
type OnPair<'f, R, A, B> = dyn Fn(&mut R, usize, &mut [A], &mut [B]) -> Result<()> + Sync + 'f;

/// Calls `f` with each chunk of `len` elements of a slice and its number, on several threads. Elements are divided as bytes, and functions are
/// references: the code that divides work among threads is large, and is compiled once.
pub(in crate::cpu) fn each_chunk<T: Pod>(
    y: &mut [T],
    len: usize,
    share: Share,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    each_of_bytes(cast_slice_mut(y), len * size_of::<T>(), share, &|i, y| f(i, cast_slice_mut(y)));
}

fn each_of_bytes(y: &mut [u8], len: usize, share: Share, f: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    let chunks = y.par_chunks_mut(len).with_min_len(share.least).enumerate();
    chunks.for_each(|(i, y)| f(i, y));
}

/// As [`each_chunk`], with room made by `room` once for several chunks. Errors: those of `room` and `f`.
pub(in crate::cpu) fn each_chunk_in<T: Pod, R: 'static>(
    y: &mut [T],
    len: usize,
    share: Share,
    room: &(dyn Fn() -> Result<R> + Sync),
    f: &OnChunk<'_, R, T>,
) -> Result<()> {
    let f = |room: &mut dyn Any, i: usize, y: &mut [u8]| {
        room.downcast_mut().map_or(Ok(()), |room| f(room, i, cast_slice_mut(y)))
    };
    each_of_bytes_in(cast_slice_mut(y), len * size_of::<T>(), share, &|| Ok(Box::new(room()?)), &f)
}

fn each_of_bytes_in(
    y: &mut [u8],
    len: usize,
    share: Share,
    room: &(dyn Fn() -> Result<AnyRoom> + Sync),
    f: &OnChunk<'_, dyn Any, u8>,
) -> Result<()> {
    let chunks = y.par_chunks_mut(len).with_min_len(share.least).enumerate();
    chunks.try_for_each_init(room, |room, (i, y)| match room {
        Ok(room) => f(&mut **room, i, y),
        Err(e) => Err(e.clone()),
    })
}

/// As [`each_chunk_in`], for chunks of two slices at a time: `len` has the elements of both.
pub(in crate::cpu) fn each_pair_in<A: Pod, B: Pod, R: 'static>(
    (a, b): (&mut [A], &mut [B]),
    len: [usize; 2],
    share: Share,
    room: &(dyn Fn() -> Result<R> + Sync),
    f: &OnPair<'_, R, A, B>,
) -> Result<()> {
    let f = |room: &mut dyn Any, i: usize, a: &mut [u8], b: &mut [u8]| {
        room.downcast_mut().map_or(Ok(()), |room| f(room, i, cast_slice_mut(a), cast_slice_mut(b)))
    };
    let len = [len[0] * size_of::<A>(), len[1] * size_of::<B>()];
    pairs_of_bytes_in((cast_slice_mut(a), cast_slice_mut(b)), len, share, &|| Ok(Box::new(room()?)), &f)
}

fn pairs_of_bytes_in(
    (a, b): (&mut [u8], &mut [u8]),
    len: [usize; 2],
    share: Share,
    room: &(dyn Fn() -> Result<AnyRoom> + Sync),
    f: &OnPair<'_, dyn Any, u8, u8>,
) -> Result<()> {
    let chunks = a.par_chunks_mut(len[0]).zip(b.par_chunks_mut(len[1]));
    let chunks = chunks.with_min_len(share.least).enumerate();
    chunks.try_for_each_init(room, |room, (i, (a, b))| match room {
        Ok(room) => f(&mut **room, i, a, b),
        Err(e) => Err(e.clone()),
    })
}

/// `f` of every number below `n`, of which a thread takes at least `least` at a time. A reference, as for [`each_chunk`].
pub(in crate::cpu) fn collected<T: Send>(
    n: usize,
    least: usize,
    f: &(dyn Fn(usize) -> T + Sync),
) -> Result<Vec<T>> {
    (0..n).into_par_iter().with_min_len(least).map(f).try_vec()
}

/// Calls `f` with parts of a slice and the number of their first element.
fn in_parts<T: Pod>(y: &mut [T], f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    match y.len() < 2 * CHUNK {
        true => f(0, y),
        false => each_chunk(y, CHUNK, Share::ANY, &|i, y| f(i * CHUNK, y)),
    }
}

/// Calls `f` with every number below `n`, on several threads where there are several. A reference, as for [`each_chunk`].
pub(in crate::cpu) fn each_index(n: usize, f: &(dyn Fn(usize) + Sync)) {
    match n {
        0 | 1 => (0..n).for_each(f),
        _ => (0..n).into_par_iter().for_each(f),
    }
}

/// Sorts positions by `order`, which tells all of them apart: a stable sort would need memory. A reference, as for [`each_chunk`].
pub(in crate::cpu) fn sort_positions(all: &mut [usize], order: &dyn Fn(usize, usize) -> Ordering) {
    all.sort_unstable_by(|&a, &b| order(a, b));
}

/// Changes a view's elements in row-major order: `f` gets parts of them and the number of their first element.
pub(in crate::cpu) fn change<T: HostElement>(
    op: &'static str,
    v: &ViewMut<'_>,
    f: impl Fn(usize, &mut [T]) + Sync,
) -> Result<()> {
    change_parts(op, v, &f)
}

fn change_parts<T: HostElement>(
    op: &'static str,
    v: &ViewMut<'_>,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) -> Result<()> {
    change_all(op, v, |all| {
        in_parts(all, f);
        Ok(())
    })
}

/// Changes a view's elements in row-major order: `f` gets all of them, in place where they lie so, else a copy.
pub(in crate::cpu) fn change_all<T: HostElement>(
    op: &'static str,
    v: &ViewMut<'_>,
    f: impl FnOnce(&mut [T]) -> Result<()>,
) -> Result<()> {
    let l = v.layout();
    if !l.is_contiguous() {
        let mut all = gather::<T>(op, v.as_view())?;
        f(&mut all)?;
        return store(op, v, &all);
    }
    let mut guard = write(op, v)?;
    let range = l.offset()..l.offset() + l.numel();
    let all = T::slice_mut(&mut guard).and_then(|s| s.get_mut(range));
    f(all.ok_or_else(|| wrong_storage(op, v.dtype()))?)
}

/// Stores row-major values at strides of which the last is 1: by the first axis on several threads where its slices lie one behind the other.
pub(in crate::cpu) fn store_rows<T: HostElement>(
    s: &mut [T],
    shape: &[usize],
    strides: &[usize],
    data: &[T],
) {
    let (Some((&first, inner)), Some((&step, steps))) = (shape.split_first(), strides.split_first()) else {
        return;
    };
    let rows = |s: &mut [T], shape: &[usize], strides: &[usize], data: &[T]| {
        let n = shape.last().map_or(1, |n| *n).max(1);
        let outer = shape.len().saturating_sub(1);
        let starts = places(&shape[..outer], &strides[..outer], 0, data.len() / n);
        starts.zip(data.chunks_exact(n)).for_each(|(at, row)| s[at..at + n].copy_from_slice(row));
    };
    let span = 1 + inner.iter().zip(steps).map(|(n, step)| n.saturating_sub(1) * step).sum::<usize>();
    if data.len() < 2 * CHUNK || inner.is_empty() || step < span {
        return rows(s, shape, strides, data);
    }
    let slice = data.len() / first;
    each_chunk(s, step, Share::ANY, &|i, s| {
        if let Some(data) = data.get(i * slice..(i + 1) * slice) {
            rows(s, inner, steps, data);
        }
    });
}

/// Operands that are read at a time, while the blocks `written` are locked: those that share a block are copied.
pub(in crate::cpu) fn operands<'a, T: HostElement, const N: usize>(
    op: &'static str,
    views: [Option<View<'a>>; N],
    written: &[Option<u64>],
) -> Result<[Option<Values<'a, T>>; N]> {
    let blocks = views.map(|v| v.map(|v| v.block().id()));
    let mut out = [(); N].map(|_| None);
    for (i, (to, v)) in out.iter_mut().zip(views).enumerate() {
        let Some(v) = v else { continue };
        let alone = !written.contains(&blocks[i]) && (0..N).all(|j| j == i || blocks[j] != blocks[i]);
        *to = Some(if alone { Values::new(op, v, &[])? } else { Values::Copied(gather(op, v)?) });
    }
    Ok(out)
}

/// The axes of a layout; neighbours along which elements are as far apart as along one longer axis are one.
struct Axes {
    rank: usize,
    sizes: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Axes {
    fn new(l: &Layout) -> Self {
        let mut axes = Axes { rank: 0, sizes: [1; MAX_RANK], strides: [1; MAX_RANK] };
        for (&n, &stride) in l.shape().iter().zip(l.strides()).filter(|(n, _)| **n != 1) {
            match axes.rank.checked_sub(1) {
                Some(a) if axes.strides[a] == n * stride => {
                    (axes.sizes[a], axes.strides[a]) = (axes.sizes[a] * n, stride);
                }
                _ => {
                    (axes.sizes[axes.rank], axes.strides[axes.rank]) = (n, stride);
                    axes.rank += 1;
                }
            }
        }
        axes
    }

    /// Copies elements in row-major order from number `at` on; `offset` is the place of the first one of all.
    fn read<T: Copy>(&self, x: &[T], offset: usize, at: usize, mut out: &mut [T]) {
        let last = self.rank.saturating_sub(1);
        let (mut ix, mut rest, mut place) = ([0; MAX_RANK], at, offset);
        for a in (0..=last).rev() {
            ix[a] = rest % self.sizes[a].max(1);
            rest /= self.sizes[a].max(1);
            place += ix[a] * self.strides[a];
        }
        while !out.is_empty() {
            let n = (self.sizes[last] - ix[last]).min(out.len());
            let (to, others) = out.split_at_mut(n);
            match self.strides[last] {
                0 => to.fill(x[place]),
                1 => to.copy_from_slice(&x[place..place + n]),
                step => to.iter_mut().zip(x[place..].iter().step_by(step)).for_each(|(y, x)| *y = *x),
            }
            out = others;
            // The first element of the next row.
            place -= ix[last] * self.strides[last];
            ix[last] = 0;
            for a in (0..last).rev() {
                if ix[a] + 1 < self.sizes[a] {
                    (ix[a], place) = (ix[a] + 1, place + self.strides[a]);
                    break;
                }
                place -= ix[a] * self.strides[a];
                ix[a] = 0;
            }
        }
    }
}

/// y = x, or y += x; of one dtype and shape.
pub(in crate::cpu) fn copy<T: HostElement>(op: &'static str, x: View<'_>, y: &GradMut<'_>) -> Result<()> {
    let out = &y.out;
    let put = |to: &mut [T], from: &[T]| match y.accumulate {
        false => to.copy_from_slice(from),
        true => to.iter_mut().zip(from).for_each(|(y, x)| *y = T::from_f64(y.to_f64() + x.to_f64())),
    };
    let l = x.layout();
    if l.is_contiguous() || x.block().id() == out.block().id() {
        let x = Values::<T>::new(op, x, &[out.block().id()])?;
        return change::<T>(op, out, |at, y| put(y, &x[at..at + y.len()]));
    }
    let (guard, axes) = (read(op, &x)?, Axes::new(l));
    let from = T::slice(&guard).ok_or_else(|| wrong_storage(op, x.dtype()))?;
    let accumulate = y.accumulate;
    change::<T>(op, out, |at, y| {
        if !accumulate {
            return axes.read(from, l.offset(), at, y);
        }
        let mut room = [T::default(); 256];
        for (i, y) in y.chunks_mut(256).enumerate() {
            let x = &mut room[..y.len()];
            axes.read(from, l.offset(), at + i * 256, x);
            put(y, x);
        }
    })
}

/// out = f(x), or out += f(x); of one dtype and shape.
pub(in crate::cpu) fn map1(
    op: &'static str,
    x: View<'_>,
    out: &GradMut<'_>,
    f: impl Fn(f64) -> f64 + Sync,
) -> Result<()> {
    let block = out.out.block().id();
    with_dtype!(x.dtype(), T => {
        let x = Values::<T>::new(op, x, &[block])?;
        change::<T>(op, &out.out, |at, y| {
            let x = &x[at..at + y.len()];
            match out.accumulate {
                false => y.iter_mut().zip(x).for_each(|(y, &x)| *y = HostElement::from_f64(f(T::to_f64(x)))),
                true => y.iter_mut().zip(x).for_each(|(y, &x)| *y = HostElement::from_f64(T::to_f64(*y) + f(T::to_f64(x)))),
            }
        })
    })
}

/// out = f(a, b), or out += f(a, b); of one dtype and shape.
pub(in crate::cpu) fn map2(
    op: &'static str,
    [a, b]: [View<'_>; 2],
    out: &GradMut<'_>,
    f: impl Fn(f64, f64) -> f64 + Sync,
) -> Result<()> {
    let [block, of_a, of_b] = [out.out.block().id(), a.block().id(), b.block().id()];
    with_dtype!(a.dtype(), T => {
        let (a, b) = (Values::<T>::new(op, a, &[block, of_b])?, Values::<T>::new(op, b, &[block, of_a])?);
        change::<T>(op, &out.out, |at, y| {
            let both = a[at..at + y.len()].iter().zip(&b[at..at + y.len()]);
            let values = both.map(|(&a, &b)| f(T::to_f64(a), T::to_f64(b)));
            match out.accumulate {
                false => y.iter_mut().zip(values).for_each(|(y, v)| *y = HostElement::from_f64(v)),
                true => y.iter_mut().zip(values).for_each(|(y, v)| *y = HostElement::from_f64(T::to_f64(*y) + v)),
            }
        })
    })
}

/// The elements widened to f64.
pub(in crate::cpu) fn widened<T: HostElement>(op: &'static str, v: View<'_>) -> Result<Vec<f64>> {
    let x = Values::<T>::new(op, v, &[])?;
    if x.len() < 2 * CHUNK {
        return x.iter().map(|&x| x.to_f64()).try_vec();
    }
    let mut wide = filled(x.len(), 0.0)?;
    in_parts(&mut wide, &|at, wide| wide.iter_mut().zip(&x[at..]).for_each(|(y, x)| *y = x.to_f64()));
    Ok(wide)
}

/// The sum of f over elements of two slices of one length, in eight interleaved sums: a single chain would wait for each addition.
pub(in crate::cpu) fn sum_of(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> f64 {
    let (mut sums, n) = ([0.0; 8], a.len().min(b.len()) / 8 * 8);
    for (a, b) in a[..n].chunks_exact(8).zip(b[..n].chunks_exact(8)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += f(*a, *b));
    }
    let rest: f64 = a[n..].iter().zip(&b[n..]).map(|(a, b)| f(*a, *b)).sum();
    sums.iter().sum::<f64>() + rest
}
