//! Normalization, backward.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, int, long, pow2};
use crate::engine::ops::norm::{Act, SHORT_PLANE, join_tx};
use crate::error::Result;
use crate::ops::norm::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::norm::*;

/// Operands of a gradient, whatever the kind of normalization.
pub(in crate::engine::ops) struct Back<'a> {
    pub(in crate::engine::ops) dy: View<'a>,
    pub(in crate::engine::ops) x: View<'a>,
    pub(in crate::engine::ops) residual: Option<View<'a>>,
    pub(in crate::engine::ops) gamma: Option<View<'a>>,
    pub(in crate::engine::ops) beta: Option<View<'a>>,
    pub(in crate::engine::ops) y: Option<View<'a>>,
    pub(in crate::engine::ops) mean: Option<View<'a>>,
    pub(in crate::engine::ops) rstd: View<'a>,
    pub(in crate::engine::ops) add: Option<View<'a>>,
    pub(in crate::engine::ops) dx: Option<GradMut<'a>>,
    pub(in crate::engine::ops) dresidual: Option<GradMut<'a>>,
    pub(in crate::engine::ops) dgamma: Option<GradMut<'a>>,
    pub(in crate::engine::ops) dbeta: Option<GradMut<'a>>,
    pub(in crate::engine::ops) offset: f64,
    pub(in crate::engine::ops) act: Act,
}

/// Rows, and where their statistics and parameters are.
pub(in crate::engine::ops) struct Plan {
    pub(in crate::engine::ops) rows: usize,
    pub(in crate::engine::ops) cols: usize,
    /// Elements per channel (then a row is one); 0 where parameters are per column.
    pub(in crate::engine::ops) inner: usize,
    /// Channels.
    pub(in crate::engine::ops) groups: usize,
    /// Rows that share statistics; 0 for those of a channel.
    pub(in crate::engine::ops) share: usize,
}

/// Partial sums (i * sets + j) * inner + k of set j.
pub(in crate::engine::ops) struct Sums {
    pub(in crate::engine::ops) part: Buffer,
    pub(in crate::engine::ops) outer: usize,
    pub(in crate::engine::ops) sets: usize,
    pub(in crate::engine::ops) inner: usize,
    pub(in crate::engine::ops) second: usize,
}

/// Means over each set that dx needs besides the set's statistics.
struct Means {
    /// mean(g) and mean(g * xh).
    coef: Buffer,
    /// Whether a set has one element, which equals its own mean.
    alone: bool,
}

fn aligned(v: &Option<View<'_>>) -> bool {
    v.as_ref().is_none_or(aligned16)
}

impl<'a> Back<'a> {
    pub(in crate::engine::ops) fn dt(&self) -> DType {
        self.x.dtype()
    }

    /// Whether gradients of parameters are wanted.
    pub(in crate::engine::ops) fn params(&self) -> bool {
        self.dgamma.is_some() || self.dbeta.is_some()
    }

    pub(in crate::engine::ops) fn terms(&self) -> Vec<&View<'a>> {
        [Some(&self.dy), Some(&self.x), self.y.as_ref(), self.residual.as_ref()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Whether the elementwise operands and results all start aligned.
    pub(in crate::engine::ops) fn aligned(&self) -> bool {
        let out = |g: &Option<GradMut<'_>>| g.as_ref().is_none_or(|g| aligned16(&g.out.as_view()));
        self.terms().into_iter().all(aligned16) && aligned(&self.add) && out(&self.dx) && out(&self.dresidual)
    }

    /// Flag of a kernel: whether a gradient is added to what is there.
    pub(in crate::engine::ops) fn adds(&self, g: &Option<GradMut<'_>>) -> i32 {
        i32::from(g.as_ref().is_some_and(|g| g.accumulate))
    }

    pub(in crate::engine::ops) fn affine_aligned(&self) -> bool {
        aligned(&self.gamma) && aligned(&self.beta)
    }
}

/// Inputs that the kernels have in common.
pub(in crate::engine::ops) struct BackInputs {
    pub(in crate::engine::ops) dy: Ptr,
    pub(in crate::engine::ops) x: Ptr,
    pub(in crate::engine::ops) gamma: Ptr,
    pub(in crate::engine::ops) beta: Ptr,
    pub(in crate::engine::ops) y: Ptr,
    /// Residual.
    pub(in crate::engine::ops) r: Ptr,
    pub(in crate::engine::ops) mean: Ptr,
    pub(in crate::engine::ops) rstd: Ptr,
}

impl Engine {
    /// The inputs of a gradient as the kernels take them.
    pub(in crate::engine::ops) fn back_inputs(&self, b: &Back<'_>) -> BackInputs {
        BackInputs {
            dy: self.arg_in(&b.dy),
            x: self.arg_in(&b.x),
            gamma: self.arg_opt(b.gamma.as_ref()),
            beta: self.arg_opt(b.beta.as_ref()),
            y: self.arg_opt(b.y.as_ref()),
            r: self.arg_opt(b.residual.as_ref()),
            mean: self.arg_opt(b.mean.as_ref()),
            rstd: self.arg_in(&b.rstd),
        }
    }

