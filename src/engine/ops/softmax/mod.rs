//! Softmax and log-softmax along an axis.

mod plan;

use self::plan::{SoftmaxPlan, SoftmaxProblem, Split};
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::{Alignment, RowGeometry};
use crate::engine::launch::{Grid, aligned16, dims, int, long};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::softmax::*;
use crate::spec::Kernel;
use crate::spec::kernels::softmax::*;
use crate::spec::softmax::SOFTMAXES;

/// The kernels that hold 1, 2, 4 and 8 items of 16 bytes per thread, forward and backward.
const REGISTERS: [&Kernel<SoftmaxRegistersArgs>; 4] =
    [&SOFTMAX_REGISTERS1, &SOFTMAX_REGISTERS2, &SOFTMAX_REGISTERS4, &SOFTMAX_REGISTERS8];
const REGISTERS_BWD: [&Kernel<SoftmaxBwdRegistersArgs>; 3] =
    [&SOFTMAX_BWD_REGISTERS1, &SOFTMAX_BWD_REGISTERS2, &SOFTMAX_BWD_REGISTERS4];
/// The kernels of the sizes in [`plan::CLUSTER_ELEMENTS`].
const CLUSTER: [&Kernel<SoftmaxClusterArgs>; 2] = [&SOFTMAX_CLUSTER16, &SOFTMAX_CLUSTER64];
const CLUSTER_BWD: [&Kernel<SoftmaxBwdClusterArgs>; 2] = [&SOFTMAX_BWD_CLUSTER16, &SOFTMAX_BWD_CLUSTER64];

fn name(kind: Softmax) -> &'static str {
    match kind {
        Softmax::Softmax => SOFTMAXES[0],
        Softmax::LogSoftmax => SOFTMAXES[1],
    }
}

