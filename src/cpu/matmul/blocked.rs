//! Products as loops over blocks.

use std::sync::PoisonError;

use pulp::Simd;

use super::Place;
use super::kernel::{Dots, Element, MOST_COLS, Merge, Tile, block};
use super::output::Out;
use super::pack::{Pack, block_step};
use crate::cpu::scratch::*;
use crate::cpu::values::{Share, collected, each_chunk};
use crate::cpu::vector::FEW;
use crate::error::Result;

/// Elements of k between two sums that are stored: 32 columns of B are then 32 KiB in f32.
const DEPTH: usize = 256;
/// Blocks of rows up to which packing B costs more than reading it in place.
const FEW_BLOCKS: usize = 3;
/// Blocks of rows of A that are packed at once, 240 KiB in f32: they stay in the cache of a core while columns of B pass by.
const MOST_BLOCKS: usize = 20;
/// Panels of B that are packed at once, 512 KiB in f32.
const MOST_PANELS: usize = 16;
/// Terms of a sum from which on f64 makes it more exact: a shorter one is rounded two or three times in any case.
const TERMS: usize = 4;
/// Elements of A or B that are packed in the time in which a row is multiplied with a panel, for one element of k.
const PACKING: usize = 2;

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

/// How it is multiplied.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// So few multiplications that sums in f64 cost nothing, as for other operations on few elements.
    Few,
    /// One row: products of it with columns that are contiguous.
    Dots,
    /// Parts of so many rows and columns, each for one thread.
    Parts([usize; 2]),
}

/// For a number of threads, and blocks of `rows` by `cols`.
pub(super) fn plan<T>(size: [usize; 3], b: Right<'_, T>, block: [usize; 2], threads: usize) -> Plan {
    let [m, n, k] = size;
    match b {
        _ if k >= TERMS && m.saturating_mul(n).saturating_mul(k) < FEW => Plan::Few,
        Right::Matrix(_, b) if m == 1 && b.rows == 1 => Plan::Dots,
        _ => Plan::Parts(parts([m, n], block, threads)),
    }
}

/// Rows and columns of the part of a thread, such that all take the least time: for each element of k it multiplies every row with every panel, and packs
/// its rows of A and columns of B.
fn parts([m, n]: [usize; 2], [rows, cols]: [usize; 2], threads: usize) -> [usize; 2] {
    let part = |across: usize, down: usize| {
        [(m, rows, down), (n, cols, across)].map(|(n, unit, parts)| n.div_ceil(unit).div_ceil(parts) * unit)
    };
    let time = |[r, c]: [usize; 2]| {
        let turns = (m.div_ceil(r) * n.div_ceil(c)).div_ceil(threads);
        turns * (PACKING * r.min(m) * c.min(n).div_ceil(cols) + r.min(m) + c.min(n))
    };
    let all = (1..=threads.min(m.div_ceil(rows))).map(|down| part(threads / down, down));
    all.min_by_key(|p| time(*p)).unwrap_or([m, n])
}

/// Elements of k as stored sums divide them: first and count.
fn depths(k: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..k).step_by(DEPTH).map(move |p| (p, DEPTH.min(k - p)))
}

/// Bytes of a line of the cache, where vectors should begin.
const LINE: usize = 64;

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
        let mut y = Out::new(&mut y[place.at..=end], m, place.rows, place.cols);
        if k == 0 {
            let sums = filled(n, T::default())?;
            (0..m).for_each(|r| self.merge(s, &sums, &mut y, r));
            return Ok(());
        }
        // Rows that lie between each other are not divided.
        let apart = m == 1 || place.rows > (n - 1) * place.cols;
        let threads = if self.threads && apart { rayon::current_num_threads() } else { 1 };
        match plan(self.size, self.b, block::<S, T>(), threads) {
            Plan::Few => self.few(block::<S, T>()[1], y),
            Plan::Dots => self.dots(s, y),
            Plan::Parts(size) => self.parts(s, size, y),
        }
    }

    /// Element by element, for panels of `cols`; each sum is rounded once.
    fn few(&self, cols: usize, mut y: Out<'_, T>) -> Result<()> {
        let ([m, n, k], (a, place)) = (self.size, self.a);
        for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
            let products =
                (0..k).map(|p| a[place.from(r, p).at].to_f64() * self.b.at([p, c], k, cols).to_f64());
            let (sum, y) = (self.alpha * T::from_f64(products.sum()), &mut y.row(r, c)[0]);
            *y = if self.beta == T::default() { sum } else { self.beta * *y + sum };
        }
        Ok(())
    }

    /// Stores sums of a whole row.
    fn merge<S: Simd>(&self, s: S, sums: &[T], y: &mut Out<'_, T>, row: usize) {
        let step = y.step;
        s.vectorize(Merge { alpha: self.alpha, beta: self.beta, sums, y: y.row(row, 0), step });
    }

    fn dots<S: Simd>(&self, s: S, mut y: Out<'_, T>) -> Result<()> {
        let [_, n, k] = self.size;
        let Right::Matrix(_, Place { cols: step, .. }) = self.b else { return Ok(()) };
        with_room(A, k + n, |room| {
            let (x, sums) = room.split_at_mut(k);
            let (from, place) = self.a;
            s.vectorize(Pack { from, place, count: 1, k, width: 1, padded: false, to: x });
            let each = |i: usize, sums: &mut [T]| {
                let (b, _) = self.b.in_place(k, 0, i * MOST_COLS, MOST_COLS);
                s.vectorize(Dots { x, b, step, sums });
            };
            match self.threads {
                true => each_chunk(sums, MOST_COLS, Share::ANY, &each),
                false => sums.chunks_mut(MOST_COLS).enumerate().for_each(|(i, sums)| each(i, sums)),
            }
            self.merge(s, sums, &mut y, 0);
        })
    }

    /// Divides Y among threads.
    fn parts<S: Simd>(&self, s: S, size: [usize; 2], mut y: Out<'_, T>) -> Result<()> {
        let ([m, n, _], [rows, cols]) = (self.size, size);
        let part =
            |at @ [row, col]: [usize; 2]| Part::new(self, s, at, [rows.min(m - row), cols.min(n - col)]);
        if rows >= m && cols >= n {
            return part([0, 0]).run(&mut y);
        }
        let (parts, across) = (y.parts(n, size)?, n.div_ceil(cols));
        let each = |i: usize| {
            let mut y = parts[i].lock().unwrap_or_else(PoisonError::into_inner);
            part([i / across * rows, i % across * cols]).run(&mut y)
        };
        collected(parts.len(), 1, &each)?.into_iter().try_for_each(|done| done)
    }
}

