//! Reductions along axes.

mod plan;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::plan::{ColumnPlan, ReducePlan, ReduceProblem, RowAccess, RowPlan, Runs};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, Merged, aligned16, code_of_op, dims, int, long};
use crate::engine::ops::elementwise::merged_axes;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::core::Choice;
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
struct Reduction<'a> {
    /// The operation, and the function that it computes.
    op: &'static str,
    function: &'static str,
    axes: Axes,
    x: View<'a>,
    x2: Option<View<'a>>,
    y: (View<'a>, Vec<usize>),
    z: Option<(View<'a>, Vec<usize>)>,
    /// 1 for results in the arithmetic type, or for positions as i64.
    form: i32,
    accumulate: bool,
    p: f64,
    q: f64,
}

impl<'a> Reduction<'a> {
    /// y = function over `axes` of x.
    fn new(op: &'static str, function: &'static str, axes: Axes, x: View<'a>, y: View<'a>) -> Self {
        let y = (y, axes.strides(&y));
        Reduction { op, function, axes, x, x2: None, y, z: None, form: 0, accumulate: false, p: 0.0, q: 0.0 }
    }

    fn params(mut self, p: f64, q: f64) -> Self {
        (self.p, self.q) = (p, q);
        self
    }

    fn second(mut self, z: View<'a>) -> Self {
        let strides = self.axes.strides(&z);
        self.z = Some((z, strides));
        self
    }

    fn form(mut self, form: bool) -> Self {
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
    /// Blocks that fill the device.
    pub(in crate::engine::ops) fn target_blocks(&self) -> usize {
        self.device_caps().target_blocks()
    }

    /// What serves a reduction of 4096 rows of 1024 elements in f32.
    pub(crate) fn explain_reduce(&self, op: &'static str) -> Result<Choice> {
        let p = ReduceProblem {
            dtype: DType::F32,
            outputs: 4096,
            count: 1024,
            kept_denser: false,
            row: RowAccess::Contiguous,
            wide_columns: false,
        };
        self.explain_problem(op, &p)
    }

    /// Runs a reduction whose operands are checked.
    fn run_reduction(&self, r: &Reduction<'_>) -> Result<()> {
        let s = r.slices();
        if s.outputs == 0 {
            return Ok(());
        }
        match self.plan(r.op, &r.problem(&s))? {
            ReducePlan::Columns(plan) => self.run_columns(r, &s, &plan),
            ReducePlan::Rows(plan) => self.run_rows(r, &s, &plan),
        }
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

/// C name and parameters of a reduction.
fn reduce_kernel(op: Reduce) -> (&'static str, f64, f64) {
    match op {
        Reduce::Sum => ("gk_red_sum", 0.0, 0.0),
        Reduce::Mean => ("gk_red_mean", 0.0, 0.0),
        Reduce::Prod => ("gk_red_prod", 0.0, 0.0),
        Reduce::Max => ("gk_red_max", 0.0, 0.0),
        Reduce::Min => ("gk_red_min", 0.0, 0.0),
        Reduce::MaxAbs => ("gk_red_maxabs", 0.0, 0.0),
        Reduce::MinAbs => ("gk_red_minabs", 0.0, 0.0),
        Reduce::Any => ("gk_red_any", 0.0, 0.0),
        Reduce::All => ("gk_red_all", 0.0, 0.0),
        Reduce::Var { correction } => ("gk_red_var", correction, 0.0),
        Reduce::Std { correction } => ("gk_red_std", correction, 0.0),
        Reduce::LogVar { correction, eps } => ("gk_red_logvar", correction, eps),
        Reduce::LogSumExp => ("gk_red_lse", 0.0, 0.0),
        Reduce::SumSq => ("gk_red_sumsq", 0.0, 0.0),
        Reduce::Norm { p } if p == f64::INFINITY => ("gk_red_maxabs", 0.0, 0.0),
        Reduce::Norm { p } if p == f64::NEG_INFINITY => ("gk_red_minabs", 0.0, 0.0),
        Reduce::Norm { p: 0.0 } => ("gk_red_norm0", 0.0, 0.0),
        Reduce::Norm { p: 1.0 } => ("gk_red_norm1", 0.0, 0.0),
        Reduce::Norm { p: 2.0 } => ("gk_red_norm2", 0.0, 0.0),
        Reduce::Norm { p } => ("gk_red_normp", p, 0.0),
    }
}

/// How a gradient is computed.
struct Gradient {
    op: &'static str,
    /// Reduction that makes its statistics.
    stat: Option<&'static str>,
    p_stat: f64,
    /// Numbers per slice in the second statistic.
    per_slice: usize,
    reads_x: bool,
    /// The only statistic is the forward's result.
    reads_y: bool,
    p: f64,
    q: f64,
}

fn gradient(op: Reduce, count: usize) -> Gradient {
    let g = |op, reads_x| Gradient {
        op,
        stat: None,
        p_stat: 0.0,
        per_slice: 1,
        reads_x,
        reads_y: false,
        p: 0.0,
        q: 0.0,
    };
    let with = |op, stat| Gradient { stat: Some(stat), ..g(op, true) };
    let saved = |op, stat, p| Gradient { reads_y: true, p, p_stat: p, ..with(op, stat) };
    let moments = |op, c: f64, q| Gradient {
        p_stat: c,
        per_slice: 2,
        p: (count as f64 - c).max(0.0),
        q,
        ..with(op, "gk_red_meanvar")
    };
    match op {
        Reduce::Mean => Gradient { p: count as f64, ..g("gk_redb_mean", false) },
        Reduce::SumSq => g("gk_redb_sumsq", true),
        Reduce::Prod => with("gk_redb_prod", "gk_red_factors"),
        Reduce::Max => with("gk_redb_extreme", "gk_red_max_ties"),
        Reduce::Min => with("gk_redb_extreme", "gk_red_min_ties"),
        Reduce::MaxAbs => with("gk_redb_magnitude", "gk_red_maxabs_ties"),
        Reduce::MinAbs => with("gk_redb_magnitude", "gk_red_minabs_ties"),
        Reduce::Norm { p } if p == f64::INFINITY => with("gk_redb_magnitude", "gk_red_maxabs_ties"),
        Reduce::Norm { p } if p == f64::NEG_INFINITY => with("gk_redb_magnitude", "gk_red_minabs_ties"),
        Reduce::Norm { p: 0.0 } => g("gk_redb_norm0", false),
        Reduce::Norm { p: 1.0 } => g("gk_redb_norm1", true),
        Reduce::Norm { p: 2.0 } => saved("gk_redb_norm2", "gk_red_norm2", 0.0),
        Reduce::Norm { p } => saved("gk_redb_normp", "gk_red_normp", p),
        Reduce::LogSumExp => saved("gk_redb_lse", "gk_red_lse", 0.0),
        Reduce::Var { correction } => moments("gk_redb_var", correction, 0.0),
        Reduce::Std { correction } => moments("gk_redb_std", correction, 0.0),
        Reduce::LogVar { correction, eps } => moments("gk_redb_logvar", correction, eps),
        Reduce::Sum | Reduce::Any | Reduce::All => g("gk_redb_sum", false),
    }
}

/// Whether operand `k` can be read 16 bytes at a time along the innermost axis (alignment of its start aside).
fn in_16_bytes<const N: usize>(m: &Merged<N>, k: usize, w: usize) -> bool {
    let s = &m.strides[k];
    m.shape.last().is_some_and(|n| n % w == 0)
        && s.last() == Some(&1)
        && s.iter().rev().skip(1).all(|s| s % w == 0)
}

/// Counts the innermost axis in items of `w` elements.
fn to_items<const N: usize>(m: &mut Merged<N>, w: usize) {
    if let Some(n) = m.shape.last_mut() {
        *n /= w;
    }
    m.strides.iter_mut().filter_map(|s| s.last_mut()).for_each(|s| *s *= w);
}

/// Operands of a gradient; those that it does not need are absent.
struct GradientOperands<'a> {
    dy: View<'a>,
    x: Option<View<'a>>,
    y: Option<View<'a>>,
    stats: [Option<Buffer>; 2],
    dx: GradMut<'a>,
}

impl GradientOperands<'_> {
    /// Layouts of dx, dy, x, y and the statistics over the shape of dx. Operands that are not there step like dx and stand in nobody's way.
    fn merged(&self, a: &Axes) -> Result<Merged<5>> {
        let own = *self.dx.out.layout();
        let shape = self.dx.out.shape();
        let stat = match self.stats[0] {
            Some(_) => check::layout(
                "reduce_bwd",
                "x",
                Layout::contiguous(&a.keepdim).and_then(|l| l.broadcast_to(shape)),
            )?,
            None => own,
        };
        let layouts = [
            own,
            spread(&self.dy, a, shape)?,
            self.x.map_or(own, |v| *v.layout()),
            self.y.as_ref().map_or(Ok(own), |v| spread(v, a, shape))?,
            stat,
        ];
        Ok(Merged::new(layouts.each_ref()))
    }

    /// Flags of the kernel: whether 16 bytes are moved at once, and then whether dy and y step along the innermost axis.
    fn wide(&self, m: &Merged<5>, w: usize) -> i32 {
        let dense = |k: usize, v: &View<'_>| in_16_bytes(m, k, w) && aligned16(v);
        let repeated = |k: usize| inner_step(m, k) == 0;
        let wide = dense(0, &self.dx.out.as_view())
            && self.x.as_ref().is_none_or(|x| dense(2, x))
            && (repeated(1) || dense(1, &self.dy))
            && self.y.as_ref().is_none_or(|y| repeated(3) || dense(3, y));
        if wide { 1 | i32::from(!repeated(1)) << 1 | i32::from(!repeated(3)) << 2 } else { 0 }
    }
}

/// Step of operand `k` along the innermost axis.
fn inner_step<const N: usize>(m: &Merged<N>, k: usize) -> usize {
    m.strides[k].last().copied().unwrap_or(0)
}

impl Engine {
    /// dx (+)= g of the repeated dy, x and the statistics; operands are checked.
    fn run_gradient(&self, g: &Gradient, a: &Axes, io: &GradientOperands<'_>) -> Result<()> {
        let dt = io.dx.out.dtype();
        let w = 16 / dt.size();
        let mut m = io.merged(a)?;
        let (wide, step_s) = (io.wide(&m, w), inner_step(&m, 4));
        if wide != 0 {
            to_items(&mut m, w);
        }
        let n: usize = m.shape.iter().product();
        let (rank, shape, [sdx, sdy, sx, sy, ss]) = merged_axes(&m);
        let [s, t] = io.stats.each_ref().map(|b| b.as_ref().map_or(Ptr::NULL, |b| self.arg_in(&b.view())));
        let args = ReduceBwdArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_opt(io.x.as_ref()),
            y: self.arg_opt(io.y.as_ref()),
            s,
            t,
            dx: self.arg_out(&io.dx.out),
            n: long(n),
            rank,
            shape,
            sdx,
            sdy,
            sx,
            sy,
            ss,
            step_s: long(step_s),
            wide,
            accumulate: i32::from(io.dx.accumulate),
            p: g.p,
            q: g.q,
        };
        self.launch(&REDUCE_BWD, dt, g.op, Grid::Stride(n), &args)
    }
}

impl ReduceOps for Engine {
    fn reduce(&self, op: Reduce, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let a = check_reduce(op, axes, &x, &y)?;
        self.check_owner("reduce", "x", &x)?;
        self.check_owner("reduce", "y", &y.as_view())?;
        let (name, p, q) = reduce_kernel(op);
        self.run_reduction(&Reduction::new("reduce", name, a, x, y.as_view()).params(p, q))
    }

    fn reduce_bwd(
        &self,
        op: Reduce,
        axes: &[usize],
        dy: View<'_>,
        x: Option<View<'_>>,
        y: Option<View<'_>>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        let a = check_reduce_bwd(op, axes, &dy, x.as_ref(), y.as_ref(), &dx)?;
        self.check_owner("reduce_bwd", "dy", &dy)?;
        self.check_owner("reduce_bwd", "dx", &dx.out.as_view())?;
        for (arg, v) in [("x", &x), ("y", &y)] {
            v.as_ref().map_or(Ok(()), |v| self.check_owner("reduce_bwd", arg, v))?;
        }
        if dx.out.numel() == 0 {
            return Ok(());
        }
        let g = gradient(op, a.count);
        let x = x.filter(|_| g.reads_x);
        let y = y.filter(|_| g.reads_y);
        // Statistics of the slices that the gradient needs and that were not saved.
        let (mut s, mut t) = (None, None);
        if let (Some(stat), None, Some(x)) = (g.stat, y, x) {
            let results = a.keepdim.numel();
            let dt = x.dtype().accumulator();
            let (first, second) = (self.scratch(dt, results)?, self.scratch(dt, results * g.per_slice)?);
            let mut r = Reduction::new("reduce_bwd", stat, a, x, first.shaped(&a.keepdim)?)
                .form(true)
                .params(g.p_stat, 0.0);
            if !g.reads_y {
                let of_slices = second.shaped(&[results, g.per_slice])?;
                r = r.second(of_slices.map("statistics", |l| l.select(1, 0)?.reshape(&a.keepdim))?);
            }
            self.run_reduction(&r)?;
            (s, t) = (Some(first), Some(second).filter(|_| !g.reads_y));
        }
        self.run_gradient(&g, &a, &GradientOperands { dy, x, y, stats: [s, t], dx })
    }

    fn arg_reduce(
        &self,
        op: ArgReduce,
        axis: usize,
        x: View<'_>,
        index: ViewMut<'_>,
        value: Option<ViewMut<'_>>,
    ) -> Result<()> {
        let a = check_arg_reduce(axis, &x, &index, value.as_ref())?;
        let (i, v) = (index.as_view(), value.as_ref().map(|v| v.as_view()));
        self.check_owner("arg_reduce", "x", &x)?;
        self.check_owner("arg_reduce", "index", &i)?;
        v.as_ref().map_or(Ok(()), |v| self.check_owner("arg_reduce", "value", v))?;
        let name = match op {
            ArgReduce::Max => "gk_red_argmax",
            ArgReduce::Min => "gk_red_argmin",
        };
        let r = Reduction::new("arg_reduce", name, a, x, i).form(i.dtype() == DType::I64);
        self.run_reduction(&if let Some(v) = v { r.second(v) } else { r })
    }

    fn arg_reduce_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "arg_reduce_bwd";
        let a = check_arg_reduce_bwd(axis, &dy, &index, &dx)?;
        let out = dx.out.as_view();
        for (arg, v) in [("dy", &dy), ("index", &index), ("dx", &out)] {
            self.check_owner(OP, arg, v)?;
        }
        let shape = out.shape();
        let along: Vec<_> = (0..shape.len()).map(|d| (d == axis) as usize).collect();
        let (g, i) = (spread(&dy, &a, shape)?, spread(&index, &a, shape)?);
        let c = check::layout(OP, "dx", Layout::strided(shape, &along, 0))?;
        let m = Merged::new([out.layout(), &g, &i, &c]);
        let (n, size) = (out.numel(), shape[axis] as i64);
        let (rank, shape, [sdx, sdy, si, sc]) = merged_axes(&m);
        let args = ArgReduceBwdArgs {
            dy: self.arg_in(&dy),
            index: self.arg_in(&index),
            dx: self.arg_in(&out),
            err: self.arg_error(),
            n: long(n),
            size,
            rank,
            shape,
            sdx,
            sdy,
            si,
            sc,
            wide: i32::from(index.dtype() == DType::I64),
            accumulate: i32::from(dx.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&ARG_REDUCE_BWD, out.dtype(), "gk_redb_arg", Grid::Stride(n), &args)
    }

    fn mean_var(
        &self,
        axes: &[usize],
        correction: f64,
        x: View<'_>,
        mean: ViewMut<'_>,
        var: ViewMut<'_>,
    ) -> Result<()> {
        let a = check_mean_var(axes, correction, &x, &mean, &var)?;
        let (m, v) = (mean.as_view(), var.as_view());
        for (arg, v) in [("x", &x), ("mean", &m), ("var", &v)] {
            self.check_owner("mean_var", arg, v)?;
        }
        self.run_reduction(
            &Reduction::new("mean_var", "gk_red_meanvar", a, x, m).second(v).params(correction, 0.0),
        )
    }

    fn min_max(&self, axes: &[usize], x: View<'_>, lo: ViewMut<'_>, hi: ViewMut<'_>) -> Result<()> {
        let a = check_min_max(axes, &x, &lo, &hi)?;
        let (lo, hi) = (lo.as_view(), hi.as_view());
        for (arg, v) in [("x", &x), ("lo", &lo), ("hi", &hi)] {
            self.check_owner("min_max", arg, v)?;
        }
        self.run_reduction(&Reduction::new("min_max", "gk_red_minmax", a, x, lo).second(hi))
    }

    fn dot(&self, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let axes = check_dot(&a, &b, &y)?;
        let out = y.as_view();
        for (arg, v) in [("a", &a), ("b", &b), ("y", &out)] {
            self.check_owner("dot", arg, v)?;
        }
        let mut r = Reduction::new("dot", "gk_red_dot", axes, a, out);
        r.x2 = Some(b);
        self.run_reduction(&r)
    }

    fn dot_bwd(
        &self,
        dy: View<'_>,
        a: View<'_>,
        b: View<'_>,
        da: Option<GradMut<'_>>,
        db: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "dot_bwd";
        let axes = check_dot_bwd(&dy, &a, &b, da.as_ref(), db.as_ref())?;
        let (va, vb) = (da.as_ref().map(|g| g.out.as_view()), db.as_ref().map(|g| g.out.as_view()));
        for (arg, v) in
            [("dy", Some(&dy)), ("a", Some(&a)), ("b", Some(&b)), ("da", va.as_ref()), ("db", vb.as_ref())]
        {
            v.map_or(Ok(()), |v| self.check_owner(OP, arg, v))?;
        }
        let g = spread(&dy, &axes, a.shape())?;
        let layout = |v: &Option<View<'_>>, other: &View<'_>| v.map_or(*other.layout(), |v| *v.layout());
        let mut m = Merged::new([&g, a.layout(), b.layout(), &layout(&va, &a), &layout(&vb, &b)]);
        let w = 16 / a.dtype().size();
        let operands = [Some(a), Some(b), va, vb];
        let wide = m.strides[0].last() == Some(&0)
            && (1..5).all(|k| in_16_bytes(&m, k, w))
            && operands.iter().flatten().all(aligned16);
        if wide {
            to_items(&mut m, w);
        }
        let n: usize = m.shape.iter().product();
        let (rank, shape, [sdy, sa, sb, sda, sdb]) = merged_axes(&m);
        let accumulate = |g: &Option<GradMut<'_>>| i32::from(g.as_ref().is_some_and(|g| g.accumulate));
        let args = DotBwdArgs {
            dy: self.arg_in(&dy),
            a: self.arg_in(&a),
            b: self.arg_in(&b),
            da: self.arg_opt(va.as_ref()),
            db: self.arg_opt(vb.as_ref()),
            n: long(n),
            rank,
            shape,
            sdy,
            sa,
            sb,
            sda,
            sdb,
            wide: i32::from(wide),
            acc_a: accumulate(&da),
            acc_b: accumulate(&db),
        };
        self.launch(&DOT_BWD, a.dtype(), "gk_redb_dot", Grid::Stride(n), &args)
    }

    fn sum_to_shape(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let axes = check_sum_to_shape(&x, &y)?;
        let out = y.out.as_view();
        self.check_owner("sum_to_shape", "x", &x)?;
        self.check_owner("sum_to_shape", "y", &out)?;
        let y_steps = right_aligned(&out, x.shape().len());
        let mut r =
            Reduction { y: (out, y_steps), ..Reduction::new("sum_to_shape", "gk_red_sum", axes, x, out) };
        r.accumulate = y.accumulate;
        self.run_reduction(&r)
    }
}
