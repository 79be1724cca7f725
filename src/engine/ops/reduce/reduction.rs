//! A reduction as its kernels take it: merged axes, how they are read, and the launches of `reduce.c`.

use super::plan::{ColumnPlan, ColumnSumsPlan, ReducePlan, ReduceProblem, RowAccess, RowPlan, Runs};
use crate::buffer::{Buffer, View};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, dims, int, long};
use crate::error::Result;
use crate::ops::reduce::*;
use crate::spec::kernels::reduce::*;

/// Size of an axis and the steps of x, x2, y and z along it.
#[derive(Debug, Clone, Copy)]
struct Axis {
    n: usize,
    steps: [usize; 4],
}

/// Sorted by x's step, largest first, and merged where all operands allow it; never empty. The order of the axes does not matter to a reduction.
fn merge(mut axes: Vec<Axis>) -> Vec<Axis> {
    axes.retain(|a| a.n != 1);
    axes.sort_by_key(|a| std::cmp::Reverse(a.steps[0]));
    let mut out: Vec<Axis> = vec![];
    for a in axes {
        match out.last_mut() {
            Some(last) if (0..4).all(|k| last.steps[k] == a.steps[k] * a.n) => {
                *last = Axis { n: last.n * a.n, steps: a.steps }
            }
            _ => out.push(a),
        }
    }
    if out.is_empty() {
        out.push(Axis { n: 1, steps: [0; 4] });
    }
    out
}

/// What a reduction runs on. Strides of results are per axis of x.
pub(super) struct Reduction<'a> {
    /// The operation, and the function that it computes.
    pub(super) op: &'static str,
    pub(super) function: &'static str,
    pub(super) axes: Axes,
    pub(super) x: View<'a>,
    pub(super) x2: Option<View<'a>>,
    pub(super) y: (View<'a>, Vec<usize>),
    pub(super) z: Option<(View<'a>, Vec<usize>)>,
    /// 1 for results in the arithmetic type, or for positions as i64.
    pub(super) form: i32,
    pub(super) accumulate: bool,
    pub(super) p: f64,
    pub(super) q: f64,
}

impl<'a> Reduction<'a> {
    /// y = function over `axes` of x.
    pub(super) fn new(
        op: &'static str,
        function: &'static str,
        axes: Axes,
        x: View<'a>,
        y: View<'a>,
    ) -> Self {
        let y = (y, axes.strides(&y));
        Reduction { op, function, axes, x, x2: None, y, z: None, form: 0, accumulate: false, p: 0.0, q: 0.0 }
    }

    pub(super) fn params(mut self, p: f64, q: f64) -> Self {
        (self.p, self.q) = (p, q);
        self
    }

    pub(super) fn second(mut self, z: View<'a>) -> Self {
        let strides = self.axes.strides(&z);
        self.z = Some((z, strides));
        self
    }

    pub(super) fn form(mut self, form: bool) -> Self {
        self.form = form as i32;
        self
    }

    /// The axes that stay and those that go, merged.
    fn slices(&self) -> Slices {
        let mut lists = [vec![], vec![]];
        for a in 0..self.x.shape().len() {
            let x2 = self.x2.as_ref().map_or(0, |v| v.layout().strides()[a]);
            let z = self.z.as_ref().map_or(0, |(_, s)| s[a]);
            let axis =
                Axis { n: self.x.shape()[a], steps: [self.x.layout().strides()[a], x2, self.y.1[a], z] };
            lists[self.axes.reduced[a] as usize].push(axis);
        }
        let [kept, red] = lists.map(merge);
        let outputs = kept.iter().map(|a| a.n).product();
        Slices { kept, red, outputs }
    }

    /// Elements by which an operand begins behind a multiple of 16 bytes.
    fn phase(v: &View<'_>) -> usize {
        v.layout().offset() % (16 / v.dtype().size())
    }

    /// Whether `inner` is read by aligned 16-byte items: its innermost axis has step 1 and a size of whole items, and all other steps are
    /// whole items.
    fn in_items(&self, inner: &[Axis], others: &[Axis]) -> bool {
        let (w, inputs) = (16 / self.x.dtype().size(), if self.x2.is_some() { 2 } else { 1 });
        let Some((last, rest)) = inner.split_last() else { return false };
        last.n % w == 0
            && (0..inputs)
                .all(|k| last.steps[k] == 1 && rest.iter().chain(others).all(|a| a.steps[k] % w == 0))
            && aligned16(&self.x)
            && self.x2.as_ref().is_none_or(aligned16)
    }

    /// How rows are read.
    fn row_access(&self, s: &Slices) -> RowAccess {
        let w = 16 / self.x.dtype().size();
        let together = self.x2.as_ref().is_none_or(|b| {
            Self::phase(b) == Self::phase(&self.x)
                && s.red[0].steps[1] == 1
                && s.kept.iter().all(|a| a.steps[0] % w == a.steps[1] % w)
        });
        if s.red.len() == 1 && s.red[0].steps[0] == 1 && together {
            RowAccess::Contiguous
        } else if s.red.len() > 1 && self.in_items(&s.red, &s.kept) {
            RowAccess::Items
        } else {
            RowAccess::Strided
        }
    }

    /// What decides how the reduction runs.
    fn problem(&self, s: &Slices) -> ReduceProblem {
        ReduceProblem {
            dtype: self.x.dtype(),
            outputs: s.outputs,
            count: self.axes.count,
            kept_denser: s.kept[s.kept.len() - 1].steps[0] < s.red[s.red.len() - 1].steps[0],
            row: self.row_access(s),
            wide_columns: self.in_items(&s.kept, &s.red),
            column_sums: self.column_sums(s),
        }
    }

    /// Whether it is the sum of the rows of a matrix, in the type of its elements; or why not.
    fn column_sums(&self, s: &Slices) -> std::result::Result<(), &'static str> {
        if self.function != "gk_red_sum" || self.form != 0 || !self.x.dtype().is_float() {
            return Err("it is no sum of floats in their own type");
        }
        match (&s.kept[..], &s.red[..]) {
            ([kept], [_]) if kept.steps[0] == 1 => Ok(()),
            _ => Err("it does not add the rows of a matrix"),
        }
    }
}

