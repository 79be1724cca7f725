//! Singular values and vectors by the one-sided block Jacobi method.

use super::matrix::{Keep, Mat, TILE};
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
const SWEEPS: usize = 20;

/// A contiguous output, and its matrices as they are written: transposed or not.
type Output<'a> = (View<'a>, Mat);

/// What the rotations work on.
struct Rotated {
    dtype: DType,
    /// Tall matrices [batch, rows, n].
    m: Matrices,
    /// `rows` and `n` padded to whole tiles.
    high: usize,
    side: usize,
    /// The matrices, whose columns become orthogonal [batch, high, side].
    a: Buffer,
    /// The rotations' product [batch, side, side].
    v: Option<Buffer>,
    /// Powers of 2 and norms of the matrices.
    scale: Buffer,
    /// Whether a sweep rotates [SWEEPS + 1, batch].
    moved: Buffer,
    /// Lengths of the columns [batch, n].
    length: Buffer,
    /// Their places in descending order.
    rank: Buffer,
}

impl Engine {
    pub(super) fn run_svd(&self, io: Svd<'_>) -> Result<()> {
        const OP: &str = "svd";
        let m = check_svd(&io)?;
        let (s, info) = (io.s.as_view(), io.info.as_view());
        let (u, vh) = (io.u.as_ref().map(ViewMut::as_view), io.vh.as_ref().map(ViewMut::as_view));
        let operands = [("a", Some(io.a)), ("s", Some(s)), ("u", u), ("vh", vh), ("info", Some(info))];
        self.check_owner_all(OP, &operands)?;
        if m.is_empty() {
            return self.fill(0.0, io.info);
        }
        let u = u.map(|u| (u, Mat::by_rows(&u, m.rows, m.least())));
        let v = vh.map(|vh| (vh, Mat::by_rows(&vh, m.least(), m.cols).t()));
        // Wide matrices are transposed, which exchanges left and right.
        let a = Mat::by_rows(&io.a, m.rows, m.cols);
        let (a, left, right) = if m.rows < m.cols { (a.t(), v, u) } else { (a, u, v) };
        let tall = Matrices { rows: m.rows.max(m.cols), cols: m.least(), ..m };
        let scale = self.matrix_scale(m, &io.a, Keep::All)?;
        let x = self.rotate_columns(io.a.dtype(), tall, a, scale, right.is_some())?;
        self.singular_values(&x, s, info)?;
        if let (Some((_, y)), Some(v)) = (right, &x.v) {
            self.in_order(&x, v, [tall.cols, x.side], None, y)?;
        }
        left.map_or(Ok(()), |y| self.directions(&x, y))
    }

    /// Rotates columns until they are orthogonal; with `vectors`, the identity takes part.
    fn rotate_columns(
        &self,
        dtype: DType,
        m: Matrices,
        from: Mat,
        scale: Buffer,
        vectors: bool,
    ) -> Result<Rotated> {
        let Matrices { batch, rows, cols: n } = m;
        let (high, side) = (rows.next_multiple_of(TILE), n.next_multiple_of(TILE));
        let square = || self.scratch(dtype, batch.saturating_mul(side * side));
        let x = Rotated {
            dtype,
            m,
            high,
            side,
            a: self.scratch(dtype, batch.saturating_mul(high * side))?,
            v: vectors.then(square).transpose()?,
            scale,
            moved: self.scratch(DType::I32, (SWEEPS + 1) * batch)?,
            length: self.scratch(dtype, batch * n)?,
            rank: self.scratch(DType::I32, batch * n)?,
        };
        let args = SvdLoadArgs {
            x: from.arg(),
            scale: self.arg_in(&x.scale.view()),
            a: self.arg_in(&x.a.view()),
            v: x.v.as_ref().map_or(Ptr::NULL, |v| self.arg_in(&v.view())),
            moved: self.arg_in(&x.moved.view()),
            sx: from.dims(),
            batch: long(batch),
            rows: long(rows),
            n: long(n),
            high: long(high),
            side: long(side),
            sweeps: int(SWEEPS),
        };
        self.launch(&SVD_LOAD, dtype, "", Grid::Stride(batch.saturating_mul(high * side)), &args)?;
        let turns = self.scratch(dtype, batch.saturating_mul(side * TILE))?;
        for sweep in 0..SWEEPS {
            self.svd_sweep(&x, &args, self.arg_in(&turns.view()), sweep)?;
        }
        Ok(x)
    }

