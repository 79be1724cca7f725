//! Normalization, forward: validation, walks and launches. The backward is in `backward.rs`, the kernels for aligned rows in `aligned.rs`.

pub(super) mod aligned;
pub(super) mod backward;
pub(super) mod backward_aligned;

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, int, long, pow2};
use crate::engine::ops::norm::aligned::Planes;
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::gemm::fused_act;
use crate::ops::norm::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::norm::*;
use crate::spec::norm::EPILOGUES;

/// Values of a row that a work-item of `norm_rows` holds.
const KEEP: usize = 32;
/// Shortest run of a cut row, in 16-byte items.
const RUN: usize = 1024;
/// Inner axes shorter than this are walked as columns of [N, C * S].
pub(in crate::engine::ops) const SHORT_PLANE: usize = 32;

/// Activation as the kernels take it: the unit, its number and parameter.
pub(in crate::engine::ops) struct Act {
    pub(in crate::engine::ops) unit: &'static str,
    pub(in crate::engine::ops) number: i32,
    pub(in crate::engine::ops) p: f64,
}

impl Act {
    pub(in crate::engine::ops) fn new(op: &'static str, act: Activation) -> Result<Self> {
        let (number, p) = fused_act(op, act)?;
        Ok(Act { unit: EPILOGUES[usize::from(number != 0)], number, p })
    }
}

/// How rows of `cols` elements are read.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine::ops) struct RowPlan {
    pub(in crate::engine::ops) wide: bool,
    pub(in crate::engine::ops) phase: usize,
    pub(in crate::engine::ops) lanes: usize,
    pub(in crate::engine::ops) splits: usize,
    pub(in crate::engine::ops) chunk: usize,
    /// 16-byte items (or elements) of a row.
    pub(in crate::engine::ops) items: usize,
}

impl RowPlan {
    /// Rows that a block takes at a time.
    pub(in crate::engine::ops) fn per_block(&self) -> usize {
        LANES / self.lanes
    }
}

/// How columns are summed: work-items side by side, chunks of rows.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine::ops) struct ColumnPlan {
    pub(in crate::engine::ops) wide: bool,
    pub(in crate::engine::ops) tx: usize,
    pub(in crate::engine::ops) chunk: usize,
    pub(in crate::engine::ops) chunks: usize,
    pub(in crate::engine::ops) tiles: usize,
}

/// Work-items side by side over sets of which each joins `outer * inner` partial results.
pub(in crate::engine::ops) fn join_tx(outer: usize, inner: usize) -> usize {
    LANES / pow2(outer * inner, if inner == 1 { 16 } else { LANES })
}

impl Engine {
    pub(in crate::engine::ops) fn check_owners(&self, o: &Operands<'_>) -> Result<()> {
        o.inputs.iter().chain(&o.outputs).try_for_each(|(arg, v)| self.check_owner(o.op, arg, v))
    }