/// Merged axes of a reduction.
struct Slices {
    kept: Vec<Axis>,
    red: Vec<Axis>,
    outputs: usize,
}

/// Sizes of a list of axes.
fn sizes(axes: &[Axis]) -> DimsArg {
    dims(axes.iter().map(|a| a.n))
}

/// Steps of an operand along a list of axes.
fn steps(axes: &[Axis], operand: usize) -> DimsArg {
    dims(axes.iter().map(|a| a.steps[operand]))
}

/// The same list in items of `w` elements of the innermost axis.
fn in_items(axes: &[Axis], w: usize) -> Vec<Axis> {
    let mut out = axes.to_vec();
    if let Some(last) = out.last_mut() {
        *last = Axis { n: last.n / w, steps: last.steps.map(|s| s * w) };
    }
    out
}

/// How rows are read, as the kernels take it.
fn mode(access: RowAccess) -> i32 {
    match access {
        RowAccess::Strided => 0,
        RowAccess::Contiguous => 1,
        RowAccess::Items => 2,
    }
}

impl Engine {
    /// Runs a reduction whose operands are checked.
    pub(super) fn run_reduction(&self, r: &Reduction<'_>) -> Result<()> {
        let s = r.slices();
        if s.outputs == 0 {
            return Ok(());
        }
        match self.plan(r.op, &r.problem(&s))? {
            ReducePlan::ColumnSums(plan) => self.run_column_sums(r, &s, &plan),
            ReducePlan::Columns(plan) => self.run_columns(r, &s, &plan),
            ReducePlan::Rows(plan) => self.run_rows(r, &s, &plan),
        }
    }

    fn run_column_sums(&self, r: &Reduction<'_>, s: &Slices, plan: &ColumnSumsPlan) -> Result<()> {
        let args = ColumnSumsArgs {
            x: self.arg_in(&r.x),
            y: self.arg_in(&r.y.0),
            n: long(r.axes.count),
            step: long(s.red[0].steps[0]),
            chunk: long(plan.chunk),
            items: int(plan.items),
            wide: i32::from(plan.wide),
            step_y: long(s.kept[0].steps[2]),
            accumulate: i32::from(r.accumulate),
        };
        self.launch(&COLUMN_SUMS, r.x.dtype(), "", Grid::Blocks([plan.blocks, 1, 1]), &args)
    }

