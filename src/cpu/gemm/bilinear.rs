//! Bilinear forms of rows, summed by groups, as products of matrices.

use std::borrow::Cow;

use super::{Matrix, Real, gradient, multiply, store_gradient, store_real};
use crate::buffer::View;
use crate::cpu::Kernels;
use crate::cpu::scratch::*;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::gemm::*;

/// A matrix of so many columns in row-major order.
fn dense<T: Real>(data: &[T], columns: usize) -> Matrix<'_, T> {
    Matrix { data: Cow::Borrowed(data), at: 0, steps: [columns, 1, 0] }
}

/// The matrices of all outputs or groups as the rows of one.
fn rows_of<'a, T: Real>(op: &'static str, v: View<'a>) -> Result<Matrix<'a, T>> {
    let s = v.shape();
    Matrix::new(op, &v.reshape(&[s[0], s[1] * s[2]])?, false, None)
}

fn extents(m: usize, n: usize, k: usize) -> Extents {
    Extents { batch: 1, m, n, k }
}

impl Kernels {
    fn bilinear<T: Real>(&self, s: BilinearSizes, io: BilinearRagged<'_>) -> Result<()> {
        let op = "bilinear_ragged";
        let groups = self.row_groups(op, io.offsets, s.rows)?;
        let (a, b) = (Matrix::<T>::new(op, &io.a, false, None)?, Matrix::<T>::new(op, &io.b, false, None)?);
        let each = s.m * s.n;
        let mut sums = filled(s.groups * each, T::default())?;
        for (g, rows) in groups.windows(2).enumerate() {
            let (a, b) = (a.skip(rows[0] * a.steps[0]), b.skip(rows[0] * b.steps[0]));
            let e = extents(s.m, s.n, rows[1] - rows[0]);
            multiply(op, e, 1.0, (&a.transposed(), &b), 0.0, &mut sums, g * each, [s.n, 1, 0])?;
        }
        let w = rows_of::<T>(op, io.w)?;
        let mut y = filled(s.groups * s.outputs, T::default())?;
        let factors = (&dense(&sums, each), &w.transposed());
        multiply(op, extents(s.groups, s.outputs, each), 1.0, factors, 0.0, &mut y, 0, [s.outputs, 1, 0])?;
        store_real(op, &io.sums, &sums)?;
        store_real(op, &io.y, &y)
    }

    fn bilinear_backward<T: Real>(&self, s: BilinearSizes, io: BilinearRaggedBwd<'_>) -> Result<()> {
        let op = "bilinear_ragged_bwd";
        let groups = self.row_groups(op, io.offsets, s.rows)?;
        let (a, b) = (Matrix::<T>::new(op, &io.a, false, None)?, Matrix::<T>::new(op, &io.b, false, None)?);
        let (dy, w) = (Matrix::<T>::new(op, &io.dy, false, None)?, rows_of::<T>(op, io.w)?);
        let each = s.m * s.n;
        let mut forms = filled(s.groups * each, T::default())?;
        multiply(op, extents(s.groups, each, s.outputs), 1.0, (&dy, &w), 0.0, &mut forms, 0, [each, 1, 0])?;
        let forms = dense(&forms, s.n);
        let mut da = filled(s.rows * s.m, T::default())?;
        let mut db = filled(s.rows * s.n, T::default())?;
        for (g, rows) in groups.windows(2).enumerate() {
            let form = forms.skip(g * each);
            let ([first, end], transposed) = ([rows[0], rows[1]], form.transposed());
            let (a, b) = (a.skip(first * a.steps[0]), b.skip(first * b.steps[0]));
            let e = extents(end - first, s.m, s.n);
            multiply(op, e, 1.0, (&b, &transposed), 0.0, &mut da, first * s.m, [s.m, 1, 0])?;
            let e = extents(end - first, s.n, s.m);
            multiply(op, e, 1.0, (&a, &form), 0.0, &mut db, first * s.n, [s.n, 1, 0])?;
        }
        io.da.map_or(Ok(()), |g| store_gradient(op, &g, &da))?;
        io.db.map_or(Ok(()), |g| store_gradient(op, &g, &db))?;
        let Some(dw) = io.dw else { return Ok(()) };
        let flat = dw.out.reshape(&[s.outputs, each])?.grad(dw.accumulate);
        let sums = rows_of::<T>(op, io.sums)?;
        gradient(op, extents(s.outputs, each, s.groups), 1.0, (&dy.transposed(), &sums), false, &flat)
    }
}

impl BilinearOps for Kernels {
    fn bilinear_ragged(&self, io: BilinearRagged<'_>) -> Result<()> {
        let s = check_bilinear_ragged(&io)?;
        let _timed = self.count("bilinear_ragged");
        match io.a.dtype() {
            DType::F64 => self.bilinear::<f64>(s, io),
            _ => self.bilinear::<f32>(s, io),
        }
    }

    fn bilinear_ragged_bwd(&self, io: BilinearRaggedBwd<'_>) -> Result<()> {
        let s = check_bilinear_ragged_bwd(&io)?;
        let _timed = self.count("bilinear_ragged_bwd");
        match io.a.dtype() {
            DType::F64 => self.bilinear_backward::<f64>(s, io),
            _ => self.bilinear_backward::<f32>(s, io),
        }
    }
}
