//! Products as loops over blocks.

use std::ops::Range;

use pulp::Simd;

use super::Place;
use super::kernel::{Dots, Element, MOST_COLS, MOST_ROWS, Merge, Tile, block};
use super::pack::{Pack, block_step};
use crate::cpu::scratch::*;
use crate::cpu::values::{Share, each_chunk, each_chunk_in};
use crate::cpu::vector::FEW;
use crate::error::Result;

/// Elements of k between two sums that are stored: 32 columns of B are then 32 KiB in f32.
const DEPTH: usize = 256;
/// Elements of B that are packed at once, and of k among them.
const PACKED: usize = 1 << 20;
pub(super) const PACKED_DEPTH: usize = 16 * DEPTH;
/// Blocks of rows up to which packing B costs more than reading it in place.
const FEW_BLOCKS: usize = 3;
/// Blocks of rows of A that are packed at once, 240 KiB in f32: they stay in the cache of a core while columns of B pass by.
const MOST_BLOCKS: usize = 20;
/// Panels that a thread packs at once, at most.
const PANELS: usize = 8;
/// Terms of a sum from which on f64 makes it more exact: a shorter one is rounded two or three times in any case.
const TERMS: usize = 4;
/// Tasks per thread, so that a thread that falls behind has fewer.
const TASKS: usize = 8;

/// A right factor.
#[derive(Clone, Copy)]
pub(super) enum Right<'a, T> {
    Matrix(&'a [T], Place),
    Panels(&'a [T]),
}

impl<T: Element> Right<'_, T> {
    /// Element (p, c) of [k, n], for panels of `cols`.
    fn at(&self, [p, c]: [usize; 2], k: usize, cols: usize) -> T {
        match self {
            Right::Matrix(b, place) => b[place.from(p, c).at],
            Right::Panels(panels) => panels[c / cols * block_step(cols, k) + p * cols + c % cols],
        }
    }

    /// A whole panel from element `p` of k and a column on without a copy, and its stride.
    fn in_place(&self, k: usize, p: usize, col: usize, cols: usize) -> (&[T], usize) {
        match self {
            Right::Matrix(b, place) => (&b[place.from(p, col).at..], place.rows),
            Right::Panels(panels) => (&panels[col / cols * block_step(cols, k) + p * cols..], cols),
        }
    }

    /// Copies `count` columns from a first one and element `p` of k on as panels.
    pub(super) fn pack<S: Simd>(&self, s: S, [p, col]: [usize; 2], [k, count]: [usize; 2], to: &mut [T]) {
        if let Right::Matrix(from, place) = self {
            let (place, width) = (place.from(p, col).transposed(), block::<S, T>()[1]);
            s.vectorize(Pack { from, place, count, k, width, padded: true, to });
        }
    }
}

/// What is multiplied: Y = alpha A B + beta Y of [m, n, k].
pub(super) struct Product<'a, T> {
    pub(super) size: [usize; 3],
    pub(super) alpha: T,
    pub(super) beta: T,
    pub(super) a: (&'a [T], Place),
    pub(super) b: Right<'a, T>,
    pub(super) threads: bool,
}

/// How it is multiplied; panels of B from the first on that are read in place.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// So few multiplications that sums in f64 cost nothing, as for other operations on few elements.
    Few,
    /// One row: products of it with columns that are contiguous.
    Dots,
    /// One block of rows, split by columns.
    Columns(usize),
    /// Split by rows.
    Rows(usize),
}

/// For blocks of `rows` by `cols`.
pub(super) fn plan<T>([m, n, k]: [usize; 3], b: Right<'_, T>, [rows, cols]: [usize; 2]) -> Plan {
    match b {
        _ if k >= TERMS && m.saturating_mul(n).saturating_mul(k) < FEW => Plan::Few,
        Right::Matrix(_, b) if m == 1 && b.rows == 1 => Plan::Dots,
        Right::Matrix(_, b) => {
            let in_place = b.cols == 1 && b.rows >= cols && m <= FEW_BLOCKS * rows;
            let panels = if in_place { n / cols } else { 0 };
            if m <= rows { Plan::Columns(panels) } else { Plan::Rows(panels) }
        }
        Right::Panels(_) => Plan::Rows(n.div_ceil(cols)),
    }
}

