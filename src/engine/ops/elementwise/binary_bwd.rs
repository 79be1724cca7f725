//! Gradients of functions of two operands, of which one may be a row that a matrix shares.

use super::binary::{is_binary_special, widen};
use super::full::Full;
use super::plan::{BinaryBwdProblem, RowCut, SharedRow};
use super::{merged_axes, vector};
use crate::buffer::{GradMut, View};
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, int, long};
use crate::error::Result;
use crate::ops::elementwise::*;
use crate::spec::elementwise::binary_function;
use crate::spec::kernels::elementwise::*;

/// A matrix's sizes as rows and columns, and the operand that is a row which all its rows share: dy and the other operand have no gaps, it repeats
/// over leading axes only.
fn shared_row(dy: &View<'_>, a: &View<'_>, b: &View<'_>) -> Option<([usize; 2], SharedRow)> {
    let m = Merged::new([dy.layout(), a.layout(), b.layout()]);
    let (rows, cols) = match m.shape[..] {
        [n] => (n, 1),
        [r, c] => (r, c),
        _ => return None,
    };
    let matrix = |s: &[usize]| s == [cols, 1] || s == [1];
    let row = |s: &[usize]| s == [0, 1] || s == [0];
    let [g, s, t] = &m.strides;
    if !matrix(g) {
        return None;
    }
    match (matrix(s) && row(t), row(s) && matrix(t)) {
        (true, _) => Some(([rows, cols], SharedRow::B)),
        (_, true) => Some(([rows, cols], SharedRow::A)),
        _ => None,
    }
}

/// What decides how the gradients of a binary function run; a and b are broadcast to dy's shape.
pub(super) fn bwd_problem(
    [dy, a, b]: [&View<'_>; 3],
    [da, db]: [Option<&GradMut<'_>>; 2],
) -> BinaryBwdProblem {
    let dtype = dy.dtype();
    let gapless = |g: &GradMut<'_>| g.out.is_contiguous();
    let found = shared_row(dy, a, b).filter(|([_, cols], side)| {
        let (row, other) = match side {
            SharedRow::A => (da, db),
            SharedRow::B => (db, da),
        };
        // An operand that was expanded by the caller looks like a row, but wants a gradient for each of its elements.
        row.is_some_and(|g| gapless(g) && g.out.numel() == *cols) && other.is_none_or(gapless)
    });
    let Some(([rows, cols], side)) = found else {
        return BinaryBwdProblem { rows: 1, cols: dy.numel(), shared: None, dtype, aligned: false };
    };
    let other = if side == SharedRow::A { db } else { da };
    let aligned = [dy, a, b].into_iter().all(aligned16) && other.is_none_or(|g| aligned16(&g.out.as_view()));
    BinaryBwdProblem { rows, cols, shared: Some(side), dtype, aligned }
}

impl Engine {
    /// Both gradients where one operand is a row shared by a matrix's rows: see `binary_bwd_rows`.
    pub(super) fn bwd_rows(
        &self,
        op: Binary,
        problem: &BinaryBwdProblem,
        cut: &RowCut,
        [dy, x, v]: [&View<'_>; 3],
        [dx, dv]: [Option<&GradMut<'_>>; 2],
    ) -> Result<()> {
        let dt = dy.dtype();
        let (Some((name, [p, q])), Some(dv)) = (binary_function(op, dt), dv) else { return Ok(()) };
        let BinaryBwdProblem { rows, cols, shared, .. } = *problem;
        let part = self.scratch(dt.accumulator(), cut.slices * cols)?;
        let args = BinaryBwdRowsArgs {
            dy: self.arg_in(dy),
            x: self.arg_in(x),
            v: self.arg_in(v),
            dx: self.arg_opt_out(dx.map(|g| &g.out)),
            part: self.arg_in(&part.view()),
            rows: long(rows),
            cols: long(cols),
            lanes: int(cut.lanes),
            wide: i32::from(cut.wide),
            row_first: i32::from(shared == Some(SharedRow::A)),
            accumulate: i32::from(dx.is_some_and(|g| g.accumulate)),
            p,
            q,
        };
        self.launch(&BINARY_BWD_ROWS, dt, name, Grid::Blocks([cut.stripes, cut.slices, 1]), &args)?;
        let args = BinaryBwdFoldArgs {
            part: self.arg_in(&part.view()),
            dv: self.arg_out(&dv.out),
            slices: long(cut.slices),
            cols: long(cols),
            accumulate: i32::from(dv.accumulate),
        };
        self.launch(&BINARY_BWD_FOLD, dt, name, Grid::Blocks([cols.div_ceil(8), 1, 1]), &args)
    }

    /// Both gradients at dy's shape, summed to the shapes of the operands.
    pub(super) fn bwd_strided(
        &self,
        op: Binary,
        [dy, a, b]: [View<'_>; 3],
        [da, db]: [Option<GradMut<'_>>; 2],
    ) -> Result<()> {
        let (dt, shape) = (dy.dtype(), dy.shape());
        let Some((name, [p, q])) = binary_function(op, dt) else { return Ok(()) };
        let (fa, fb) = (Full::new(self, da, shape)?, Full::new(self, db, shape)?);
        if fa.grad.is_some() || fb.grad.is_some() {
            let (va, vb) = (fa.view(&dy, shape)?, fb.view(&dy, shape)?);
            let views = [&dy, &a, &b, &va, &vb];
            let mut m = Merged::in_order_of(0, views.map(|v| v.layout()));
            let special = is_binary_special(name);
            let bits = if special { 0 } else { widen(&mut m, views, vector(dt)) };
            // The kernel's bits: 0 on, 1 a, 2 b, 3 dy.
            let wide = if bits == 0 { 0 } else { 1 | (bits & 6) | ((bits & 1) << 3) };
            let items: usize = m.shape.iter().product();
            let (rank, shape, [sdy, sa, sb, sda, sdb]) = merged_axes(&m);
            let args = BinaryBwdNdArgs {
                dy: self.arg_in(&dy),
                a: self.arg_in(&a),
                b: self.arg_in(&b),
                da: fa.arg(self, &va),
                db: fb.arg(self, &vb),
                n: items as i64,
                rank,
                shape,
                sdy,
                sa,
                sb,
                sda,
                sdb,
                wide,
                acc_a: i32::from(fa.accumulate()),
                acc_b: i32::from(fb.accumulate()),
                p,
                q,
            };
            let kernel = if special { &BINARY_SPECIAL_BWD } else { &BINARY_BWD_ND };
            self.launch(kernel, dt, name, Grid::Stride(items), &args)?;
        }
        fa.finish(self, shape)?;
        fb.finish(self, shape)
    }
}
