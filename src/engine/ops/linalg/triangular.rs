//! Cholesky factors, triangular systems, and their gradients.

use super::matrix::{Keep, Mat, Part, TILE};
use super::plan::{CholeskyPlan, CholeskyProblem, ROWS, TriangularPlan, TriangularProblem};
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::error::Result;
use crate::ops::linalg::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::linalg::*;

/// Lower triangles of side `n` and matrices of `k` columns, in place of which the solutions go.
#[derive(Debug, Clone, Copy)]
pub(super) struct System {
    pub(super) dtype: DType,
    pub(super) batch: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) t: Mat,
    pub(super) x: Mat,
    pub(super) unit: bool,
}

impl System {
    /// op(A) X = B or X op(A) = B: transposes, sides and upper triangles become strides. `m.cols` is the number of right sides.
    pub(super) fn new(p: Triangular, dtype: DType, m: Matrices, a: Mat, x: Mat) -> Self {
        let (n, k) = (m.rows, m.cols);
        let mut upper = p.upper != p.trans;
        let (mut t, mut x) = (if p.trans { a.t() } else { a }, x);
        if !p.left {
            (t, x, upper) = (t.t(), x.t(), !upper);
        }
        if upper {
            (t, x) = (t.backwards(n, n), x.rows_backwards(n));
        }
        System { dtype, batch: m.batch, n, k, t, x, unit: p.unit }
    }
}

/// B, X or their gradients as matrices.
fn sides(p: Triangular, m: Matrices, v: &View<'_>) -> Mat {
    let [rows, cols] = if p.left { [m.rows, m.cols] } else { [m.cols, m.rows] };
    Mat::by_rows(v, rows, cols)
}

impl Engine {
    /// Solves a system in the way that suits its size.
    pub(super) fn solve_system(&self, s: System) -> Result<()> {
        if s.batch == 0 || s.n == 0 || s.k == 0 {
            return Ok(());
        }
        match self.plan("triangular_solve", &TriangularProblem { batch: s.batch, n: s.n, k: s.k })? {
            TriangularPlan::Columns => self.solve_columns(s),
            TriangularPlan::Blocked => {
                for first in (0..s.n).step_by(ROWS) {
                    let n = ROWS.min(s.n - first);
                    self.solve_columns(System { n, t: s.t.at(first, first), x: s.x.at(first, 0), ..s })?;
                    let next = first + n;
                    let [t, x, rest] = [s.t.at(next, first), s.x.at(first, 0), s.x.at(next, 0)];
                    self.matrix_product(s.dtype, s.batch, [s.n - next, s.k, n], (-1.0, 1.0), [t, x, rest])?;
                }
                Ok(())
            }
        }
    }

    /// Solves a system, a block per 32 right sides.
    pub(super) fn solve_columns(&self, s: System) -> Result<()> {
        let work = s.batch * s.k.div_ceil(TILE);
        let args = TriangularSolveArgs {
            t: s.t.arg(),
            x: s.x.arg(),
            st: s.t.dims(),
            sx: s.x.dims(),
            n: long(s.n),
            k: long(s.k),
            work: long(work),
            unit: i32::from(s.unit),
        };
        self.launch(&TRIANGULAR_SOLVE, s.dtype, "", Grid::Blocks([work, 1, 1]), &args)
    }

    /// Factors the lower triangles of `l`, whose columns count from `first` in `info`.
    fn cholesky_block(&self, dtype: DType, m: Matrices, l: Mat, info: &View<'_>, first: usize) -> Result<()> {
        let args = CholeskyBlockArgs {
            l: l.arg(),
            info: self.arg_in(info),
            sl: l.dims(),
            n: long(m.rows),
            first: long(first),
            batch: long(m.batch),
        };
        self.launch(&CHOLESKY_BLOCK, dtype, "", Grid::Blocks([m.batch, 1, 1]), &args)
    }

