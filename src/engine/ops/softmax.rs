//! Softmax and log-softmax along an axis.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16};
use crate::error::Result;
use crate::ops::*;
use crate::spec::BLOCK;
use crate::spec::softmax::*;

const LANES: usize = BLOCK as usize;
/// 16-byte items of a row that one work-item holds at most (`GK_KEEP`).
const KEEP: usize = 4;
/// Work-items that share a row held in registers at most: they exchange without barriers on current GPUs.
const SHORT_LANES: usize = 32;
/// Shortest run of a cut row, in items.
const RUN: usize = 1024;
/// Bytes of input that are taken through both passes of a cut row before the next: the second pass then reads from cache.
const GROUP_BYTES: usize = 24 << 20;

fn name(kind: Softmax) -> &'static str {
    match kind {
        Softmax::Softmax => OPS[0],
        Softmax::LogSoftmax => OPS[1],
    }
}

/// Smallest power of two that is not below `n`, at most `max`.
fn pow2(n: usize, max: usize) -> usize {
    n.max(1).min(max).next_power_of_two().min(max)
}

/// How the axis is walked.
enum Walk {
    /// A row in the registers of `lanes` work-items.
    Short { lanes: usize },
    /// A row per `lanes` work-items.
    Rows { lanes: usize, wide: bool, phase: usize },
    /// Rows cut into runs, `group` rows at a time.
    Split { splits: usize, chunk: usize, wide: bool, phase: usize, group: usize },
    /// `tx` work-items side by side.
    Cols { tx: usize, wide: bool },
}

/// Some rows of a contiguous operand.
struct Group {
    start: usize,
    rows: usize,
    cols: usize,
    /// Position of the first element within 16 bytes, in elements.
    phase: usize,
}

impl Group {
    fn of<'a>(&self, v: View<'a>) -> Result<View<'a>> {
        let at = v.layout().offset() + self.start * self.cols;
        v.range(at, self.rows * self.cols)
    }
}

/// Cuts `outer` rows into groups of `size`.
fn groups(outer: usize, cols: usize, size: usize, phase: usize, w: usize) -> impl Iterator<Item = Group> {
    (0..outer).step_by(size).map(move |start| {
        let rows = size.min(outer - start);
        Group { start, rows, cols, phase: (phase + start * cols) % w }
    })
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
        let mut lanes = pow2(items.div_ceil(KEEP), LANES).max(pow2(items, 8));
        if aligned && cols.is_multiple_of(w) && lanes <= SHORT_LANES {
            return Walk::Short { lanes };
        }
        let fill = self.fill();
        while lanes < pow2(items, LANES) && outer * lanes < fill * LANES / 2 {
            lanes *= 2;
        }
        if outer < fill * 2 && items >= 2 * RUN {
            let bytes: usize =
                operands.iter().take(operands.len() - 1).map(|v| cols * v.dtype().size()).sum();
            let group = (GROUP_BYTES / bytes.max(1)).clamp(1, outer);
            // As many runs as fill the device with one group.
            let splits = (fill / group).clamp(1, items / RUN);
            if splits > 1 {
                let chunk = items.div_ceil(splits) * if wide { w } else { 1 };
                return Walk::Split { splits: cols.div_ceil(chunk), chunk, wide, phase, group };
            }
        }
        Walk::Rows { lanes, wide, phase }
    }

    /// Blocks for rows of which a block takes `LANES / lanes` at a time.
    fn softmax_grid(&self, rows: usize, lanes: usize) -> Grid {
        let blocks = rows.div_ceil(LANES / lanes);
        Grid::Blocks([if lanes == LANES { blocks } else { blocks.min(self.fill() * 8) }, 1, 1])
    }

    pub(super) fn softmax_impl(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
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
            Walk::Short { lanes } => {
                let args = [px, py, long(outer), int(cols), int(lanes)];
                self.launch(&SHORT, dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Rows { lanes, wide, phase } => {
                let args = [px, py, long(outer), long(cols), int(lanes), int(wide as usize), int(phase)];
                self.launch(&ROWS, dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Split { splits, chunk, wide, phase, group } => {
                let part = self.scratch(dt.accumulator(), 2 * group * splits)?;
                let pp = self.arg_in(&part.view());
                for g in groups(outer, cols, group, phase, 16 / dt.size()) {
                    let [px, py] = [self.arg_in(&g.of(x)?), self.arg_in(&g.of(out)?)];
                    let tail = [
                        long(g.rows),
                        long(cols),
                        int(splits),
                        long(chunk),
                        int(wide as usize),
                        int(g.phase),
                    ];
                    let grid = Grid::Blocks([g.rows * splits, 1, 1]);
                    self.launch(&PART, dt, op, grid, &[&[px, pp], &tail[..]].concat())?;
                    self.launch(&APPLY, dt, op, grid, &[&[px, pp, py], &tail[..]].concat())?;
                }
                Ok(())
            }
            Walk::Cols { tx, wide } => {
                let args = [px, py, long(outer), long(cols), long(inner), int(tx), int(wide as usize)];
                self.launch(&COLS, dt, op, cols_grid(outer, inner, tx, wide, dt.size()), &args)
            }
        }
    }

    pub(super) fn softmax_bwd_impl(
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
            Walk::Short { lanes } => {
                let args = [pg, py, px, long(outer), int(cols), int(lanes), accumulate];
                self.launch(&BWD_SHORT, dt, op, self.softmax_grid(outer, lanes), &args)
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
                self.launch(&BWD_ROWS, dt, op, self.softmax_grid(outer, lanes), &args)
            }
            Walk::Split { splits, chunk, wide, phase, group } => {
                let part = self.scratch(dt.accumulator(), group * splits)?;
                let pp = self.arg_in(&part.view());
                for g in groups(outer, cols, group, phase, 16 / dt.size()) {
                    let [pg, py, px] =
                        [self.arg_in(&g.of(dy)?), self.arg_in(&g.of(y)?), self.arg_in(&g.of(out)?)];
                    let tail = [
                        long(g.rows),
                        long(cols),
                        int(splits),
                        long(chunk),
                        int(wide as usize),
                        int(g.phase),
                    ];
                    let grid = Grid::Blocks([g.rows * splits, 1, 1]);
                    self.launch(&BWD_PART, dt, op, grid, &[&[pg, py, pp], &tail[..]].concat())?;
                    let args = [&[pg, py, pp, px], &tail[..], &[accumulate]].concat();
                    self.launch(&BWD_APPLY, dt, op, grid, &args)?;
                }
                Ok(())
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
                self.launch(&BWD_COLS, dt, op, cols_grid(outer, inner, tx, wide, dt.size()), &args)
            }
        }
    }
}

fn cols_grid(outer: usize, inner: usize, tx: usize, wide: bool, size: usize) -> Grid {
    let items = outer * inner / if wide { 16 / size } else { 1 };
    Grid::Blocks([items.div_ceil(tx), 1, 1])
}