    /// The walk over rows for operands of one shape and dtype. `each`: values per lane that are aimed at.
    pub(in crate::engine::ops) fn plan_rows(
        &self,
        rows: usize,
        cols: usize,
        each: usize,
        operands: &[&View<'_>],
    ) -> RowPlan {
        let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
        let phase = operands.first().map_or(0, |v| v.layout().offset() % w);
        let wide = operands.iter().all(|v| v.layout().offset() % w == phase);
        let items = if wide { cols.div_ceil(w) } else { cols };
        let per_lane = if wide { each / w } else { each };
        let mut lanes = pow2(items.div_ceil(per_lane), LANES).max(pow2(items, 8));
        let fill = self.target_blocks();
        while lanes < pow2(items, LANES) && rows * lanes < fill * LANES / 2 {
            lanes *= 2;
        }
        // Rows are cut where their number alone leaves the device idle.
        let mut splits = 1;
        if lanes == LANES && rows < (fill / 4).max(4) {
            splits = (fill * 2 / rows.max(1)).min(items / RUN).max(1);
        }
        let chunk = items.div_ceil(splits).max(1) * if wide { w } else { 1 };
        RowPlan { wide, phase, lanes, splits: cols.div_ceil(chunk).max(1), chunk, items }
    }

    /// The walk over columns of [n, cols].
    pub(in crate::engine::ops) fn plan_columns(
        &self,
        n: usize,
        cols: usize,
        operands: &[&View<'_>],
    ) -> ColumnPlan {
        let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
        let wide = cols.is_multiple_of(w) && operands.iter().all(|v| aligned16(v));
        let items = if wide { cols / w } else { cols };
        let ty = (LANES / pow2(items, 32)).max(8).min(pow2(n.div_ceil(8), LANES));
        let tx = LANES / ty;
        let tiles = items.div_ceil(tx);
        let chunks = (self.target_blocks() * 2 / tiles.max(1)).min(n / (ty * 8)).max(1);
        let chunk = n.div_ceil(chunks).max(1);
        ColumnPlan { wide, tx, chunk, chunks: n.div_ceil(chunk).max(1), tiles }
    }

    /// Blocks for rows (or runs) of which a block takes several at a time.
    pub(in crate::engine::ops) fn row_grid(&self, runs: usize, walk: &RowPlan) -> Grid {
        let blocks = runs.div_ceil(walk.per_block());
        Grid::Blocks([if walk.lanes == LANES { blocks } else { blocks.min(self.target_blocks() * 16) }, 1, 1])
    }

    /// Blocks of an elementwise kernel whose work-items take `each` vectors of 16-bit values, one of others.
    pub(in crate::engine::ops) fn map_grid(&self, n: usize, wide: bool, dt: DType, each: usize) -> Grid {
        let items = if wide { n / (16 / dt.size()) } else { n };
        let flight = if dt.is_half() { each } else { 1 };
        let blocks = items.div_ceil(LANES * flight);
        Grid::Blocks([
            if self.device_caps().is_cpu { blocks.min(self.target_blocks()) } else { blocks },
            1,
            1,
        ])
    }

    /// A view's memory, or scratch of that many statistics.
    pub(in crate::engine::ops) fn stat(
        &self,
        given: Option<&ViewMut<'_>>,
        dt: DType,
        n: usize,
    ) -> Result<(Ptr, Option<Buffer>)> {
        match given {
            Some(v) => Ok((self.arg_out(v), None)),
            None => {
                let b = self.scratch(dt.accumulator(), n)?;
                Ok((self.arg_in(&b.view()), Some(b)))
            }
        }
    }

    /// NaN as the statistics of an empty batch.
    fn no_stats(&self, stats: [Option<ViewMut<'_>>; 2]) -> Result<()> {
        stats.into_iter().flatten().filter(|v| v.numel() > 0).try_for_each(|v| self.fill_nan(v))
    }

    fn fill_nan(&self, v: ViewMut<'_>) -> Result<()> {
        ShapeOps::fill(self, f64::NAN, v)
    }

    fn norm_rows(&self, op: &'static str, r: RowProblem<'_>) -> Result<()> {
        let dt = r.x.dtype();
        let w = 16 / dt.size();
        let act = Act::new(op, r.act)?;
        if let Some(done) = self.aligned_rows(&r, &act) {
            return done;
        }
        let y = r.y.as_view();
        let sum = r.sum.as_ref().map(ViewMut::as_view);
        let operands: Vec<&View<'_>> =
            [Some(&r.x), r.residual.as_ref(), Some(&y), sum.as_ref()].into_iter().flatten().collect();
        let walk = self.plan_rows(r.rows, r.cols, KEEP, &operands);
        // Whether items of 16 bytes meet parameters in one access: rows that start aligned, and parameters likewise or one channel per item.
        let whole = walk.wide && walk.phase == 0 && r.cols.is_multiple_of(w);
        let aligned = |v: &Option<View<'_>>| v.as_ref().is_none_or(aligned16);
        let affine = whole
            && if r.inner == 0 { aligned(&r.gamma) && aligned(&r.beta) } else { r.inner.is_multiple_of(w) };
        if walk.splits > 1 && r.var.is_none() {
            let wide = whole && operands.iter().all(|v| aligned16(v));
            return self.norm_rows_split(&r, &act, &walk, wide, wide && affine);
        }
        let args = NormRowsArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            y: self.arg_in(&y),
            s: self.arg_opt(sum.as_ref()),
            mean: self.arg_opt_out(r.mean.as_ref()),
            rstd: self.arg_opt_out(r.rstd.as_ref()),
            var: r.var.unwrap_or(Ptr::NULL),
            rows: long(r.rows),
            cols: long(r.cols),
            inner: long(r.inner),
            groups: long(r.groups),
            cg: long(r.cg),
            lanes: int(walk.lanes),
            wide: i32::from(walk.wide),
            affine: i32::from(affine),
            phase: int(walk.phase),
            raw: i32::from(r.rms),
            eps: r.eps,
            offset: r.offset,
            act: act.number,
            p: act.p,
        };
        let kernel = if walk.wide && walk.items * w > KEEP * LANES { &NORM_ROWS_LOOPED } else { &NORM_ROWS };
        self.launch(kernel, dt, act.unit, self.row_grid(r.rows, &walk), &args)
    }

    /// Rows cut into runs: moments of the runs, joined to those of the rows, then the map. `wide`: the map moves 16 bytes at once; `affine`:
    /// parameters too.
    fn norm_rows_split(
        &self,
        r: &RowProblem<'_>,
        act: &Act,
        walk: &RowPlan,
        wide: bool,
        affine: bool,
    ) -> Result<()> {
        let dt = r.x.dtype();
        let part = self.scratch(dt.accumulator(), 2 * r.rows * walk.splits)?;
        let part = self.arg_in(&part.view());
        let args = NormPartialArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            part,
            rows: long(r.rows),
            cols: long(r.cols),
            splits: int(walk.splits),
            chunk: long(walk.chunk),
            lanes: int(walk.lanes),
            wide: i32::from(walk.wide),
            phase: int(walk.phase),
            raw: i32::from(r.rms),
        };
        self.launch(&NORM_PARTIAL, dt, act.unit, self.row_grid(r.rows * walk.splits, walk), &args)?;
        let (mean, _m) = self.stat(r.mean.as_ref(), dt, r.rows)?;
        let (rstd, _r) = self.stat(r.rstd.as_ref(), dt, r.rows)?;
        let mean = if r.rms { Ptr::NULL } else { mean };
        let set = Sets { outer: 1, sets: r.rows, inner: walk.splits, chunk: walk.chunk, total: r.cols };
        self.norm_join(dt, act.unit, part, mean, rstd, &set, false, r.rms, r.eps, None)?;
        let n = r.rows * r.cols;
        let args = NormApplyArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            mean,
            rstd,
            y: self.arg_out(&r.y),
            s: self.arg_opt_out(r.sum.as_ref()),
            n: long(n),
            cols: long(r.cols),
            inner: long(r.inner),
            groups: long(r.groups),
            cg: long(r.cg),
            by_channel: 0,
            late: 0,
            wide: i32::from(wide),
            affine: i32::from(affine),
            offset: r.offset,
            act: act.number,
            p: act.p,
        };
        self.launch(&NORM_APPLY, dt, act.unit, self.map_grid(n, wide, dt, 4), &args)
    }