    pub(in crate::engine::ops) fn grad_arg(&self, g: &Option<GradMut<'_>>) -> Ptr {
        self.arg_opt_out(g.as_ref().map(|g| &g.out))
    }

    /// Parameter gradients of an empty batch.
    fn no_params(&self, b: Back<'_>) -> Result<()> {
        let grads = [b.dgamma, b.dbeta].into_iter().flatten();
        grads.filter(|g| !g.accumulate).try_for_each(|g| ShapeOps::fill(self, 0.0, g.out))
    }

    pub(in crate::engine::ops) fn back_params(&self, b: &Back<'_>, s: &Sums) -> Result<()> {
        // Adjacent work-items fill a memory sector of 32 bytes; more of them would leave too few for each set.
        let tx = match s.inner == 1 {
            true => LANES / pow2(s.outer, 32),
            false => join_tx(s.outer, s.inner),
        };
        let args = NormBwdParamsArgs {
            part: self.arg_in(&s.part.view()),
            dgamma: self.grad_arg(&b.dgamma),
            dbeta: self.grad_arg(&b.dbeta),
            outer: long(s.outer),
            sets: long(s.sets),
            inner: long(s.inner),
            second: long(s.second),
            tx: int(tx),
            accumulate_gamma: b.adds(&b.dgamma),
            accumulate_beta: b.adds(&b.dbeta),
        };
        self.launch(&NORM_BWD_PARAMS, b.dt(), b.act.unit, Grid::Blocks([s.sets.div_ceil(tx), 1, 1]), &args)
    }

    /// Sums along the rows of a plan, one per row and run: outer * sets = rows.
    fn back_rows(&self, b: &Back<'_>, p: &Plan, sets: usize) -> Result<Sums> {
        let dt = b.dt();
        if let Some(cut) = self.aligned_sum_cut(&b.terms(), p.rows, p.cols).filter(|_| p.inner > 0) {
            return self.aligned_back_part(b, p, &cut, sets);
        }
        let walk = self.plan_rows(p.rows, p.cols, 8 * 16 / dt.size(), &b.terms());
        let second = p.rows * walk.splits;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
        // A row of one channel has one parameter; columns have theirs, aligned with the items or not.
        let whole = walk.phase == 0 && p.cols.is_multiple_of(16 / dt.size());
        let affine = p.inner > 0 || (whole && b.affine_aligned());
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let args = NormBwdPartialArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            part: self.arg_in(&part.view()),
            rows: long(p.rows),
            cols: long(p.cols),
            inner: long(p.inner),
            groups: long(p.groups),
            share: long(p.share),
            splits: int(walk.splits),
            chunk: long(walk.chunk),
            second: long(second),
            lanes: int(walk.lanes),
            wide: i32::from(walk.wide),
            affine: i32::from(affine),
            phase: int(walk.phase),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
        };
        self.launch(&NORM_BWD_PARTIAL, dt, b.act.unit, self.row_grid(second, &walk), &args)?;
        Ok(Sums { part, outer: p.rows / sets, sets, inner: walk.splits, second })
    }