/// What decides how softmax of contiguous operands of one shape and storage type runs.
fn problem([outer, cols, inner]: [usize; 3], tensors: &[&View<'_>]) -> SoftmaxProblem {
    let operands = Alignment::of(tensors[0].dtype(), tensors.iter().copied());
    SoftmaxProblem { outer, cols, inner, operands, tensors: tensors.len() }
}

fn blocks(n: usize) -> Grid {
    Grid::Blocks([n, 1, 1])
}

impl Engine {
    /// What serves softmax of 4096 rows of 1024 elements in f32, or its gradient.
    pub(crate) fn explain_softmax(&self, op: &'static str) -> Result<Choice> {
        let (outer, cols, inner) = (4096, 1024, 1);
        let tensors = if op == "softmax" { 2 } else { 3 };
        let operands = Alignment::full(DType::F32);
        self.explain_problem(op, &SoftmaxProblem { outer, cols, inner, operands, tensors })
    }

    /// Softmax of `rows` rows of `cols` elements, which are cut into runs.
    fn softmax_split(
        &self,
        op: &'static str,
        [x, y]: [&View<'_>; 2],
        [rows, cols]: [usize; 2],
        cut: &Split,
    ) -> Result<()> {
        let dt = x.dtype();
        let parts = self.scratch(dt.accumulator(), 2 * rows * cut.splits)?;
        // One (m, scale) per row, so that the blocks of the last pass have nothing to combine.
        let norms = self.scratch(dt.accumulator(), 2 * rows)?;
        let (part, norms) = (self.arg_in(&parts.view()), self.arg_in(&norms.view()));
        let grid = blocks(rows * cut.splits);
        let args = SoftmaxPartialArgs {
            x: self.arg_in(x),
            part,
            rows: long(rows),
            cols: long(cols),
            splits: int(cut.splits),
            chunk: long(cut.chunk),
            wide: i32::from(cut.wide),
            phase: int(cut.phase),
        };
        self.launch(&SOFTMAX_PARTIAL, dt, op, grid, &args)?;
        let args = SoftmaxCombineArgs { part, norms, rows: long(rows), splits: int(cut.splits) };
        self.launch(&SOFTMAX_COMBINE, dt, op, Grid::Stride(rows), &args)?;
        let args = SoftmaxApplyArgs {
            x: self.arg_in(x),
            norms,
            y: self.arg_in(y),
            rows: long(rows),
            cols: long(cols),
            splits: int(cut.splits),
            chunk: long(cut.chunk),
            wide: i32::from(cut.wide),
            phase: int(cut.phase),
        };
        self.launch(&SOFTMAX_APPLY, dt, op, grid, &args)
    }

    /// The gradient of [`Engine::softmax_split`].
    fn softmax_split_bwd(
        &self,
        op: &'static str,
        [dy, y]: [&View<'_>; 2],
        dx: &GradMut<'_>,
        [rows, cols]: [usize; 2],
        cut: &Split,
    ) -> Result<()> {
        let dt = y.dtype();
        let parts = self.scratch(dt.accumulator(), rows * cut.splits)?;
        let part = self.arg_in(&parts.view());
        let grid = blocks(rows * cut.splits);
        let args = SoftmaxBwdPartialArgs {
            dy: self.arg_in(dy),
            y: self.arg_in(y),
            part,
            rows: long(rows),
            cols: long(cols),
            splits: int(cut.splits),
            chunk: long(cut.chunk),
            wide: i32::from(cut.wide),
            phase: int(cut.phase),
        };
        self.launch(&SOFTMAX_BWD_PARTIAL, dt, op, grid, &args)?;
        let args = SoftmaxBwdApplyArgs {
            dy: self.arg_in(dy),
            y: self.arg_in(y),
            part,
            dx: self.arg_out(&dx.out),
            rows: long(rows),
            cols: long(cols),
            splits: int(cut.splits),
            chunk: long(cut.chunk),
            wide: i32::from(cut.wide),
            phase: int(cut.phase),
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&SOFTMAX_BWD_APPLY, dt, op, grid, &args)
    }
}

impl SoftmaxOps for Engine {
    fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let [outer, cols, inner] = check_softmax(axis, &x, &y)?;
        let out = y.as_view();
        self.check_owner("softmax", "x", &x)?;
        self.check_owner("softmax", "y", &out)?;
        if x.numel() == 0 {
            return Ok(());
        }
        let (op, dt) = (name(kind), x.dtype());
        let plan = self.plan("softmax", &problem([outer, cols, inner], &[&x, &out]))?;
        let (px, py) = (self.arg_in(&x), self.arg_in(&out));
        match plan {
            SoftmaxPlan::Registers { lanes, wide, items, blocks: n } => {
                let args = SoftmaxRegistersArgs {
                    x: px,
                    y: py,
                    rows: long(outer),
                    cols: int(cols),
                    lanes: int(lanes),
                    wide: i32::from(wide),
                };
                self.launch(REGISTERS[items], dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Cluster { wide, size, blocks: n } => {
                let args = SoftmaxClusterArgs { x: px, y: py, cols: int(cols), wide: i32::from(wide) };
                self.launch(CLUSTER[size], dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Rows { lanes, wide, phase, blocks: n } => {
                let args = SoftmaxRowsArgs {
                    x: px,
                    y: py,
                    rows: long(outer),
                    cols: long(cols),
                    lanes: int(lanes),
                    wide: i32::from(wide),
                    phase: int(phase),
                };
                self.launch(&SOFTMAX_ROWS, dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Split(cut) => self.softmax_split(op, [&x, &out], [outer, cols], &cut),
            SoftmaxPlan::Columns { tx, wide, blocks: n } => {
                let args = SoftmaxColumnsArgs {
                    x: px,
                    y: py,
                    outer: long(outer),
                    cols: long(cols),
                    inner: long(inner),
                    tx: int(tx),
                    wide: i32::from(wide),
                };
                self.launch(&SOFTMAX_COLUMNS, dt, op, blocks(n), &args)
            }
        }
    }

    fn softmax_bwd(
        &self,
        kind: Softmax,
        axis: usize,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "softmax_bwd";
        let [outer, cols, inner] = check_softmax_bwd(axis, &dy, &y, &dx)?;
        let out = dx.out.as_view();
        for (arg, v) in [("dy", &dy), ("y", &y), ("dx", &out)] {
            self.check_owner(OP, arg, v)?;
        }
        if y.numel() == 0 {
            return Ok(());
        }
        let (op, dt) = (name(kind), y.dtype());
        let plan = self.plan(OP, &problem([outer, cols, inner], &[&dy, &y, &out]))?;
        let [pg, py, px] = [&dy, &y, &out].map(|v| self.arg_in(v));
        let accumulate = i32::from(dx.accumulate);
        match plan {
            SoftmaxPlan::Registers { lanes, wide, items, blocks: n } => {
                let args = SoftmaxBwdRegistersArgs {
                    dy: pg,
                    y: py,
                    dx: px,
                    rows: long(outer),
                    cols: int(cols),
                    lanes: int(lanes),
                    wide: i32::from(wide),
                    accumulate,
                };
                self.launch(REGISTERS_BWD[items], dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Cluster { wide, size, blocks: n } => {
                let args = SoftmaxBwdClusterArgs {
                    dy: pg,
                    y: py,
                    dx: px,
                    cols: int(cols),
                    wide: i32::from(wide),
                    accumulate,
                };
                self.launch(CLUSTER_BWD[size], dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Rows { lanes, wide, phase, blocks: n } => {
                let args = SoftmaxBwdRowsArgs {
                    dy: pg,
                    y: py,
                    dx: px,
                    rows: long(outer),
                    cols: long(cols),
                    lanes: int(lanes),
                    wide: i32::from(wide),
                    phase: int(phase),
                    accumulate,
                };
                self.launch(&SOFTMAX_BWD_ROWS, dt, op, blocks(n), &args)
            }
            SoftmaxPlan::Split(cut) => self.softmax_split_bwd(op, [&dy, &y], &dx, [outer, cols], &cut),
            SoftmaxPlan::Columns { tx, wide, blocks: n } => {
                let args = SoftmaxBwdColumnsArgs {
                    dy: pg,
                    y: py,
                    dx: px,
                    outer: long(outer),
                    cols: long(cols),
                    inner: long(inner),
                    tx: int(tx),
                    wide: i32::from(wide),
                    accumulate,
                };
                self.launch(&SOFTMAX_BWD_COLUMNS, dt, op, blocks(n), &args)
            }
        }
    }

    fn masked_softmax(&self, scale: f64, x: View<'_>, mask: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax";
        let [rows, cols] = check_masked_softmax(&x, mask.as_ref(), &y)?;
        let out = y.as_view();
        self.check_owner_all(OP, &[("x", Some(x)), ("mask", mask), ("y", Some(out))])?;
        if x.numel() == 0 {
            return Ok(());
        }
        let dt = x.dtype();
        let geometry = RowGeometry::new([rows, cols], 32, Alignment::of(dt, [&x, &out]), self.device_caps());
        let wide_mask = mask.map(|m| m.broadcast_to(x.shape())).transpose()?;
        let lead = x.shape().len() - 1;
        let strides: Vec<usize> =
            wide_mask.as_ref().map_or(vec![0; lead + 1], |m| m.layout().strides().to_vec());
        let step = if cols == 1 { 0 } else { strides[lead] };
        let args = SoftmaxMaskedArgs {
            x: self.arg_in(&x),
            mask: self.arg_opt(wide_mask.as_ref()),
            y: self.arg_in(&out),
            rows: long(rows),
            cols: long(cols),
            lanes: int(geometry.lanes),
            wide: i32::from(geometry.wide),
            phase: int(geometry.phase),
            scale,
            rank: int(lead),
            sizes: dims(x.shape()[..lead].iter().copied()),
            steps: dims(strides[..lead].iter().copied()),
            step: int(step),
            aligned: i32::from(mask.as_ref().is_some_and(aligned16)),
        };
        self.launch(&SOFTMAX_MASKED, dt, "", geometry.grid(rows, self.device_caps()), &args)
    }

    fn masked_softmax_bwd(&self, scale: f64, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax_bwd";
        let [rows, cols] = check_masked_softmax_bwd(&dy, &y, &dx)?;
        let out = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("y", y), ("dx", out)])?;
        if y.numel() == 0 {
            return Ok(());
        }
        let dt = y.dtype();
        let geometry =
            RowGeometry::new([rows, cols], 32, Alignment::of(dt, [&dy, &y, &out]), self.device_caps());
        let args = SoftmaxMaskedBwdArgs {
            dy: self.arg_in(&dy),
            y: self.arg_in(&y),
            dx: self.arg_in(&out),
            rows: long(rows),
            cols: long(cols),
            lanes: int(geometry.lanes),
            wide: i32::from(geometry.wide),
            phase: int(geometry.phase),
            scale,
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&SOFTMAX_MASKED_BWD, dt, "", geometry.grid(rows, self.device_caps()), &args)
    }
}
