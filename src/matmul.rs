//! Safe access to the `gemm` crate: strided products on slices.

use gemm::Parallelism;

/// A matrix in a slice: first element and strides by row and column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Place {
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
pub(crate) fn product<T: Copy + PartialEq + Default + 'static>(
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
    let parallelism = if threads { Parallelism::Rayon(0) } else { Parallelism::None };
    let s = |x: usize| x as isize;
    // SAFETY: every element of the three matrices lies within its slice, as checked above (an empty A or B is not read); `y` is exclusive and
    // its elements are distinct, so threads write different places.
    unsafe {
        gemm::gemm(
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
