//! Orthogonal and spectral decompositions: signatures and checks.

use super::{Matrices, lead, matrices};
use crate::buffer::{View, ViewMut};
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

op_family! {
    /// Decompositions of batches of matrices into orthogonal and triangular or diagonal factors, under the rules of [`LinalgOps`](super::LinalgOps).
    pub trait DecompositionOps : Linalg => DECOMPOSITION_OPS {
        /// A = Q R by Householder reflections, reduced. An element of R's diagonal has the sign opposite to that of the element that its
        /// reflection began with, as LAPACK's. Oracle `torch.linalg.qr`.
        fn qr(&self, io: Qr<'_>) -> Result<()>;
    }
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
