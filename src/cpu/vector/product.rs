//! Products of matrices in slices of f32.

use crate::cpu::wrong_storage;
use crate::dtype::DType;
use crate::error::Result;
use crate::matmul::{Place, product};

/// Multiplications below which one thread is faster than several.
const SMALL: usize = 48 * 48 * 256;

/// A row-major matrix of so many columns.
pub(in crate::cpu) fn packed(at: usize, cols: usize) -> Place {
    Place { at, rows: cols, cols: 1 }
}

/// The transpose of a row-major matrix of so many columns.
pub(in crate::cpu) fn turned(at: usize, cols: usize) -> Place {
    Place { at, rows: 1, cols }
}

/// Y = A B + beta Y for A [m, k] and B [k, n]; `alone`: whether threads may share the work.
pub(in crate::cpu) fn multiply(
    op: &'static str,
    (m, n, k): (usize, usize, usize),
    a: (&[f32], Place),
    b: (&[f32], Place),
    beta: f32,
    y: (&mut [f32], Place),
    alone: bool,
) -> Result<()> {
    let threads = alone && m * n * k >= SMALL;
    if product((m, n, k), 1.0, a, b, beta, y, threads) { Ok(()) } else { Err(wrong_storage(op, DType::F32)) }
}
