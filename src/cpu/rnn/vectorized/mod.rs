//! Recurrent networks in f32. Rows of a batch do not depend on each other: parts of the batch run all their steps on a thread each. The products
//! with the input weights, and the gradients of all weights, are single products over all steps.

mod backward;
mod cells;
mod forward;

use std::ops::Range;

use rayon::prelude::*;

use crate::cpu::rnn::row;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Values};
use crate::cpu::vector::product::{multiply, packed, turned};
use crate::cpu::vector::{Narrow, change_in_f32, simd};
use crate::cpu::*;
use crate::ops::rnn::*;

/// Rows of the batch in a part; the number is fixed, so that results do not depend on that of the threads.
const ROWS: usize = 16;

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
        put_rows::<T>(self.op, &to.grad(false), columns.len(), |i| {
            let at = order.row(i / self.s.batch, i % self.s.batch) * wide;
            Some(&data[at + columns.start..at + columns.end])
        })
    }
}

/// Stores or adds rows: row i of `out` is `row(i)`, or zeros.
fn put_rows<'x, T: Narrow>(
    op: &'static str,
    out: &GradMut<'_>,
    width: usize,
    row: impl Fn(usize) -> Option<&'x [f32]> + Sync,
) -> Result<()> {
    change_in_f32::<T>(op, out, |mut at, mut y| {
        // A part may begin and end within a row.
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

/// Functions that compute y = f(y, x) for each element of a slice and of so many others.
macro_rules! fused {
    ($($name:ident($n:literal: $($x:ident),+);)+) => {$(
        fn $name(y: &mut [f32], [$($x),+]: [&[f32]; $n], f: impl Fn(f32, [f32; $n]) -> f32) {
            simd!({
                let n = y.len();
                let (y, $($x),+) = (&mut y[..n], $(&$x[..n]),+);
                for j in 0..n {
                    y[j] = f(y[j], [$($x[j]),+]);
                }
            });
        }
    )+};
}
fused! {
    fuse1(1: a);
    fuse2(2: a, b);
    fuse3(3: a, b, c);
    fuse4(4: a, b, c, d);
}

/// The values after a trip through a storage type.
fn round<T: Narrow>(x: &mut [f32]) {
    if T::DTYPE != DType::F32 {
        x.iter_mut().for_each(|x| *x = T::narrow(*x).widen());
    }
}

/// Elements as f32.
fn values<T: Narrow>(op: &'static str, v: View<'_>) -> Result<Vec<f32>> {
    Values::<T>::new(op, v, &[])?.iter().map(|x| x.widen()).try_vec()
}

/// The same of an operand that may be absent.
fn optional<T: Narrow>(op: &'static str, v: Option<View<'_>>) -> Result<Option<Vec<f32>>> {
    v.map(|v| values::<T>(op, v)).transpose()
}

/// Why a sequence is left to the reference.
pub(super) fn why_not(s: &RnnSizes) -> Option<&'static str> {
    let empty = [s.steps, s.batch, s.input, s.hidden].contains(&0);
    empty.then_some("sequences without elements are copied by the reference")
}

/// Why a single step is.
pub(super) fn without_elements(sizes: &[usize]) -> Option<&'static str> {
    sizes.contains(&0).then_some("steps without elements are done by the reference")
}