    /// Sums down the columns of [n, cols]; `inner` columns make up a channel (0: each is a parameter of its own).
    fn back_cols(&self, b: &Back<'_>, n: usize, cols: usize, inner: usize) -> Result<Sums> {
        let dt = b.dt();
        let w = 16 / dt.size();
        let walk = self.plan_columns(n, cols, &b.terms());
        let second = walk.chunks * cols;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
        let affine = if inner == 0 { b.affine_aligned() } else { inner.is_multiple_of(w) };
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let args = NormBwdColumnsArgs {
            dy,
            x,
            gamma,
            beta,
            y,
            r,
            mean,
            rstd,
            part: self.arg_in(&part.view()),
            n: long(n),
            cols: long(cols),
            inner: long(inner),
            chunk: long(walk.chunk),
            chunks: int(walk.chunks),
            second: long(second),
            tx: int(walk.tx),
            wide: i32::from(walk.wide),
            affine: i32::from(affine),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
        };
        let grid = Grid::Blocks([walk.tiles * walk.chunks, 1, 1]);
        self.launch(&NORM_BWD_COLUMNS, dt, b.act.unit, grid, &args)?;
        let inner = inner.max(1);
        Ok(Sums { part, outer: walk.chunks, sets: cols / inner, inner, second })
    }

    /// mean(g) and mean(g * xh) of each set of n elements. `weighted`: gamma of channel (j * cg + k / splits) % groups, given as those three.
    fn back_coef(
        &self,
        b: &Back<'_>,
        s: &Sums,
        n: usize,
        raw: bool,
        weighted: Option<[usize; 3]>,
    ) -> Result<Means> {
        let dt = b.dt();
        let coef = self.scratch(dt.accumulator(), 2 * s.sets)?;
        let tx = join_tx(s.outer, s.inner);
        let [cg, splits, groups] = weighted.unwrap_or([1, 1, 1]);
        let args = NormBwdCoefficientsArgs {
            part: self.arg_in(&s.part.view()),
            gamma: self.arg_opt(b.gamma.as_ref().filter(|_| weighted.is_some())),
            coef: self.arg_in(&coef.view()),
            outer: long(s.outer),
            sets: long(s.sets),
            inner: long(s.inner),
            second: long(s.second),
            tx: int(tx),
            cg: long(cg),
            splits: long(splits),
            groups: long(groups),
            n: n as f64,
            raw: i32::from(raw),
            offset: b.offset,
        };
        self.launch(
            &NORM_BWD_COEFFICIENTS,
            dt,
            b.act.unit,
            Grid::Blocks([s.sets.div_ceil(tx), 1, 1]),
            &args,
        )?;
        Ok(Means { coef, alone: n == 1 && !raw })
    }

    fn back_apply(&self, b: &Back<'_>, p: &Plan, means: Option<&Means>) -> Result<()> {
        let dt = b.dt();
        let coef = means.map(|m| &m.coef);
        if let Some(cut) = self.aligned_cut(&b.terms(), p.rows, p.cols).filter(|_| p.inner > 0 && b.aligned())
        {
            return self.aligned_back_apply(b, p, &cut, coef);
        }
        let wide = b.aligned() && p.cols.is_multiple_of(16 / dt.size());
        let affine = p.inner > 0 || b.affine_aligned();
        let coef = coef.map(Buffer::view);
        let BackInputs { dy, x, gamma, beta, y, r, mean, rstd } = self.back_inputs(b);
        let args = NormBwdApplyArgs {
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
            n: long(p.rows * p.cols),
            cols: long(p.cols),
            inner: long(p.inner),
            groups: long(p.groups),
            share: long(p.share),
            wide: i32::from(wide),
            affine: i32::from(affine),
            alone: i32::from(means.is_some_and(|m| m.alone)),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
            accumulate: b.adds(&b.dx),
            accumulate_r: b.adds(&b.dresidual),
        };
        self.launch(&NORM_BWD_APPLY, dt, b.act.unit, self.map_grid(p.rows * p.cols, wide, dt, 2), &args)
    }
}

