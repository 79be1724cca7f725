//! Normalization, backward.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, LANES, aligned16, int, long, pow2};
use crate::engine::ops::norm::backward_plan::*;
use crate::engine::ops::norm::{Act, join_tx};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::norm::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::norm::*;

/// Operands of a gradient, whatever the kind of normalization.
pub(super) struct Back<'a> {
    pub(super) dy: View<'a>,
    pub(super) x: View<'a>,
    pub(super) residual: Option<View<'a>>,
    pub(super) gamma: Option<View<'a>>,
    pub(super) beta: Option<View<'a>>,
    pub(super) y: Option<View<'a>>,
    pub(super) mean: Option<View<'a>>,
    pub(super) rstd: View<'a>,
    pub(super) add: Option<View<'a>>,
    pub(super) dx: Option<GradMut<'a>>,
    pub(super) dresidual: Option<GradMut<'a>>,
    pub(super) dgamma: Option<GradMut<'a>>,
    pub(super) dbeta: Option<GradMut<'a>>,
    pub(super) offset: f64,
    pub(super) act: Act,
}

/// Rows, or planes of one channel each, and where their statistics and parameters are.
pub(super) struct Planes {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Elements per channel (then a row is one); 0 where parameters are per column.
    pub(super) inner: usize,
    /// Channels.
    pub(super) groups: usize,
    /// Rows that share statistics; 0 for those of a channel.
    pub(super) share: usize,
}

/// Partial sums (i * sets + j) * inner + k of set j.
pub(super) struct Sums {
    pub(super) part: Buffer,
    pub(super) outer: usize,
    pub(super) sets: usize,
    pub(super) inner: usize,
    pub(super) second: usize,
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
    pub(super) fn dt(&self) -> DType {
        self.x.dtype()
    }

    /// Whether gradients of parameters are wanted.
    pub(super) fn params(&self) -> bool {
        self.dgamma.is_some() || self.dbeta.is_some()
    }

    /// What is summed.
    fn terms(&self) -> impl Iterator<Item = &View<'a>> {
        [Some(&self.dy), Some(&self.x), self.y.as_ref(), self.residual.as_ref()].into_iter().flatten()
    }

    /// What decides how a gradient of rows runs.
    fn row_problem(&self, [rows, cols]: [usize; 2]) -> RowNormBwdProblem {
        RowNormBwdProblem {
            rows,
            cols,
            terms: Alignment::of(self.dt(), self.terms()),
            aligned: self.aligned(),
            affine_aligned: aligned(&self.gamma) && aligned(&self.beta),
            params: self.params(),
        }
    }

    /// What decides how a gradient of planes [n, c, s] runs, `share` of which share statistics (0: those of a channel).
    fn plane_problem(&self, [n, c, s]: [usize; 3], share: usize) -> PlaneNormBwdProblem {
        PlaneNormBwdProblem {
            n,
            c,
            s,
            share,
            terms: Alignment::of(self.dt(), self.terms()),
            operands: self.terms().count(),
            slope_of_x: self.act.number != 0 && self.y.is_none(),
            aligned: self.aligned(),
        }
    }

    /// Whether the elementwise operands and results all start aligned.
    fn aligned(&self) -> bool {
        let out = |g: &Option<GradMut<'_>>| g.as_ref().is_none_or(|g| aligned16(&g.out.as_view()));
        self.terms().all(aligned16) && aligned(&self.add) && out(&self.dx) && out(&self.dresidual)
    }

    /// Flag of a kernel: whether a gradient is added to what is there.
    pub(super) fn adds(&self, g: &Option<GradMut<'_>>) -> i32 {
        i32::from(g.as_ref().is_some_and(|g| g.accumulate))
    }
}

/// Inputs that the kernels have in common.
pub(super) struct BackInputs {
    pub(super) dy: Ptr,
    pub(super) x: Ptr,
    pub(super) gamma: Ptr,
    pub(super) beta: Ptr,
    pub(super) y: Ptr,
    /// Residual.
    pub(super) r: Ptr,
    pub(super) mean: Ptr,
    pub(super) rstd: Ptr,
}

