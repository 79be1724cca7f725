//! Normalization, forward, of rows and planes that consist of whole aligned 16-byte items.

use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, int, pow2};
use crate::engine::ops::norm::{Act, RowProblem, Sets};
use crate::error::Result;
use crate::spec::kernels::norm::*;

/// 16-byte items of a row that a work-item holds; twice as many in rows that are longer.
const KEEP: usize = 4;
const KEEP_LONG: usize = 8;
/// Longest run that is summed by itself, and how much of it a work-item should have at least: 16-byte items.
const SUM_RUN: usize = 4096;
const SUM_KEEP: usize = 16;
/// Bytes per multiprocessor that caches keep between two reads of a set.
pub(in crate::engine::ops) const SET_CACHE: usize = 256 << 10;
/// Groups shorter than this are taken in one pass: 16-byte items.
const SHORT_GROUP: usize = KEEP_LONG * LANES;

/// Planes of one channel each: row `i` is one of channel `i % channels`, its statistics are `i / share`, or (0) those of the channel.
pub(in crate::engine::ops) struct Planes<'a, 'b> {
    pub(in crate::engine::ops) x: View<'a>,
    pub(in crate::engine::ops) residual: Option<View<'a>>,
    pub(in crate::engine::ops) gamma: Option<View<'a>>,
    pub(in crate::engine::ops) beta: Option<View<'a>>,
    pub(in crate::engine::ops) y: &'b ViewMut<'a>,
    pub(in crate::engine::ops) channels: usize,
    pub(in crate::engine::ops) share: usize,
}

/// Rows of `items` cut into runs of `chunk` items.
pub(in crate::engine::ops) struct Cut {
    pub(in crate::engine::ops) runs: usize,
    pub(in crate::engine::ops) items: usize,
    pub(in crate::engine::ops) splits: usize,
    chunk: usize,
    bits: u32,
}

impl Cut {
    pub(in crate::engine::ops) fn chunk_elements(&self, dt: DType) -> usize {
        self.chunk * (16 / dt.size())
    }

    pub(in crate::engine::ops) fn grid(&self) -> Grid {
        Grid::Blocks([self.runs.div_ceil(LANES >> self.bits), 1, 1])
    }

    pub(in crate::engine::ops) fn args(&self) -> CutArgs {
        CutArgs {
            runs: int(self.runs),
            items: int(self.items),
            splits: int(self.splits),
            chunk: int(self.chunk),
            bits: self.bits as i32,
        }
    }
}

/// A cut as the kernels take it.
pub(in crate::engine::ops) struct CutArgs {
    pub(in crate::engine::ops) runs: i32,
    pub(in crate::engine::ops) items: i32,
    pub(in crate::engine::ops) splits: i32,
    pub(in crate::engine::ops) chunk: i32,
    pub(in crate::engine::ops) bits: i32,
}

pub(in crate::engine::ops) fn fits_i32(n: usize) -> bool {
    i32::try_from(n).is_ok()
}

impl Engine {
    /// Binary logarithm of the lanes for rows of `items`, `keep` of them per lane, more lanes where the rows are few.
    fn aligned_bits(&self, rows: usize, items: usize, keep: usize) -> u32 {
        let mut lanes = pow2(items.div_ceil(keep), LANES).max(pow2(items, 8));
        while lanes < pow2(items, LANES) && rows * lanes < self.target_blocks() * LANES / 2 {
            lanes *= 2;
        }
        lanes.trailing_zeros()
    }

    /// Binary logarithm of the lanes per plane where blocks take sets of `share` planes of `items`, of which they read `bytes` twice; `None`
    /// unless there are enough sets for all multiprocessors and the second read can come from a cache.
    pub(in crate::engine::ops) fn set_bits(
        &self,
        sets: usize,
        share: usize,
        items: usize,
        bytes: usize,
    ) -> Option<u32> {
        let units = self.device_caps().compute_units as usize;
        let few = sets < 2 * units || share * items < LANES || bytes > 2 * SET_CACHE;
        if few || !fits_i32(sets.checked_mul(share)?) || !fits_i32(items) {
            return None;
        }
        // The number of lanes with the fewest rounds; of equals the largest.
        let rounds = |bits: &u32| share.div_ceil(LANES >> bits) * items.div_ceil(1 << bits);
        (3..=LANES.trailing_zeros()).rev().min_by_key(rounds)
    }

