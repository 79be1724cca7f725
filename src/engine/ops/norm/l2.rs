//! Scaling to unit length along an axis.

use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::norm::plan::{L2Plan, L2Problem};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::spec::kernels::norm::*;

impl Engine {
    /// What serves 4096 rows of 1024 elements in f32.
    pub(crate) fn explain_l2(&self, op: &'static str) -> Result<Choice> {
        let operands = Alignment::full(DType::F32);
        self.explain_problem(op, &L2Problem { outer: 4096, cols: 1024, inner: 1, operands })
    }

    /// Unit length along an axis of contiguous `[outer, cols, inner]`, or the gradient where dy is given.
    pub(super) fn l2(
        &self,
        op: &'static str,
        dy: Option<View<'_>>,
        x: View<'_>,
        y: &GradMut<'_>,
        [outer, cols, inner]: [usize; 3],
        eps: f64,
    ) -> Result<()> {
        if x.numel() == 0 {
            return Ok(());
        }
        let dt = x.dtype();
        let out = y.out.as_view();
        let operands = Alignment::of(dt, [Some(&x), dy.as_ref(), Some(&out)].into_iter().flatten());
        let plan = self.plan(op, &L2Problem { outer, cols, inner, operands })?;
        let (px, py, accumulate) = (self.arg_in(&x), self.arg_in(&out), i32::from(y.accumulate));
        let (rows, length) = (long(outer), long(cols));
        match (plan, dy) {
            (L2Plan::Columns { tx, wide, blocks }, dy) => {
                let args = L2ColumnsArgs {
                    dy: self.arg_opt(dy.as_ref()),
                    x: px,
                    y: py,
                    outer: rows,
                    cols: length,
                    inner: long(inner),
                    tx: int(tx),
                    wide: i32::from(wide),
                    eps,
                    accumulate,
                };
                self.launch(&L2_COLUMNS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
            (L2Plan::Registers { lanes, items, blocks }, dy) => {
                let dy = self.arg_opt(dy.as_ref());
                let (items, lanes) = (long(items), int(lanes));
                let args = L2RegistersArgs { dy, x: px, y: py, rows, items, lanes, eps, accumulate };
                self.launch(&L2_REGISTERS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
            (L2Plan::Rows { lanes, wide, blocks }, None) => {
                let (lanes, wide) = (int(lanes), i32::from(wide));
                let args = L2RowsArgs { x: px, y: py, rows, cols: length, lanes, wide, eps };
                self.launch(&L2_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
            (L2Plan::Rows { lanes, wide, blocks }, Some(dy)) => {
                let args = L2BwdRowsArgs {
                    dy: self.arg_in(&dy),
                    x: px,
                    dx: py,
                    rows,
                    cols: length,
                    lanes: int(lanes),
                    wide: i32::from(wide),
                    eps,
                    accumulate,
                };
                self.launch(&L2_BWD_ROWS, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
            }
        }
    }
}