impl Engine {
    /// The inputs of a gradient as the kernels take them.
    pub(super) fn back_inputs(&self, b: &Back<'_>) -> BackInputs {
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

    pub(super) fn grad_arg(&self, g: &Option<GradMut<'_>>) -> Ptr {
        self.arg_opt_out(g.as_ref().map(|g| &g.out))
    }

    /// Parameter gradients of an empty batch.
    fn no_params(&self, b: Back<'_>) -> Result<()> {
        let grads = [b.dgamma, b.dbeta].into_iter().flatten();
        grads.filter(|g| !g.accumulate).try_for_each(|g| ShapeOps::fill(self, 0.0, g.out))
    }

    pub(super) fn back_params(&self, b: &Back<'_>, s: &Sums) -> Result<()> {
        // Adjacent threads fill a memory sector of 32 bytes; more of them would leave too few for each set.
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

    /// Sums along rows, one per row and run: outer * sets = rows.
    fn back_rows(&self, b: &Back<'_>, p: &Planes, plan: &RowSums, sets: usize) -> Result<Sums> {
        let (dt, RowSums { geometry, affine }) = (b.dt(), plan);
        let second = p.rows * geometry.splits;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
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
            splits: int(geometry.splits),
            chunk: long(geometry.chunk),
            second: long(second),
            lanes: int(geometry.lanes),
            wide: i32::from(geometry.wide),
            affine: i32::from(*affine),
            phase: int(geometry.phase),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
        };
        self.launch(&NORM_BWD_PARTIAL, dt, b.act.unit, geometry.grid(second, self.device_caps()), &args)?;
        Ok(Sums { part, outer: p.rows / sets, sets, inner: geometry.splits, second })
    }

    /// Sums down the columns of [n, cols]; `inner` columns make up a channel (0: each is a parameter of its own).
    fn back_cols(
        &self,
        b: &Back<'_>,
        [n, cols]: [usize; 2],
        inner: usize,
        plan: &ColumnSums,
    ) -> Result<Sums> {
        let (dt, ColumnSums { geometry, affine }) = (b.dt(), plan);
        let second = geometry.chunks * cols;
        let part = self.scratch(dt.accumulator(), 2 * second)?;
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
            chunk: long(geometry.chunk),
            chunks: int(geometry.chunks),
            second: long(second),
            tx: int(geometry.tx),
            wide: i32::from(geometry.wide),
            affine: i32::from(*affine),
            offset: b.offset,
            act: b.act.number,
            p: b.act.p,
        };
        self.launch(&NORM_BWD_COLUMNS, dt, b.act.unit, geometry.grid(), &args)?;
        let inner = inner.max(1);
        Ok(Sums { part, outer: geometry.chunks, sets: cols / inner, inner, second })
    }

