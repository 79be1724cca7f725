//! Scans and segments: validation and launch.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, code_of_op, dims, int, long, pow2};
use crate::error::Result;
use crate::ops::scan::*;
use crate::spec::kernels::scan::*;

/// Elements per work-item (`GK_RUN`) and per tile of a row (`GK_SPAN`).
const RUN: usize = 8;
const SPAN: usize = RUN * LANES;
/// Most chunks of one row: a block adds the sums of those before it.
const CHUNKS: usize = 1024;

/// Type of the sums in kernels (`gk_s`).
fn sums(d: DType) -> DType {
    if d.is_float() { d.accumulator() } else { DType::I64 }
}

impl Engine {
    fn scan_rows(
        &self,
        p: CumSum,
        rows: usize,
        cols: usize,
        x: &View<'_>,
        y: &View<'_>,
        mode: usize,
    ) -> Result<()> {
        let (dt, w) = (x.dtype(), 16 / x.dtype().size());
        let (exclusive, reverse) = (i32::from(p.exclusive), i32::from(p.reverse));
        let can = dt.is_float() && w <= RUN && aligned16(x) && aligned16(y);
        // One chunk per row.
        let whole = ScanRowsArgs {
            x: self.arg_in(x),
            part: Ptr::NULL,
            y: self.arg_in(y),
            rows: long(rows),
            cols: long(cols),
            per: 0,
            chunk: 0,
            splits: 1,
            exclusive,
            reverse,
            mode: int(mode),
            wide: 0,
        };
        if cols <= SPAN {
            let per = SPAN / cols;
            let end = if p.reverse { rows * cols } else { 0 };
            let wide = can && (per * cols).is_multiple_of(RUN) && end.is_multiple_of(RUN);
            let grid = Grid::Blocks([rows.div_ceil(per), 1, 1]);
            let args = ScanRowsArgs { per: int(per), wide: i32::from(wide), ..whole };
            return self.launch(&SCAN_ROWS, dt, "", grid, &args);
        }
        let fill = self.target_blocks();
        let splits =
            if rows < fill { (fill * 2).div_ceil(rows).min(cols / (2 * SPAN)).clamp(1, CHUNKS) } else { 1 };
        let chunk = cols.div_ceil(splits).next_multiple_of(SPAN);
        let splits = cols.div_ceil(chunk);
        let grid = Grid::Blocks([rows * splits, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), rows * splits)).transpose()?;
        let sums = part.as_ref().map(|p| p.view());
        let part = self.arg_opt(sums.as_ref());
        if sums.is_some() {
            let args = ScanPartialArgs {
                x: self.arg_in(x),
                part,
                cols: long(cols),
                chunk: long(chunk),
                splits: int(splits),
                reverse,
            };
            self.launch(&SCAN_PARTIAL, dt, "", grid, &args)?;
        }
        let wide = i32::from(can && cols.is_multiple_of(RUN));
        let args = ScanRowsArgs { part, chunk: long(chunk), splits: int(splits), wide, ..whole };
        self.launch(&SCAN_ROWS, dt, "", grid, &args)
    }

    fn scan_cols(
        &self,
        p: CumSum,
        [outer, size, inner]: [usize; 3],
        x: &View<'_>,
        y: &View<'_>,
        mode: usize,
    ) -> Result<()> {
        let dt = x.dtype();
        let (exclusive, reverse) = (i32::from(p.exclusive), i32::from(p.reverse));
        let tx = pow2(inner, 32);
        let (strips, tile) = (outer * inner.div_ceil(tx), LANES / tx * RUN);
        let fill = self.target_blocks();
        let splits =
            if strips < fill { (fill * 2).div_ceil(strips).min(size / (2 * tile)).clamp(1, 256) } else { 1 };
        let chunk = size.div_ceil(splits).next_multiple_of(tile);
        let splits = size.div_ceil(chunk);
        let grid = Grid::Blocks([strips * splits, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), outer * splits * inner)).transpose()?;
        let sums = part.as_ref().map(|p| p.view());
        let part = self.arg_opt(sums.as_ref());
        if sums.is_some() {
            let args = ScanPartialColumnsArgs {
                x: self.arg_in(x),
                part,
                size: long(size),
                inner: long(inner),
                tx: int(tx),
                chunk: long(chunk),
                splits: int(splits),
                reverse,
            };
            self.launch(&SCAN_PARTIAL_COLUMNS, dt, "", grid, &args)?;
        }
        let args = ScanColumnsArgs {
            x: self.arg_in(x),
            part,
            y: self.arg_in(y),
            size: long(size),
            inner: long(inner),
            tx: int(tx),
            chunk: long(chunk),
            splits: int(splits),
            exclusive,
            reverse,
            mode: int(mode),
        };
        self.launch(&SCAN_COLUMNS, dt, "", grid, &args)
    }

    /// Dims of the segment kernels, and blocks for that many groups of segments.
    fn segment_walk(&self, s: Segments, views: &[&View<'_>], offsets: &View<'_>) -> (RowPlan, DimsArg) {
        let w = views.first().map_or(1, |v| 16 / v.dtype().size());
        let wide = s.cols.is_multiple_of(w) && views.iter().all(|v| aligned16(v));
        let items = if wide { s.cols / w } else { s.cols };
        let tx = pow2(items, 32);
        // Rows per segment, as if all were alike: a lane takes about four.
        let rows = s.rows / s.count.max(1);
        // A CPU walks along a segment alone; PoCL mixes up values that cross barriers in this kernel.
        let ty = if self.device_caps().is_cpu { 1 } else { pow2(rows.div_ceil(4), LANES / tx) };
        let tiles = items.div_ceil(tx);
        let (blocks, fill) = ((s.count * tiles).div_ceil(LANES / (tx * ty)), self.target_blocks());
        let splits = if blocks < fill {
            (fill * 2).div_ceil(blocks.max(1)).min(rows / (ty * 8)).clamp(1, 256)
        } else {
            1
        };
        let walk = RowPlan { tiles, splits, per: LANES / (tx * ty) };
        let wide_offsets = (offsets.dtype() == DType::I64) as usize;
        (walk, dims([s.rows, s.cols, s.count, tx, ty, splits, wide as usize, wide_offsets]))
    }

    /// Results to `y`, or what the backward needs to `state`.
    #[allow(clippy::too_many_arguments)]
    fn segments(
        &self,
        name: &'static str,
        op: SegmentReduce,
        s: Segments,
        x: &View<'_>,
        offsets: &View<'_>,
        y: Option<&View<'_>>,
        state: Option<&View<'_>>,
    ) -> Result<()> {
        let dt = x.dtype();
        let (walk, dims) = self.segment_walk(s, &[x], offsets);
        let (mode, eps) = (number(op), op.eps());
        let part = (walk.splits > 1)
            .then(|| self.scratch(dt.accumulator(), s.count * walk.splits * 2 * s.cols))
            .transpose()?;
        let part = part.as_ref().map(|p| p.view());
        let args = SegmentReduceArgs {
            x: self.arg_in(x),
            offsets: self.arg_in(offsets),
            y: self.arg_opt(y),
            state: self.arg_opt(state),
            part: self.arg_opt(part.as_ref()),
            err: self.arg_error(),
            dims,
            mode,
            eps,
            code: code_of_op(name),
        };
        self.launch(&SEGMENT_REDUCE, dt, "", walk.grid(s.count), &args)?;
        let Some(part) = part else { return Ok(()) };
        let args = SegmentCombineArgs {
            part: self.arg_in(&part),
            offsets: self.arg_in(offsets),
            y: self.arg_opt(y),
            state: self.arg_opt(state),
            dims,
            mode,
            eps,
        };
        self.launch(&SEGMENT_COMBINE, dt, "", Grid::Stride(s.count * s.cols), &args)
    }
}

