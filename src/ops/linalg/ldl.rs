//! Symmetric indefinite systems: signatures and checks.

use super::{Matrices, lead, matrices, square};
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::check;

io_struct! {
    /// Operands of [`LdlOps::ldl_factor`].
    #[derive(Debug)]
    pub struct LdlFactor<'a> {
        /// Symmetric matrices [.., n, n], of which the lower triangle is read.
        pub a: View<'a>,
        /// Factors [.., n, n]: D on the diagonal and, for blocks of two rows, below it; L (whose diagonal is 1) below D; 0 above.
        pub ld: ViewMut<'a>,
        /// Exchanges, i32 [.., n], as [`LdlOps::ldl_factor`] describes them.
        pub pivots: ViewMut<'a>,
        /// 0, or the number, from 1, of the first column in which nothing was left: i32 [..].
        pub info: ViewMut<'a>,
    }
}

op_family! {
    /// Factors of symmetric matrices that need not be definite, under the rules of [`LinalgOps`](super::LinalgOps).
    pub trait LdlOps : Linalg => LDL_OPS {
        /// P^T A P = L D L^T with D of blocks of one or two rows, by the pivots of Bunch and Kaufman (1977). A pivot p > 0 at k: rows and columns k
        /// and p (from 1) were exchanged before a block of one row; -p at k and k + 1: k + 1 and p before a block of two. The columns of L before a
        /// block are as they were before its exchange. A column in which nothing is left stays as it is, and the first is named in `info`. No
        /// gradient. Oracle `torch.linalg.ldl_factor_ex`, LAPACK `sytrf`.
        fn ldl_factor(&self, io: LdlFactor<'_>) -> Result<()>;
        /// X [.., n, k] with A X = B from the factors of A. A block of D that is 0 gives infinities or NaN. A pivot that no factorisation leaves is
        /// `IndexOutOfRange`, reported by the next call that waits, and exchanges nothing; without its pair it counts as a block of one row. The
        /// gradient of B is the solution for dX. Oracle `torch.linalg.ldl_solve`.
        fn ldl_solve(&self, ld: View<'_>, pivots: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()>;
    }
}

/// Checks of [`LdlOps::ldl_factor`].
pub(crate) fn check_ldl_factor(io: &LdlFactor<'_>) -> Result<Matrices> {
    const OP: &str = "ldl_factor";
    let m = square(OP, "a", &io.a)?;
    let mut seen = vec![("a", io.a)];
    check::exact_output(OP, "ld", &io.ld, io.a.shape(), io.a.dtype(), &mut seen)?;
    check::exact_output(OP, "pivots", &io.pivots, &lead(&io.a, &[m.rows]), DType::I32, &mut seen)?;
    check::exact_output(OP, "info", &io.info, &lead(&io.a, &[]), DType::I32, &mut seen)?;
    Ok(m)
}

/// Checks of [`LdlOps::ldl_solve`]; `cols` is the number of right sides.
pub(crate) fn check_ldl_solve(
    ld: &View<'_>,
    pivots: &View<'_>,
    b: &View<'_>,
    x: &ViewMut<'_>,
) -> Result<Matrices> {
    const OP: &str = "ldl_solve";
    let m = square(OP, "ld", ld)?;
    let of = matrices(OP, "b", b)?;
    check::exact(OP, "b", b, &lead(ld, &[m.rows, of.cols]), ld.dtype())?;
    check::exact(OP, "pivots", pivots, &lead(ld, &[m.rows]), DType::I32)?;
    let mut seen = vec![("ld", *ld), ("pivots", *pivots), ("b", *b)];
    check::exact_output(OP, "x", x, b.shape(), ld.dtype(), &mut seen)?;
    Ok(Matrices { cols: of.cols, ..m })
}
