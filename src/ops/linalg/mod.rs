//! Dense linear algebra: signatures and checks of factorisations and of the systems that are solved with them.

mod decomposition;
mod ldl;

pub use self::decomposition::*;
pub use self::ldl::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Which system [`LinalgOps::triangular_solve`] solves: lower, op(A) X = B, A as it is, its diagonal read, unless set otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Triangular {
    /// A is upper triangular.
    pub upper: bool,
    /// op(A) X = B; otherwise X op(A) = B.
    pub left: bool,
    /// op(A) is the transpose of A.
    pub trans: bool,
    /// The diagonal counts as 1 and is not read.
    pub unit: bool,
}

impl Triangular {
    /// A X = B with A lower triangular.
    pub const fn lower() -> Self {
        Triangular { upper: false, left: true, trans: false, unit: false }
    }

    /// A X = B with A upper triangular.
    pub const fn upper() -> Self {
        Triangular { upper: true, ..Triangular::lower() }
    }

    /// Sets on which side of X the triangle stands.
    pub const fn left(mut self, on: bool) -> Self {
        self.left = on;
        self
    }

    /// Sets whether the triangle is transposed.
    pub const fn trans(mut self, on: bool) -> Self {
        self.trans = on;
        self
    }

    /// Sets whether the diagonal counts as 1.
    pub const fn unit(mut self, on: bool) -> Self {
        self.unit = on;
        self
    }
}

io_struct! {
    /// Operands of [`LinalgOps::triangular_solve_bwd`].
    #[derive(Debug)]
    pub struct TriangularSolveBwd<'a> {
        /// Upstream gradient, X's shape.
        pub dx: View<'a>,
        /// Forward's triangle [.., n, n].
        pub a: View<'a>,
        /// Forward's result.
        pub x: View<'a>,
        /// Gradient of the triangle [.., n, n]; 0 outside of what the forward reads.
        pub da: Option<GradMut<'a>>,
        /// Gradient of the right sides, X's shape.
        pub db: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`LinalgOps::lu_factor`].
    #[derive(Debug)]
    pub struct LuFactor<'a> {
        /// Matrices [.., m, n].
        pub a: View<'a>,
        /// Factors [.., m, n]: U on and above the diagonal, L (whose diagonal is 1) below it.
        pub lu: ViewMut<'a>,
        /// Row with which row i was exchanged, counted from 1: i32 [.., min(m, n)].
        pub pivots: ViewMut<'a>,
        /// 0, or the number, from 1, of the first pivot that is 0: i32 [..].
        pub info: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`LinalgOps::lu_det`].
    #[derive(Debug)]
    pub struct LuDet<'a> {
        /// Factors [.., n, n].
        pub lu: View<'a>,
        /// Exchanges of rows, i32 [.., n].
        pub pivots: View<'a>,
        /// Determinant [..].
        pub det: Option<ViewMut<'a>>,
        /// Its sign [..]: -1, 0 or 1.
        pub sign: Option<ViewMut<'a>>,
        /// Logarithm of its magnitude [..]; -inf where it is 0.
        pub logabsdet: Option<ViewMut<'a>>,
    }
}

