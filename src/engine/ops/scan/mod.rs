//! Scans and segments.

mod plan;

use self::plan::{ScanPlan, ScanProblem, SegmentPlan, SegmentProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, code_of_op, dims, int, long};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::scan::*;
use crate::spec::kernels::scan::*;

/// Type of the sums in kernels (`gk_s`).
fn sums(d: DType) -> DType {
    if d.is_float() { d.accumulator() } else { DType::I64 }
}

/// A scan of contiguous operands `[outer, size, inner]`.
struct Scan<'a> {
    p: CumSum,
    shape: [usize; 3],
    x: View<'a>,
    y: View<'a>,
    /// Floats: whether results are added; integers: whether y is i64.
    mode: i32,
}

/// A reduction of segments: results to `y`, or what the backward needs to `state`.
struct SegmentPass<'a> {
    op: &'static str,
    reduce: SegmentReduce,
    s: Segments,
    x: View<'a>,
    offsets: View<'a>,
    y: Option<View<'a>>,
    state: Option<View<'a>>,
}

/// What decides how segments of operands of one shape are reduced.
fn segment_problem(s: Segments, operands: Alignment) -> SegmentProblem {
    SegmentProblem { rows: s.rows, cols: s.cols, count: s.count, operands }
}

/// Dims of the segment kernels.
fn segment_dims(s: Segments, plan: &SegmentPlan, offsets: &View<'_>) -> DimsArg {
    let SegmentPlan { wide, tx, ty, splits, .. } = *plan;
    let wide_offsets = usize::from(offsets.dtype() == DType::I64);
    dims([s.rows, s.cols, s.count, tx, ty, splits, usize::from(wide), wide_offsets])
}

impl Engine {
    /// What serves the sums along 4096 rows of 1024 elements in f32, or over 4096 segments of 64 rows of 256.
    pub(crate) fn explain_scan(&self, op: &'static str) -> Result<Choice> {
        let operands = Alignment::full(DType::F32);
        if op == "cumsum" {
            let p = ScanProblem { outer: 4096, size: 1024, inner: 1, reverse: false, operands };
            return self.explain_problem(op, &p);
        }
        self.explain_problem(op, &SegmentProblem { rows: 1 << 18, cols: 256, count: 4096, operands })
    }

    /// Rows, `per` of them in a block.
    fn scan_packed(&self, io: &Scan<'_>, per: usize, wide: bool, blocks: usize) -> Result<()> {
        let args = ScanRowsArgs { per: int(per), wide: i32::from(wide), ..self.scan_rows_args(io) };
        self.launch(&SCAN_ROWS, io.x.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
    }

    /// Rows, each in a block or in `splits` chunks.
    fn scan_rows(&self, io: &Scan<'_>, chunk: usize, splits: usize, wide: bool) -> Result<()> {
        let (dt, chunks) = (io.x.dtype(), io.shape[0] * splits);
        let grid = Grid::Blocks([chunks, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), chunks)).transpose()?;
        let args = ScanRowsArgs {
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            chunk: long(chunk),
            splits: int(splits),
            wide: i32::from(wide),
            ..self.scan_rows_args(io)
        };
        if part.is_some() {
            let ScanRowsArgs { x, part, cols, chunk, splits, reverse, wide, .. } = args;
            let sums = ScanPartialArgs { x, part, cols, chunk, splits, reverse, wide };
            self.launch(&SCAN_PARTIAL, dt, "", grid, &sums)?;
        }
        self.launch(&SCAN_ROWS, dt, "", grid, &args)
    }

    /// Arguments for one chunk per row.
    fn scan_rows_args(&self, io: &Scan<'_>) -> ScanRowsArgs {
        ScanRowsArgs {
            x: self.arg_in(&io.x),
            part: Ptr::NULL,
            y: self.arg_in(&io.y),
            rows: long(io.shape[0]),
            cols: long(io.shape[1]),
            per: 0,
            chunk: 0,
            splits: 1,
            exclusive: i32::from(io.p.exclusive),
            reverse: i32::from(io.p.reverse),
            mode: io.mode,
            wide: 0,
        }
    }

