//! Normalization, backward, of rows and planes that consist of whole aligned 16-byte items.

use crate::spec::kernels::norm::*;
use crate::buffer::Buffer;
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, int, long, pow2, real};
use crate::engine::ops::norm::aligned::{Cut, SET_CACHE, fits_i32};
use crate::engine::ops::norm::backward::{Back, Plan, Sums};
use crate::error::Result;
use crate::spec::KernelSpec;

/// A kernel for rows of at most `values` per work-item, and how many of its blocks fit on a multiprocessor at a time.
struct RowKernel {
    values: usize,
    kernel: &'static KernelSpec,
    resident: usize,
}

/// At most `most` blocks for so many pieces of work, as many pieces for each: none waits for a few that take one more.
fn even_blocks(pieces: usize, most: usize) -> usize {
    pieces.div_ceil(pieces.div_ceil(most.max(1)).max(1)).max(1)
}

impl Engine {
    /// Gradient of rows that fit in registers: dx and the sums for the parameters in one pass. `None` where they do not.
    pub(in crate::engine::ops) fn even_back_rows(
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
            RowKernel { values: 16, kernel: &NORM_BWD_ROWS_16.spec, resident: 2 },
            RowKernel { values: 32, kernel: &NORM_BWD_ROWS_32.spec, resident: 1 },
        ];
        let k = kernels.into_iter().find(|k| cols <= k.values * LANES)?;
        let whole = cols.is_multiple_of(w) && b.aligned() && b.affine_aligned();
        // The step behind the last row must not leave the range of an i32 either.
        if !whole || !fits_i32(rows.checked_mul(2)?.checked_add(1 << 20)?) || (!small && rows < units) {
            return None;
        }
        let lanes = pow2(items.div_ceil(k.values / w), LANES).max(pow2(items, 8));
        // With parameters the grid is what is resident at a time, so that there are few partial sums.
        let most = if b.params() { units * k.resident } else { self.fill() * 16 };
        let blocks = even_blocks(rows.div_ceil(LANES / lanes), most);
        Some(self.even_back_rows_launch(b, rows, items, raw, k.kernel, lanes, blocks))
    }

    /// What the kernels that make dx and partial sums in one launch begin with.
    fn even_back_operands(&self, b: &Back<'_>, part: Option<&Buffer>) -> Vec<Arg> {
        let [dy, x, gamma, beta, y, _, mean, rstd] = self.back_inputs(b);
        let part = part.map(Buffer::view);
        let (add, dx) = (self.arg_opt(b.add.as_ref()), self.grad_arg(&b.dx));
        vec![dy, x, gamma, beta, y, mean, rstd, add, dx, self.arg_opt(part.as_ref())]
    }

    #[allow(clippy::too_many_arguments)]
    fn even_back_rows_launch(
        &self,
        b: &Back<'_>,
        rows: usize,
        items: usize,
        raw: bool,
        kernel: &'static KernelSpec,
        lanes: usize,
        blocks: usize,
    ) -> Result<()> {
        let dt = b.dt();
        let cols = items * (16 / dt.size());
        let second = blocks * cols;
        let part = b.params().then(|| self.scratch(dt.accumulator(), 2 * second)).transpose()?;
        let mut args = self.even_back_operands(b, part.as_ref());
        args.extend([
            int(rows),
            int(items),
            Arg::I32(lanes.trailing_zeros() as i32),
            long(second),
            int(raw as usize),
            real(dt, b.offset),
            b.act.args[0],
            b.act.args[1],
            b.adds(&b.dx),
        ]);
        self.launch_list(kernel, dt, b.act.unit, Grid::Blocks([blocks, 1, 1]), &args)?;
        match part {
            Some(part) => self.back_params(b, &Sums { part, outer: blocks, sets: cols, inner: 1, second }),
            None => Ok(()),
        }
    }

    /// Gradient of groups that a block reads twice, the second time from a cache; `None` where they are too few or too long.
    pub(in crate::engine::ops) fn even_back_sets(&self, b: &Back<'_>, p: &Plan) -> Option<Result<()>> {
        let cut = self.even_cut(&b.terms(), p.rows, p.cols).filter(|_| b.aligned())?;
        let bytes = p.share * cut.items * 16 * b.terms().len();
        let sets = p.rows / p.share;
        let bits = self.set_bits(sets, p.share, cut.items, bytes)?;
        // Short sets are taken by short-lived blocks, of long ones no more at a time than the caches hold.
        let (units, resident) = (self.device_caps().compute_units as usize, SET_CACHE / bytes.max(1));
        let blocks = if resident > 4 { sets } else { (units * resident.max(2)).min(sets) };
        Some(self.even_back_sets_launch(b, p, sets, cut.items, Arg::I32(bits as i32), blocks))
    }

    fn even_back_sets_launch(
        &self,
        b: &Back<'_>,
        p: &Plan,
        sets: usize,
        items: usize,
        bits: Arg,
        blocks: usize,
    ) -> Result<()> {
        let dt = b.dt();
        let part = b.params().then(|| self.scratch(dt.accumulator(), 2 * p.rows)).transpose()?;
        let mut args = self.even_back_operands(b, part.as_ref());
        args.extend([
            int(sets),
            int(p.share),
            int(p.groups),
            int(items),
            bits,
            long(p.rows),
            b.act.args[0],
            b.act.args[1],
            b.adds(&b.dx),
        ]);
        self.launch_list(&NORM_BWD_SETS.spec, dt, b.act.unit, Grid::Blocks([blocks, 1, 1]), &args)?;
        let Some(part) = part else { return Ok(()) };
        let outer = p.rows / p.groups;
        self.back_params(b, &Sums { part, outer, sets: p.groups, inner: 1, second: p.rows })
    }

    /// Sums along the runs of planes.
    pub(in crate::engine::ops) fn even_back_part(
        &self,
        b: &Back<'_>,
        p: &Plan,
        cut: &Cut,
        sets: usize,
    ) -> Result<Sums> {
        let dt = b.dt();
        let second = cut.runs;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
        let mut args = self.back_inputs(b).to_vec();
        args.push(self.arg_in(&part.view()));
        args.extend(cut.args());
        args.extend([int(p.groups), int(p.share), long(second), b.act.args[0], b.act.args[1]]);
        self.launch_list(&NORM_BWD_PART_EVEN.spec, dt, b.act.unit, cut.grid(), &args)?;
        Ok(Sums { part, outer: p.rows / sets, sets, inner: cut.splits, second })
    }

    /// dx of planes whose means are known.
    pub(in crate::engine::ops) fn even_back_apply(
        &self,
        b: &Back<'_>,
        p: &Plan,
        cut: &Cut,
        coef: Option<&Buffer>,
    ) -> Result<()> {
        let coef = coef.map(Buffer::view);
        let mut args = self.back_inputs(b).to_vec();
        args.extend([
            self.arg_opt(coef.as_ref()),
            self.arg_opt(b.add.as_ref()),
            self.grad_arg(&b.dx),
            self.grad_arg(&b.dresidual),
        ]);
        args.extend(cut.args());
        args.extend([
            int(p.groups),
            int(p.share),
            b.act.args[0],
            b.act.args[1],
            b.adds(&b.dx),
            b.adds(&b.dresidual),
        ]);
        self.launch_list(&NORM_BWD_APPLY_EVEN.spec, b.dt(), b.act.unit, cut.grid(), &args)
    }
}