op_family! {
    /// Factorisations of batches of matrices, and the systems that are solved with them. f32 or f64; operands are contiguous, their leading axes
    /// [..] are the batch and agree. Nothing waits for the device: what fails in a matrix is said in an array `info` (i32, one entry per matrix)
    /// on the device. Deterministic. NaN and infinities propagate. Errors of all: `Invalid` for ranks, sizes (sides from 2^24 on), dtypes,
    /// layouts, overlap of an output with anything else.
    pub trait LinalgOps : Linalg => LINALG_OPS {
        /// L with L L^T = A for symmetric positive definite A [.., n, n], of which the lower triangle is read; with `upper` U with U^T U = A from
        /// the upper one. The other triangle of L becomes 0. `info` [..]: 0, or the size of the first leading minor that is not positive
        /// definite; all of L is NaN then. Oracle `torch.linalg.cholesky_ex`.
        fn cholesky(&self, upper: bool, a: View<'_>, l: ViewMut<'_>, info: ViewMut<'_>) -> Result<()>;
        /// dA = (S + S^T) / 2 with S = L^-T P L^-1, P the lower triangle of L^T dL with half its diagonal (Murray, "Differentiation of the
        /// Cholesky decomposition", 2016). Of dL the triangle of L counts. `upper` as in the forward. Oracle: autograd of it.
        fn cholesky_bwd(&self, upper: bool, dl: View<'_>, l: View<'_>, da: GradMut<'_>) -> Result<()>;
        /// X with op(A) X = B, or X op(A) = B, for triangular A [.., n, n] and B, X [.., n, k] or [.., k, n]. Only the named triangle of A is
        /// read. A zero on the diagonal gives infinities and NaN. Oracle `torch.linalg.solve_triangular`.
        fn triangular_solve(&self, p: Triangular, a: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()>;
        /// dB = the solution of the transposed system for dX; dA = the triangle of -dB X^T, -X dB^T, -X^T dB or -dB^T X by side and transpose.
        fn triangular_solve_bwd(&self, p: Triangular, io: TriangularSolveBwd<'_>) -> Result<()>;
        /// P A = L U with partial pivoting. The pivot of a column is its first element of largest magnitude, NaN before all numbers. A pivot of
        /// 0 is left out, and named in `info`. Oracle `torch.linalg.lu_factor_ex`.
        fn lu_factor(&self, io: LuFactor<'_>) -> Result<()>;
        /// X [.., n, k] with A X = B, or with `trans` A^T X = B, from the factors of A. A pivot outside 1..=n is `IndexOutOfRange`, reported by
        /// the next call that waits, and exchanges nothing. Oracle `torch.linalg.lu_solve(adjoint=trans)`.
        fn lu_solve(&self, trans: bool, lu: View<'_>, pivots: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()>;
        /// Determinants from factors: the product of U's diagonal, negated for each exchange, or its sign and the logarithm of its magnitude
        /// (which neither overflows nor underflows). Oracle `torch.linalg.det`, `torch.linalg.slogdet`.
        fn lu_det(&self, io: LuDet<'_>) -> Result<()>;
        /// Newton-Schulz iteration towards the nearest matrix with orthonormal rows or columns: X / (|X| + 1e-7) with the Frobenius norm, then
        /// `steps` times X <- a X + (b A + c A A) X with A = X X^T and (a, b, c) = (3.4445, -4.775, 2.0315); with more rows than columns on the
        /// transpose; x, y [.., m, n]. Singular values end between about 0.7 and 1.2. No gradient. At most 64 steps.
        /// Source: `zeropower_via_newtonschulz5` of Muon (Jordan et al., 2024).
        fn newton_schulz(&self, steps: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}

/// Coefficients of [`LinalgOps::newton_schulz`], and what is added to the norm.
pub(crate) const NEWTON_SCHULZ: [f64; 3] = [3.4445, -4.775, 2.0315];
pub(crate) const NEWTON_SCHULZ_EPS: f64 = 1e-7;
/// Most of its steps.
const NEWTON_SCHULZ_STEPS: usize = 64;

/// Sides of matrices end below this.
const SIDE: usize = 1 << 24;

/// Number and size of the matrices of a checked operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matrices {
    pub(crate) batch: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Matrices {
    /// The smaller side.
    pub(crate) fn least(self) -> usize {
        self.rows.min(self.cols)
    }

    /// Whether there is no element.
    pub(crate) fn is_empty(self) -> bool {
        self.batch == 0 || self.rows == 0 || self.cols == 0
    }
}

/// Contiguous f32 or f64 matrices [.., m, n].
pub(crate) fn matrices(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<Matrices> {
    check::one_of(op, arg, v, &[DType::F32, DType::F64])?;
    let Some((lead, &[rows, cols])) = v.shape().split_last_chunk::<2>() else {
        return Err(GpuError::invalid(op, arg, "matrices [.., m, n]", format!("shape {:?}", v.shape())));
    };
    if rows.max(cols) >= SIDE {
        return Err(GpuError::invalid(op, arg, format!("sides below {SIDE}"), format!("{rows} x {cols}")));
    }
    check::contiguous(op, arg, v)?;
    Ok(Matrices { batch: lead.iter().product(), rows, cols })
}

/// The same for square ones.
pub(crate) fn square(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<Matrices> {
    let m = matrices(op, arg, v)?;
    if m.rows == m.cols {
        return Ok(m);
    }
    Err(GpuError::invalid(op, arg, "square matrices", format!("shape {:?}", v.shape())))
}

/// Leading axes of matrices, with `sides` behind them.
pub(crate) fn lead(v: &View<'_>, sides: &[usize]) -> Vec<usize> {
    [&v.shape()[..v.shape().len().saturating_sub(2)], sides].concat()
}

/// Checks of [`LinalgOps::cholesky`].
pub(crate) fn check_cholesky(a: &View<'_>, l: &ViewMut<'_>, info: &ViewMut<'_>) -> Result<Matrices> {
    const OP: &str = "cholesky";
    let m = square(OP, "a", a)?;
    let mut seen = vec![("a", *a)];
    check::exact_output(OP, "l", l, a.shape(), a.dtype(), &mut seen)?;
    check::exact_output(OP, "info", info, &lead(a, &[]), DType::I32, &mut seen)?;
    Ok(m)
}

/// Checks of [`LinalgOps::cholesky_bwd`].
pub(crate) fn check_cholesky_bwd(dl: &View<'_>, l: &View<'_>, da: &GradMut<'_>) -> Result<Matrices> {
    const OP: &str = "cholesky_bwd";
    let m = square(OP, "l", l)?;
    check::exact(OP, "dl", dl, l.shape(), l.dtype())?;
    check::exact_output(OP, "da", &da.out, l.shape(), l.dtype(), &mut vec![("dl", *dl), ("l", *l)])?;
    Ok(m)
}

/// Sides n of the triangle and k, the number of right sides, of a checked system.
fn check_system(op: &'static str, p: Triangular, a: &View<'_>, b: (&'static str, &View<'_>)) -> Result<Matrices> {
    let m = square(op, "a", a)?;
    let of = matrices(op, b.0, b.1)?;
    let k = if p.left { of.cols } else { of.rows };
    let sides = if p.left { [m.rows, k] } else { [k, m.rows] };
    check::exact(op, b.0, b.1, &lead(a, &sides), a.dtype())?;
    Ok(Matrices { cols: k, ..m })
}

/// Checks of [`LinalgOps::triangular_solve`].
pub(crate) fn check_triangular_solve(p: Triangular, a: &View<'_>, b: &View<'_>, x: &ViewMut<'_>) -> Result<Matrices> {
    const OP: &str = "triangular_solve";
    let m = check_system(OP, p, a, ("b", b))?;
    check::exact_output(OP, "x", x, b.shape(), a.dtype(), &mut vec![("a", *a), ("b", *b)])?;
    Ok(m)
}

/// Checks of [`LinalgOps::triangular_solve_bwd`].
pub(crate) fn check_triangular_solve_bwd(p: Triangular, io: &TriangularSolveBwd<'_>) -> Result<Matrices> {
    const OP: &str = "triangular_solve_bwd";
    let m = check_system(OP, p, &io.a, ("x", &io.x))?;
    check::exact(OP, "dx", &io.dx, io.x.shape(), io.a.dtype())?;
    let mut seen = vec![("dx", io.dx), ("a", io.a), ("x", io.x)];
    if let Some(g) = &io.da {
        check::exact_output(OP, "da", &g.out, io.a.shape(), io.a.dtype(), &mut seen)?;
    }
    if let Some(g) = &io.db {
        check::exact_output(OP, "db", &g.out, io.x.shape(), io.a.dtype(), &mut seen)?;
    }
    Ok(m)
}

/// Checks of [`LinalgOps::lu_factor`].
pub(crate) fn check_lu_factor(io: &LuFactor<'_>) -> Result<Matrices> {
    const OP: &str = "lu_factor";
    let m = matrices(OP, "a", &io.a)?;
    let mut seen = vec![("a", io.a)];
    check::exact_output(OP, "lu", &io.lu, io.a.shape(), io.a.dtype(), &mut seen)?;
    check::exact_output(OP, "pivots", &io.pivots, &lead(&io.a, &[m.least()]), DType::I32, &mut seen)?;
    check::exact_output(OP, "info", &io.info, &lead(&io.a, &[]), DType::I32, &mut seen)?;
    Ok(m)
}

/// Checks of [`LinalgOps::lu_solve`]; `cols` is the number of right sides.
pub(crate) fn check_lu_solve(lu: &View<'_>, pivots: &View<'_>, b: &View<'_>, x: &ViewMut<'_>) -> Result<Matrices> {
    const OP: &str = "lu_solve";
    let m = square(OP, "lu", lu)?;
    let of = matrices(OP, "b", b)?;
    check::exact(OP, "b", b, &lead(lu, &[m.rows, of.cols]), lu.dtype())?;
    check::exact(OP, "pivots", pivots, &lead(lu, &[m.rows]), DType::I32)?;
    check::exact_output(
        OP,
        "x",
        x,
        b.shape(),
        lu.dtype(),
        &mut vec![("lu", *lu), ("pivots", *pivots), ("b", *b)],
    )?;
    Ok(Matrices { cols: of.cols, ..m })
}

/// Checks of [`LinalgOps::lu_det`].
pub(crate) fn check_lu_det(io: &LuDet<'_>) -> Result<Matrices> {
    const OP: &str = "lu_det";
    let m = square(OP, "lu", &io.lu)?;
    check::exact(OP, "pivots", &io.pivots, &lead(&io.lu, &[m.rows]), DType::I32)?;
    let mut seen = vec![("lu", io.lu), ("pivots", io.pivots)];
    for (arg, out) in [("det", &io.det), ("sign", &io.sign), ("logabsdet", &io.logabsdet)] {
        if let Some(out) = out {
            check::exact_output(OP, arg, out, &lead(&io.lu, &[]), io.lu.dtype(), &mut seen)?;
        }
    }
    Ok(m)
}

/// Checks of [`LinalgOps::newton_schulz`].
pub(crate) fn check_newton_schulz(steps: usize, x: &View<'_>, y: &ViewMut<'_>) -> Result<Matrices> {
    const OP: &str = "newton_schulz";
    let m = matrices(OP, "x", x)?;
    check::exact_output(OP, "y", y, x.shape(), x.dtype(), &mut vec![("x", *x)])?;
    if steps <= NEWTON_SCHULZ_STEPS {
        return Ok(m);
    }
    Err(GpuError::invalid(OP, "steps", format!("at most {NEWTON_SCHULZ_STEPS}"), format!("{steps}")))
}
