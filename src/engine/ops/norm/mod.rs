//! Normalization, forward: operands and launches. How it runs is in `plan.rs`, the kernels for aligned rows in `aligned.rs`, the gradients in
//! `backward.rs`.

mod aligned;
mod backward;
mod backward_aligned;
mod backward_plan;
mod batch;
mod channels_last;
mod cut;
mod l2;
mod plan;

pub(in crate::engine::ops) use self::plan::SHORT_PLANE;

use self::plan::{BatchNormProblem, RowNormPlan, RowNormProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::{Alignment, RowGeometry};
use crate::engine::launch::{Grid, LANES, aligned16, int, long, pow2};
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::core::Choice;
use crate::ops::gemm::fused_act;
use crate::ops::norm::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::norm::*;
use crate::spec::norm::EPILOGUES;

/// Activation as the kernels take it: the unit, its number and parameter.
struct Act {
    unit: &'static str,
    number: i32,
    p: f64,
}

impl Act {
    fn new(op: &'static str, act: Activation) -> Result<Self> {
        let (number, p) = fused_act(op, act)?;
        Ok(Act { unit: EPILOGUES[usize::from(number != 0)], number, p })
    }
}

/// Threads side by side over sets of which each combines `outer * inner` partial results.
pub(in crate::engine::ops) fn join_tx(outer: usize, inner: usize) -> usize {
    LANES / pow2(outer * inner, if inner == 1 { 16 } else { LANES })
}

impl Engine {
    /// What serves a typical problem in f32: 4096 rows of 1024 elements, or [32, 64, 32, 32], for group norm with 32 groups.
    pub(crate) fn explain_norm(&self, op: &'static str) -> Result<Choice> {
        let operands = Alignment::full(DType::F32);
        let rows = RowNormProblem {
            rows: 4096,
            cols: 1024,
            inner: 0,
            channels: 1,
            operands,
            affine_aligned: true,
            rms: false,
            residual: false,
            sum: false,
            var: false,
        };
        match op {
            "row_norm" => self.explain_problem(op, &rows),
            "batch_norm" => {
                let p = BatchNormProblem { n: 32, c: 64, s: 1024, x: operands, operands, batch: true };
                self.explain_problem(op, &p)
            }
            "row_norm_bwd" | "group_norm_bwd" | "batch_norm_bwd" => self.explain_norm_bwd(op),
            "group_norm" => {
                let p = RowNormProblem { rows: 1024, cols: 2048, inner: 1024, channels: 2, ..rows };
                self.explain_problem(op, &p)
            }
            _ => {
                let p = RowNormProblem { rows: 2048, cols: 1024, inner: 1024, ..rows };
                self.explain_problem(op, &p)
            }
        }
    }

    fn check_owners(&self, o: &Operands<'_>) -> Result<()> {
        o.inputs.iter().chain(&o.outputs).try_for_each(|(arg, v)| self.check_owner(o.op, arg, v))
    }

    /// Blocks of an elementwise kernel whose threads take `each` vectors of 16-bit values, one of others.
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
    fn stat(&self, given: Option<&ViewMut<'_>>, dt: DType, n: usize) -> Result<(Ptr, Option<Buffer>)> {
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

    /// Rows with statistics of their own.
    fn norm_rows(&self, op: &'static str, r: &RowOperands<'_>) -> Result<()> {
        let act = Act::new(op, r.act)?;
        match self.plan(op, &r.problem())? {
            RowNormPlan::AlignedRows { looped, items, bits } => {
                self.aligned_rows(r, &act, looped, items, bits)
            }
            RowNormPlan::AlignedGroups { items, bits } => self.aligned_groups(r, &act, items, bits),
            RowNormPlan::AlignedSplit { moments, map } => self.aligned_split(r, &act, &moments, &map),
            RowNormPlan::Split { geometry, wide, affine } => {
                self.norm_rows_split(r, &act, &geometry, wide, affine)
            }
            RowNormPlan::Rows { geometry, affine, looped } => {
                self.norm_rows_whole(r, &act, &geometry, affine, looped)
            }
        }
    }

    /// A row per `geometry.lanes` threads.
    fn norm_rows_whole(
        &self,
        r: &RowOperands<'_>,
        act: &Act,
        geometry: &RowGeometry,
        affine: bool,
        looped: bool,
    ) -> Result<()> {
        let args = NormRowsArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            y: self.arg_out(&r.y),
            s: self.arg_opt_out(r.sum.as_ref()),
            mean: self.arg_opt_out(r.mean.as_ref()),
            rstd: self.arg_opt_out(r.rstd.as_ref()),
            var: r.var.unwrap_or(Ptr::NULL),
            rows: long(r.rows),
            cols: long(r.cols),
            inner: long(r.inner),
            groups: long(r.groups),
            cg: long(r.cg),
            lanes: int(geometry.lanes),
            wide: i32::from(geometry.wide),
            affine: i32::from(affine),
            phase: int(geometry.phase),
            raw: i32::from(r.rms),
            eps: r.eps,
            offset: r.offset,
            act: act.number,
            p: act.p,
        };
        let kernel = if looped { &NORM_ROWS_LOOPED } else { &NORM_ROWS };
        self.launch(kernel, r.x.dtype(), act.unit, geometry.grid(r.rows, self.device_caps()), &args)
    }

    /// Moments of the runs of rows.
    fn norm_partial(
        &self,
        unit: &'static str,
        [x, residual]: [Option<&View<'_>>; 2],
        dt: DType,
        [rows, cols]: [usize; 2],
        geometry: &RowGeometry,
        raw: bool,
    ) -> Result<Buffer> {
        let part = self.scratch(dt.accumulator(), 2 * rows * geometry.splits)?;
        let args = NormPartialArgs {
            x: self.arg_opt(x),
            r: self.arg_opt(residual),
            part: self.arg_in(&part.view()),
            rows: long(rows),
            cols: long(cols),
            splits: int(geometry.splits),
            chunk: long(geometry.chunk),
            lanes: int(geometry.lanes),
            wide: i32::from(geometry.wide),
            phase: int(geometry.phase),
            raw: i32::from(raw),
        };
        let grid = geometry.grid(rows * geometry.splits, self.device_caps());
        self.launch(&NORM_PARTIAL, dt, unit, grid, &args)?;
        Ok(part)
    }

    /// Rows cut into runs: moments of the runs, combined to those of the rows, then the map. `wide`: the map moves 16 bytes at once; `affine`:
    /// parameters too.
    fn norm_rows_split(
        &self,
        r: &RowOperands<'_>,
        act: &Act,
        geometry: &RowGeometry,
        wide: bool,
        affine: bool,
    ) -> Result<()> {
        let (dt, unit) = (r.x.dtype(), act.unit);
        let operands = [Some(&r.x), r.residual.as_ref()];
        let part = self.norm_partial(unit, operands, dt, [r.rows, r.cols], geometry, r.rms)?;
        let (mean, _m) = self.stat(r.mean.as_ref(), dt, r.rows)?;
        let (rstd, _r) = self.stat(r.rstd.as_ref(), dt, r.rows)?;
        let mean = if r.rms { Ptr::NULL } else { mean };
        let sets =
            Sets { outer: 1, sets: r.rows, inner: geometry.splits, chunk: geometry.chunk, total: r.cols };
        let to = Statistics { dt, unit, mean, rstd, raw: r.rms, eps: r.eps, running: None };
        self.norm_join(&to, self.arg_in(&part.view()), &sets, false)?;
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
        self.launch(&NORM_APPLY, dt, unit, self.map_grid(n, wide, dt, 4), &args)
    }

    /// Statistics from the moments of runs, and running ones. `by_outer`: the runs cut the outer axis of the sets, else the inner one.
    fn norm_join(&self, to: &Statistics<'_>, part: Ptr, s: &Sets, by_outer: bool) -> Result<()> {
        // Few sets: more threads for each, to use the device.
        let tx = match s.inner == 1 && s.sets <= 4 * LANES {
            true => LANES / pow2(s.outer, 64),
            false => join_tx(s.outer, s.inner),
        };
        let n = s.total * if by_outer { s.inner } else { s.outer };
        let (counter, momentum) = self.momentum(to.running);
        let args = NormCombineArgs {
            part,
            mean: to.mean,
            rstd: to.rstd,
            running_mean: self.arg_opt_out(to.running.map(|r| &r.mean)),
            running_var: self.arg_opt_out(to.running.map(|r| &r.var)),
            counter,
            outer: long(s.outer),
            sets: long(s.sets),
            inner: long(s.inner),
            tx: int(tx),
            chunk: long(s.chunk),
            total: long(s.total),
            by_outer: i32::from(by_outer),
            n: n as f64,
            raw: i32::from(to.raw),
            eps: to.eps,
            momentum,
        };
        self.launch(&NORM_COMBINE, to.dt, to.unit, Grid::Blocks([s.sets.div_ceil(tx), 1, 1]), &args)
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
        let operands = RowOperands {
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
        self.norm_rows(op, &operands)?;
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

/// Where statistics go, and how they are made of moments.
struct Statistics<'a> {
    dt: DType,
    unit: &'static str,
    mean: Ptr,
    rstd: Ptr,
    /// Without the mean.
    raw: bool,
    eps: f64,
    running: Option<&'a Running<'a>>,
}

/// Runs that are combined to sets: runs cut `total` elements into pieces of `chunk`.
struct Sets {
    outer: usize,
    sets: usize,
    inner: usize,
    chunk: usize,
    total: usize,
}

/// Rows with statistics of their own: of layer and RMS norm, or groups.
struct RowOperands<'a> {
    x: View<'a>,
    residual: Option<View<'a>>,
    gamma: Option<View<'a>>,
    beta: Option<View<'a>>,
    y: ViewMut<'a>,
    sum: Option<ViewMut<'a>>,
    mean: Option<ViewMut<'a>>,
    rstd: Option<ViewMut<'a>>,
    var: Option<Ptr>,
    rows: usize,
    cols: usize,
    /// Elements per channel; 0 where parameters are per column.
    inner: usize,
    groups: usize,
    cg: usize,
    rms: bool,
    eps: f64,
    offset: f64,
    act: Activation,
}

impl RowOperands<'_> {
    /// What decides how the rows are normalized.
    fn problem(&self) -> RowNormProblem {
        let (y, sum) = (self.y.as_view(), self.sum.as_ref().map(ViewMut::as_view));
        let operands = [Some(&self.x), self.residual.as_ref(), Some(&y), sum.as_ref()];
        RowNormProblem {
            rows: self.rows,
            cols: self.cols,
            inner: self.inner,
            channels: self.cg,
            operands: Alignment::of(self.x.dtype(), operands.into_iter().flatten()),
            affine_aligned: [&self.gamma, &self.beta].into_iter().flatten().all(aligned16),
            rms: self.rms,
            residual: self.residual.is_some(),
            sum: self.sum.is_some(),
            var: self.var.is_some(),
        }
    }
}

impl NormOps for Engine {
    fn row_norm(&self, p: &RowNorm, io: RowNormFwd<'_>) -> Result<()> {
        let (o, [rows, cols]) = check_row_norm(p, &io)?;
        self.check_owners(&o)?;
        if rows == 0 {
            return Ok(());
        }
        let operands = RowOperands {
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
        self.norm_rows(o.op, &operands)
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
        let io = io.channels_as_columns()?;
        let (o, shape) = check_batch_norm(p, &io)?;
        self.check_owners(&o)?;
        self.norm_batch(o.op, p, shape, io)
    }

    fn l2_normalize(&self, axis: usize, eps: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (o, shape) = check_l2(axis, eps, x, &y)?;
        self.check_owners(&o)?;
        self.l2(o.op, None, x, &y.into(), shape, eps)
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
        self.l2(o.op, Some(dy), x, &dx, shape, eps)
    }
}