impl NormBackwardOps for Engine {
    fn row_norm_bwd(&self, p: &RowNorm, io: RowNormBwd<'_>) -> Result<()> {
        let (o, [rows, cols]) = check_row_norm_bwd(p, &io)?;
        self.check_owners(&o)?;
        let b = Back {
            dy: io.dy,
            x: io.x,
            residual: None,
            gamma: io.gamma,
            beta: io.beta,
            y: io.y.filter(|y| from_result(p.act, Some(y))),
            mean: io.mean,
            rstd: io.rstd,
            add: io.add,
            dx: io.dx,
            dresidual: None,
            dgamma: io.dgamma,
            dbeta: io.dbeta,
            offset: p.gamma_offset,
            act: Act::new(o.op, p.act)?,
        };
        if rows == 0 {
            return self.no_params(b);
        }
        if b.dx.is_none() && !b.params() {
            return Ok(());
        }
        if let Some(done) = self.aligned_back_rows(&b, rows, cols, p.rms) {
            return done;
        }
        if b.params() {
            let sums = self.back_cols(&b, rows, cols, 0)?;
            self.back_params(&b, &sums)?;
        }
        if b.dx.is_none() {
            return Ok(());
        }
        let plan = Plan { rows, cols, inner: 0, groups: 1, share: 1 };
        let sums = self.back_rows(&b, &plan, rows)?;
        let means = self.back_coef(&b, &sums, cols, p.rms, None)?;
        self.back_apply(&b, &plan, Some(&means))
    }

    fn group_norm_bwd(&self, p: &GroupNorm, io: GroupNormBwd<'_>) -> Result<()> {
        let (o, [n, c, s]) = check_group_norm_bwd(p, &io)?;
        self.check_owners(&o)?;
        let b = Back {
            dy: io.dy,
            x: io.x,
            residual: None,
            gamma: io.gamma,
            beta: io.beta,
            y: io.y.filter(|y| from_result(p.act, Some(y))),
            mean: Some(io.mean),
            rstd: io.rstd,
            add: io.add,
            dx: io.dx,
            dresidual: None,
            dgamma: io.dgamma,
            dbeta: io.dbeta,
            offset: 0.0,
            act: Act::new(o.op, p.act)?,
        };
        if n * s == 0 {
            return self.no_params(b);
        }
        if b.dx.is_none() && !b.params() {
            return Ok(());
        }
        let cg = c / p.groups;
        let plan = Plan { rows: n * c, cols: s, inner: s, groups: c, share: cg };
        if let Some(done) = self.aligned_back_sets(&b, &plan) {
            return done;
        }
        let sums = self.back_rows(&b, &plan, c)?;
        if b.params() {
            self.back_params(&b, &sums)?;
        }
        if b.dx.is_none() {
            return Ok(());
        }
        let splits = sums.inner;
        let sets = Sums { outer: 1, sets: n * p.groups, inner: cg * splits, ..sums };
        let means = self.back_coef(&b, &sets, cg * s, false, Some([cg, splits, c]))?;
        self.back_apply(&b, &plan, Some(&means))
    }

    fn batch_norm_bwd(&self, p: &BatchNorm, io: BatchNormBwd<'_>) -> Result<()> {
        let (o, [n, c, s]) = check_batch_norm_bwd(p, &io)?;
        self.check_owners(&o)?;
        let training = io.training;
        let b = Back {
            dy: io.dy,
            x: io.x,
            residual: io.residual,
            gamma: io.gamma,
            beta: io.beta,
            y: io.y.filter(|y| from_result(p.act, Some(y))),
            mean: Some(io.mean),
            rstd: io.rstd,
            add: None,
            dx: io.dx,
            dresidual: io.dresidual,
            dgamma: io.dgamma,
            dbeta: io.dbeta,
            offset: 0.0,
            act: Act::new(o.op, p.act)?,
        };
        if n * s == 0 {
            return self.no_params(b);
        }
        let plan = Plan { rows: n * c, cols: s, inner: s, groups: c, share: 0 };
        let mut means = None;
        if b.params() || (b.dx.is_some() && training) {
            let sums = match s < SHORT_PLANE {
                true => self.back_cols(&b, n, c * s, s)?,
                false => self.back_rows(&b, &plan, c)?,
            };
            if b.params() {
                self.back_params(&b, &sums)?;
            }
            if b.dx.is_some() && training {
                means = Some(self.back_coef(&b, &sums, n * s, false, Some([1, sums.inner, c]))?);
            }
        }
        if b.dx.is_none() && b.dresidual.is_none() {
            return Ok(());
        }
        self.back_apply(&b, &plan, means.as_ref())
    }
}