    /// Statistics from the moments of runs, and running ones.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::engine::ops) fn norm_join(
        &self,
        dt: DType,
        unit: &'static str,
        part: Ptr,
        mean: Ptr,
        rstd: Ptr,
        s: &Sets,
        by_outer: bool,
        raw: bool,
        eps: f64,
        running: Option<&Running<'_>>,
    ) -> Result<()> {
        // Few sets: more work-items for each, to use the device.
        let tx = match s.inner == 1 && s.sets <= 4 * LANES {
            true => LANES / pow2(s.outer, 64),
            false => join_tx(s.outer, s.inner),
        };
        let n = s.total * if by_outer { s.inner } else { s.outer };
        let (counter, momentum) = self.momentum(running);
        let args = NormCombineArgs {
            part,
            mean,
            rstd,
            running_mean: self.arg_opt_out(running.map(|r| &r.mean)),
            running_var: self.arg_opt_out(running.map(|r| &r.var)),
            counter,
            outer: long(s.outer),
            sets: long(s.sets),
            inner: long(s.inner),
            tx: int(tx),
            chunk: long(s.chunk),
            total: long(s.total),
            by_outer: i32::from(by_outer),
            n: n as f64,
            raw: i32::from(raw),
            eps,
            momentum,
        };
        self.launch(&NORM_COMBINE, dt, unit, Grid::Blocks([s.sets.div_ceil(tx), 1, 1]), &args)
    }

    fn momentum(&self, running: Option<&Running<'_>>) -> (Ptr, f64) {
        match running.map(|r| &r.momentum) {
            Some(Momentum::Cumulative(c)) => (self.arg_out(c), 0.0),
            Some(Momentum::Factor(m)) => (Ptr::NULL, *m),
            None => (Ptr::NULL, 0.0),
        }
    }

    /// Counts the batch, after everything that read the counter.
    fn count_batch(&self, dt: DType, unit: &'static str, running: Option<&Running<'_>>) -> Result<()> {
        match running.map(|r| &r.momentum) {
            Some(Momentum::Cumulative(c)) => self.launch(
                &NORM_COUNT,
                dt,
                unit,
                Grid::Blocks([1, 1, 1]),
                &NormCountArgs { counter: self.arg_out(c) },
            ),
            _ => Ok(()),
        }
    }

    /// Moments of the channels of [n, c, s] into mean and rstd.
    #[allow(clippy::too_many_arguments)]
    fn channel_stats(
        &self,
        unit: &'static str,
        x: &View<'_>,
        [n, c, s]: [usize; 3],
        mean: Ptr,
        rstd: Ptr,
        eps: f64,
        running: Option<&Running<'_>>,
    ) -> Result<()> {
        let dt = x.dtype();
        if s < SHORT_PLANE {
            let walk = self.plan_columns(n, c * s, &[x]);
            let part = self.scratch(dt.accumulator(), 2 * walk.chunks * c * s)?;
            let pp = self.arg_in(&part.view());
            let args = NormColumnsArgs {
                x: self.arg_in(x),
                part: pp,
                n: long(n),
                cols: long(c * s),
                chunk: long(walk.chunk),
                chunks: int(walk.chunks),
                tx: int(walk.tx),
                wide: i32::from(walk.wide),
            };
            self.launch(&NORM_COLUMNS, dt, unit, Grid::Blocks([walk.tiles * walk.chunks, 1, 1]), &args)?;
            let set = Sets { outer: walk.chunks, sets: c, inner: s, chunk: walk.chunk, total: n };
            return self.norm_join(dt, unit, pp, mean, rstd, &set, true, false, eps, running);
        }
        if let Some(cut) = self.aligned_sum_cut(&[x], n * c, s) {
            let part = self.aligned_part(unit, x, &cut)?;
            let set = Sets { outer: n, sets: c, inner: cut.splits, chunk: cut.chunk_elements(dt), total: s };
            let pp = self.arg_in(&part.view());
            return self.norm_join(dt, unit, pp, mean, rstd, &set, false, false, eps, running);
        }
        let walk = self.plan_rows(n * c, s, 16 * 16 / dt.size(), &[x]);
        let part = self.scratch(dt.accumulator(), 2 * n * c * walk.splits)?;
        let pp = self.arg_in(&part.view());
        let args = NormPartialArgs {
            x: self.arg_in(x),
            r: Ptr::NULL,
            part: pp,
            rows: long(n * c),
            cols: long(s),
            splits: int(walk.splits),
            chunk: long(walk.chunk),
            lanes: int(walk.lanes),
            wide: i32::from(walk.wide),
            phase: int(walk.phase),
            raw: 0,
        };
        self.launch(&NORM_PARTIAL, dt, unit, self.row_grid(n * c * walk.splits, &walk), &args)?;
        let set = Sets { outer: n, sets: c, inner: walk.splits, chunk: walk.chunk, total: s };
        self.norm_join(dt, unit, pp, mean, rstd, &set, false, false, eps, running)
    }

    fn norm_groups(
        &self,
        op: &'static str,
        p: &GroupNorm,
        [n, c, s]: [usize; 3],
        io: GroupNormFwd<'_>,
    ) -> Result<()> {
        if n * s == 0 {
            return self.no_stats([io.mean, io.rstd]);
        }
        let dt = io.x.dtype();
        let stats = io.running.is_some().then(|| self.scratch(dt.accumulator(), 2 * n * c)).transpose()?;
        let stats = stats.as_ref().map(|b| b.alias_mut().split_at(n * c)).transpose()?;
        let (own_mean, var) = stats.map_or((None, None), |(m, v)| (Some(m), Some(self.arg_out(&v))));
        let mean = io.mean.or(own_mean);
        let mean_arg = self.arg_opt_out(mean.as_ref());
        let problem = RowProblem {
            x: io.x,
            residual: io.residual,
            gamma: io.gamma,
            beta: io.beta,
            y: io.y,
            sum: io.sum,
            mean,
            rstd: io.rstd,
            var,
            rows: n * p.groups,
            cols: c / p.groups * s,
            inner: s,
            groups: p.groups,
            cg: c / p.groups,
            rms: false,
            eps: p.eps,
            offset: 0.0,
            act: p.act,
        };
        self.norm_rows(op, problem)?;
        let (Some(r), Some(var)) = (io.running.as_ref(), var) else { return Ok(()) };
        let (counter, momentum) = self.momentum(Some(r));
        let args = NormRunningArgs {
            mean: mean_arg,
            var,
            running_mean: self.arg_out(&r.mean),
            running_var: self.arg_out(&r.var),
            counter,
            instances: long(n),
            channels: long(c),
            n: s as f64,
            momentum,
        };
        self.launch(&NORM_RUNNING, dt, EPILOGUES[0], Grid::Stride(c), &args)?;
        self.count_batch(dt, EPILOGUES[0], Some(r))
    }
}