    /// The same in blocks of columns.
    fn cholesky_blocked(&self, dtype: DType, m: Matrices, l: Mat, info: &View<'_>) -> Result<()> {
        for first in (0..m.rows).step_by(ROWS) {
            let n = ROWS.min(m.rows - first);
            let (diagonal, next) = (l.at(first, first), first + n);
            self.cholesky_block(dtype, Matrices { rows: n, cols: n, ..m }, diagonal, info, first)?;
            let rest = m.rows - next;
            if rest > 0 {
                let below = l.at(next, first);
                let p = Triangular::lower().left(false).trans(true);
                let of = Matrices { rows: n, cols: rest, ..m };
                self.solve_columns(System::new(p, dtype, of, diagonal, below))?;
                let operands = [below, below.t(), l.at(next, next)];
                self.matrix_product(dtype, m.batch, [rest, rest, n], (-1.0, 1.0), operands)?;
            }
        }
        Ok(())
    }

    pub(super) fn run_cholesky(
        &self,
        upper: bool,
        a: View<'_>,
        l: ViewMut<'_>,
        info: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "cholesky";
        let m = check_cholesky(&a, &l, &info)?;
        let (v, failed) = (l.as_view(), info.as_view());
        self.check_owner_all(OP, &[("a", a), ("l", v), ("info", failed)])?;
        if m.is_empty() {
            return self.fill(0.0, info);
        }
        let (dt, keep) = (a.dtype(), Keep::triangle(upper));
        let plan = self.plan(OP, &CholeskyProblem { batch: m.batch, n: m.rows })?;
        self.fill(0.0, info)?;
        let whole = Mat::by_rows(&v, m.rows, m.rows);
        self.triangle(dt, m, Some(Mat::by_rows(&a, m.rows, m.rows)), &v, Part::new(keep))?;
        let lower = if upper { whole.t() } else { whole };
        match plan {
            CholeskyPlan::Block => self.cholesky_block(dt, m, lower, &failed, 0)?,
            CholeskyPlan::Blocked => self.cholesky_blocked(dt, m, lower, &failed)?,
        }
        // Products reach beyond the triangle; failed matrices become NaN.
        self.triangle(dt, m, Some(whole), &v, Part { info: Some(failed), ..Part::new(keep) })
    }

    pub(super) fn run_cholesky_bwd(
        &self,
        upper: bool,
        dl: View<'_>,
        l: View<'_>,
        da: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "cholesky_bwd";
        let m = check_cholesky_bwd(&dl, &l, &da)?;
        let v = da.out.as_view();
        self.check_owner_all(OP, &[("dl", dl), ("l", l), ("da", v)])?;
        if m.is_empty() {
            return Ok(());
        }
        let (dt, n) = (l.dtype(), m.rows);
        let (product, half) = (self.scratch(dt, l.numel())?, self.scratch(dt, l.numel())?);
        let [s, p] = [product.view(), half.view()].map(|b| Mat::by_rows(&b, n, n));
        let turned = |v: &View<'_>| if upper { Mat::by_rows(v, n, n).t() } else { Mat::by_rows(v, n, n) };
        let (known, given) = (self.scratch(dt, l.numel())?, self.scratch(dt, l.numel())?);
        for (from, to) in [(&l, &known), (&dl, &given)] {
            let all = Part::new(Keep::triangle(upper));
            self.triangle(dt, m, Some(Mat::by_rows(from, n, n)), &to.view(), all)?;
        }
        let (dlower, lower) = (turned(&given.view()), turned(&known.view()));
        self.matrix_product(dt, m.batch, [n, n, n], (1.0, 0.0), [lower.t(), dlower, s])?;
        self.triangle(dt, m, Some(s), &half.view(), Part { diagonal: 0.5, ..Part::new(Keep::Lower) })?;
        // L^T S L = P.
        let from_left = System::new(Triangular::lower().trans(true), dt, m, lower, p);
        let from_right = System::new(Triangular::lower().left(false), dt, m, lower, p);
        self.solve_system(from_left)?;
        self.solve_system(from_right)?;
        let part = Part { symmetric: true, accumulate: da.accumulate, ..Part::new(Keep::All) };
        self.triangle(dt, m, Some(p), &v, part)
    }

