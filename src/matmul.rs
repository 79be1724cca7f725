//! Safe access to the `gemm-f32` and `gemm-f64` crates: strided products on slices.

use gemm_common::Parallelism;

/// A product of the `gemm` crates: extents, Y with its column and row strides and whether it is read, A and B with theirs, the factors of Y and
/// of the product, conjugations, threads. Column strides of Y at least as large as its row strides make it fastest.
#[rustfmt::skip]
type Gemm<T> = unsafe fn(
    usize, usize, usize,
    *mut T, isize, isize, bool,
    *const T, isize, isize,
    *const T, isize, isize,
    T, T, bool, bool, bool, Parallelism,
);

/// An element type of products.
pub(crate) trait Element: Copy + PartialEq + Default + 'static {
    /// The function for the instructions of this processor.
    fn gemm() -> Gemm<Self>;
}

impl Element for f32 {
    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Element for f64 {
    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// A matrix in a slice: first element and strides by row and column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Place {
    /// The same matrix with rows and columns exchanged.
    fn transposed(self) -> Self {
        Place { rows: self.cols, cols: self.rows, ..self }
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
/// Returns false, having done nothing, if a matrix reaches beyond its slice or elements of Y share a place.
#[allow(clippy::too_many_arguments)]
pub(crate) fn product<T: Element>(
    (m, n, k): (usize, usize, usize),
    alpha: T,
    (a, pa): (&[T], Place),
    (b, pb): (&[T], Place),
    beta: T,
    (y, py): (&mut [T], Place),
    threads: bool,
) -> bool {
    let ok = pa.fits(m, k, a.len()) && pb.fits(k, n, b.len()) && py.fits(m, n, y.len()) && py.distinct(m, n);
    if !ok {
        return false;
    }
    if m == 0 || n == 0 {
        return true;
    }
    // The kernels prefer results whose columns are contiguous: where rows are, the transposed product is computed.
    let ((m, n), (a, pa), (b, pb), py) = match py.cols < py.rows {
        true => ((n, m), (b, pb.transposed()), (a, pa.transposed()), py.transposed()),
        false => ((m, n), (a, pa), (b, pb), py),
    };
    let parallelism = if threads { Parallelism::Rayon(0) } else { Parallelism::None };
    let s = |x: usize| x as isize;
    // SAFETY: every element of the three matrices lies within its slice, as checked above (an empty A or B is not read); `y` is exclusive and
    // its elements are distinct, so threads write different places.
    unsafe {
        T::gemm()(
            m,
            n,
            k,
            y.as_mut_ptr().wrapping_add(py.at),
            s(py.cols),
            s(py.rows),
            beta != T::default(),
            a.as_ptr().wrapping_add(pa.at),
            s(pa.cols),
            s(pa.rows),
            b.as_ptr().wrapping_add(pb.at),
            s(pb.cols),
            s(pb.rows),
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
    true
}
