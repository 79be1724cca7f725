//! Softmax and log-softmax along an axis.

use crate::spec::kernels::softmax::*;
use crate::spec::softmax::{SOFTMAXES};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, pow2};
use crate::engine::launch::{dims, int, long, real};
use crate::error::Result;
use crate::ops::softmax::*;
use crate::spec::KernelSpec;

/// Elements of a row that one work-item holds in registers at most; half as many of each operand backward, which has two.
const KEEP: usize = 32;
/// Pieces of 16 bytes that a work-item likes to hold.
const PIECES: usize = 4;
/// The kernels that hold 1, 2, 4 and 8 pieces of 16 bytes, forward and backward.
const SHORT: [&KernelSpec; 4] = [&SOFTMAX_SHORT1.spec, &SOFTMAX_SHORT2.spec, &SOFTMAX_SHORT4.spec, &SOFTMAX_SHORT8.spec];
const BWD_SHORT: [&KernelSpec; 3] = [&SOFTMAX_BWD_SHORT1.spec, &SOFTMAX_BWD_SHORT2.spec, &SOFTMAX_BWD_SHORT4.spec];
/// Elements of a row that one work-item of `_held16` and `_held64` holds; doubles only the first.
const HELD: [usize; 2] = [16, 64];
const HELD_KERNELS: [&KernelSpec; 2] = [&SOFTMAX_HELD16.spec, &SOFTMAX_HELD64.spec];
const BWD_HELD_KERNELS: [&KernelSpec; 2] = [&SOFTMAX_BWD_HELD16.spec, &SOFTMAX_BWD_HELD64.spec];
/// Rows from which on the blocks of a cluster share one: elements.
const LONG: usize = KEEP * LANES;
/// Shortest run of a cut row, in items.
const RUN: usize = 2048;

fn name(kind: Softmax) -> &'static str {
    match kind {
        Softmax::Softmax => SOFTMAXES[0],
        Softmax::LogSoftmax => SOFTMAXES[1],
    }
}

/// How the axis is walked.
enum Walk {
    /// A row in the registers of `lanes` work-items, `1 << keep` pieces each.
    Short { lanes: usize, wide: bool, keep: usize },
    /// A row in the registers of a cluster of blocks; `keep` is an index of [`HELD`].
    Held { wide: bool, keep: usize },
    /// A row per `lanes` work-items.
    Rows { lanes: usize, wide: bool, phase: usize },
    /// Rows cut into runs.
    Split { splits: usize, chunk: usize, wide: bool, phase: usize },
    /// `tx` work-items side by side.
    Cols { tx: usize, wide: bool },
}