    /// Columns, `tx` of them per block.
    fn scan_columns(
        &self,
        io: &Scan<'_>,
        tx: usize,
        chunk: usize,
        splits: usize,
        blocks: usize,
    ) -> Result<()> {
        let (dt, [outer, size, inner]) = (io.x.dtype(), io.shape);
        let grid = Grid::Blocks([blocks, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), outer * splits * inner)).transpose()?;
        let args = ScanColumnsArgs {
            x: self.arg_in(&io.x),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            y: self.arg_in(&io.y),
            size: long(size),
            inner: long(inner),
            tx: int(tx),
            chunk: long(chunk),
            splits: int(splits),
            exclusive: i32::from(io.p.exclusive),
            reverse: i32::from(io.p.reverse),
            mode: io.mode,
        };
        if part.is_some() {
            let ScanColumnsArgs { x, part, size, inner, tx, chunk, splits, reverse, .. } = args;
            let sums = ScanPartialColumnsArgs { x, part, size, inner, tx, chunk, splits, reverse };
            self.launch(&SCAN_PARTIAL_COLUMNS, dt, "", grid, &sums)?;
        }
        self.launch(&SCAN_COLUMNS, dt, "", grid, &args)
    }

    /// Reduces segments, and combines the parts of those that are cut.
    fn segments(&self, io: &SegmentPass<'_>) -> Result<()> {
        let (dt, s) = (io.x.dtype(), io.s);
        let plan = self.plan(io.op, &segment_problem(s, Alignment::of(dt, [&io.x])))?;
        let dims = segment_dims(s, &plan, &io.offsets);
        let (mode, eps) = (number(io.reduce), io.reduce.eps());
        let part = (plan.splits > 1)
            .then(|| self.scratch(dt.accumulator(), s.count * plan.splits * 2 * s.cols))
            .transpose()?;
        let args = SegmentReduceArgs {
            x: self.arg_in(&io.x),
            offsets: self.arg_in(&io.offsets),
            y: self.arg_opt(io.y.as_ref()),
            state: self.arg_opt(io.state.as_ref()),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            err: self.arg_error(),
            dims,
            mode,
            eps,
            code: code_of_op(io.op),
        };
        self.launch(&SEGMENT_REDUCE, dt, "", plan.grid(s.count), &args)?;
        if part.is_none() {
            return Ok(());
        }
        let SegmentReduceArgs { part, offsets, y, state, .. } = args;
        let args = SegmentCombineArgs { part, offsets, y, state, dims, mode, eps };
        self.launch(&SEGMENT_COMBINE, dt, "", Grid::Stride(s.count * s.cols), &args)
    }
}

/// The number under which the kernels know a reduction.
fn number(op: SegmentReduce) -> i32 {
    match op {
        SegmentReduce::Sum => 0,
        SegmentReduce::Mean => 1,
        SegmentReduce::Max => 2,
        SegmentReduce::Min => 3,
        SegmentReduce::Var => 4,
        SegmentReduce::Std { .. } => 5,
    }
}

impl ScanOps for Engine {
    fn cumsum(&self, p: CumSum, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "cumsum";
        let [outer, size, inner] = check_cumsum(axis, &x, &y)?;
        let v = y.out.as_view();
        self.check_owner_all(OP, &[("x", x), ("y", v)])?;
        if x.numel() == 0 {
            return Ok(());
        }
        // Floats accumulate; integers may widen.
        let mode = if x.dtype().is_float() { y.accumulate } else { v.dtype() == DType::I64 };
        let io = Scan { p, shape: [outer, size, inner], x, y: v, mode: i32::from(mode) };
        let operands = Alignment::of(x.dtype(), [&x, &v]);
        match self.plan(OP, &ScanProblem { outer, size, inner, reverse: p.reverse, operands })? {
            ScanPlan::Packed { per, wide, blocks } => self.scan_packed(&io, per, wide, blocks),
            ScanPlan::Rows { chunk, splits, wide } => self.scan_rows(&io, chunk, splits, wide),
            ScanPlan::Columns { tx, chunk, splits, blocks } => {
                self.scan_columns(&io, tx, chunk, splits, blocks)
            }
        }
    }

    fn segment_reduce(
        &self,
        op: SegmentReduce,
        x: View<'_>,
        offsets: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "segment_reduce";
        let s = check_segment_reduce(op, &x, &offsets, &y)?;
        let v = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("offsets", offsets), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        self.segments(&SegmentPass { op: OP, reduce: op, s, x, offsets, y: Some(v), state: None })
    }

    fn segment_reduce_bwd(&self, op: SegmentReduce, io: SegmentReduceBwd<'_>) -> Result<()> {
        const OP: &str = "segment_reduce_bwd";
        let s = check_segment_reduce_bwd(op, &io)?;
        let v = io.dx.out.as_view();
        self.check_owner_all(
            OP,
            &[("dy", Some(io.dy)), ("x", io.x), ("offsets", Some(io.offsets)), ("dx", Some(v))],
        )?;
        if v.numel() == 0 {
            return Ok(());
        }
        let dt = v.dtype();
        // Sum and Mean need nothing of x.
        let x = io.x.filter(|_| number(op) >= 2);
        let state = match x {
            Some(x) if s.count > 0 => {
                let state = self.scratch(dt.accumulator(), s.count * 2 * s.cols)?;
                let (offsets, to) = (io.offsets, Some(state.view()));
                self.segments(&SegmentPass { op: OP, reduce: op, s, x, offsets, y: None, state: to })?;
                Some(state)
            }
            _ => None,
        };
        let operands = [Some(&v), Some(&io.dy), x.as_ref()].into_iter().flatten();
        let plan = segment_problem(s, Alignment::of(dt, operands)).fill_device(self.device_caps());
        let args = SegmentSpreadArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_opt(x.as_ref()),
            offsets: self.arg_in(&io.offsets),
            state: self.arg_opt(state.as_ref().map(|b| b.view()).as_ref()),
            dx: self.arg_in(&v),
            err: self.arg_error(),
            dims: segment_dims(s, &plan, &io.offsets),
            mode: number(op),
            eps: op.eps(),
            accumulate: i32::from(io.dx.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&SEGMENT_SPREAD, dt, "", plan.grid(s.count + 2), &args)
    }
}
