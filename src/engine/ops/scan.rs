//! Scans and segments: validation and launch.

use crate::spec::kernels::scan::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, code_of_op, dims, int, long, pow2, real};
use crate::error::Result;
use crate::ops::scan::*;

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
        let (exclusive, reverse) = (int(p.exclusive as usize), int(p.reverse as usize));
        let can = dt.is_float() && w <= RUN && aligned16(x) && aligned16(y);
        let tail = |per: usize, chunk: usize, splits: usize, wide: bool| {
            [
                long(rows),
                long(cols),
                int(per),
                long(chunk),
                int(splits),
                exclusive,
                reverse,
                int(mode),
                int(wide as usize),
            ]
        };
        let (px, py) = (self.arg_in(x), self.arg_in(y));
        if cols <= SPAN {
            let per = SPAN / cols;
            let whole = if p.reverse { rows * cols } else { 0 };
            let wide = can && (per * cols).is_multiple_of(RUN) && whole.is_multiple_of(RUN);
            let grid = Grid::Blocks([rows.div_ceil(per), 1, 1]);
            let args = [&[px, Arg::Mem(None), py], &tail(per, 0, 1, wide)[..]].concat();
            return self.launch_list(&SCAN_ROWS.spec, dt, "", grid, &args);
        }
        let fill = self.fill();
        let splits =
            if rows < fill { (fill * 2).div_ceil(rows).min(cols / (2 * SPAN)).clamp(1, CHUNKS) } else { 1 };
        let chunk = cols.div_ceil(splits).next_multiple_of(SPAN);
        let splits = cols.div_ceil(chunk);
        let grid = Grid::Blocks([rows * splits, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), rows * splits)).transpose()?;
        let part = part.as_ref().map(|p| p.view());
        if part.is_some() {
            let args = [px, self.arg_opt(part.as_ref()), long(cols), long(chunk), int(splits), reverse];
            self.launch_list(&SCAN_PART.spec, dt, "", grid, &args)?;
        }
        let wide = can && cols.is_multiple_of(RUN);
        let args = [&[px, self.arg_opt(part.as_ref()), py], &tail(0, chunk, splits, wide)[..]].concat();
        self.launch_list(&SCAN_ROWS.spec, dt, "", grid, &args)
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
        let (exclusive, reverse) = (int(p.exclusive as usize), int(p.reverse as usize));
        let tx = pow2(inner, 32);
        let (strips, tile) = (outer * inner.div_ceil(tx), LANES / tx * RUN);
        let fill = self.fill();
        let splits =
            if strips < fill { (fill * 2).div_ceil(strips).min(size / (2 * tile)).clamp(1, 256) } else { 1 };
        let chunk = size.div_ceil(splits).next_multiple_of(tile);
        let splits = size.div_ceil(chunk);
        let grid = Grid::Blocks([strips * splits, 1, 1]);
        let part = (splits > 1).then(|| self.scratch(sums(dt), outer * splits * inner)).transpose()?;
        let part = part.as_ref().map(|p| p.view());
        let walk = [long(size), long(inner), int(tx), long(chunk), int(splits)];
        let px = self.arg_in(x);
        if part.is_some() {
            let args = [&[px, self.arg_opt(part.as_ref())], &walk[..], &[reverse]].concat();
            self.launch_list(&SCAN_PART_COLS.spec, dt, "", grid, &args)?;
        }
        let args =
            [&[px, self.arg_opt(part.as_ref()), self.arg_in(y)], &walk[..], &[exclusive, reverse, int(mode)]]
                .concat();
        self.launch_list(&SCAN_COLS.spec, dt, "", grid, &args)
    }

    /// Dims of the segment kernels, and blocks for that many groups of segments.
    fn segment_walk(&self, s: Segments, views: &[&View<'_>], offsets: &View<'_>) -> (Walk, Arg) {
        let w = views.first().map_or(1, |v| 16 / v.dtype().size());
        let wide = s.cols.is_multiple_of(w) && views.iter().all(|v| aligned16(v));
        let items = if wide { s.cols / w } else { s.cols };
        let tx = pow2(items, 32);
        // Rows per segment, as if all were alike: a lane takes about four.
        let rows = s.rows / s.count.max(1);
        // A CPU walks along a segment alone; PoCL mixes up values that cross barriers in this kernel.
        let ty = if self.device_caps().is_cpu { 1 } else { pow2(rows.div_ceil(4), LANES / tx) };
        let tiles = items.div_ceil(tx);
        let (blocks, fill) = ((s.count * tiles).div_ceil(LANES / (tx * ty)), self.fill());
        let splits = if blocks < fill {
            (fill * 2).div_ceil(blocks.max(1)).min(rows / (ty * 8)).clamp(1, 256)
        } else {
            1
        };
        let walk = Walk { tiles, splits, per: LANES / (tx * ty) };
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
        let (mode, eps) = (Arg::I32(number(op)), real(dt, op.eps()));
        let part = (walk.splits > 1)
            .then(|| self.scratch(dt.accumulator(), s.count * walk.splits * 2 * s.cols))
            .transpose()?;
        let part = part.as_ref().map(|p| p.view());
        let args = [
            self.arg_in(x),
            self.arg_in(offsets),
            self.arg_opt(y),
            self.arg_opt(state),
            self.arg_opt(part.as_ref()),
            self.arg_error(),
            dims,
            mode,
            eps,
            Arg::I32(code_of_op(name)),
        ];
        self.launch_list(&SEGMENT_REDUCE.spec, dt, "", walk.grid(s.count), &args)?;
        let Some(part) = part else { return Ok(()) };
        let args =
            [self.arg_in(&part), self.arg_in(offsets), self.arg_opt(y), self.arg_opt(state), dims, mode, eps];
        self.launch_list(&SEGMENT_JOIN.spec, dt, "", Grid::Stride(s.count * s.cols), &args)
    }
}

/// Groups of the segment kernels.
struct Walk {
    /// Column tiles.
    tiles: usize,
    splits: usize,
    /// Groups per block.
    per: usize,
}

impl Walk {
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
        self.own_all(OP, &[("x", x), ("y", v)])?;
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
        self.own_all(OP, &[("x", x), ("offsets", offsets), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        self.segments(OP, op, s, &x, &offsets, Some(&v), None)
    }

    fn segment_reduce_bwd(&self, op: SegmentReduce, io: SegmentReduceBwd<'_>) -> Result<()> {
        const OP: &str = "segment_reduce_bwd";
        let s = check_segment_reduce_bwd(op, &io)?;
        let v = io.dx.out.as_view();
        self.own_all(
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
        let args = [
            self.arg_in(&io.dy),
            self.arg_opt(x.as_ref()),
            self.arg_in(&io.offsets),
            self.arg_opt(state.as_ref().map(|b| b.view()).as_ref()),
            self.arg_in(&v),
            self.arg_error(),
            dims,
            Arg::I32(number(op)),
            real(dt, op.eps()),
            Arg::I32(io.dx.accumulate as i32),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch_list(&SEGMENT_SPREAD.spec, dt, "", walk.grid(s.count + 2), &args)
    }
}