/// A part of Y: its elements, and strides by row and column.
struct Out<'a, T>(&'a mut [T], [usize; 2]);

impl<T> Out<'_, T> {
    fn from(&mut self, row: usize, col: usize) -> Out<'_, T> {
        Out(&mut self.0[row * self.1[0] + col * self.1[1]..], self.1)
    }
}

/// Elements of k as stored sums divide them: first and count.
fn depths(k: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..k).step_by(DEPTH).map(move |p| (p, DEPTH.min(k - p)))
}

/// Bytes of a line of the cache, where vectors should begin.
const LINE: usize = 64;

/// Elements on whole lines.
#[repr(align(64))]
struct Aligned<T, const N: usize>([T; N]);

/// The rooms of packed factors.
const A: usize = 0;
const B: usize = 1;

/// Lets `f` use `n` elements on whole lines that this thread keeps. What they hold is left from before.
fn with_room<T: Element, R>(which: usize, n: usize, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
    let (mut room, spare) = (T::rooms().with(|r| r[which].take()), LINE / size_of::<T>());
    if room.len() < n + spare {
        room = filled(n + spare, T::default())?;
    }
    let first = room.as_ptr().align_offset(LINE).min(spare);
    let result = f(&mut room[first..first + n]);
    T::rooms().with(|r| r[which].replace(room));
    Ok(result)
}

