//! Eigenvalues of symmetric matrices by the block Jacobi method.

use super::matrix::{Keep, TILE};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::error::Result;
use crate::ops::linalg::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::linalg::*;

/// Sweeps that are queued; those after the one that finds nothing return at once. Convergence is quadratic.
const SWEEPS: usize = 15;

impl Engine {
    pub(super) fn run_eigh(&self, upper: bool, io: Eigh<'_>) -> Result<()> {
        const OP: &str = "eigh";
        let m = check_eigh(&io)?;
        let (values, info, vectors) =
            (io.w.as_view(), io.info.as_view(), io.v.as_ref().map(ViewMut::as_view));
        let operands = [("a", Some(io.a)), ("w", Some(values)), ("v", vectors), ("info", Some(info))];
        self.check_owner_all(OP, &operands)?;
        if m.is_empty() {
            return self.fill(0.0, io.info);
        }
        let (dt, n) = (io.a.dtype(), m.rows);
        let side = n.next_multiple_of(TILE);
        let padded = m.batch.saturating_mul(side * side);
        let scale = self.matrix_scale(m, &io.a, Keep::triangle(upper))?;
        let (a, moved) = (self.scratch(dt, padded)?, self.scratch(DType::I32, (SWEEPS + 1) * m.batch)?);
        let v = vectors.map(|_| self.scratch(dt, padded)).transpose()?;
        let args = JacobiLoadArgs {
            x: self.arg_in(&io.a),
            scale: self.arg_in(&scale.view()),
            a: self.arg_in(&a.view()),
            v: v.as_ref().map_or(Ptr::NULL, |v| self.arg_in(&v.view())),
            moved: self.arg_in(&moved.view()),
            batch: long(m.batch),
            n: long(n),
            side: long(side),
            upper: i32::from(upper),
            sweeps: int(SWEEPS),
        };
        self.launch(&JACOBI_LOAD, dt, "", Grid::Stride(padded), &args)?;
        let turns = self.scratch(dt, m.batch.saturating_mul(side * TILE))?;
        for sweep in 0..SWEEPS {
            self.jacobi_sweep(&args, dt, &turns, sweep)?;
        }
        let rank = self.scratch(DType::I32, m.batch * n)?;
        let JacobiLoadArgs { scale, a, v, moved, batch, n, side, .. } = args;
        let args = JacobiValuesArgs {
            a,
            scale,
            moved,
            w: self.arg_in(&values),
            rank: self.arg_in(&rank.view()),
            info: self.arg_in(&info),
            batch,
            n,
            side,
            sweeps: int(SWEEPS),
        };
        self.launch(&JACOBI_VALUES, dt, "", Grid::Blocks([m.batch, 1, 1]), &args)?;
        let place = |y: View<'_>| {
            let args = JacobiVectorsArgs { v, rank: args.rank, y: self.arg_in(&y), batch, n, side };
            self.launch(&JACOBI_VECTORS, dt, "", Grid::Stride(y.numel()), &args)
        };
        vectors.map_or(Ok(()), place)
    }

    /// All pairs of blocks once.
    fn jacobi_sweep(&self, io: &JacobiLoadArgs, dtype: DType, turns: &Buffer, sweep: usize) -> Result<()> {
        let JacobiLoadArgs { scale, a, v, moved, batch, side, .. } = *io;
        let (turns, sweep, width) = (self.arg_in(&turns.view()), int(sweep), side as i32);
        let pairs = side as usize / TILE;
        let of = |tiles: usize| Grid::Blocks([(batch as usize).saturating_mul(tiles), 1, 1]);
        for round in 0..int(2 * pairs - 1) {
            let args = JacobiPairsArgs { a, scale, moved, turns, batch, side: width, round, sweep };
            self.launch(&JACOBI_PAIRS, dtype, "", of(pairs), &args)?;
            let args = JacobiBothArgs { turns, moved, a, batch, side: width, round, sweep };
            self.launch(&JACOBI_BOTH, dtype, "", of(pairs * pairs), &args)?;
            if v.0.is_some() {
                let args = JacobiColumnsArgs { turns, moved, v, batch, side: width, round, sweep };
                self.launch(&JACOBI_COLUMNS, dtype, "", of(pairs * pairs), &args)?;
            }
        }
        Ok(())
    }
}