/// Runs that are joined to sets: runs cut `total` elements into pieces of `chunk`.
pub(in crate::engine::ops) struct Sets {
    pub(in crate::engine::ops) outer: usize,
    pub(in crate::engine::ops) sets: usize,
    pub(in crate::engine::ops) inner: usize,
    pub(in crate::engine::ops) chunk: usize,
    pub(in crate::engine::ops) total: usize,
}

/// Rows with statistics of their own: of layer and RMS norm, or groups.
pub(in crate::engine::ops) struct RowProblem<'a> {
    pub(in crate::engine::ops) x: View<'a>,
    pub(in crate::engine::ops) residual: Option<View<'a>>,
    pub(in crate::engine::ops) gamma: Option<View<'a>>,
    pub(in crate::engine::ops) beta: Option<View<'a>>,
    pub(in crate::engine::ops) y: ViewMut<'a>,
    pub(in crate::engine::ops) sum: Option<ViewMut<'a>>,
    pub(in crate::engine::ops) mean: Option<ViewMut<'a>>,
    pub(in crate::engine::ops) rstd: Option<ViewMut<'a>>,
    pub(in crate::engine::ops) var: Option<Ptr>,
    pub(in crate::engine::ops) rows: usize,
    pub(in crate::engine::ops) cols: usize,
    /// Elements per channel; 0 where parameters are per column.
    pub(in crate::engine::ops) inner: usize,
    pub(in crate::engine::ops) groups: usize,
    pub(in crate::engine::ops) cg: usize,
    pub(in crate::engine::ops) rms: bool,
    pub(in crate::engine::ops) eps: f64,
    pub(in crate::engine::ops) offset: f64,
    pub(in crate::engine::ops) act: Activation,
}

