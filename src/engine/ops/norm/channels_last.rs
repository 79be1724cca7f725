//! Batch norm of rows of channels, forward and backward: of `[N, C]`, and of channels-last images.

use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, int, long, pow2};
use crate::engine::ops::norm::backward::{Back, BackInputs};
use crate::engine::ops::norm::plan::{ChannelsLast, FoldedRows};
use crate::engine::ops::norm::{Act, Statistics};
use crate::error::Result;
use crate::ops::norm::BatchNormFwd;
use crate::spec::kernels::norm::*;

impl FoldedRows {
    /// Rows as the kernels count them, of n.
    fn rows(&self, n: usize) -> i64 {
        long(n / self.fold)
    }

    /// 16-byte items of such a row, of `c` channels.
    fn items(&self, dtype: DType, c: usize) -> i32 {
        int(c * self.fold * dtype.size() / 16)
    }

    /// Partial results of a channel.
    fn chunks(&self) -> usize {
        self.geometry.chunks * self.fold
    }
}

impl Engine {
    /// Statistics of the channels of [n, c].
    pub(super) fn channels_stats(
        &self,
        rows: &FoldedRows,
        x: &View<'_>,
        [n, c]: [usize; 2],
        to: &Statistics<'_>,
    ) -> Result<()> {
        let (dt, unit) = (to.dt, to.unit);
        let part = self.scratch(dt.accumulator(), 2 * rows.chunks() * c)?;
        let args = NormMomentsChannelsArgs {
            x: self.arg_in(x),
            part: self.arg_in(&part.view()),
            n: rows.rows(n),
            items: rows.items(dt, c),
            tx: int(rows.geometry.tx),
            chunk: long(rows.geometry.chunk),
        };
        self.launch(&NORM_MOMENTS_CHANNELS, dt, unit, rows.geometry.grid(), &args)?;
        let (counter, momentum) = self.momentum(to.running);
        let tx = LANES / pow2(rows.chunks(), 64);
        let args = NormCombineChannelsArgs {
            part: self.arg_in(&part.view()),
            mean: to.mean,
            rstd: to.rstd,
            running_mean: self.arg_opt_out(to.running.map(|r| &r.mean)),
            running_var: self.arg_opt_out(to.running.map(|r| &r.var)),
            counter,
            chunks: int(rows.chunks()),
            fold: int(rows.fold),
            channels: int(c),
            tx: int(tx),
            chunk: long(rows.geometry.chunk),
            rest: rows.rows(n) - long((rows.geometry.chunks - 1) * rows.geometry.chunk),
            n: long(n),
            eps: to.eps,
            momentum,
        };
        self.launch(&NORM_COMBINE_CHANNELS, dt, unit, Grid::Blocks([c.div_ceil(tx), 1, 1]), &args)
    }

    /// The map of batch norm over the rows of [n, c], whose statistics are known.
    pub(super) fn channels_apply(
        &self,
        rows: &FoldedRows,
        io: &BatchNormFwd<'_>,
        [n, c]: [usize; 2],
        [mean, rstd]: [Ptr; 2],
        act: &Act,
    ) -> Result<()> {
        let dt = io.x.dtype();
        let args = NormApplyChannelsArgs {
            x: self.arg_in(&io.x),
            r: self.arg_opt(io.residual.as_ref()),
            gamma: self.arg_opt(io.gamma.as_ref()),
            beta: self.arg_opt(io.beta.as_ref()),
            mean,
            rstd,
            y: self.arg_out(&io.y),
            n: rows.rows(n),
            items: rows.items(dt, c),
            channels: int(c),
            tx: int(rows.geometry.tx),
            chunk: long(rows.geometry.chunk),
            act: act.number,
            p: act.p,
        };
        self.launch(&NORM_APPLY_CHANNELS, dt, act.unit, rows.geometry.grid(), &args)
    }

    /// The gradient of rows of [n, c]; `training`: statistics are those of x.
    pub(super) fn channels_back(
        &self,
        b: &Back<'_>,
        [n, c]: [usize; 2],
        rows: &ChannelsLast,
        training: bool,
    ) -> Result<()> {
        let needs_means = b.dx.is_some() && training;
        let coef = needs_means.then(|| self.scratch(b.dt().accumulator(), 2 * c)).transpose()?;
        let coef = coef.as_ref().map(Buffer::view);
        if b.params() || needs_means {
            let part = self.channels_back_sums(b, [n, c], &rows.sums)?;
            self.channels_back_join(b, &part.view(), [n, c], &rows.sums, coef.as_ref())?;
        }
        if b.dx.is_none() && b.dresidual.is_none() {
            return Ok(());
        }
        self.channels_back_apply(b, [n, c], &rows.map, coef.as_ref())
    }

    /// Sums of dz * xh, and behind them of dz, over chunks of the rows of [n, c].
    fn channels_back_sums(&self, b: &Back<'_>, [n, c]: [usize; 2], rows: &FoldedRows) -> Result<Buffer> {
        let dt = b.dt();
        let second = rows.chunks() * c;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let args = NormBwdSumsChannelsArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            part: self.arg_in(&part.view()),
            n: rows.rows(n),
            items: rows.items(dt, c),
            channels: int(c),
            tx: int(rows.geometry.tx),
            chunk: long(rows.geometry.chunk),
            second: long(second),
            act: b.act.number,
            p: b.act.p,
        };
        self.launch(&NORM_BWD_SUMS_CHANNELS, dt, b.act.unit, rows.geometry.grid(), &args)?;
        Ok(part)
    }

    /// Gradients of the parameters, and the means that dx needs, from the sums of chunks.
    fn channels_back_join(
        &self,
        b: &Back<'_>,
        part: &View<'_>,
        [n, c]: [usize; 2],
        rows: &FoldedRows,
        coef: Option<&View<'_>>,
    ) -> Result<()> {
        let tx = LANES / pow2(rows.chunks(), 64);
        let args = NormBwdJoinChannelsArgs {
            part: self.arg_in(part),
            gamma: self.arg_opt(b.gamma.as_ref()),
            coef: self.arg_opt(coef),
            dgamma: self.grad_arg(&b.dgamma),
            dbeta: self.grad_arg(&b.dbeta),
            chunks: int(rows.chunks()),
            channels: int(c),
            tx: int(tx),
            n: n as f64,
            accumulate_gamma: b.adds(&b.dgamma),
            accumulate_beta: b.adds(&b.dbeta),
        };
        self.launch(&NORM_BWD_JOIN_CHANNELS, b.dt(), b.act.unit, Grid::Blocks([c.div_ceil(tx), 1, 1]), &args)
    }

    /// dx and the residual's gradient of rows of [n, c], whose means are known where statistics are those of x.
    fn channels_back_apply(
        &self,
        b: &Back<'_>,
        [n, c]: [usize; 2],
        rows: &FoldedRows,
        coef: Option<&View<'_>>,
    ) -> Result<()> {
        let dt = b.dt();
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let args = NormBwdApplyChannelsArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            coef: self.arg_opt(coef),
            dx: self.grad_arg(&b.dx),
            dr: self.grad_arg(&b.dresidual),
            n: rows.rows(n),
            items: rows.items(dt, c),
            channels: int(c),
            tx: int(rows.geometry.tx),
            chunk: long(rows.geometry.chunk),
            // A value that equals its own mean has no gradient.
            alone: i32::from(n == 1 && coef.is_some()),
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
            accumulate_r: b.adds(&b.dresidual),
        };
        self.launch(&NORM_BWD_APPLY_CHANNELS, dt, b.act.unit, rows.geometry.grid(), &args)
    }
}
