//! Normalization, backward, of rows and planes that consist of whole aligned 16-byte items.

use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, int, long, pow2};
use crate::engine::ops::norm::aligned::{Cut, CutArgs, SET_CACHE, fits_i32};
use crate::engine::ops::norm::backward::{Back, BackInputs, Plan, Sums};
use crate::error::Result;
use crate::spec::Kernel;
use crate::spec::kernels::norm::*;

/// A kernel for rows of at most `values` per work-item, and how many of its blocks fit on a multiprocessor at a time.
struct RowKernel {
    values: usize,
    kernel: &'static Kernel<NormBwdRowsArgs>,
    resident: usize,
}

/// Blocks, at most `most`, for so many pieces of work, with equal shares: no block waits for a few that have one piece more.
fn aligned_blocks(pieces: usize, most: usize) -> usize {
    pieces.div_ceil(pieces.div_ceil(most.max(1)).max(1)).max(1)
}

impl Engine {
    /// Gradient of rows that fit in registers: dx and the sums for the parameters in one pass. `None` where they do not.
    pub(in crate::engine::ops) fn aligned_back_rows(
        &self,
        b: &Back<'_>,
        rows: usize,
        cols: usize,
        raw: bool,
    ) -> Option<Result<()>> {
        let dt = b.dt();
        let w = 16 / dt.size();
        let items = cols / w;
        let units = self.device_caps().compute_units as usize;
        let small = rows * cols < 1 << 18;
        let kernels = [
            RowKernel { values: 16, kernel: &NORM_BWD_ROWS_16, resident: 2 },
            RowKernel { values: 32, kernel: &NORM_BWD_ROWS_32, resident: 1 },
        ];
        let k = kernels.into_iter().find(|k| cols <= k.values * LANES)?;
        let whole = cols.is_multiple_of(w) && b.aligned() && b.affine_aligned();
        // The row index after the last row must fit an i32 too.
        if !whole || !fits_i32(rows.checked_mul(2)?.checked_add(1 << 20)?) || (!small && rows < units) {
            return None;
        }
        let lanes = pow2(items.div_ceil(k.values / w), LANES).max(pow2(items, 8));
        // With parameters the grid is what is resident at a time, so that there are few partial sums.
        let most = if b.params() { units * k.resident } else { self.target_blocks() * 16 };
        let blocks = aligned_blocks(rows.div_ceil(LANES / lanes), most);
        Some(self.aligned_back_rows_launch(b, rows, items, raw, k.kernel, lanes, blocks))
    }

    #[allow(clippy::too_many_arguments)]
    fn aligned_back_rows_launch(
        &self,
        b: &Back<'_>,
        rows: usize,
        items: usize,
        raw: bool,
        kernel: &'static Kernel<NormBwdRowsArgs>,
        lanes: usize,
        blocks: usize,
    ) -> Result<()> {
        let dt = b.dt();
        let cols = items * (16 / dt.size());
        let second = blocks * cols;
        let part = b.params().then(|| self.scratch(dt.accumulator(), 2 * second)).transpose()?;
        let BackInputs { dy, x, gamma, beta, y, mean, rstd, .. } = self.back_inputs(b);
        let args = NormBwdRowsArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            mean,
            rstd,
            add: self.arg_opt(b.add.as_ref()),
            dx: self.grad_arg(&b.dx),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            rows: int(rows),
            items: int(items),
            bits: lanes.trailing_zeros() as i32,
            second: long(second),
            raw: i32::from(raw),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
        };
        self.launch(kernel, dt, b.act.unit, Grid::Blocks([blocks, 1, 1]), &args)?;
        match part {
            Some(part) => self.back_params(b, &Sums { part, outer: blocks, sets: cols, inner: 1, second }),
            None => Ok(()),
        }
    }

    /// Gradient of groups that a block reads twice, the second time from a cache; `None` where they are too few or too long.
    pub(in crate::engine::ops) fn aligned_back_sets(&self, b: &Back<'_>, p: &Plan) -> Option<Result<()>> {
        let cut = self.aligned_cut(&b.terms(), p.rows, p.cols).filter(|_| b.aligned())?;
        let bytes = p.share * cut.items * 16 * b.terms().len();
        let sets = p.rows / p.share;
        let bits = self.set_bits(sets, p.share, cut.items, bytes)?;
        // Short sets are taken by short-lived blocks, of long ones no more at a time than the caches hold.
        let (units, resident) = (self.device_caps().compute_units as usize, SET_CACHE / bytes.max(1));
        let blocks = if resident > 4 { sets } else { (units * resident.max(2)).min(sets) };
        Some(self.aligned_back_sets_launch(b, p, sets, cut.items, bits, blocks))
    }

    fn aligned_back_sets_launch(
        &self,
        b: &Back<'_>,
        p: &Plan,
        sets: usize,
        items: usize,
        bits: u32,
        blocks: usize,
    ) -> Result<()> {
        let dt = b.dt();
        let part = b.params().then(|| self.scratch(dt.accumulator(), 2 * p.rows)).transpose()?;
        let BackInputs { dy, x, gamma, beta, y, mean, rstd, .. } = self.back_inputs(b);
        let args = NormBwdSetsArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            mean,
            rstd,
            add: self.arg_opt(b.add.as_ref()),
            dx: self.grad_arg(&b.dx),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            sets: int(sets),
            share: int(p.share),
            channels: int(p.groups),
            items: int(items),
            bits: bits as i32,
            second: long(p.rows),
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
        };
        self.launch(&NORM_BWD_SETS, dt, b.act.unit, Grid::Blocks([blocks, 1, 1]), &args)?;
        let Some(part) = part else { return Ok(()) };
        let outer = p.rows / p.groups;
        self.back_params(b, &Sums { part, outer, sets: p.groups, inner: 1, second: p.rows })
    }

    /// Sums along the runs of planes.
    pub(in crate::engine::ops) fn aligned_back_part(
        &self,
        b: &Back<'_>,
        p: &Plan,
        cut: &Cut,
        sets: usize,
    ) -> Result<Sums> {
        let dt = b.dt();
        let second = cut.runs;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let CutArgs { runs, items, splits, chunk, bits } = cut.args();
        let args = NormBwdPartialAlignedArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            part: self.arg_in(&part.view()),
            runs,
            items,
            splits,
            chunk,
            bits,
            channels: int(p.groups),
            share: int(p.share),
            second: long(second),
            act: b.act.number,
            p: b.act.p,
        };
        self.launch(&NORM_BWD_PARTIAL_ALIGNED, dt, b.act.unit, cut.grid(), &args)?;
        Ok(Sums { part, outer: p.rows / sets, sets, inner: cut.splits, second })
    }

    /// dx of planes whose means are known.
    pub(in crate::engine::ops) fn aligned_back_apply(
        &self,
        b: &Back<'_>,
        p: &Plan,
        cut: &Cut,
        coef: Option<&Buffer>,
    ) -> Result<()> {
        let coef = coef.map(Buffer::view);
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let CutArgs { runs, items, splits, chunk, bits } = cut.args();
        let args = NormBwdApplyAlignedArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            coef: self.arg_opt(coef.as_ref()),
            add: self.arg_opt(b.add.as_ref()),
            dx: self.grad_arg(&b.dx),
            dr: self.grad_arg(&b.dresidual),
            runs,
            items,
            splits,
            chunk,
            bits,
            channels: int(p.groups),
            share: int(p.share),
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
            accumulate_r: b.adds(&b.dresidual),
        };
        self.launch(&NORM_BWD_APPLY_ALIGNED, b.dt(), b.act.unit, cut.grid(), &args)
    }
}