impl Engine {
    /// Chooses the walk for contiguous operands of one shape and dtype.
    fn softmax_walk(&self, outer: usize, cols: usize, inner: usize, operands: &[&View<'_>]) -> Walk {
        let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
        let aligned = operands.iter().all(|v| aligned16(v));
        if inner > 1 {
            let wide = aligned && inner.is_multiple_of(w);
            let items = outer * inner / if wide { w } else { 1 };
            let ty = (LANES / pow2(items, 32)).min(pow2(cols.div_ceil(8), LANES));
            return Walk::Cols { tx: LANES / ty, wide };
        }
        let phases: Vec<_> = operands.iter().map(|v| v.layout().offset() % w).collect();
        let phase = phases.first().copied().unwrap_or(0);
        let wide = phases.iter().all(|&p| p == phase);
        let items = if wide { cols.div_ceil(w) } else { cols };
        // Rows whose positions within 16 bytes differ are held by single elements.
        let whole = aligned && cols.is_multiple_of(w);
        let lanes = pow2(cols.div_ceil(PIECES * w), LANES).max(pow2(if whole { cols / w } else { cols }, 8));
        let keep = cols.div_ceil(lanes * w).next_power_of_two();
        let room = if operands.len() > 2 { KEEP / 2 } else { KEEP };
        if keep * w <= room && keep <= room / 4 {
            return Walk::Short { lanes, wide: whole, keep: keep.ilog2() as usize };
        }
        let caps = self.device_caps();
        let cluster = caps.cluster as usize;
        let blocks = outer * cluster;
        let busy = cluster > 1 && blocks >= caps.compute_units as usize && blocks < 1 << 31;
        let kinds = if w == 2 { &HELD[..1] } else { &HELD[..] };
        let held = kinds.iter().position(|h| cols > LONG && cols <= h * LANES * cluster);
        // Single elements of 16 bits take more time than a second reading.
        if let (Some(keep), true) = (held, busy && (whole || w <= 4)) {
            return Walk::Held { wide: whole, keep };
        }
        let mut lanes = pow2(items.div_ceil(PIECES), LANES).max(pow2(items, 8));
        let fill = self.fill();
        while lanes < pow2(items, LANES) && outer * lanes < fill * LANES / 2 {
            lanes *= 2;
        }
        // Rows are cut until several waves of blocks are in flight.
        let splits = if outer < fill * 2 { (fill * 4 / outer).min(items / RUN) } else { 1 };
        if splits > 1 {
            let chunk = items.div_ceil(splits) * if wide { w } else { 1 };
            return Walk::Split { splits: cols.div_ceil(chunk), chunk, wide, phase };
        }
        Walk::Rows { lanes, wide, phase }
    }

    /// Blocks for rows of which a block takes `LANES / lanes` at a time.
    fn softmax_grid(&self, rows: usize, lanes: usize) -> Grid {
        let blocks = rows.div_ceil(LANES / lanes);
        Grid::Blocks([if lanes == LANES { blocks } else { blocks.min(self.fill() * 8) }, 1, 1])
    }

    /// A cluster of blocks per row.
    fn held_grid(&self, rows: usize) -> Grid {
        Grid::Blocks([rows * self.device_caps().cluster as usize, 1, 1])
    }
}

fn cols_grid(outer: usize, inner: usize, tx: usize, wide: bool, size: usize) -> Grid {
    let items = outer * inner / if wide { 16 / size } else { 1 };
    Grid::Blocks([items.div_ceil(tx), 1, 1])
}

impl SoftmaxOps for Engine {
    fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let [outer, cols, inner] = check_softmax(axis, &x, &y)?;
        let out = y.as_view();
        self.own("softmax", "x", &x)?;
        self.own("softmax", "y", &out)?;
        if x.numel() == 0 {
            return Ok(());
        }
        let (op, dt) = (name(kind), x.dtype());
        let (px, py) = (self.arg_in(&x), self.arg_in(&out));
        let int = |v: usize| Arg::I32(v as i32);
        let long = |v: usize| Arg::I64(v as i64);
        match self.softmax_walk(outer, cols, inner, &[&x, &out]) {
            Walk::Short { lanes, wide, keep } => {
                let args = [px, py, long(outer), int(cols), int(lanes), int(wide as usize)];
                self.launch_list(SHORT[keep], dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Held { wide, keep } => {
                let args = [px, py, int(cols), int(wide as usize)];
                self.launch_list(HELD_KERNELS[keep], dt, op, self.held_grid(outer), &args)
            }
            Walk::Rows { lanes, wide, phase } => {
                let args = [px, py, long(outer), long(cols), int(lanes), int(wide as usize), int(phase)];
                self.launch_list(&SOFTMAX_ROWS.spec, dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Split { splits, chunk, wide, phase } => {
                let part = self.scratch(dt.accumulator(), 2 * outer * splits)?;
                let pp = self.arg_in(&part.view());
                let tail =
                    [long(outer), long(cols), int(splits), long(chunk), int(wide as usize), int(phase)];
                let grid = Grid::Blocks([outer * splits, 1, 1]);
                self.launch_list(&SOFTMAX_PART.spec, dt, op, grid, &[&[px, pp], &tail[..]].concat())?;
                // One (m, scale) per row, so that the blocks of the last pass have nothing to join.
                let rows = self.scratch(dt.accumulator(), 2 * outer)?;
                let pr = self.arg_in(&rows.view());
                self.launch_list(&SOFTMAX_JOIN.spec, dt, op, Grid::Stride(outer), &[pp, pr, long(outer), int(splits)])?;
                self.launch_list(&SOFTMAX_APPLY.spec, dt, op, grid, &[&[px, pr, py], &tail[..]].concat())
            }
            Walk::Cols { tx, wide } => {
                let args = [px, py, long(outer), long(cols), long(inner), int(tx), int(wide as usize)];
                self.launch_list(&SOFTMAX_COLS.spec, dt, op, cols_grid(outer, inner, tx, wide, dt.size()), &args)
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
            self.own(OP, arg, v)?;
        }
        if y.numel() == 0 {
            return Ok(());
        }
        let (op, dt) = (name(kind), y.dtype());
        let (pg, py, px) = (self.arg_in(&dy), self.arg_in(&y), self.arg_in(&out));
        let accumulate = Arg::I32(dx.accumulate as i32);
        let int = |v: usize| Arg::I32(v as i32);
        let long = |v: usize| Arg::I64(v as i64);
        match self.softmax_walk(outer, cols, inner, &[&dy, &y, &out]) {
            Walk::Short { lanes, wide, keep } => {
                let args = [pg, py, px, long(outer), int(cols), int(lanes), int(wide as usize), accumulate];
                self.launch_list(BWD_SHORT[keep], dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Held { wide, keep } => {
                let args = [pg, py, px, int(cols), int(wide as usize), accumulate];
                self.launch_list(BWD_HELD_KERNELS[keep], dt, op, self.held_grid(outer), &args)
            }
            Walk::Rows { lanes, wide, phase } => {
                let args = [
                    pg,
                    py,
                    px,
                    long(outer),
                    long(cols),
                    int(lanes),
                    int(wide as usize),
                    int(phase),
                    accumulate,
                ];
                self.launch_list(&SOFTMAX_BWD_ROWS.spec, dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Split { splits, chunk, wide, phase } => {
                let part = self.scratch(dt.accumulator(), outer * splits)?;
                let pp = self.arg_in(&part.view());
                let tail =
                    [long(outer), long(cols), int(splits), long(chunk), int(wide as usize), int(phase)];
                let grid = Grid::Blocks([outer * splits, 1, 1]);
                self.launch_list(&SOFTMAX_BWD_PART.spec, dt, op, grid, &[&[pg, py, pp], &tail[..]].concat())?;
                self.launch_list(&SOFTMAX_BWD_APPLY.spec, dt, op, grid, &[&[pg, py, pp, px], &tail[..], &[accumulate]].concat())
            }
            Walk::Cols { tx, wide } => {
                let args = [
                    pg,
                    py,
                    px,
                    long(outer),
                    long(cols),
                    long(inner),
                    int(tx),
                    int(wide as usize),
                    accumulate,
                ];
                self.launch_list(&SOFTMAX_BWD_COLS.spec, dt, op, cols_grid(outer, inner, tx, wide, dt.size()), &args)
            }
        }
    }

    fn masked_softmax(&self, scale: f64, x: View<'_>, mask: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax";
        let [rows, cols] = check_masked_softmax(&x, mask.as_ref(), &y)?;
        let out = y.as_view();
        self.own_all(OP, &[("x", Some(x)), ("mask", mask), ("y", Some(out))])?;
        if x.numel() == 0 {
            return Ok(());
        }
        let dt = x.dtype();
        let mut walk = self.row_walk(rows, cols, 32, &[&x, &out]);
        (walk.splits, walk.chunk) = (1, cols);
        let wide_mask = mask.map(|m| m.broadcast_to(x.shape())).transpose()?;
        let lead = x.shape().len() - 1;
        let strides: Vec<usize> =
            wide_mask.as_ref().map_or(vec![0; lead + 1], |m| m.layout().strides().to_vec());
        let step = if cols == 1 { 0 } else { strides[lead] };
        let args = [
            self.arg_in(&x),
            self.arg_opt(wide_mask.as_ref()),
            self.arg_in(&out),
            long(rows),
            long(cols),
            int(walk.lanes),
            int(walk.wide as usize),
            int(walk.phase),
            real(dt, scale),
            int(lead),
            dims(x.shape()[..lead].iter().copied()),
            dims(strides[..lead].iter().copied()),
            int(step),
            int(mask.as_ref().is_some_and(aligned16) as usize),
        ];
        self.launch_list(&SOFTMAX_MASKED.spec, dt, "", self.row_grid(rows, &walk), &args)
    }

    fn masked_softmax_bwd(&self, scale: f64, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "masked_softmax_bwd";
        let [rows, cols] = check_masked_softmax_bwd(&dy, &y, &dx)?;
        let out = dx.out.as_view();
        self.own_all(OP, &[("dy", dy), ("y", y), ("dx", out)])?;
        if y.numel() == 0 {
            return Ok(());
        }
        let dt = y.dtype();
        let walk = self.row_walk(rows, cols, 32, &[&dy, &y, &out]);
        let args = [
            self.arg_in(&dy),
            self.arg_in(&y),
            self.arg_in(&out),
            long(rows),
            long(cols),
            int(walk.lanes),
            int(walk.wide as usize),
            int(walk.phase),
            real(dt, scale),
            int(dx.accumulate as usize),
        ];
        self.launch_list(&SOFTMAX_MASKED_BWD.spec, dt, "", self.row_grid(rows, &walk), &args)
    }
}
