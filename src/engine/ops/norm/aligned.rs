//! Normalization, forward, of rows and planes that consist of whole aligned 16-byte items.

use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, int};
use crate::engine::ops::norm::cut::{Cut, CutArgs};
use crate::engine::ops::norm::{Act, RowOperands, Sets, Statistics};
use crate::error::Result;
use crate::spec::kernels::norm::*;

/// Planes of one channel each: row `i` is one of channel `i % channels`, its statistics are `i / share`, or (0) those of the channel.
pub(super) struct Planes<'a, 'b> {
    pub(super) x: View<'a>,
    pub(super) residual: Option<View<'a>>,
    pub(super) gamma: Option<View<'a>>,
    pub(super) beta: Option<View<'a>>,
    pub(super) y: &'b ViewMut<'a>,
    pub(super) channels: usize,
    pub(super) share: usize,
}

impl Engine {
    /// Mean and sum of squared deviations of every run.
    pub(super) fn aligned_part(&self, unit: &'static str, x: &View<'_>, cut: &Cut) -> Result<Buffer> {
        let part = self.scratch(x.dtype().accumulator(), 2 * cut.runs)?;
        let CutArgs { runs, items, splits, chunk, bits } = cut.args();
        let args = NormPartialAlignedArgs {
            x: self.arg_in(x),
            part: self.arg_in(&part.view()),
            runs,
            items,
            splits,
            chunk,
            bits,
        };
        self.launch(&NORM_PARTIAL_ALIGNED, x.dtype(), unit, cut.grid(), &args)?;
        Ok(part)
    }

    /// The map over planes whose statistics are known.
    pub(super) fn aligned_apply(
        &self,
        p: &Planes<'_, '_>,
        cut: &Cut,
        [mean, rstd]: [Ptr; 2],
        act: &Act,
    ) -> Result<()> {
        let dt = p.x.dtype();
        let CutArgs { runs, items, splits, chunk, bits } = cut.args();
        let args = NormApplyAlignedArgs {
            x: self.arg_in(&p.x),
            r: self.arg_opt(p.residual.as_ref()),
            gamma: self.arg_opt(p.gamma.as_ref()),
            beta: self.arg_opt(p.beta.as_ref()),
            mean,
            rstd,
            y: self.arg_out(p.y),
            runs,
            items,
            splits,
            chunk,
            bits,
            channels: int(p.channels),
            share: int(p.share),
            act: act.number,
            p: act.p,
        };
        let kernel = if p.residual.is_some() { &NORM_APPLY_ALIGNED_ADD } else { &NORM_APPLY_ALIGNED };
        self.launch(kernel, dt, act.unit, cut.grid(), &args)
    }

    /// Rows of `items` that lie in the registers of `1 << bits` threads; `looped`: of twice as many registers.
    pub(super) fn aligned_rows(
        &self,
        r: &RowOperands<'_>,
        act: &Act,
        looped: bool,
        items: usize,
        bits: u32,
    ) -> Result<()> {
        let args = NormRowsAlignedArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            y: self.arg_out(&r.y),
            s: self.arg_opt_out(r.sum.as_ref()),
            mean: self.arg_opt_out(r.mean.as_ref()),
            rstd: self.arg_opt_out(r.rstd.as_ref()),
            rows: int(r.rows),
            items: int(items),
            bits: bits as i32,
            raw: i32::from(r.rms),
            eps: r.eps,
            offset: r.offset,
            act: act.number,
            p: act.p,
        };
        let kernel = match (r.residual.is_some(), looped) {
            (true, _) => &NORM_ROWS_ALIGNED_ADD,
            (false, false) => &NORM_ROWS_ALIGNED,
            (false, true) => &NORM_ROWS_ALIGNED_LOOPED,
        };
        let grid = Grid::Blocks([r.rows.div_ceil(LANES >> bits), 1, 1]);
        self.launch(kernel, r.x.dtype(), act.unit, grid, &args)
    }

    /// Groups that a block reads twice, the second time from a cache: planes of `items` over `1 << bits` threads each.
    pub(super) fn aligned_groups(
        &self,
        r: &RowOperands<'_>,
        act: &Act,
        items: usize,
        bits: u32,
    ) -> Result<()> {
        let args = NormSetsAlignedArgs {
            x: self.arg_in(&r.x),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            y: self.arg_out(&r.y),
            mean: self.arg_opt_out(r.mean.as_ref()),
            rstd: self.arg_opt_out(r.rstd.as_ref()),
            sets: int(r.rows),
            share: int(r.cg),
            channels: int(r.groups * r.cg),
            items: int(items),
            bits: bits as i32,
            eps: r.eps,
            act: act.number,
            p: act.p,
        };
        self.launch(&NORM_SETS_ALIGNED, r.x.dtype(), act.unit, Grid::Blocks([r.rows, 1, 1]), &args)
    }

    /// Groups too long for registers: statistics of runs, combined, then the map over planes.
    pub(super) fn aligned_split(
        &self,
        r: &RowOperands<'_>,
        act: &Act,
        moments: &Cut,
        map: &Cut,
    ) -> Result<()> {
        let dt = r.x.dtype();
        let part = self.aligned_part(act.unit, &r.x, moments)?;
        let (mean, _m) = self.stat(r.mean.as_ref(), dt, r.rows)?;
        let (rstd, _r) = self.stat(r.rstd.as_ref(), dt, r.rows)?;
        let chunk = moments.chunk_elements(dt);
        let sets = Sets { outer: 1, sets: r.rows, inner: moments.splits, chunk, total: r.cols };
        let to = Statistics { dt, unit: act.unit, mean, rstd, raw: false, eps: r.eps, running: None };
        self.norm_join(&to, self.arg_in(&part.view()), &sets, false)?;
        let planes = Planes {
            x: r.x,
            residual: None,
            gamma: r.gamma,
            beta: r.beta,
            y: &r.y,
            channels: r.groups * r.cg,
            share: r.cg,
        };
        self.aligned_apply(&planes, map, [mean, rstd], act)
    }
}
