//! Recurrent networks in f32. Rows of a batch do not depend on each other: parts of the batch run all their steps on a thread each. The products
//! with the input weights, and the gradients of all weights, are single products over all steps. What is saved for the gradient is written and read
//! where it lies.

mod backward;
mod cells;
mod forward;

use std::ops::Range;

use rayon::prelude::*;

use crate::cpu::matmul::panels;
use crate::cpu::rnn::row;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, each_chunk};
use crate::cpu::vector::product::{multiply, multiply_panels, packed, turned};
use crate::cpu::vector::{self, Blocks, Narrow, Written, change_in_f32, simd};
use crate::cpu::*;
use crate::ops::rnn::*;

/// Rows of the batch in a part; the number is fixed, so that results do not depend on that of the threads.
const ROWS: usize = 16;

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

    /// Rows of all steps in buffers [T, B, ..], where steps follow in the order of processing.
    fn rows(&self) -> usize {
        self.s.steps * self.s.batch
    }

    /// Whether x and y have the same order.
    fn is_in_order(&self) -> bool {
        !self.p.batch_first && !self.p.reverse
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

    /// A sequence in the order of processing [T, B, width], as f32: in place where it lies so. `others` as for [`Values::new`].
    fn in_order<'a, T: Narrow>(&self, v: View<'a>, others: &[u64]) -> Result<Values<'a, f32>> {
        if self.is_in_order() {
            return vector::values(self.op, v, others);
        }
        let (x, width) = (Values::<T>::new(self.op, v, others)?, v.shape()[2]);
        let mut rows = filled(self.rows() * width, 0.0)?;
        each_chunk(&mut rows, width, Share::at_least((CHUNK / width).max(1)), &|i, to| {
            let from = &x[self.outer(i / self.s.batch, i % self.s.batch) * width..][..width];
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
        });
        Ok(Values::Copied(rows))
    }

    /// Stores or adds a sequence whose rows lie in the order of processing.
    fn put_sequence<T: Narrow>(&self, out: &GradMut<'_>, width: usize, data: &[f32]) -> Result<()> {
        put_rows::<T>(self.op, out, width, |i| {
            let (at, b) = self.inner(i);
            Some(&data[(at * self.s.batch + b) * width..][..width])
        })
    }
}

/// The rows of a buffer [T, B, width] that belong to each part of the batch, step by step.
fn parts(data: &mut [f32], batch: usize, width: usize) -> Result<Vec<Vec<&mut [f32]>>> {
    let mut parts: Vec<Vec<&mut [f32]>> = with_capacity(batch.div_ceil(ROWS))?;
    for _ in (0..batch).step_by(ROWS) {
        parts.try_push(with_capacity(data.len() / (batch * width))?)?;
    }
    for step in data.chunks_mut(batch * width) {
        for (part, rows) in parts.iter_mut().zip(step.chunks_mut(ROWS * width)) {
            part.try_push(rows)?;
        }
    }
    Ok(parts)
}

/// Rows of two steps that follow each other, of which the second is written.
fn steps<'a>(rows: &'a mut [&mut [f32]], at: usize) -> (&'a [f32], &'a mut [f32]) {
    let (before, after) = rows.split_at_mut(at + 1);
    (&*before[at], &mut *after[0])
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
