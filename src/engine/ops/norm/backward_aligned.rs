//! Normalization, backward, of rows and planes that consist of whole aligned 16-byte items.

use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::norm::backward::{Back, BackInputs, Planes, Sums};
use crate::engine::ops::norm::cut::{Cut, CutArgs};
use crate::error::Result;
use crate::spec::Kernel;
use crate::spec::kernels::norm::*;

/// The kernels of [`super::backward_plan::ROW_KERNELS`].
const ROW_KERNELS: [&Kernel<NormBwdRowsArgs>; 2] = [&NORM_BWD_ROWS_16, &NORM_BWD_ROWS_32];

impl Engine {
    /// Gradient of rows in the registers of `1 << bits` threads each: dx and the sums for the parameters in one pass.
    pub(super) fn aligned_back_rows(
        &self,
        b: &Back<'_>,
        rows: usize,
        raw: bool,
        kernel: usize,
        [items, blocks]: [usize; 2],
        bits: u32,
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
            bits: bits as i32,
            second: long(second),
            raw: i32::from(raw),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
        };
        self.launch(ROW_KERNELS[kernel], dt, b.act.unit, Grid::Blocks([blocks, 1, 1]), &args)?;
        match part {
            Some(part) => self.back_params(b, &Sums { part, outer: blocks, sets: cols, inner: 1, second }),
            None => Ok(()),
        }
    }

    /// Gradient of groups that a block reads twice, the second time from a cache.
    pub(super) fn aligned_back_groups(
        &self,
        b: &Back<'_>,
        p: &Planes,
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
            sets: int(p.rows / p.share),
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
    pub(super) fn aligned_back_part(&self, b: &Back<'_>, p: &Planes, cut: &Cut, sets: usize) -> Result<Sums> {
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
    pub(super) fn aligned_back_apply(
        &self,
        b: &Back<'_>,
        p: &Planes,
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
