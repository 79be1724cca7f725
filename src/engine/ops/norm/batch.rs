//! Batch norm, forward.

use super::aligned::Planes;
use super::plan::{BatchMap, BatchNormPlan, BatchNormProblem, ChannelStats};
use super::{Act, Sets, Statistics};
use crate::buffer::View;
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, int, long};
use crate::error::Result;
use crate::ops::norm::*;
use crate::spec::kernels::norm::*;

/// What decides how batch norm of [n, c, s] runs.
fn batch_problem(io: &BatchNormFwd<'_>, [n, c, s]: [usize; 3]) -> BatchNormProblem {
    let (dt, y) = (io.x.dtype(), io.y.as_view());
    let operands = [Some(&io.x), io.residual.as_ref(), Some(&y)].into_iter().flatten();
    let (x, operands) = (Alignment::of(dt, [&io.x]), Alignment::of(dt, operands));
    BatchNormProblem { n, c, s, x, operands, batch: matches!(io.stats, BatchStats::Batch(_)) }
}

impl Engine {
    /// Batch norm of [n, c, s], whose operands are checked.
    pub(super) fn norm_batch(
        &self,
        op: &'static str,
        p: &BatchNorm,
        [n, c, s]: [usize; 3],
        io: BatchNormFwd<'_>,
    ) -> Result<()> {
        let dt = io.x.dtype();
        let act = Act::new(op, p.act)?;
        let empty = n * s == 0;
        if empty && matches!(io.stats, BatchStats::Batch(_)) {
            return self.no_stats([io.mean, io.rstd]);
        }
        let plan = if empty { None } else { Some(self.plan(op, &batch_problem(&io, [n, c, s]))?) };
        let (mean, _m) = self.stat(io.mean.as_ref(), dt, c)?;
        let (rstd, _r) = self.stat(io.rstd.as_ref(), dt, c)?;
        match (&io.stats, &plan) {
            (BatchStats::Batch(running), Some(BatchNormPlan { stats: Some(stats), .. })) => {
                let running = running.as_ref();
                let to = Statistics { dt, unit: act.unit, mean, rstd, raw: false, eps: p.eps, running };
                self.channel_stats(stats, &io.x, [n, c, s], &to)?;
                self.count_batch(dt, act.unit, running)?;
            }
            (BatchStats::Given { mean: m, var }, _) => {
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
            _ => {}
        }
        plan.map_or(Ok(()), |plan| self.batch_map(&plan.map, &io, [n, c, s], [mean, rstd], &act))
    }

    /// Statistics of the channels of [n, c, s].
    fn channel_stats(
        &self,
        plan: &ChannelStats,
        x: &View<'_>,
        [n, c, s]: [usize; 3],
        to: &Statistics<'_>,
    ) -> Result<()> {
        let dt = to.dt;
        let (part, sets, by_outer) = match plan {
            ChannelStats::ChannelsLast(rows) => return self.channels_stats(rows, x, [n, c], to),
            ChannelStats::Columns(geometry) => {
                let part = self.scratch(dt.accumulator(), 2 * geometry.chunks * c * s)?;
                let args = NormColumnsArgs {
                    x: self.arg_in(x),
                    part: self.arg_in(&part.view()),
                    n: long(n),
                    cols: long(c * s),
                    chunk: long(geometry.chunk),
                    chunks: int(geometry.chunks),
                    tx: int(geometry.tx),
                    wide: i32::from(geometry.wide),
                };
                self.launch(&NORM_COLUMNS, dt, to.unit, geometry.grid(), &args)?;
                let sets =
                    Sets { outer: geometry.chunks, sets: c, inner: s, chunk: geometry.chunk, total: n };
                (part, sets, true)
            }
            ChannelStats::Aligned(cut) => {
                let (inner, chunk) = (cut.splits, cut.chunk_elements(dt));
                (
                    self.aligned_part(to.unit, x, cut)?,
                    Sets { outer: n, sets: c, inner, chunk, total: s },
                    false,
                )
            }
            ChannelStats::Rows(geometry) => {
                let part = self.norm_partial(to.unit, [Some(x), None], dt, [n * c, s], geometry, false)?;
                (
                    part,
                    Sets { outer: n, sets: c, inner: geometry.splits, chunk: geometry.chunk, total: s },
                    false,
                )
            }
        };
        self.norm_join(to, self.arg_in(&part.view()), &sets, by_outer)
    }

    /// The map of batch norm, whose statistics are known.
    fn batch_map(
        &self,
        map: &BatchMap,
        io: &BatchNormFwd<'_>,
        [n, c, s]: [usize; 3],
        [mean, rstd]: [Ptr; 2],
        act: &Act,
    ) -> Result<()> {
        let wide = match map {
            BatchMap::Aligned(cut) => {
                let planes = Planes {
                    x: io.x,
                    residual: io.residual,
                    gamma: io.gamma,
                    beta: io.beta,
                    y: &io.y,
                    channels: c,
                    share: 0,
                };
                return self.aligned_apply(&planes, cut, [mean, rstd], act);
            }
            BatchMap::ChannelsLast(rows) => {
                return self.channels_apply(rows, io, [n, c], [mean, rstd], act);
            }
            BatchMap::General { wide } => *wide,
        };
        let dt = io.x.dtype();
        let args = NormApplyArgs {
            x: self.arg_in(&io.x),
            r: self.arg_opt(io.residual.as_ref()),
            gamma: self.arg_opt(io.gamma.as_ref()),
            beta: self.arg_opt(io.beta.as_ref()),
            mean,
            rstd,
            y: self.arg_out(&io.y),
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
}