/// Some rows and columns of Y.
struct Part<'p, S, T> {
    product: &'p Product<'p, T>,
    s: S,
    /// The first row and column.
    at: [usize; 2],
    size: [usize; 2],
    /// Rows and columns for which A and B are packed at once.
    packed: [usize; 2],
    /// Whether whole panels of B are read where they lie.
    in_place: bool,
}

impl<'p, S: Simd, T: Element> Part<'p, S, T> {
    fn new(product: &'p Product<'p, T>, s: S, at: [usize; 2], size @ [m, n]: [usize; 2]) -> Self {
        let [most, width] = block::<S, T>();
        let in_place = match product.b {
            Right::Matrix(_, b) => b.cols == 1 && b.rows >= width && product.size[0] <= FEW_BLOCKS * most,
            Right::Panels(_) => true,
        };
        // A panel that serves one block of rows is read from the nearest cache.
        let cols = if m <= most { width } else { n.next_multiple_of(width).min(MOST_PANELS * width) };
        Part { product, s, at, size, packed: [m.min(MOST_BLOCKS * most), cols], in_place }
    }

    fn run(&self, y: &mut Out<'_, T>) -> Result<()> {
        let ([most, width], [rows, cols]) = (block::<S, T>(), self.packed);
        let depth = DEPTH.min(self.product.size[2]);
        // Of panels that are read where they lie, the last one at most is packed.
        let panels = if self.in_place { 1 } else { cols / width };
        with_room(A, rows.div_ceil(most) * block_step(most, depth), |a| {
            with_room(B, panels * block_step(width, depth), |b| {
                depths(self.product.size[2]).for_each(|k| self.add(k, [&mut *a, &mut *b], y));
            })
        })?
    }

    /// Adds products of the elements of k from `p` on.
    fn add(&self, (p, depth): (usize, usize), [a, b]: [&mut [T]; 2], y: &mut Out<'_, T>) {
        let ([m, n], [rows, cols], [row, col]) = (self.size, self.packed, self.at);
        let (Product { a: from, b: right, .. }, s) = (self.product, self.s);
        let mut held = None;
        for j in (0..n).step_by(cols) {
            let count = cols.min(n - j);
            let whole = self.whole(count);
            if whole < count {
                right.pack(s, [p, col + j + whole], [depth, count - whole], b);
            }
            for i in (0..m).step_by(rows) {
                let height = rows.min(m - i);
                if held.replace(i) != Some(i) {
                    let (width, place) = (block::<S, T>()[0], from.1.from(row + i, p));
                    s.vectorize(Pack {
                        from: from.0,
                        place,
                        count: height,
                        k: depth,
                        width,
                        padded: false,
                        to: a,
                    });
                }
                self.panels((p, depth), [a, b], [i, j], [height, count], y);
            }
        }
    }

    /// Of `count` columns, those whose panels need not be packed.
    fn whole(&self, count: usize) -> usize {
        let width = block::<S, T>()[1];
        match self.product.b {
            Right::Panels(_) => count,
            Right::Matrix(..) if self.in_place => count / width * width,
            Right::Matrix(..) => 0,
        }
    }

    /// Multiplies packed rows by panels.
    fn panels(
        &self,
        (p, depth): (usize, usize),
        [a, b]: [&[T]; 2],
        [i, j]: [usize; 2],
        [m, n]: [usize; 2],
        y: &mut Out<'_, T>,
    ) {
        let (Product { alpha, beta, b: right, size, .. }, [most, width]) = (self.product, block::<S, T>());
        let beta = if p == 0 { *beta } else { T::from_f64(1.0) };
        let whole = self.whole(n);
        for c in (0..n).step_by(width) {
            let (b, step) = match c.checked_sub(whole) {
                None => right.in_place(size[2], p, self.at[1] + j + c, width),
                Some(c) => (&b[c / width * block_step(width, depth)..], width),
            };
            for (r, a) in (0..m).step_by(most).zip(a.chunks(block_step(most, depth))) {
                let rows = most.min(m - r);
                let (at, cols) = ([i + r, j + c], width.min(n - c));
                self.s.vectorize(Tile {
                    a: &a[..rows * depth],
                    b,
                    step,
                    alpha: *alpha,
                    beta,
                    rows,
                    cols,
                    y,
                    at,
                });
            }
        }
    }
}