    /// All pairs of blocks once.
    fn svd_sweep(&self, x: &Rotated, io: &SvdLoadArgs, turns: Ptr, sweep: usize) -> Result<()> {
        let SvdLoadArgs { scale, a, v, moved, batch, high, .. } = *io;
        let (side, sweep, pairs) = (int(x.side), int(sweep), x.side / TILE);
        let of = |tiles: usize| Grid::Blocks([x.m.batch.saturating_mul(tiles * pairs), 1, 1]);
        for round in 0..int(2 * pairs - 1) {
            let args = SvdPairsArgs { a, scale, moved, turns, batch, high, side, round, sweep };
            self.launch(&SVD_PAIRS, x.dtype, "", of(1), &args)?;
            let mut args = SvdColumnsArgs { turns, moved, y: a, batch, high, side, round, sweep };
            self.launch(&SVD_COLUMNS, x.dtype, "", of(x.high / TILE), &args)?;
            if v.0.is_some() {
                (args.y, args.high) = (v, long(x.side));
                self.launch(&SVD_COLUMNS, x.dtype, "", of(pairs), &args)?;
            }
        }
        Ok(())
    }

    /// Lengths of the columns, and their order.
    fn singular_values(&self, x: &Rotated, s: View<'_>, info: View<'_>) -> Result<()> {
        let args = SvdValuesArgs {
            a: self.arg_in(&x.a.view()),
            scale: self.arg_in(&x.scale.view()),
            moved: self.arg_in(&x.moved.view()),
            length: self.arg_in(&x.length.view()),
            s: self.arg_in(&s),
            rank: self.arg_in(&x.rank.view()),
            info: self.arg_in(&info),
            batch: long(x.m.batch),
            n: long(x.m.cols),
            high: long(x.high),
            side: long(x.side),
            sweeps: int(SWEEPS),
        };
        self.launch(&SVD_VALUES, x.dtype, "", Grid::Blocks([x.m.batch, 1, 1]), &args)
    }

    /// The columns of padded matrices of `rows` of `high` rows at their places, over their lengths where these are given.
    fn in_order(
        &self,
        x: &Rotated,
        from: &Buffer,
        [rows, high]: [usize; 2],
        length: Option<&Buffer>,
        y: Mat,
    ) -> Result<()> {
        let args = SvdVectorsArgs {
            x: self.arg_in(&from.view()),
            length: self.arg_opt(length.map(Buffer::view).as_ref()),
            scale: self.arg_in(&x.scale.view()),
            rank: self.arg_in(&x.rank.view()),
            y: y.arg(),
            sy: y.dims(),
            batch: long(x.m.batch),
            rows: long(rows),
            n: long(x.m.cols),
            high: long(high),
            side: long(x.side),
        };
        self.launch(&SVD_VECTORS, x.dtype, "", Grid::Stride(x.m.batch * rows * x.m.cols), &args)
    }

    /// Directions of the columns, orthonormal also where a column is too short to have one: Q of their QR factors, with their signs.
    fn directions(&self, x: &Rotated, y: Output<'_>) -> Result<()> {
        let Matrices { batch, rows, cols: n } = x.m;
        let work = self.scratch(x.dtype, batch * rows * n)?;
        let w = Mat::by_columns(&work.view(), rows, n);
        self.in_order(x, &x.a, [rows, x.high], Some(&x.length), w)?;
        self.householder(x.dtype, x.m, w, Some(&y))?;
        let (r, sy) = (w.arg(), y.1.dims());
        let args = SvdSignsArgs { r, y: y.1.arg(), sy, batch: long(batch), rows: long(rows), n: long(n) };
        self.launch(&SVD_SIGNS, x.dtype, "", Grid::Stride(batch * rows * n), &args)
    }
}
