//! Dense linear algebra.

mod eigh;
mod ldl;
mod lu;
mod matrix;
mod newton_schulz;
mod plan;
mod qr;
mod svd;
mod triangular;

use self::plan::{CholeskyProblem, TriangularProblem};
use crate::buffer::{GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::linalg::*;

impl Engine {
    /// What factors 64 matrices of side 256, or solves with them for as many right sides.
    pub(crate) fn explain_linalg(&self, op: &'static str) -> Result<Choice> {
        match op {
            "cholesky" => self.explain_problem(op, &CholeskyProblem { batch: 64, n: 256 }),
            _ => self.explain_problem(op, &TriangularProblem { batch: 64, n: 256, k: 256 }),
        }
    }
}

impl LinalgOps for Engine {
    fn cholesky(&self, upper: bool, a: View<'_>, l: ViewMut<'_>, info: ViewMut<'_>) -> Result<()> {
        self.run_cholesky(upper, a, l, info)
    }

    fn cholesky_bwd(&self, upper: bool, dl: View<'_>, l: View<'_>, da: GradMut<'_>) -> Result<()> {
        self.run_cholesky_bwd(upper, dl, l, da)
    }

    fn triangular_solve(&self, p: Triangular, a: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()> {
        self.run_triangular_solve(p, a, b, x)
    }

    fn triangular_solve_bwd(&self, p: Triangular, io: TriangularSolveBwd<'_>) -> Result<()> {
        self.run_triangular_solve_bwd(p, io)
    }

    fn lu_factor(&self, io: LuFactor<'_>) -> Result<()> {
        self.run_lu_factor(io)
    }

    fn lu_solve(
        &self,
        trans: bool,
        lu: View<'_>,
        pivots: View<'_>,
        b: View<'_>,
        x: ViewMut<'_>,
    ) -> Result<()> {
        self.run_lu_solve(trans, lu, pivots, b, x)
    }

    fn lu_det(&self, io: LuDet<'_>) -> Result<()> {
        self.run_lu_det(io)
    }

    fn newton_schulz(&self, steps: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.run_newton_schulz(steps, x, y)
    }
}

impl DecompositionOps for Engine {
    fn qr(&self, io: Qr<'_>) -> Result<()> {
        self.run_qr(io)
    }

    fn eigh(&self, upper: bool, io: Eigh<'_>) -> Result<()> {
        self.run_eigh(upper, io)
    }

    fn svd(&self, io: Svd<'_>) -> Result<()> {
        self.run_svd(io)
    }
}
