//! Recurrent networks in f32. Rows of a batch do not depend on each other: parts of the batch run all their steps on a thread each. The products
//! with the input weights, and the gradients of all weights, are single products over all steps.

mod backward;
mod forward;

use std::ops::Range;

use rayon::prelude::*;

use crate::cpu::rnn::row;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Values};
use crate::cpu::vector::{Narrow, change_in_f32, vectorized};
use crate::cpu::*;
use crate::matmul::{Place, product};
use crate::ops::rnn::*;

/// Rows of the batch in a part; the number is fixed, so that results do not depend on that of the threads.
const ROWS: usize = 16;
/// Multiplications below which one thread is faster than several.
const SMALL: usize = 48 * 48 * 256;

/// The order of rows in the buffers here: the parts of the batch behind each other, each step by step in the order of processing.
#[derive(Clone, Copy)]
struct Order {
    steps: usize,
    batch: usize,
}

impl Order {
    fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// First row of the batch in the part that holds row `b`, and the number of rows there.
    fn part(&self, b: usize) -> (usize, usize) {
        let first = b / ROWS * ROWS;
        (first, (self.batch - first).min(ROWS))
    }

    /// Row of step number `at` and row `b` of the batch.
    fn row(&self, at: usize, b: usize) -> usize {
        let (first, n) = self.part(b);
        first * self.steps + at * n + b - first
    }

    /// Step and row of the batch that row `i` stands for.
    fn entry(&self, i: usize) -> (usize, usize) {
        let (first, n) = self.part(i / self.steps);
        let rest = i - first * self.steps;
        (rest / n, first + rest % n)
    }
}

/// A checked sequence and how it is run.
#[derive(Clone, Copy)]
struct Run<'a> {
    op: &'static str,
    cell: RnnCell,
    p: &'a Recurrence,
    s: RnnSizes,
    lengths: &'a [i64],
}

impl Run<'_> {
    /// Width of the gates.
    fn gates(&self) -> usize {
        self.s.gates * self.s.hidden
    }

    fn order(&self) -> Order {
        Order { steps: self.s.steps, batch: self.s.batch }
    }

    /// Of the states: one more than there are steps.
    fn states(&self) -> Order {
        Order { steps: self.s.steps + 1, batch: self.s.batch }
    }

    /// The row of step number `at` in x and y.
    fn outer(&self, at: usize, b: usize) -> usize {
        row(self.p, &self.s, self.s.time(self.p, at), b)
    }

    /// Step and row of the batch that row `i` of x or y stands for.
    fn inner(&self, i: usize) -> (usize, usize) {
        let (t, b) = match self.p.batch_first {
            true => (i % self.s.steps, i / self.s.steps),
            false => (i / self.s.batch, i % self.s.batch),
        };
        (self.s.time(self.p, t), b)
    }

    /// Whether step number `at` lies within the length of a row.
    fn live(&self, at: usize, b: usize) -> bool {
        (self.s.time(self.p, at) as i64) < self.lengths[b]
    }

    /// Rows of a view as f32: of each place in `order` the row that `from` names.
    fn take<T: Narrow>(
        &self,
        v: View<'_>,
        order: Order,
        width: usize,
        from: impl Fn(usize, usize) -> usize + Sync,
    ) -> Result<Vec<f32>> {
        let x = Values::<T>::new(self.op, v, &[])?;
        let mut rows = filled(order.rows() * width, 0.0)?;
        rows.par_chunks_mut(width).with_min_len((CHUNK / width).max(1)).enumerate().for_each(|(i, to)| {
            let (at, b) = order.entry(i);
            let from = &x[from(at, b) * width..][..width];
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
        });
        Ok(rows)
    }

    /// Saved rows as they are needed: [T, B, width] into the order of the parts.
    fn take_saved<T: Narrow>(&self, v: View<'_>, order: Order, width: usize) -> Result<Vec<f32>> {
        self.take::<T>(v, order, width, |at, b| at * self.s.batch + b)
    }

    /// Stores or adds rows: row i of `out` is `row(i)`, or zeros.
    fn put<'x, T: Narrow>(
        &self,
        out: &GradMut<'_>,
        width: usize,
        row: impl Fn(usize) -> Option<&'x [f32]> + Sync,
    ) -> Result<()> {
        change_in_f32::<T>(self.op, out, |at, mut y| {
            // A part may begin and end within a row.
            let mut at = at;
            while !y.is_empty() {
                let first = at % width;
                let n = (width - first).min(y.len());
                let (to, rest) = y.split_at_mut(n);
                match row(at / width) {
                    Some(x) => to.copy_from_slice(&x[first..first + n]),
                    None => to.fill(0.0),
                }
                (at, y) = (at + n, rest);
            }
        })
    }

    /// Stores rows of states or of what is saved, [T, B, width], which lie in `order` of the parts: `columns` of rows of `wide` elements.
    fn keep<T: Narrow>(
        &self,
        to: Option<ViewMut<'_>>,
        order: Order,
        data: &[f32],
        wide: usize,
        columns: Range<usize>,
    ) -> Result<()> {
        let Some(to) = to else { return Ok(()) };
        self.put::<T>(&to.grad(false), columns.len(), |i| {
            let at = order.row(i / self.s.batch, i % self.s.batch) * wide;
            Some(&data[at + columns.start..at + columns.end])
        })
    }

    /// y = a b + beta y.
    fn product(
        &self,
        size: (usize, usize, usize),
        a: (&[f32], Place),
        b: (&[f32], Place),
        beta: f32,
        y: (&mut [f32], Place),
        alone: bool,
    ) -> Result<()> {
        let threads = alone && size.0 * size.1 * size.2 >= SMALL;
        if product(size, 1.0, a, b, beta, y, threads) {
            Ok(())
        } else {
            Err(wrong_storage(self.op, DType::F32))
        }
    }
}

/// A row-major matrix with rows of `width` elements.
fn packed(width: usize) -> Place {
    Place { at: 0, rows: width, cols: 1 }
}

/// The transpose of one.
fn turned(width: usize) -> Place {
    Place { at: 0, rows: 1, cols: width }
}

/// y = f(y, x) for each element.
fn fuse<const N: usize>(y: &mut [f32], x: [&[f32]; N], f: impl Fn(f32, [f32; N]) -> f32) {
    let x = x.map(|x| &x[..y.len()]);
    vectorized(|| {
        for (j, y) in y.iter_mut().enumerate() {
            *y = f(*y, x.map(|x| x[j]));
        }
    });
}

/// The values after a trip through a storage type.
fn round<T: Narrow>(x: &mut [f32]) {
    if T::DTYPE != DType::F32 {
        x.iter_mut().for_each(|x| *x = T::narrow(*x).widen());
    }
}

/// A vector as f32, or nothing.
fn vector<T: Narrow>(op: &'static str, v: Option<View<'_>>) -> Result<Option<Vec<f32>>> {
    v.map(|v| Values::<T>::new(op, v, &[])?.iter().map(|x| x.widen()).try_vec()).transpose()
}

/// Why a sequence is left to the reference.
pub(super) fn why_not(s: &RnnSizes) -> Option<&'static str> {
    let empty = [s.steps, s.batch, s.input, s.hidden].contains(&0);
    empty.then_some("sequences without elements are copied by the reference")
}