    /// How rows of aligned items are cut into runs that are summed: longer ones, over few lanes, so that joining the lanes costs little.
    pub(in crate::engine::ops) fn aligned_sum_cut(
        &self,
        operands: &[&View<'_>],
        rows: usize,
        cols: usize,
    ) -> Option<Cut> {
        let cut = self.aligned_cut(operands, rows, cols)?;
        let chunk = cut.items.div_ceil(cut.items.div_ceil(SUM_RUN));
        let splits = cut.items.div_ceil(chunk);
        let runs = rows * splits;
        let bits = self.aligned_bits(runs, chunk, SUM_KEEP);
        Some(Cut { runs, chunk, splits, bits, ..cut })
    }

    /// How rows of `cols` elements are cut into runs that fit in registers; `None` unless they consist of aligned items.
    pub(in crate::engine::ops) fn aligned_cut(
        &self,
        operands: &[&View<'_>],
        rows: usize,
        cols: usize,
    ) -> Option<Cut> {
        let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
        let items = cols / w;
        if cols == 0 || !cols.is_multiple_of(w) || !operands.iter().all(|v| aligned16(v)) {
            return None;
        }
        let chunk = items.div_ceil(items.div_ceil(KEEP * LANES));
        let splits = items.div_ceil(chunk);
        let runs = rows.checked_mul(splits)?;
        let bits = self.aligned_bits(runs, chunk, KEEP);
        // Indices of the last block must fit an i32 too.
        fits_i32(runs.checked_add(LANES)?)
            .then_some(Cut { runs, items, splits, chunk, bits })
            .filter(|_| fits_i32(items))
    }

    /// Mean and sum of squared deviations of every run.
    pub(in crate::engine::ops) fn aligned_part(
        &self,
        unit: &'static str,
        x: &View<'_>,
        cut: &Cut,
    ) -> Result<Buffer> {
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

    /// The cut of planes for [`Engine::aligned_apply`].
    pub(in crate::engine::ops) fn aligned_planes(
        &self,
        p: &Planes<'_, '_>,
        planes: usize,
        s: usize,
    ) -> Option<Cut> {
        let y = p.y.as_view();
        let operands: Vec<&View<'_>> =
            [Some(&p.x), p.residual.as_ref(), Some(&y)].into_iter().flatten().collect();
        self.aligned_cut(&operands, planes, s)
    }

    /// The map over planes whose statistics are known.
    pub(in crate::engine::ops) fn aligned_apply(
        &self,
        p: &Planes<'_, '_>,
        cut: &Cut,
        mean: Ptr,
        rstd: Ptr,
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

    /// Rows or groups by the kernels for aligned items; `None` where these do not apply.
    pub(in crate::engine::ops) fn aligned_rows(&self, r: &RowProblem<'_>, act: &Act) -> Option<Result<()>> {
        let y = r.y.as_view();
        let sum = r.sum.as_ref().map(ViewMut::as_view);
        let operands: Vec<&View<'_>> =
            [Some(&r.x), r.residual.as_ref(), Some(&y), sum.as_ref()].into_iter().flatten().collect();
        if r.inner > 0 {
            return self.aligned_groups(r, act, self.aligned_sum_cut(&operands, r.rows, r.cols)?);
        }
        let cut = self.aligned_cut(&operands, r.rows, r.cols)?;
        let dt = r.x.dtype();
        let per_column = [&r.gamma, &r.beta].into_iter().flatten().all(aligned16);
        let keep = if r.residual.is_none() { KEEP_LONG } else { KEEP };
        if !per_column
            || r.var.is_some()
            || (r.residual.is_none() && sum.is_some())
            || cut.items > keep * LANES
        {
            return None;
        }
        // Decoding 16-bit values twice for the mean costs more than the lanes that fewer of them leave idle.
        let long = cut.items > KEEP * LANES || (dt.is_half() && !r.rms && cut.items >= 2 * LANES);
        let (kernel, keep) = match (r.residual.is_some(), long) {
            (true, _) => (&NORM_ROWS_ALIGNED_ADD, KEEP),
            (false, false) => (&NORM_ROWS_ALIGNED, KEEP),
            (false, true) => (&NORM_ROWS_ALIGNED_LOOPED, KEEP_LONG),
        };
        // A few long rows are cut by the general kernels.
        if r.rows < self.device_caps().compute_units as usize / 4 && cut.items > LANES {
            return None;
        }
        let bits = self.aligned_bits(r.rows, cut.items, keep);
        let args = NormRowsAlignedArgs {
            x: self.arg_in(&r.x),
            r: self.arg_opt(r.residual.as_ref()),
            gamma: self.arg_opt(r.gamma.as_ref()),
            beta: self.arg_opt(r.beta.as_ref()),
            y: self.arg_in(&y),
            s: self.arg_opt(sum.as_ref()),
            mean: self.arg_opt_out(r.mean.as_ref()),
            rstd: self.arg_opt_out(r.rstd.as_ref()),
            rows: int(r.rows),
            items: int(cut.items),
            bits: bits as i32,
            raw: i32::from(r.rms),
            eps: r.eps,
            offset: r.offset,
            act: act.number,
            p: act.p,
        };
        let grid = Grid::Blocks([r.rows.div_ceil(LANES >> bits), 1, 1]);
        Some(self.launch(kernel, dt, act.unit, grid, &args))
    }

    /// Groups too long for registers: statistics of runs, joined, then the map over planes.
    fn aligned_groups(&self, r: &RowProblem<'_>, act: &Act, cut: Cut) -> Option<Result<()>> {
        let planes = Planes {
            x: r.x,
            residual: None,
            gamma: r.gamma,
            beta: r.beta,
            y: &r.y,
            channels: r.groups * r.cg,
            share: r.cg,
        };
        if r.residual.is_some()
            || r.sum.is_some()
            || r.var.is_some()
            || r.rms
            || r.offset != 0.0
            || cut.items < SHORT_GROUP
        {
            return None;
        }
        let over = self.aligned_planes(&planes, r.rows * r.cg, r.inner)?;
        if let Some(bits) = self.set_bits(r.rows, r.cg, over.items, cut.items * 16) {
            return Some(self.aligned_sets_launch(r, act, over.items, bits));
        }
        Some(self.aligned_groups_launch(r, act, &planes, &cut, &over))
    }

    fn aligned_sets_launch(&self, r: &RowProblem<'_>, act: &Act, items: usize, bits: u32) -> Result<()> {
        let dt = r.x.dtype();
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
        self.launch(&NORM_SETS_ALIGNED, dt, act.unit, Grid::Blocks([r.rows, 1, 1]), &args)
    }

    fn aligned_groups_launch(
        &self,
        r: &RowProblem<'_>,
        act: &Act,
        planes: &Planes<'_, '_>,
        cut: &Cut,
        over: &Cut,
    ) -> Result<()> {
        let dt = r.x.dtype();
        let part = self.aligned_part(act.unit, &r.x, cut)?;
        let (mean, _m) = self.stat(r.mean.as_ref(), dt, r.rows)?;
        let (rstd, _r) = self.stat(r.rstd.as_ref(), dt, r.rows)?;
        let set =
            Sets { outer: 1, sets: r.rows, inner: cut.splits, chunk: cut.chunk_elements(dt), total: r.cols };
        let pp = self.arg_in(&part.view());
        self.norm_join(dt, act.unit, pp, mean, rstd, &set, false, false, r.eps, None)?;
        self.aligned_apply(planes, over, mean, rstd, act)
    }
}
