//! Products of strided matrices in f32 and f64.
//!
//! The blocking is that of BLIS (Van Zee and van de Geijn, 2015): a block of Y, 12 x 32 with AVX-512 in f32, is held in vector registers while k
//! passes by; A and B are packed so that a block reads both in order, 256 elements of k at a time. A thread takes a part of the rows and columns of Y
//! and packs what it multiplies, so that it reads what lies in its own cache; products of few multiplications are summed in f64. Every element is
//! summed in the same order whatever the number of threads.

mod blocked;
mod kernel;
mod output;
mod pack;
#[cfg(test)]
mod tests;
mod turn;

use std::marker::PhantomData;

use pulp::{Arch, Simd, WithSimd};

use self::blocked::{Product, Right};
pub(in crate::cpu) use self::kernel::Element;
pub(in crate::cpu) use self::pack::block_step;
use super::scratch::*;
use super::wrong_storage;
use crate::error::Result;

/// A matrix in a slice: first element and strides by row and column.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Place {
    pub(in crate::cpu) at: usize,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) cols: usize,
}

impl Place {
    /// The same matrix with rows and columns exchanged.
    fn transposed(self) -> Self {
        Place { rows: self.cols, cols: self.rows, ..self }
    }

    /// The part from an element on.
    fn from(self, row: usize, col: usize) -> Self {
        Place { at: self.at + row * self.rows + col * self.cols, ..self }
    }

    /// Whether a matrix of these extents ends within `len` elements.
    fn fits(&self, m: usize, n: usize, len: usize) -> bool {
        let last = |n: usize, s: usize| (n - 1).checked_mul(s);
        let end = || self.at.checked_add(last(m, self.rows)?)?.checked_add(last(n, self.cols)?);
        m == 0 || n == 0 || end().is_some_and(|e| e < len)
    }

    /// Whether no two elements share a place.
    fn distinct(&self, m: usize, n: usize) -> bool {
        let mut axes = [(self.rows, m), (self.cols, n)];
        axes.sort_unstable();
        let mut reach = 0;
        axes.into_iter().filter(|&(_, n)| n > 1).all(|(s, n)| {
            let apart = s > reach;
            reach += s * (n - 1);
            apart
        })
    }
}

/// Y = alpha A B + beta Y for A [m, k] and B [k, n]; Y is not read when `beta` is 0. `threads`: whether to use more than one.
///
/// # Errors
///
/// [`GpuError::OutOfMemory`](crate::GpuError::OutOfMemory) without room for packed operands; an internal error, before anything is written, if a
/// matrix reaches beyond its slice or elements of Y share a place.
#[allow(clippy::too_many_arguments)]
pub(in crate::cpu) fn product<T: Element>(
    op: &'static str,
    (m, n, k): (usize, usize, usize),
    alpha: T,
    (a, pa): (&[T], Place),
    (b, pb): (&[T], Place),
    beta: T,
    (y, py): (&mut [T], Place),
    threads: bool,
) -> Result<()> {
    let ok = pa.fits(m, k, a.len()) && pb.fits(k, n, b.len()) && py.fits(m, n, y.len()) && py.distinct(m, n);
    if !ok {
        return Err(wrong_storage(op, T::DTYPE));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let (product, place) = arranged([m, n, k], [alpha, beta], (a, pa), (b, pb), py, threads);
    Arch::new().dispatch(Run { product, y, place })
}

/// The product, or the transposed one, such that Y has rows of contiguous columns where it has either: rows of a block are rows of Y. One column is taken
/// as one row.
fn arranged<'a, T: Element>(
    [m, n, k]: [usize; 3],
    [alpha, beta]: [T; 2],
    (a, pa): (&'a [T], Place),
    (b, pb): (&'a [T], Place),
    y: Place,
    threads: bool,
) -> (Product<'a, T>, Place) {
    let turn = if n == 1 || m == 1 { n < m } else { y.rows < y.cols };
    let (size, a, b, y) = match turn {
        true => ([n, m, k], (b, pb.transposed()), Right::Matrix(a, pa.transposed()), y.transposed()),
        false => ([m, n, k], (a, pa), Right::Matrix(b, pb), y),
    };
    (Product { size, alpha, beta, a, b, threads }, y)
}

/// Columns of a panel: panels [k, panel] are what a right factor is packed into, [`block_step`] apart. Those behind the last column may hold anything.
pub(in crate::cpu) fn panel<T: Element>() -> usize {
    Arch::new().dispatch(PanelWidth(PhantomData::<T>))
}

/// The panels of B [k, n].
pub(in crate::cpu) fn panels<T: Element>(
    op: &'static str,
    (k, n): (usize, usize),
    (b, place): (&[T], Place),
) -> Result<Vec<T>> {
    if !place.fits(k, n, b.len()) {
        return Err(wrong_storage(op, T::DTYPE));
    }
    let width = panel::<T>();
    let mut to = filled(n.div_ceil(width) * block_step(width, k), T::default())?;
    if k * n > 0 {
        Arch::new().dispatch(Panels { size: [k, n], b: Right::Matrix(b, place), to: &mut to });
    }
    Ok(to)
}

/// As [`product`] for a packed B of `n.div_ceil(panel)` panels.
#[allow(clippy::too_many_arguments)]
pub(in crate::cpu) fn product_of_panels<T: Element>(
    op: &'static str,
    (m, n, k): (usize, usize, usize),
    alpha: T,
    (a, pa): (&[T], Place),
    panels: &[T],
    beta: T,
    (y, py): (&mut [T], Place),
    threads: bool,
) -> Result<()> {
    let width = panel::<T>();
    let fits = pa.fits(m, k, a.len()) && py.fits(m, n, y.len()) && py.distinct(m, n);
    if !fits || panels.len() < n.div_ceil(width) * block_step(width, k) {
        return Err(wrong_storage(op, T::DTYPE));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let product = Product { size: [m, n, k], alpha, beta, a: (a, pa), b: Right::Panels(panels), threads };
    Arch::new().dispatch(Run { product, y, place: py })
}

/// A product with the instructions of the processor.
struct Run<'a, T> {
    product: Product<'a, T>,
    y: &'a mut [T],
    place: Place,
}

impl<T: Element> WithSimd for Run<'_, T> {
    type Output = Result<()>;

    fn with_simd<S: Simd>(self, s: S) -> Result<()> {
        self.product.run(s, self.y, self.place)
    }
}

/// The packing of all columns of a matrix.
struct Panels<'a, T> {
    size: [usize; 2],
    b: Right<'a, T>,
    to: &'a mut [T],
}

impl<T: Element> WithSimd for Panels<'_, T> {
    type Output = ();

    fn with_simd<S: Simd>(self, s: S) {
        self.b.pack(s, [0, 0], self.size, self.to);
    }
}

struct PanelWidth<T>(PhantomData<T>);

impl<T: Element> WithSimd for PanelWidth<T> {
    type Output = usize;

    fn with_simd<S: Simd>(self, _: S) -> usize {
        kernel::block::<S, T>()[1]
    }
}