    fn run_rows(&self, r: &Reduction<'_>, s: &Slices, plan: &RowPlan) -> Result<()> {
        let (dt, runs) = (r.x.dtype(), &plan.runs);
        let items = (plan.access == RowAccess::Items).then(|| in_items(&s.red, 16 / dt.size()));
        let (kept, red) = (&s.kept, items.as_ref().unwrap_or(&s.red));
        let part = self.partials(r, s, runs)?;
        let args = ReduceRowsArgs {
            x: self.arg_in(&r.x),
            x2: self.arg_opt(r.x2.as_ref()),
            y: self.arg_in(&r.y.0),
            z: self.arg_opt(r.z.as_ref().map(|z| &z.0)),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            outputs: long(s.outputs),
            n: long(plan.n),
            chunk: long(runs.chunk),
            count: long(r.axes.count),
            splits: int(runs.splits),
            lanes: int(plan.lanes),
            mode: mode(plan.access),
            phase: int(Reduction::phase(&r.x)),
            kept_rank: int(kept.len()),
            kept: sizes(kept),
            kx: steps(kept, 0),
            kx2: steps(kept, 1),
            ky: steps(kept, 2),
            kz: steps(kept, 3),
            red_rank: int(red.len()),
            red: sizes(red),
            rx: steps(red, 0),
            rx2: steps(red, 1),
            form: r.form,
            accumulate: i32::from(r.accumulate),
            p: r.p,
            q: r.q,
        };
        self.launch(&REDUCE_ROWS, dt, r.function, Grid::Blocks([plan.blocks, 1, 1]), &args)?;
        part.map_or(Ok(()), |part| self.combine(r, s, &part.view(), runs, [runs.splits, 1]))
    }

    fn run_columns(&self, r: &Reduction<'_>, s: &Slices, plan: &ColumnPlan) -> Result<()> {
        let (dt, runs) = (r.x.dtype(), &plan.runs);
        let inner = s.kept[s.kept.len() - 1];
        let items = plan.wide.then(|| in_items(&s.kept, 16 / dt.size()));
        let (kept, red) = (items.as_ref().unwrap_or(&s.kept), &s.red);
        let part = self.partials(r, s, runs)?;
        let args = ReduceColumnsArgs {
            x: self.arg_in(&r.x),
            x2: self.arg_opt(r.x2.as_ref()),
            y: self.arg_in(&r.y.0),
            z: self.arg_opt(r.z.as_ref().map(|z| &z.0)),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            outputs: long(plan.items),
            n: long(r.axes.count),
            chunk: long(runs.chunk),
            count: long(r.axes.count),
            splits: int(runs.splits),
            tx: int(plan.tx),
            wide: i32::from(plan.wide),
            step_y: long(inner.steps[2]),
            step_z: long(inner.steps[3]),
            kept_rank: int(kept.len()),
            kept: sizes(kept),
            kx: steps(kept, 0),
            kx2: steps(kept, 1),
            ky: steps(kept, 2),
            kz: steps(kept, 3),
            red_rank: int(red.len()),
            red: sizes(red),
            rx: steps(red, 0),
            rx2: steps(red, 1),
            form: r.form,
            accumulate: i32::from(r.accumulate),
            p: r.p,
            q: r.q,
        };
        self.launch(&REDUCE_COLUMNS, dt, r.function, Grid::Blocks([plan.blocks, 1, 1]), &args)?;
        part.map_or(Ok(()), |part| self.combine(r, s, &part.view(), runs, [1, s.outputs]))
    }

    /// Memory for the states of the runs; none where nothing is cut.
    fn partials(&self, r: &Reduction<'_>, s: &Slices, runs: &Runs) -> Result<Option<Buffer>> {
        if runs.splits == 1 {
            return Ok(None);
        }
        // A state is at most four numbers of the arithmetic type, or a number and a position.
        let bytes = if r.x.dtype() == DType::F64 { 32 } else { 16 };
        self.scratch(DType::U8, s.outputs * runs.splits * bytes).map(Some)
    }

    /// Second stage: combines the states of the runs in order. `step`: from the states of a result to those of the next, and from run to run.
    fn combine(
        &self,
        r: &Reduction<'_>,
        s: &Slices,
        part: &View<'_>,
        runs: &Runs,
        step: [usize; 2],
    ) -> Result<()> {
        let args = ReduceCombineArgs {
            part: self.arg_in(part),
            y: self.arg_in(&r.y.0),
            z: self.arg_opt(r.z.as_ref().map(|z| &z.0)),
            outputs: long(s.outputs),
            count: long(r.axes.count),
            splits: int(runs.splits),
            so: long(step[0]),
            sk: long(step[1]),
            lanes: int(runs.combine),
            kept_rank: int(s.kept.len()),
            kept: sizes(&s.kept),
            ky: steps(&s.kept, 2),
            kz: steps(&s.kept, 3),
            form: r.form,
            accumulate: i32::from(r.accumulate),
            p: r.p,
            q: r.q,
        };
        let blocks = s.outputs.div_ceil(LANES / runs.combine);
        self.launch(&REDUCE_COMBINE, r.x.dtype(), r.function, Grid::Blocks([blocks, 1, 1]), &args)
    }
}