impl NormOps for Engine {
    fn row_norm(&self, p: &RowNorm, io: RowNormFwd<'_>) -> Result<()> {
        let (o, [rows, cols]) = check_row_norm(p, &io)?;
        self.check_owners(&o)?;
        if rows == 0 {
            return Ok(());
        }
        let problem = RowProblem {
            x: io.x,
            residual: io.residual,
            gamma: io.gamma,
            beta: io.beta,
            y: io.y,
            sum: io.sum,
            mean: io.mean,
            rstd: io.rstd,
            var: None,
            rows,
            cols,
            inner: 0,
            groups: 1,
            cg: 1,
            rms: p.rms,
            eps: p.eps,
            offset: p.gamma_offset,
            act: p.act,
        };
        self.norm_rows(o.op, problem)
    }

    fn group_norm(&self, p: &GroupNorm, io: GroupNormFwd<'_>) -> Result<()> {
        let (o, shape) = check_group_norm(p, &io)?;
        self.check_owners(&o)?;
        self.norm_groups(o.op, p, shape, io)
    }

    fn instance_norm(&self, p: &InstanceNorm, io: GroupNormFwd<'_>) -> Result<()> {
        let (o, shape) = check_instance_norm(p, &io)?;
        self.check_owners(&o)?;
        self.norm_groups(o.op, &p.groups(shape[1]), shape, io)
    }