    /// The sums of planes that belong to channels.
    fn back_planes(&self, b: &Back<'_>, p: &Planes, plan: &PlaneSums) -> Result<Sums> {
        match plan {
            PlaneSums::Columns(plan) => {
                self.back_cols(b, [p.rows / p.groups, p.groups * p.cols], p.cols, plan)
            }
            PlaneSums::Aligned(cut) => self.aligned_back_part(b, p, cut, p.groups),
            PlaneSums::Rows(plan) => self.back_rows(b, p, plan, p.groups),
        }
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

    /// Means over the sets of planes: groups of `share` channels, or (0) channels over all n.
    fn plane_means(&self, b: &Back<'_>, sums: Sums, [n, c, s]: [usize; 3], share: usize) -> Result<Means> {
        let splits = sums.inner;
        if share == 0 {
            return self.back_coef(b, &sums, n * s, false, Some([1, splits, c]));
        }
        let sets = Sums { outer: 1, sets: n * c / share, inner: share * splits, ..sums };
        self.back_coef(b, &sets, share * s, false, Some([share, splits, c]))
    }

    /// Gradient of planes [n, c, s], `share` of which share statistics (0: those of a channel); `training`: statistics are those of x.
    fn plane_norm_bwd(
        &self,
        op: &'static str,
        b: &Back<'_>,
        [n, c, s]: [usize; 3],
        share: usize,
        training: bool,
    ) -> Result<()> {
        let planes = Planes { rows: n * c, cols: s, inner: s, groups: c, share };
        let (sums, map) = match self.plan(op, &b.plane_problem([n, c, s], share))? {
            PlaneNormBwdPlan::Groups { items, bits, blocks } => {
                return self.aligned_back_groups(b, &planes, items, bits, blocks);
            }
            PlaneNormBwdPlan::ChannelsLast(rows) => {
                return self.channels_back(b, [n, c], &rows, training);
            }
            PlaneNormBwdPlan::Steps { sums, map } => (sums, map),
        };
        let mut means = None;
        let needs_means = b.dx.is_some() && training;
        if b.params() || needs_means {
            let sums = self.back_planes(b, &planes, &sums)?;
            if b.params() {
                self.back_params(b, &sums)?;
            }
            if needs_means {
                means = Some(self.plane_means(b, sums, [n, c, s], share)?);
            }
        }
        if b.dx.is_none() && b.dresidual.is_none() {
            return Ok(());
        }
        self.back_apply(b, &planes, &map, means.as_ref())
    }

    fn back_apply(&self, b: &Back<'_>, p: &Planes, map: &BackMap, means: Option<&Means>) -> Result<()> {
        let dt = b.dt();
        let coef = means.map(|m| &m.coef);
        let (wide, affine) = match map {
            BackMap::Aligned(cut) => return self.aligned_back_apply(b, p, cut, coef),
            BackMap::General { wide, affine } => (*wide, *affine),
        };
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

impl Engine {
    /// What serves a typical gradient in f32: of 4096 rows of 1024 elements, or of [32, 64, 32, 32], for group norm with 32 groups.
    pub(crate) fn explain_norm_bwd(&self, op: &'static str) -> Result<Choice> {
        let terms = Alignment::full(DType::F32);
        let share = match op {
            "row_norm_bwd" => {
                let (rows, cols) = (4096, 1024);
                let p = RowNormBwdProblem {
                    rows,
                    cols,
                    terms,
                    aligned: true,
                    affine_aligned: true,
                    params: true,
                };
                return self.explain_problem(op, &p);
            }
            "group_norm_bwd" => 2,
            _ => 0,
        };
        let p = PlaneNormBwdProblem {
            n: 32,
            c: 64,
            s: 1024,
            share,
            terms,
            operands: 2,
            slope_of_x: false,
            aligned: true,
        };
        self.explain_problem(op, &p)
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
        let (columns, row_sums, map) = match self.plan(o.op, &b.row_problem([rows, cols]))? {
            RowNormBwdPlan::Registers { kernel, items, bits, blocks } => {
                return self.aligned_back_rows(&b, rows, p.rms, kernel, [items, blocks], bits);
            }
            RowNormBwdPlan::Steps { columns, rows, map } => (columns, rows, map),
        };
        if b.params() {
            let sums = self.back_cols(&b, [rows, cols], 0, &columns)?;
            self.back_params(&b, &sums)?;
        }
        if b.dx.is_none() {
            return Ok(());
        }
        let planes = Planes { rows, cols, inner: 0, groups: 1, share: 1 };
        let sums = self.back_rows(&b, &planes, &row_sums, rows)?;
        let means = self.back_coef(&b, &sums, cols, p.rms, None)?;
        self.back_apply(&b, &planes, &map, Some(&means))
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
        self.plane_norm_bwd(o.op, &b, [n, c, s], c / p.groups, true)
    }

    fn batch_norm_bwd(&self, p: &BatchNorm, io: BatchNormBwd<'_>) -> Result<()> {
        let io = io.channels_as_columns()?;
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
        self.plane_norm_bwd(o.op, &b, [n, c, s], 0, training)
    }
}