    pub(super) fn run_triangular_solve(
        &self,
        p: Triangular,
        a: View<'_>,
        b: View<'_>,
        x: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "triangular_solve";
        let m = check_triangular_solve(p, &a, &b, &x)?;
        let v = x.as_view();
        self.check_owner_all(OP, &[("a", a), ("b", b), ("x", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        let system = System::new(p, a.dtype(), m, Mat::by_rows(&a, m.rows, m.rows), sides(p, m, &v));
        // A variant that is pinned and does not apply is refused before anything is written.
        self.plan(OP, &TriangularProblem { batch: m.batch, n: m.rows, k: m.cols })?;
        self.copy_all(&b, &v)?;
        self.solve_system(system)
    }

    /// Copies a contiguous operand into another of its size.
    pub(super) fn copy_all(&self, from: &View<'_>, to: &View<'_>) -> Result<()> {
        let m = Matrices { batch: 1, rows: 1, cols: from.numel() };
        self.triangle(from.dtype(), m, Some(Mat::by_rows(from, 1, m.cols)), to, Part::new(Keep::All))
    }

    pub(super) fn run_triangular_solve_bwd(&self, p: Triangular, io: TriangularSolveBwd<'_>) -> Result<()> {
        const OP: &str = "triangular_solve_bwd";
        let m = check_triangular_solve_bwd(p, &io)?;
        let (da, db) = (io.da.as_ref().map(|g| g.out.as_view()), io.db.as_ref().map(|g| g.out.as_view()));
        let operands = [("dx", Some(io.dx)), ("a", Some(io.a)), ("x", Some(io.x)), ("da", da), ("db", db)];
        self.check_owner_all(OP, &operands)?;
        let (dt, n, all) = (io.a.dtype(), m.rows, io.x.numel());
        // With U = op(A)^-T dX, or dX op(A)^-T.
        let solution = self.scratch(dt, all)?;
        let u = solution.view();
        if all > 0 {
            self.copy_all(&io.dx, &u)?;
            let transposed = p.trans(!p.trans);
            let of = Mat::by_rows(&io.a, n, n);
            self.solve_system(System::new(transposed, dt, m, of, sides(p, m, &u)))?;
        }
        if let (Some(g), Some(v)) = (&io.db, db)
            && all > 0
        {
            let of = Matrices { batch: 1, rows: 1, cols: all };
            let part = Part { accumulate: g.accumulate, ..Part::new(Keep::All) };
            self.triangle(dt, of, Some(Mat::by_rows(&u, 1, all)), &v, part)?;
        }
        let (Some(g), Some(v)) = (&io.da, da) else { return Ok(()) };
        if v.numel() == 0 || (m.cols == 0 && g.accumulate) {
            return Ok(());
        }
        if m.cols == 0 {
            return self.triangle(
                dt,
                Matrices { cols: n, ..m },
                None,
                &v,
                Part { scale: 0.0, ..Part::new(Keep::All) },
            );
        }
        let product = self.scratch(dt, v.numel())?;
        let to = Mat::by_rows(&product.view(), n, n);
        let (u, x) = (sides(p, m, &u), sides(p, m, &io.x));
        // d op(A) = -U X^T, or -X^T U; transposed for the transpose.
        let [a, b] = if p.left { [u, x.t()] } else { [x.t(), u] };
        let y = if p.trans { to.t() } else { to };
        self.matrix_product(dt, m.batch, [n, n, m.cols], (1.0, 0.0), [a, b, y])?;
        let part = Part {
            scale: -1.0,
            diagonal: if p.unit { 0.0 } else { 1.0 },
            accumulate: g.accumulate,
            ..Part::new(Keep::triangle(p.upper))
        };
        self.triangle(dt, Matrices { cols: n, ..m }, Some(to), &v, part)
    }
}
