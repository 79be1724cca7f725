//! Operands copied into the order in which blocks read them.

use pulp::{Simd, WithSimd};

use super::Place;
use super::kernel::Element;

/// Elements from a block of `width` sequences of k elements to the next. Blocks lie apart by a line of the cache more than they need: neighbours are
/// written side by side, and are often a multiple of 4 KiB long, which would put them all into one set of the cache.
pub(in crate::cpu) fn block_step(width: usize, k: usize) -> usize {
    width * k + 16
}

/// Copies sequences of k elements in blocks of `width`, [`block_step`] apart: element p of sequence c of a block lies at `p * width + c`.
///
/// The last block is as wide as the sequences that are left, or `padded` with zeros.
pub(super) struct Pack<'a, T> {
    pub(super) from: &'a [T],
    /// The sequences as rows.
    pub(super) place: Place,
    pub(super) count: usize,
    pub(super) k: usize,
    pub(super) width: usize,
    pub(super) padded: bool,
    pub(super) to: &'a mut [T],
}

/// Elements of sequences that are copied before the next ones of the same: 8 KiB of 32 sequences in f32.
const RUN: usize = 64;

impl<T: Element> WithSimd for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.place.rows == 1 {
            return self.neighbours();
        }
        let Pack { from, place: Place { at, rows, cols }, count, k, width, padded, to } = self;
        for (first, to) in (0..count).step_by(width).zip(to.chunks_mut(block_step(width, k))) {
            let count = width.min(count - first);
            let width = if padded { width } else { count };
            let from = &from[at + first * rows..];
            let turned = if cols == 1 { count / 4 * 4 } else { 0 };
            for (i, to) in to[..width * k].chunks_mut(RUN * width).enumerate() {
                let from = &from[i * RUN * cols..];
                for c in (0..turned / 8 * 8).step_by(8) {
                    turn::<T, 8>(&from[c * rows..], rows, &mut to[c..], width);
                }
                if turned % 8 != 0 {
                    let c = turned - 4;
                    turn::<T, 4>(&from[c * rows..], rows, &mut to[c..], width);
                }
                for (p, to) in to.chunks_exact_mut(width).enumerate() {
                    for (c, to) in to.iter_mut().enumerate().skip(turned) {
                        *to = if c < count { from[c * rows + p * cols] } else { T::default() };
                    }
                }
            }
        }
    }
}

impl<T: Element> Pack<'_, T> {
    /// Sequences whose elements lie side by side: rows of them are read from end to end.
    #[inline(always)]
    fn neighbours(self) {
        let Pack { from, place: Place { at, cols, .. }, count, k, width, padded, to } = self;
        let step = block_step(width, k);
        for p in 0..k {
            let from = &from[at + p * cols..][..count];
            let whole = match width {
                12 => copy_whole::<T, 12>(from, p, step, to),
                16 => copy_whole::<T, 16>(from, p, step, to),
                32 => copy_whole::<T, 32>(from, p, step, to),
                _ => 0,
            };
            for (from, to) in from.chunks(width).zip(to.chunks_mut(step)).skip(whole) {
                let width = if padded { width } else { from.len() };
                let (to, zeros) = to[p * width..][..width].split_at_mut(from.len());
                to.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
                zeros.fill(T::default());
            }
        }
    }
}

/// Copies element `p` of as many blocks as are whole, and gives their number. The width is known, so that this is a move of vectors.
#[inline(always)]
fn copy_whole<T: Element, const W: usize>(from: &[T], p: usize, step: usize, to: &mut [T]) -> usize {
    let whole = from.as_chunks::<W>().0;
    for (from, to) in whole.iter().zip(to.chunks_mut(step)) {
        if let Some(to) = to[p * W..].first_chunk_mut() {
            *to = *from;
        }
    }
    whole.len()
}

/// Copies elements of `N` contiguous sequences to the beginning of every group of `width`.
#[inline(always)]
fn turn<T: Element, const N: usize>(from: &[T], rows: usize, to: &mut [T], width: usize) {
    let k = to.len().div_ceil(width);
    T::turn::<N>(std::array::from_fn(|c| &from[c * rows..][..k]), to, width);
}
