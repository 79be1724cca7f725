//! Products of matrices in slices of f32.

use crate::cpu::matmul::{Place, product, product_of_panels};
use crate::error::Result;

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
    product(op, (m, n, k), 1.0, a, b, beta, y, threads)
}

/// As [`multiply`] for B as [panels](crate::cpu::matmul::panel).
pub(in crate::cpu) fn multiply_panels(
    op: &'static str,
    (m, n, k): (usize, usize, usize),
    a: (&[f32], Place),
    b: &[f32],
    beta: f32,
    y: (&mut [f32], Place),
    alone: bool,
) -> Result<()> {
    let threads = alone && m * n * k >= SMALL;
    product_of_panels(op, (m, n, k), 1.0, a, b, beta, y, threads)
}
