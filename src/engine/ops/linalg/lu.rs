//! LU factors, their systems and determinants.

use super::matrix::{Mat, TILE};
use super::plan::TriangularProblem;
use super::triangular::System;
use crate::buffer::{View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, int, long};
use crate::error::Result;
use crate::ops::linalg::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::linalg::*;

impl Engine {
    pub(super) fn run_lu_factor(&self, io: LuFactor<'_>) -> Result<()> {
        const OP: &str = "lu_factor";
        let m = check_lu_factor(&io)?;
        let (lu, pivots, info) = (io.lu.as_view(), io.pivots.as_view(), io.info.as_view());
        self.check_owner_all(OP, &[("a", io.a), ("lu", lu), ("pivots", pivots), ("info", info)])?;
        self.fill(0.0, io.info)?;
        if m.is_empty() {
            return Ok(());
        }
        let dt = io.a.dtype();
        let work = self.scratch(dt, io.a.numel())?;
        let w = Mat::by_columns(&work.view(), m.rows, m.cols);
        self.matrix_copy(dt, m, Mat::by_rows(&io.a, m.rows, m.cols), w, None)?;
        for first in (0..m.least()).step_by(TILE) {
            let panel = LuPanelArgs {
                a: w.arg(),
                pivots: self.arg_in(&pivots),
                info: self.arg_in(&info),
                batch: long(m.batch),
                rows: int(m.rows),
                cols: long(m.cols),
                count: int(m.least()),
                first: int(first),
                width: int(TILE.min(m.least() - first)),
            };
            self.launch(&LU_PANEL, dt, "", Grid::Blocks([m.batch, 1, 1]), &panel)?;
            self.lu_update(dt, m, w, &panel)?;
        }
        self.matrix_copy(dt, m, w, Mat::by_rows(&lu, m.rows, m.cols), None)
    }

    /// What a factored panel changes of the other columns: exchanges, the rows of U beside it, the rest.
    fn lu_update(&self, dtype: DType, m: Matrices, w: Mat, panel: &LuPanelArgs) -> Result<()> {
        let LuPanelArgs { a, pivots, batch, rows, cols, count, first, width, .. } = *panel;
        let (from, n) = (first as usize, width as usize);
        let others = m.batch * (m.cols - n);
        let swap = LuSwapArgs { pivots, a, batch, rows, cols, count, first, width };
        self.launch(&LU_SWAP, dtype, "", Grid::Stride(others), &swap)?;
        let (next, k) = (from + n, m.cols - from - n);
        if k == 0 {
            return Ok(());
        }
        let (t, x) = (w.at(from, from), w.at(from, next));
        self.solve_columns(System { dtype, batch: m.batch, n, k, t, x, unit: true })?;
        let operands = [w.at(next, from), x, w.at(next, next)];
        self.matrix_product(dtype, m.batch, [m.rows - next, k, n], (-1.0, 1.0), operands)
    }

    pub(super) fn run_lu_solve(
        &self,
        trans: bool,
        lu: View<'_>,
        pivots: View<'_>,
        b: View<'_>,
        x: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "lu_solve";
        let m = check_lu_solve(&lu, &pivots, &b, &x)?;
        let v = x.as_view();
        self.check_owner_all(OP, &[("lu", lu), ("pivots", pivots), ("b", b), ("x", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        let (dt, n, k) = (lu.dtype(), m.rows, m.cols);
        // A variant that is pinned and does not apply is refused before anything is written.
        self.plan("triangular_solve", &TriangularProblem { batch: m.batch, n, k })?;
        let perm = self.scratch(DType::I32, m.batch * n)?;
        let args = LuPermutationArgs {
            pivots: self.arg_in(&pivots),
            perm: self.arg_in(&perm.view()),
            err: self.arg_error(),
            batch: long(m.batch),
            n: int(n),
            code: code_of_op(OP),
        };
        self.launch(&LU_PERMUTATION, dt, "", Grid::Blocks([m.batch, 1, 1]), &args)?;
        let permute = |from: &View<'_>, to: &View<'_>| {
            let args = LuPermuteArgs {
                b: self.arg_in(from),
                perm: self.arg_in(&perm.view()),
                x: self.arg_in(to),
                total: long(v.numel()),
                n: int(n),
                k: long(k),
                inverse: i32::from(trans),
            };
            self.launch(&LU_PERMUTE, dt, "", Grid::Stride(v.numel()), &args)
        };
        let (low, high) = (Triangular::lower().unit(true).trans(trans), Triangular::upper().trans(trans));
        let factors = Mat::by_rows(&lu, n, n);
        let system = |p, x: &View<'_>| System::new(p, dt, m, factors, Mat::by_rows(x, n, k));
        if !trans {
            permute(&b, &v)?;
            self.solve_system(system(low, &v))?;
            return self.solve_system(system(high, &v));
        }
        let work = self.scratch(dt, v.numel())?;
        let y = work.view();
        self.copy_all(&b, &y)?;
        self.solve_system(system(high, &y))?;
        self.solve_system(system(low, &y))?;
        permute(&y, &v)
    }

    pub(super) fn run_lu_det(&self, io: LuDet<'_>) -> Result<()> {
        const OP: &str = "lu_det";
        let m = check_lu_det(&io)?;
        let outputs = [&io.det, &io.sign, &io.logabsdet].map(|o| o.as_ref().map(ViewMut::as_view));
        let [det, sign, logabs] = outputs;
        let operands = [
            ("lu", Some(io.lu)),
            ("pivots", Some(io.pivots)),
            ("det", det),
            ("sign", sign),
            ("logabsdet", logabs),
        ];
        self.check_owner_all(OP, &operands)?;
        if outputs.iter().all(Option::is_none) {
            return Ok(());
        }
        let or_null = |o: Option<View<'_>>| o.map_or(Ptr::NULL, |v| self.arg_in(&v));
        let args = LuDetArgs {
            lu: self.arg_in(&io.lu),
            pivots: self.arg_in(&io.pivots),
            det: or_null(det),
            sign: or_null(sign),
            logabs: or_null(logabs),
            batch: long(m.batch),
            n: int(m.rows),
        };
        self.launch(&LU_DET, io.lu.dtype(), "", Grid::Blocks([m.batch, 1, 1]), &args)
    }
}
