//! QR factors by Householder reflections.

use super::matrix::{Keep, Mat, Part, TILE};
use super::triangular::System;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::error::Result;
use crate::ops::linalg::*;
use crate::spec::kernels::linalg::*;

/// Where the reflections of matrices lie, and the room that applying them takes.
struct Reflections {
    dtype: DType,
    m: Matrices,
    /// Vectors, by columns.
    v: Mat,
    /// Triangles of the panels: the inverse of their T, one below the other.
    s: Mat,
    /// Rows of a panel's products.
    x: Mat,
}

impl Engine {
    pub(super) fn run_qr(&self, io: Qr<'_>) -> Result<()> {
        const OP: &str = "qr";
        let m = check_qr(&io)?;
        let (q, r) = (io.q.as_ref().map(ViewMut::as_view), io.r.as_view());
        self.check_owner_all(OP, &[("a", Some(io.a)), ("q", q), ("r", Some(r))])?;
        if m.is_empty() {
            return Ok(());
        }
        let (dt, k) = (io.a.dtype(), m.least());
        let scale = self.matrix_scale(m, &io.a, Keep::All)?;
        let work = self.scratch(dt, io.a.numel())?;
        let w = Mat::by_columns(&work.view(), m.rows, m.cols);
        self.matrix_copy(dt, m, Mat::by_rows(&io.a, m.rows, m.cols), w, Some(&scale))?;
        let q = q.map(|q| (q, Mat::by_rows(&q, m.rows, k)));
        self.householder(dt, m, w, q.as_ref())?;
        let part = Part { power: Some(&scale), ..Part::new(Keep::Upper) };
        self.triangle(dt, Matrices { rows: k, ..m }, Some(w), &r, part)
    }

    /// Leaves R in the upper triangle of `w`, whose matrices lie in columns, and writes Q to a contiguous view, as the matrices that are given
    /// with it (which may be transposed).
    pub(super) fn householder(
        &self,
        dtype: DType,
        m: Matrices,
        w: Mat,
        q: Option<&(View<'_>, Mat)>,
    ) -> Result<()> {
        let k = m.least();
        let panels = k.div_ceil(TILE);
        let v = self.scratch(dtype, m.batch.saturating_mul(k * m.rows))?;
        let s = self.scratch(dtype, m.batch.saturating_mul(panels * TILE * TILE))?;
        let x = self.scratch(dtype, m.batch.saturating_mul(TILE * m.cols.max(k)))?;
        let h = Reflections {
            dtype,
            m,
            v: Mat::by_columns(&v.view(), m.rows, k),
            s: Mat::by_rows(&s.view(), TILE, TILE).every(panels * TILE * TILE),
            x: Mat::by_rows(&x.view(), TILE, m.cols.max(k)),
        };
        for first in (0..k).step_by(TILE) {
            let width = TILE.min(k - first);
            let args = QrPanelArgs {
                a: w.arg(),
                v: h.v.arg(),
                s: h.s.arg(),
                batch: long(m.batch),
                rows: int(m.rows),
                cols: long(m.cols),
                count: int(k),
                first: int(first),
                width: int(width),
            };
            self.launch(&QR_PANEL, dtype, "", Grid::Blocks([m.batch, 1, 1]), &args)?;
            let next = first + width;
            self.reflect(&h, first, true, w.at(first, next), m.cols - next)?;
        }
        let Some((out, q)) = q else { return Ok(()) };
        // The identity, which its transpose is as well.
        let identity = match q.is_by_rows() {
            true => Matrices { cols: k, ..m },
            false => Matrices { rows: k, cols: m.rows, ..m },
        };
        self.triangle(dtype, identity, None, out, Part::new(Keep::All))?;
        for first in (0..k).step_by(TILE).rev() {
            self.reflect(&h, first, false, q.at(first, first), k - first)?;
        }
        Ok(())
    }

    /// Applies a panel's product of reflections, or its transpose, to the rows from `first` on of `cols` columns.
    fn reflect(&self, h: &Reflections, first: usize, transposed: bool, y: Mat, cols: usize) -> Result<()> {
        let (dt, batch) = (h.dtype, h.m.batch);
        let (rows, width) = (h.m.rows - first, TILE.min(h.m.least() - first));
        if cols == 0 {
            return Ok(());
        }
        let (v, s) = (h.v.at(first, first), h.s.at(first, 0));
        self.matrix_product(dt, batch, [width, cols, rows], (1.0, 0.0), [v.t(), y, h.x])?;
        let p = Triangular::upper().trans(transposed);
        let m = Matrices { batch, rows: width, cols };
        self.solve_columns(System::new(p, dt, m, s, h.x))?;
        self.matrix_product(dt, batch, [rows, cols, width], (-1.0, 1.0), [v, h.x, y])
    }
}
