//! Where products go.

use std::sync::Mutex;

use crate::cpu::scratch::*;
use crate::error::Result;

/// A part of Y: its rows, and elements from a column to the next.
pub(super) struct Out<'a, T> {
    rows: Rows<'a, T>,
    pub(super) step: usize,
}

enum Rows<'a, T> {
    /// In one slice, so many elements apart.
    Even(&'a mut [T], usize),
    /// One by one: some columns of them.
    Each(Vec<&'a mut [T]>),
}

impl<'a, T> Out<'a, T> {
    /// `m` rows of a slice.
    pub(super) fn new(y: &'a mut [T], m: usize, apart: usize, step: usize) -> Self {
        let apart = if m == 1 { y.len() } else { apart };
        Out { rows: Rows::Even(y, apart), step }
    }

    /// A row from a column on.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, col: usize) -> &mut [T] {
        let y = match &mut self.rows {
            Rows::Even(y, apart) => &mut y[row * *apart..],
            Rows::Each(rows) => &mut *rows[row],
        };
        &mut y[col * self.step..]
    }

    /// Divides Y, of `n` columns, into parts of `rows` by `cols`, in row-major order. Each is for one thread.
    pub(super) fn parts(self, n: usize, [rows, cols]: [usize; 2]) -> Result<Vec<Mutex<Out<'a, T>>>> {
        let Out { rows: Rows::Even(y, apart), step } = self else { return Ok(Vec::new()) };
        let part = |rows| Mutex::new(Out { rows, step });
        let lines = y.chunks_mut(rows.saturating_mul(apart));
        if cols >= n {
            return lines.map(|y| part(Rows::Even(y, apart))).try_vec();
        }
        let mut parts = Vec::new();
        for y in lines {
            let mut strips = (0..n.div_ceil(cols)).map(|_| Vec::new()).try_vec()?;
            for row in y.chunks_mut(apart) {
                let pieces = strips.iter_mut().zip(row.chunks_mut(cols * step));
                pieces.into_iter().try_for_each(|(strip, piece)| strip.try_push(piece))?;
            }
            parts.try_extend(strips.into_iter().map(|rows| part(Rows::Each(rows))))?;
        }
        Ok(parts)
    }
}
