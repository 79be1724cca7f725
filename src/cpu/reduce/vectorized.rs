//! Sums and extremes along axes in f32.

use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, collected};
use crate::cpu::vector::{column_sums, row, simd};
use crate::error::Result;
use crate::ops::reduce::{Axes, Reduce};

/// What is reduced in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    SumSq,
    Max,
    Min,
}

/// Sizes of runs of axes: kept, reduced, kept, reduced.
type Sizes = [usize; 4];

/// A reduction in f32.
pub(super) struct Plan {
    kind: Kind,
    sizes: Sizes,
    divisor: f64,
}

impl Plan {
    /// For reductions and axes that have a loop in f32.
    pub(super) fn new(op: Reduce, shape: &[usize], axes: &Axes) -> Option<Plan> {
        let kind = match op {
            Reduce::Sum | Reduce::Mean => Kind::Sum,
            Reduce::SumSq => Kind::SumSq,
            Reduce::Max => Kind::Max,
            Reduce::Min => Kind::Min,
            _ => return None,
        };
        let (mut sizes, mut at) = ([1; 4], 0);
        for (&n, &reduced) in shape.iter().zip(&axes.reduced).filter(|(n, _)| **n != 1) {
            if reduced != (at % 2 == 1) {
                at += 1;
            }
            *sizes.get_mut(at)? *= n;
        }
        // Without a kept axis between them the two reduced ones are one.
        if sizes[2] == 1 {
            sizes = [sizes[0], 1, 1, sizes[1] * sizes[3]];
        }
        let divisor = if op == Reduce::Mean { axes.count as f64 } else { 1.0 };
        (!sizes.contains(&0)).then_some(Plan { kind, sizes, divisor })
    }

    /// The results of a row-major tensor.
    pub(super) fn run(&self, x: &[f32]) -> Result<Vec<f64>> {
        let mut all = match self.sizes[3] {
            1 => self.columns(x)?,
            _ => self.rows(x)?,
        };
        if self.divisor != 1.0 {
            all.iter_mut().for_each(|y| *y /= self.divisor);
        }
        Ok(all)
    }

    /// Where the last axis is reduced.
    fn rows(&self, x: &[f32]) -> Result<Vec<f64>> {
        let [outer, reduced, kept, cols] = self.sizes;
        let one = |i: usize| {
            let first = i / kept * reduced * kept + i % kept;
            let runs = (0..reduced).map(|j| self.kind.of_run(&x[(first + j * kept) * cols..][..cols]));
            runs.fold(self.kind.start(), |a, b| self.kind.both(a, b))
        };
        collected(outer * kept, (CHUNK / (reduced * cols)).max(1), &one)
    }

    /// Where the last axis is kept.
    fn columns(&self, x: &[f32]) -> Result<Vec<f64>> {
        let [outer, rows, cols, _] = self.sizes;
        let (part, one) = (rows * cols, |x: &[f32]| self.kind.of_columns(x, rows, cols));
        if outer == 1 {
            return one(x);
        }
        let parts = collected(x.len() / part, (CHUNK / part).max(1), &|i| one(&x[i * part..][..part]))?;
        let mut all = with_capacity(outer * cols)?;
        for part in parts {
            all.try_extend(part?)?;
        }
        Ok(all)
    }
}

/// The larger of two values; NaN wins.
#[inline(always)]
fn larger(m: f32, x: f32) -> f32 {
    if x > m || x.is_nan() { x } else { m }
}

/// The smaller of two values; NaN wins.
#[inline(always)]
fn smaller(m: f32, x: f32) -> f32 {
    if x < m || x.is_nan() { x } else { m }
}

/// The columns of a row-major matrix, combined by `f` from `start` on.
fn extremes(x: &[f32], cols: usize, start: f32, f: impl Fn(f32, f32) -> f32) -> Result<Vec<f64>> {
    let mut all = repeated(cols, start)?;
    simd!({
        x.chunks_exact(cols).for_each(|x| all.iter_mut().zip(x).for_each(|(m, x)| *m = f(*m, *x)));
    });
    TryVec::try_vec(all.into_iter().map(f64::from))
}

impl Kind {
    fn start(self) -> f64 {
        match self {
            Kind::Sum | Kind::SumSq => 0.0,
            Kind::Max => f64::NEG_INFINITY,
            Kind::Min => f64::INFINITY,
        }
    }

    /// Combines two results.
    fn both(self, a: f64, b: f64) -> f64 {
        match self {
            Kind::Sum | Kind::SumSq => a + b,
            Kind::Max => super::larger(a, b),
            Kind::Min => -super::larger(-a, -b),
        }
    }

    /// The result of elements that lie side by side.
    fn of_run(self, x: &[f32]) -> f64 {
        let part = |x: &[f32]| {
            simd!(match self {
                Kind::Sum => row::sum(x),
                Kind::SumSq => row::dot(x, x),
                Kind::Max => f64::from(row::fold(x, f32::NEG_INFINITY, larger)),
                Kind::Min => f64::from(row::fold(x, f32::INFINITY, smaller)),
            })
        };
        if x.len() < 2 * CHUNK {
            return part(x);
        }
        // Parts in a fixed tree: halves of whole chunks.
        let (a, b) = x.split_at(x.len().div_ceil(2 * CHUNK) * CHUNK);
        let (a, b) = rayon::join(|| self.of_run(a), || self.of_run(b));
        self.both(a, b)
    }

    /// The results of the columns of a row-major matrix.
    fn of_columns(self, x: &[f32], rows: usize, cols: usize) -> Result<Vec<f64>> {
        let row = |q: usize| &x[q * cols..(q + 1) * cols];
        match self {
            Kind::Sum => {
                column_sums::<f32>(rows, cols, |q, s| s.iter_mut().zip(row(q)).for_each(|(s, x)| *s += x))
            }
            Kind::SumSq => {
                column_sums::<f32>(rows, cols, |q, s| s.iter_mut().zip(row(q)).for_each(|(s, x)| *s += x * x))
            }
            Kind::Max => extremes(x, cols, f32::NEG_INFINITY, larger),
            Kind::Min => extremes(x, cols, f32::INFINITY, smaller),
        }
    }
}
