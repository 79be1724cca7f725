//! Symmetric indefinite systems: the launches behind [`LdlOps`].

use super::matrix::{Keep, Mat, Part};
use super::plan::TriangularProblem;
use super::triangular::System;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, int, long};
use crate::error::Result;
use crate::ops::linalg::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::linalg::*;

impl LdlOps for Engine {
    fn ldl_factor(&self, io: LdlFactor<'_>) -> Result<()> {
        const OP: &str = "ldl_factor";
        let m = check_ldl_factor(&io)?;
        let (ld, pivots, info) = (io.ld.as_view(), io.pivots.as_view(), io.info.as_view());
        self.check_owner_all(OP, &[("a", io.a), ("ld", ld), ("pivots", pivots), ("info", info)])?;
        self.fill(0.0, io.info)?;
        if m.is_empty() {
            return Ok(());
        }
        let dt = io.a.dtype();
        let work = self.scratch(dt, io.a.numel())?;
        let w = Mat::by_columns(&work.view(), m.rows, m.cols);
        self.matrix_copy(dt, m, Mat::by_rows(&io.a, m.rows, m.cols), w, None)?;
        let args = LdlFactorArgs {
            a: w.arg(),
            pivots: self.arg_in(&pivots),
            info: self.arg_in(&info),
            batch: long(m.batch),
            n: int(m.rows),
        };
        self.launch(&LDL_FACTOR, dt, "", Grid::Blocks([m.batch, 1, 1]), &args)?;
        self.triangle(dt, m, Some(w), &ld, Part::new(Keep::Lower))
    }

    fn ldl_solve(&self, ld: View<'_>, pivots: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()> {
        const OP: &str = "ldl_solve";
        let m = check_ldl_solve(&ld, &pivots, &b, &x)?;
        let v = x.as_view();
        self.check_owner_all(OP, &[("ld", ld), ("pivots", pivots), ("b", b), ("x", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        let (dt, n, k) = (ld.dtype(), m.rows, m.cols);
        // A variant that is pinned and does not apply is refused before anything is written.
        self.plan("triangular_solve", &TriangularProblem { batch: m.batch, n, k })?;
        let l = self.scratch(dt, ld.numel())?;
        let (perm, pair) = (self.scratch(DType::I32, m.batch * n)?, self.scratch(DType::I32, m.batch * n)?);
        let args = LdlConvertArgs {
            ld: self.arg_in(&ld),
            pivots: self.arg_in(&pivots),
            l: self.arg_in(&l.view()),
            perm: self.arg_in(&perm.view()),
            pair: self.arg_in(&pair.view()),
            err: self.arg_error(),
            batch: long(m.batch),
            n: int(n),
            code: code_of_op(OP),
        };
        self.launch(&LDL_CONVERT, dt, "", Grid::Blocks([m.batch, 1, 1]), &args)?;
        let permute = |from: &View<'_>, to: &View<'_>, back: bool| {
            let args = LuPermuteArgs {
                b: self.arg_in(from),
                perm: self.arg_in(&perm.view()),
                x: self.arg_in(to),
                total: long(v.numel()),
                n: int(n),
                k: long(k),
                inverse: i32::from(back),
            };
            self.launch(&LU_PERMUTE, dt, "", Grid::Stride(v.numel()), &args)
        };
        let work = self.scratch(dt, v.numel())?;
        let y = work.view();
        permute(&b, &y, false)?;
        let (low, l) = (Triangular::lower().unit(true), Mat::by_rows(&l.view(), n, n));
        self.solve_system(System::new(low, dt, m, l, Mat::by_rows(&y, n, k)))?;
        let args = LdlDiagonalArgs {
            ld: self.arg_in(&ld),
            pair: self.arg_in(&pair.view()),
            x: self.arg_in(&y),
            total: long(v.numel()),
            n: int(n),
            k: long(k),
        };
        self.launch(&LDL_DIAGONAL, dt, "", Grid::Stride(v.numel()), &args)?;
        self.solve_system(System::new(low.trans(true), dt, m, l, Mat::by_rows(&y, n, k)))?;
        permute(&y, &v, true)
    }
}