    fn batch_norm(&self, p: &BatchNorm, io: BatchNormFwd<'_>) -> Result<()> {
        const OP: &str = "batch_norm";
        let (o, [n, c, s]) = check_batch_norm(p, &io)?;
        self.check_owners(&o)?;
        let dt = io.x.dtype();
        let act = Act::new(OP, p.act)?;
        let empty = n * s == 0;
        if empty && matches!(io.stats, BatchStats::Batch(_)) {
            return self.no_stats([io.mean, io.rstd]);
        }
        let (mean, _m) = self.stat(io.mean.as_ref(), dt, c)?;
        let (rstd, _r) = self.stat(io.rstd.as_ref(), dt, c)?;
        match &io.stats {
            BatchStats::Batch(running) => {
                let running = running.as_ref();
                self.channel_stats(act.unit, &io.x, [n, c, s], mean, rstd, p.eps, running)?;
                self.count_batch(dt, act.unit, running)?;
            }
            BatchStats::Given { mean: m, var } => {
                let args = NormGivenArgs {
                    running_mean: self.arg_in(m),
                    running_var: self.arg_in(var),
                    mean,
                    rstd,
                    n: long(c),
                    eps: p.eps,
                };
                self.launch(&NORM_GIVEN, dt, act.unit, Grid::Stride(c), &args)?;
            }
        }
        if empty {
            return Ok(());
        }
        let planes = Planes {
            x: io.x,
            residual: io.residual,
            gamma: io.gamma,
            beta: io.beta,
            y: &io.y,
            channels: c,
            share: 0,
        };
        if let Some(cut) = self.aligned_planes(&planes, n * c, s) {
            return self.aligned_apply(&planes, &cut, mean, rstd, &act);
        }
        let y = io.y.as_view();
        let wide = s.is_multiple_of(16 / dt.size())
            && [Some(&io.x), io.residual.as_ref(), Some(&y)].into_iter().flatten().all(aligned16);
        let args = NormApplyArgs {
            x: self.arg_in(&io.x),
            r: self.arg_opt(io.residual.as_ref()),
            gamma: self.arg_opt(io.gamma.as_ref()),
            beta: self.arg_opt(io.beta.as_ref()),
            mean,
            rstd,
            y: self.arg_in(&y),
            s: Ptr::NULL,
            n: long(n * c * s),
            cols: long(s),
            inner: long(s),
            groups: long(c),
            cg: long(1),
            by_channel: 1,
            late: 1,
            wide: i32::from(wide),
            affine: 1,
            offset: 0.0,
            act: act.number,
            p: act.p,
        };
        self.launch(&NORM_APPLY, dt, act.unit, self.map_grid(n * c * s, wide, dt, 4), &args)
    }

    fn l2_normalize(&self, axis: usize, eps: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (o, shape) = check_l2(axis, eps, x, &y)?;
        self.check_owners(&o)?;
        self.l2(None, x, &y.into(), shape, eps)
    }

    fn l2_normalize_bwd(
        &self,
        axis: usize,
        eps: f64,
        dy: View<'_>,
        x: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        let (o, shape) = check_l2_bwd(axis, eps, dy, x, &dx)?;
        self.check_owners(&o)?;
        self.l2(Some(dy), x, &dx, shape, eps)
    }
}

impl Engine {
    /// Unit length along an axis, or the gradient where dy is given.
    fn l2(
        &self,
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
        let w = 16 / dt.size();
        let out = y.out.as_view();
        let aligned = [Some(&x), dy.as_ref(), Some(&out)].into_iter().flatten().all(aligned16);
        let wide = aligned && if inner > 1 { inner } else { cols }.is_multiple_of(w);
        let (px, py) = (self.arg_in(&x), self.arg_in(&out));
        let (rows, length) = (long(outer), long(cols));
        if inner > 1 {
            let items = outer * inner / if wide { w } else { 1 };
            let ty = (LANES / pow2(items, 32)).min(pow2(cols.div_ceil(8), LANES));
            let tx = LANES / ty;
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
                accumulate: i32::from(y.accumulate),
            };
            return self.launch(&L2_COLUMNS, dt, "", Grid::Blocks([items.div_ceil(tx), 1, 1]), &args);
        }
        let items = if wide { cols / w } else { cols };
        let lanes = pow2(items.div_ceil(16), LANES).max(pow2(items, 8));
        let grid = Grid::Blocks([outer.div_ceil(LANES / lanes), 1, 1]);
        let (lanes, wide) = (int(lanes), i32::from(wide));
        match dy {
            None => {
                let args = L2RowsArgs { x: px, y: py, rows, cols: length, lanes, wide, eps };
                self.launch(&L2_ROWS, dt, "", grid, &args)
            }
            Some(dy) => {
                let args = L2BwdRowsArgs {
                    dy: self.arg_in(&dy),
                    x: px,
                    dx: py,
                    rows,
                    cols: length,
                    lanes,
                    wide,
                    eps,
                    accumulate: i32::from(y.accumulate),
                };
                self.launch(&L2_BWD_ROWS, dt, "", grid, &args)
            }
        }
    }
}
