//! Reductions along axes.

mod backward;
mod plan;
mod reduction;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::backward::{GradientOperands, gradient, in_16_bytes, to_items};
use self::plan::{ReduceProblem, RowAccess};
use self::reduction::Reduction;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, code_of_op, dims, long};
use crate::engine::ops::elementwise::merged_axes;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::core::Choice;
use crate::ops::reduce::*;
use crate::spec::kernels::reduce::*;

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
            column_sums: Err("rows are reduced"),
        };
        self.explain_problem(op, &p)
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
        let mut m = Merged::new([out.layout(), &g, &i, &c]);
        let (size, w) = (shape[axis] as i64, 16 / out.dtype().size());
        // Adding touches few elements; otherwise all are written.
        let items = !dx.accumulate && in_16_bytes(&m, 0, w) && aligned16(&out);
        let step = dims([1, 2, 3].map(|k| m.strides[k].last().copied().unwrap_or(0)));
        if items {
            to_items(&mut m, w);
        }
        let n: usize = m.shape.iter().product();
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
            step,
            items: i32::from(items),
            wide: i32::from(index.dtype() == DType::I64),
            accumulate: i32::from(dx.accumulate),
            code: code_of_op(OP),
        };
        // Threads take four items of 16 bytes (`GK_ARG_RUNS`).
        let grid = Grid::Stride(if items { n.div_ceil(4) } else { n });
        self.launch(&ARG_REDUCE_BWD, out.dtype(), "gk_redb_arg", grid, &args)
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