/// Groups of the segment kernels.
struct RowPlan {
    /// Column tiles.
    tiles: usize,
    splits: usize,
    /// Groups per block.
    per: usize,
}

impl RowPlan {
    fn grid(&self, segments: usize) -> Grid {
        Grid::Blocks([(segments * self.tiles * self.splits).div_ceil(self.per), 1, 1])
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
        let mode = if x.dtype().is_float() { y.accumulate } else { v.dtype() == DType::I64 } as usize;
        match inner {
            1 => self.scan_rows(p, outer, size, &x, &v, mode),
            _ => self.scan_cols(p, [outer, size, inner], &x, &v, mode),
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
        self.segments(OP, op, s, &x, &offsets, Some(&v), None)
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
                self.segments(OP, op, s, &x, &io.offsets, None, Some(&state.view()))?;
                Some(state)
            }
            _ => None,
        };
        let mut views = vec![&v, &io.dy];
        views.extend(x.as_ref());
        let (walk, dims) = self.segment_walk(s, &views, &io.offsets);
        let args = SegmentSpreadArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_opt(x.as_ref()),
            offsets: self.arg_in(&io.offsets),
            state: self.arg_opt(state.as_ref().map(|b| b.view()).as_ref()),
            dx: self.arg_in(&v),
            err: self.arg_error(),
            dims,
            mode: number(op),
            eps: op.eps(),
            accumulate: i32::from(io.dx.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&SEGMENT_SPREAD, dt, "", walk.grid(s.count + 2), &args)
    }
}