impl<T: Element> Product<'_, T> {
    pub(super) fn run<S: Simd>(&self, s: S, y: &mut [T], place: Place) -> Result<()> {
        let [m, n, k] = self.size;
        let end = place.from(m - 1, n - 1).at;
        let mut y = Out(&mut y[place.at..=end], [place.rows, place.cols]);
        if k == 0 {
            let sums = filled(n, T::default())?;
            (0..m).for_each(|r| self.merge(s, &sums, [n, n], 0, y.from(r, 0)));
            return Ok(());
        }
        match plan(self.size, self.b, block::<S, T>()) {
            Plan::Few => self.few(block::<S, T>()[1], y),
            Plan::Dots => self.dots(s, y),
            Plan::Columns(in_place) => self.by_columns(s, in_place, y),
            Plan::Rows(in_place) => self.by_rows(s, in_place, y),
        }
    }

    /// Element by element, for panels of `cols`; each sum is rounded once.
    fn few(&self, cols: usize, Out(y, steps): Out<'_, T>) -> Result<()> {
        let ([m, n, k], (a, place)) = (self.size, self.a);
        for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
            let products =
                (0..k).map(|p| a[place.from(r, p).at].to_f64() * self.b.at([p, c], k, cols).to_f64());
            let (sum, y) = (self.alpha * T::from_f64(products.sum()), &mut y[r * steps[0] + c * steps[1]]);
            *y = if self.beta == T::default() { sum } else { self.beta * *y + sum };
        }
        Ok(())
    }

    /// Stores sums of the elements of k from `p` on: rows of `width` elements, of which `cols` count.
    fn merge<S: Simd>(
        &self,
        s: S,
        sums: &[T],
        [width, cols]: [usize; 2],
        p: usize,
        Out(y, steps): Out<'_, T>,
    ) {
        let beta = if p == 0 { self.beta } else { T::from_f64(1.0) };
        s.vectorize(Merge { alpha: self.alpha, beta, sums, width, cols, y, steps });
    }

    /// Packs `count` rows of A from a first one and element `p` of k on, in blocks of `width`.
    fn pack_a<S: Simd>(
        &self,
        s: S,
        [row, p]: [usize; 2],
        [count, k]: [usize; 2],
        width: usize,
        to: &mut [T],
    ) {
        let (from, place) = (self.a.0, self.a.1.from(row, p));
        s.vectorize(Pack { from, place, count, k, width, padded: false, to });
    }

    fn dots<S: Simd>(&self, s: S, y: Out<'_, T>) -> Result<()> {
        let [_, n, k] = self.size;
        let Right::Matrix(_, Place { cols: step, .. }) = self.b else { return Ok(()) };
        with_room(A, k + n, |room| {
            let (x, sums) = room.split_at_mut(k);
            self.pack_a(s, [0, 0], [1, k], 1, x);
            let each = |i: usize, sums: &mut [T]| {
                let (b, _) = self.b.in_place(k, 0, i * MOST_COLS, MOST_COLS);
                s.vectorize(Dots { x, b, step, sums });
            };
            match self.threads {
                true => each_chunk(sums, MOST_COLS, Share::ANY, &each),
                false => sums.chunks_mut(MOST_COLS).enumerate().for_each(|(i, sums)| each(i, sums)),
            }
            self.merge(s, sums, [n, n], 0, y);
        })
    }

    fn by_columns<S: Simd>(&self, s: S, in_place: usize, mut y: Out<'_, T>) -> Result<()> {
        let [m, n, k] = self.size;
        let cols = block::<S, T>()[1];
        with_room(A, k * m + n.div_ceil(cols) * cols * m, |room| -> Result<()> {
            let (a, sums) = room.split_at_mut(k * m);
            self.pack_a(s, [0, 0], [m, k], m, a);
            let each = |Aligned(packed): &mut Aligned<T, { DEPTH * MOST_COLS }>, q: usize, sums: &mut [T]| {
                if q < in_place {
                    let (b, step) = self.b.in_place(k, 0, q * cols, cols);
                    s.vectorize(Tile { rows: m, a, b, step, sums });
                } else {
                    self.packed_columns(s, a, q * cols, packed, sums);
                }
            };
            let packed = || Aligned([T::default(); DEPTH * MOST_COLS]);
            if self.threads {
                each_chunk_in(sums, m * cols, Share::at_least(2), &|| Ok(packed()), &|packed, q, sums| {
                    each(packed, q, sums);
                    Ok(())
                })?;
            } else {
                let packed = &mut packed();
                sums.chunks_mut(m * cols).enumerate().for_each(|(q, sums)| each(packed, q, sums));
            }
            for (q, sums) in sums.chunks(m * cols).enumerate() {
                self.merge(s, sums, [cols, cols.min(n - q * cols)], 0, y.from(0, q * cols));
            }
            Ok(())
        })?
    }

    /// All rows of a panel, which is packed part by part.
    fn packed_columns<S: Simd>(&self, s: S, a: &[T], col: usize, packed: &mut [T], sums: &mut [T]) {
        let ([m, n, k], cols) = (self.size, block::<S, T>()[1]);
        let mut part = Aligned([T::default(); MOST_ROWS * MOST_COLS]);
        let part = &mut part.0[..m * cols];
        for (p, depth) in depths(k) {
            let b = &mut packed[..depth * cols];
            self.b.pack(s, [p, col], [depth, cols.min(n - col)], b);
            s.vectorize(Tile { rows: m, a: &a[p * m..][..depth * m], b, step: cols, sums: part });
            let [alpha, beta] = [1.0, if p == 0 { 0.0 } else { 1.0 }].map(T::from_f64);
            s.vectorize(Merge { alpha, beta, sums: part, width: cols, cols, y: sums, steps: [cols, 1] });
        }
    }

    fn by_rows<S: Simd>(&self, s: S, in_place: usize, mut y: Out<'_, T>) -> Result<()> {
        let ([m, n, k], [most, cols]) = (self.size, block::<S, T>());
        let interleaved = y.1[0] <= (n - 1) * y.1[1];
        let blocks = m.div_ceil(most);
        let threads = rayon::current_num_threads();
        let shares = if self.threads { TASKS * threads } else { 1 };
        let rows = match blocks / shares {
            _ if interleaved => m,
            // Few blocks: as many of one height for each thread, while they are not too low to make good for reading B.
            0 => m.div_ceil(blocks.next_multiple_of(threads)).max(most / 2),
            some => most * some.min(MOST_BLOCKS),
        };
        // In place nothing is packed but what lies behind the last whole panel.
        let deep = if in_place > 0 { k } else { k.min(PACKED_DEPTH) };
        let wide = if in_place > 0 { n } else { (PACKED / deep).next_multiple_of(cols) };
        for p in (0..k).step_by(deep) {
            for j in (0..n).step_by(wide) {
                let (k, n) = (p..k.min(p + deep), j..n.min(j + wide));
                with_room(B, (n.len().div_ceil(cols) - in_place) * block_step(cols, k.len()), |packed| {
                    let part = Part { product: self, s, k, n, in_place, packed: &[] };
                    part.pack(packed);
                    let part = Part { packed, ..part };
                    let Out(y, steps) = y.from(0, j);
                    let each = |i, y: &mut [T]| part.rows(i * rows, rows.min(m - i * rows), Out(y, steps));
                    let len = if interleaved { y.len() } else { rows * steps[0] };
                    match rows < m && self.threads {
                        true => each_chunk_in(y, len, Share::SINGLE, &|| Ok(()), &|(), i, y| each(i, y)),
                        false => y.chunks_mut(len).enumerate().try_for_each(|(i, y)| each(i, y)),
                    }
                })??;
            }
        }
        Ok(())
    }
}

