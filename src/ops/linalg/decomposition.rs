//! Orthogonal and spectral decompositions: signatures and checks.

use super::{Matrices, lead, matrices, square};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::check;

io_struct! {
    /// Operands of [`DecompositionOps::qr`].
    #[derive(Debug)]
    pub struct Qr<'a> {
        /// Matrices [.., m, n].
        pub a: View<'a>,
        /// Orthonormal columns [.., m, k], k = min(m, n).
        pub q: Option<ViewMut<'a>>,
        /// Upper triangular factor [.., k, n].
        pub r: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`DecompositionOps::eigh`].
    #[derive(Debug)]
    pub struct Eigh<'a> {
        /// Symmetric matrices [.., n, n], of which one triangle is read.
        pub a: View<'a>,
        /// Eigenvalues [.., n], ascending, NaN last.
        pub w: ViewMut<'a>,
        /// Eigenvectors [.., n, n], in columns.
        pub v: Option<ViewMut<'a>>,
        /// 0, or 1 where the rotations did not converge (with NaN or infinities in the matrix): i32 [..].
        pub info: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`DecompositionOps::svd`].
    #[derive(Debug)]
    pub struct Svd<'a> {
        /// Matrices [.., m, n].
        pub a: View<'a>,
        /// Singular values [.., k], descending, k = min(m, n).
        pub s: ViewMut<'a>,
        /// Left singular vectors [.., m, k], in columns.
        pub u: Option<ViewMut<'a>>,
        /// Right singular vectors [.., k, n], in rows.
        pub vh: Option<ViewMut<'a>>,
        /// 0, or 1 where the rotations did not converge (with NaN or infinities in the matrix): i32 [..].
        pub info: ViewMut<'a>,
    }
}

op_family! {
    /// Decompositions of batches of matrices into orthogonal and triangular or diagonal factors, under the rules of [`LinalgOps`](super::LinalgOps).
    pub trait DecompositionOps : Linalg => DECOMPOSITION_OPS {
        /// A = Q R by Householder reflections, reduced. An element of R's diagonal has the sign opposite to that of the element that its
        /// reflection began with, as LAPACK's. Oracle `torch.linalg.qr`.
        fn qr(&self, io: Qr<'_>) -> Result<()>;
        /// A = V diag(w) V^T for symmetric A, of which the lower (`upper`: upper) triangle is read, by Jacobi rotations: errors of w and of
        /// V^T V - 1 are of the order of eps |A| and eps. An eigenvector may have either sign. Oracle `torch.linalg.eigh`.
        fn eigh(&self, upper: bool, io: Eigh<'_>) -> Result<()>;
        /// A = U diag(s) V^T, reduced, by one-sided Jacobi rotations: errors of s, of U^T U - 1 and of V^T V - 1 are of the order of eps |A| and
        /// eps; vectors of singular values 0 are orthonormal too. A pair of vectors may have either sign. A matrix that holds NaN or infinities
        /// gives NaN. Oracle `torch.linalg.svd(full_matrices=False)`.
        fn svd(&self, io: Svd<'_>) -> Result<()>;
    }
}

/// Checks of [`DecompositionOps::svd`].
pub(crate) fn check_svd(io: &Svd<'_>) -> Result<Matrices> {
    const OP: &str = "svd";
    let m = matrices(OP, "a", &io.a)?;
    let (k, dtype, mut seen) = (m.least(), io.a.dtype(), vec![("a", io.a)]);
    check::exact_output(OP, "s", &io.s, &lead(&io.a, &[k]), dtype, &mut seen)?;
    if let Some(u) = &io.u {
        check::exact_output(OP, "u", u, &lead(&io.a, &[m.rows, k]), dtype, &mut seen)?;
    }
    if let Some(vh) = &io.vh {
        check::exact_output(OP, "vh", vh, &lead(&io.a, &[k, m.cols]), dtype, &mut seen)?;
    }
    check::exact_output(OP, "info", &io.info, &lead(&io.a, &[]), DType::I32, &mut seen)?;
    Ok(m)
}

/// Checks of [`DecompositionOps::eigh`].
pub(crate) fn check_eigh(io: &Eigh<'_>) -> Result<Matrices> {
    const OP: &str = "eigh";
    let m = square(OP, "a", &io.a)?;
    let mut seen = vec![("a", io.a)];
    check::exact_output(OP, "w", &io.w, &lead(&io.a, &[m.rows]), io.a.dtype(), &mut seen)?;
    if let Some(v) = &io.v {
        check::exact_output(OP, "v", v, io.a.shape(), io.a.dtype(), &mut seen)?;
    }
    check::exact_output(OP, "info", &io.info, &lead(&io.a, &[]), DType::I32, &mut seen)?;
    Ok(m)
}

/// Checks of [`DecompositionOps::qr`].
pub(crate) fn check_qr(io: &Qr<'_>) -> Result<Matrices> {
    const OP: &str = "qr";
    let m = matrices(OP, "a", &io.a)?;
    let mut seen = vec![("a", io.a)];
    check::exact_output(OP, "r", &io.r, &lead(&io.a, &[m.least(), m.cols]), io.a.dtype(), &mut seen)?;
    if let Some(q) = &io.q {
        check::exact_output(OP, "q", q, &lead(&io.a, &[m.rows, m.least()]), io.a.dtype(), &mut seen)?;
    }
    Ok(m)
}