/// Elements of k and columns of B; those behind the first `in_place` panels are packed.
struct Part<'a, S, T> {
    product: &'a Product<'a, T>,
    s: S,
    k: Range<usize>,
    n: Range<usize>,
    in_place: usize,
    packed: &'a [T],
}

impl<S: Simd, T: Element> Part<'_, S, T> {
    fn pack(&self, to: &mut [T]) {
        let (cols, product, k) = (block::<S, T>()[1], self.product, self.k.len());
        let panels = self.n.len().div_ceil(cols) - self.in_place;
        let some = match product.threads {
            true => cols * panels.div_ceil(2 * rayon::current_num_threads()).clamp(1, PANELS),
            false => cols * panels.max(1),
        };
        let len = some / cols * block_step(cols, k);
        let each = |i: usize, to: &mut [T]| {
            let col = self.n.start + self.in_place * cols + i * some;
            product.b.pack(self.s, [self.k.start, col], [k, some.min(self.n.end - col)], to);
        };
        match product.threads && to.len() > len {
            true => each_chunk(to, len, Share::SINGLE, &each),
            false => to.chunks_mut(len).enumerate().for_each(|(i, to)| each(i, to)),
        }
    }

    /// A panel of B from element `p` of the part's k on, and its stride.
    fn panel(&self, q: usize, p: usize, cols: usize) -> (&[T], usize) {
        match q.checked_sub(self.in_place) {
            None => self.product.b.in_place(self.k.end, self.k.start + p, self.n.start + q * cols, cols),
            Some(q) => (&self.packed[q * block_step(cols, self.k.len()) + p * cols..], cols),
        }
    }

    /// Multiplies rows of A from `first` on; `y` begins with theirs.
    fn rows(&self, first: usize, count: usize, mut y: Out<'_, T>) -> Result<()> {
        let ([most, cols], s) = (block::<S, T>(), self.s);
        let mut sums = Aligned([T::default(); MOST_ROWS * MOST_COLS]);
        let blocks = count.div_ceil(most);
        with_room(A, blocks * block_step(most, DEPTH.min(self.k.len())), |a| {
            for (p, depth) in depths(self.k.len()) {
                let at = self.k.start + p;
                self.product.pack_a(s, [first, at], [count, depth], most, a);
                for (q, j) in (0..self.n.len()).step_by(cols).enumerate() {
                    let ((b, step), used) = (self.panel(q, p, cols), cols.min(self.n.len() - j));
                    for (row, a) in (0..count).step_by(most).zip(a.chunks(block_step(most, depth))) {
                        let rows = most.min(count - row);
                        let (a, sums) = (&a[..rows * depth], &mut sums.0[..rows * cols]);
                        s.vectorize(Tile { rows, a, b, step, sums });
                        self.product.merge(s, sums, [cols, used], at, y.from(row, j));
                    }
                }
            }
        })
    }
}
