//! Reductions along axes. The reference is in f64.

mod vectorized;

use crate::cpu::scratch::*;
use crate::cpu::vector::{self, NO_F32};
use crate::cpu::*;
use crate::ops::check;
use crate::ops::reduce::*;

/// Neumaier's compensated sum, so that the oracle's error does not grow with the count.
pub(in crate::cpu) fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut s, mut e) = (0.0f64, 0.0f64);
    for x in values {
        let t = s + x;
        e += if s.abs() >= x.abs() { (s - t) + x } else { (x - t) + s };
        s = t;
    }
    if e.is_finite() { s + e } else { s }
}

/// Larger of two values; NaN wins.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

fn extreme(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, larger)
}

/// Mean and variance in two passes.
fn moments(v: &[f64], correction: f64) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = sum(v.iter().copied()) / n;
    let free = n - correction;
    let var = if free > 0.0 { sum(v.iter().map(|x| (x - mean) * (x - mean))) / free } else { f64::NAN };
    (mean, var)
}

fn norm(v: &[f64], p: f64) -> f64 {
    let abs = || v.iter().map(|x| x.abs());
    if p == f64::INFINITY {
        return extreme(abs());
    }
    if p == f64::NEG_INFINITY {
        return -extreme(abs().map(|x| -x));
    }
    if p == 0.0 {
        return v.iter().filter(|&&x| x != 0.0).count() as f64;
    }
    if p == 2.0 {
        // Squares of values near the ends of the range leave it: take them relative to the largest.
        let m = extreme(abs());
        if m == 0.0 || !m.is_finite() {
            return if v.is_empty() { 0.0 } else { m };
        }
        return m * sum(abs().map(|x| (x / m) * (x / m))).sqrt();
    }
    sum(abs().map(|x| x.powf(p))).powf(1.0 / p)
}

fn log_sum_exp(v: &[f64]) -> f64 {
    let m = extreme(v.iter().copied());
    let m = if m.is_infinite() { 0.0 } else { m };
    m + sum(v.iter().map(|x| (x - m).exp())).ln()
}

/// The reduction of one slice.
fn value(op: Reduce, v: &[f64]) -> f64 {
    match op {
        Reduce::Sum => sum(v.iter().copied()),
        Reduce::Mean => sum(v.iter().copied()) / v.len() as f64,
        Reduce::Prod => v.iter().product(),
        Reduce::Max => extreme(v.iter().copied()),
        Reduce::Min => -extreme(v.iter().map(|x| -x)),
        Reduce::MaxAbs => norm(v, f64::INFINITY),
        Reduce::MinAbs => norm(v, f64::NEG_INFINITY),
        Reduce::Any => v.iter().any(|&x| x != 0.0) as u8 as f64,
        Reduce::All => v.iter().all(|&x| x != 0.0) as u8 as f64,
        Reduce::Var { correction } => moments(v, correction).1,
        Reduce::Std { correction } => moments(v, correction).1.sqrt(),
        Reduce::LogVar { correction, eps } => (moments(v, correction).1 + eps).ln(),
        Reduce::Norm { p } => norm(v, p),
        Reduce::LogSumExp => log_sum_exp(v),
        Reduce::SumSq => sum(v.iter().map(|x| x * x)),
    }
}

/// Number of the result that each element of a row-major tensor belongs to.
fn groups(shape: &[usize], axes: &Axes) -> Result<Vec<usize>> {
    let layout = Layout::contiguous(&axes.keepdim).and_then(|l| l.broadcast_to(shape));
    let layout = check::layout("reduce", "axes", layout)?;
    let mut out = with_capacity(layout.numel())?;
    out.try_extend(offsets(&layout))?;
    Ok(out)
}

/// The elements of each slice in row-major order.
fn slices<T: Copy>(x: &[T], groups: &[usize], results: usize) -> Result<Vec<Vec<T>>> {
    let mut out = repeated(results, Vec::new())?;
    for (&v, &g) in x.iter().zip(groups) {
        out[g].try_push(v)?;
    }
    Ok(out)
}

fn integers(op: &'static str, x: View<'_>) -> Result<Vec<i64>> {
    Ok(match x.dtype() {
        DType::I64 => gather::<i64>(op, x)?,
        _ => gather_f64(op, x)?.into_iter().map(|v| v as i64).try_vec()?,
    })
}

fn store_integers(op: &'static str, y: &ViewMut<'_>, data: &[i64]) -> Result<()> {
    match y.dtype() {
        DType::I64 => store::<i64>(op, y, data),
        DType::I32 => store::<i32>(op, y, &data.iter().map(|&v| v as i32).try_vec()?),
        _ => store::<u8>(op, y, &data.iter().map(|&v| v as u8).try_vec()?),
    }
}

/// Gradient of one slice.
fn gradient(op: Reduce, v: &[f64], dy: f64) -> Result<Vec<f64>> {
    let n = v.len() as f64;
    let each = |f: &dyn Fn(f64) -> f64| v.iter().map(|&x| f(x)).try_vec();
    let sign = |x: f64| if x == 0.0 || x.is_nan() { x } else { x.signum() };
    // dy in equal parts to the elements whose `f` is the extreme y
    let share = |y: f64, f: &dyn Fn(f64) -> f64| {
        let count = v.iter().filter(|&&x| f(x) == y).count() as f64;
        each(&|x| {
            if count == 0.0 {
                f64::NAN
            } else if f(x) == y {
                dy / count
            } else {
                0.0
            }
        })
    };
    let moments = |c: f64| {
        let (mean, var) = moments(v, c);
        (mean, var, (n - c).max(0.0))
    };
    match op {
        Reduce::Sum | Reduce::Any | Reduce::All => each(&|_| dy),
        Reduce::Mean => each(&|_| dy / n),
        Reduce::SumSq => each(&|x| 2.0 * x * dy),
        // the product of the others, whatever zeros there are
        Reduce::Prod => {
            let zeros = v.iter().filter(|&&x| x == 0.0).count();
            let rest: f64 = v.iter().filter(|&&x| x != 0.0).product();
            each(&|x| match zeros {
                0 => dy * (rest / x),
                1 if x == 0.0 => dy * rest,
                _ => 0.0,
            })
        }
        Reduce::Max | Reduce::Min => share(value(op, v), &|x| x),
        Reduce::MaxAbs | Reduce::MinAbs => {
            share(value(op, v), &f64::abs)?.iter().zip(v).map(|(g, &x)| g * sign(x)).try_vec()
        }
        Reduce::Norm { p } if p == f64::INFINITY => gradient(Reduce::MaxAbs, v, dy),
        Reduce::Norm { p } if p == f64::NEG_INFINITY => gradient(Reduce::MinAbs, v, dy),
        Reduce::Norm { p: 0.0 } => each(&|_| 0.0),
        Reduce::Norm { p: 1.0 } => each(&|x| sign(x) * dy),
        Reduce::Norm { p } => {
            let y = norm(v, p);
            each(&|x| if y == 0.0 || x == 0.0 { 0.0 } else { sign(x) * (x.abs() / y).powf(p - 1.0) * dy })
        }
        Reduce::LogSumExp => {
            let y = log_sum_exp(v);
            each(&|x| if y == f64::NEG_INFINITY { 0.0 } else { (x - y).exp() * dy })
        }
        Reduce::Var { correction } => {
            let (mean, _, free) = moments(correction);
            each(&|x| dy * 2.0 * (x - mean) / free)
        }
        Reduce::Std { correction } => {
            let (mean, var, free) = moments(correction);
            each(&|x| if var == 0.0 { 0.0 } else { dy * (x - mean) / (free * var.sqrt()) })
        }
        Reduce::LogVar { correction, eps } => {
            let (mean, var, free) = moments(correction);
            each(&|x| dy * 2.0 * (x - mean) / (free * (var + eps)))
        }
    }
}

/// Position of the first element that no other is better than.
fn first_best<T: Copy>(v: &[T], better: impl Fn(T, T) -> bool) -> usize {
    (1..v.len()).fold(0, |best, i| if better(v[i], v[best]) { i } else { best })
}

impl Kernels {
    fn reduce_checked(
        &self,
        name: &'static str,
        op: Reduce,
        axes: &Axes,
        x: View<'_>,
        y: &ViewMut<'_>,
    ) -> Result<()> {
        let _timed = self.count(name);
        if x.dtype().is_float() {
            let plan = vectorized::Plan::new(op, x.shape(), axes);
            if let (true, Some(plan)) =
                (self.in_f32_unless_few(name, x.dtype(), plan.is_none().then_some(NO_F32), x.numel())?, plan)
            {
                let all = plan.run(&vector::values(name, x, &[])?)?;
                return store_f64(name, y, &all);
            }
        }
        let g = groups(x.shape(), axes)?;
        let results = axes.keepdim.numel();
        if x.dtype().is_float() || matches!(op, Reduce::Any | Reduce::All) {
            let s = slices(&gather_f64(name, x)?, &g, results)?;
            return store_f64(name, y, &s.iter().map(|v| value(op, v)).try_vec()?);
        }
        let s = slices(&integers(name, x)?, &g, results)?;
        let one = |v: &Vec<i64>| match op {
            Reduce::Max => v.iter().copied().max().unwrap_or(0),
            Reduce::Min => v.iter().copied().min().unwrap_or(0),
            _ => v.iter().fold(0i64, |a, &b| a.wrapping_add(b)),
        };
        store_integers(name, y, &s.iter().map(one).try_vec()?)
    }
}

impl ReduceOps for Kernels {
    fn reduce(&self, op: Reduce, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let a = check_reduce(op, axes, &x, &y)?;
        self.reduce_checked("reduce", op, &a, x, &y)
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
        const OP: &str = "reduce_bwd";
        let a = check_reduce_bwd(op, axes, &dy, x.as_ref(), y.as_ref(), &dx)?;
        let _timed = self.count("reduce_bwd");
        let g = groups(dx.out.shape(), &a)?;
        let dy = gather_f64(OP, dy)?;
        let Some(x) = x else {
            let scale = if op == Reduce::Mean { 1.0 / a.count as f64 } else { 1.0 };
            return store_grad(OP, &dx, &g.iter().map(|&o| dy[o] * scale).try_vec()?);
        };
        let grads: Vec<_> = slices(&gather_f64(OP, x)?, &g, dy.len())?
            .iter()
            .zip(&dy)
            .map(|(v, &dy)| gradient(op, v, dy))
            .try_vec_ok()?;
        // Slices list their elements in row-major order, so visiting the groups in that order takes each list from its front.
        let mut next = filled(dy.len(), 0)?;
        let all: Vec<_> = g
            .iter()
            .map(|&o| {
                next[o] += 1;
                grads[o][next[o] - 1]
            })
            .try_vec()?;
        store_grad(OP, &dx, &all)
    }

    fn arg_reduce(
        &self,
        op: ArgReduce,
        axis: usize,
        x: View<'_>,
        index: ViewMut<'_>,
        value: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "arg_reduce";
        let a = check_arg_reduce(axis, &x, &index, value.as_ref())?;
        let _timed = self.count("arg_reduce");
        let (g, results) = (groups(x.shape(), &a)?, a.keepdim.numel());
        if !x.dtype().is_float() {
            let s = slices(&integers(OP, x)?, &g, results)?;
            let at: Vec<_> = s
                .iter()
                .map(|v| first_best(v, |a, b| if op == ArgReduce::Max { a > b } else { a < b }))
                .try_vec()?;
            store_integers(OP, &index, &at.iter().map(|&i| i as i64).try_vec()?)?;
            let best: Vec<_> = s.iter().zip(&at).map(|(v, &i)| v[i]).try_vec()?;
            return value.map_or(Ok(()), |v| store_integers(OP, &v, &best));
        }
        let s = slices(&gather_f64(OP, x)?, &g, results)?;
        let better = |a: f64, b: f64| match op {
            ArgReduce::Max => !b.is_nan() && (a > b || a.is_nan()),
            ArgReduce::Min => !b.is_nan() && (a < b || a.is_nan()),
        };
        let at: Vec<_> = s.iter().map(|v| first_best(v, better)).try_vec()?;
        store_integers(OP, &index, &at.iter().map(|&i| i as i64).try_vec()?)?;
        let best: Vec<_> = s.iter().zip(&at).map(|(v, &i)| v[i]).try_vec()?;
        value.map_or(Ok(()), |v| store_f64(OP, &v, &best))
    }

    fn arg_reduce_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "arg_reduce_bwd";
        let a = check_arg_reduce_bwd(axis, &dy, &index, &dx)?;
        let _timed = self.count("arg_reduce_bwd");
        let shape = dx.out.shape();
        let (dy, at) = (gather_f64(OP, dy)?, gather_index(OP, index)?);
        if dx.out.numel() > 0 && at.iter().any(|i| i.is_none_or(|i| i >= shape[axis])) {
            self.flag_index_error(OP);
        }
        let inner: usize = shape[axis + 1..].iter().product();
        let here = |(i, o): (usize, usize)| if at[o] == Some(i / inner % shape[axis]) { dy[o] } else { 0.0 };
        store_grad(OP, &dx, &groups(shape, &a)?.into_iter().enumerate().map(here).try_vec()?)
    }

    fn mean_var(
        &self,
        axes: &[usize],
        correction: f64,
        x: View<'_>,
        mean: ViewMut<'_>,
        var: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "mean_var";
        let a = check_mean_var(axes, correction, &x, &mean, &var)?;
        let _timed = self.count("mean_var");
        let s = slices(&gather_f64(OP, x)?, &groups(x.shape(), &a)?, a.keepdim.numel())?;
        let both = s.iter().map(|v| moments(v, correction)).try_vec()?;
        store_f64(OP, &mean, &both.iter().map(|b| b.0).try_vec()?)?;
        store_f64(OP, &var, &both.iter().map(|b| b.1).try_vec()?)
    }

    fn min_max(&self, axes: &[usize], x: View<'_>, lo: ViewMut<'_>, hi: ViewMut<'_>) -> Result<()> {
        const OP: &str = "min_max";
        let a = check_min_max(axes, &x, &lo, &hi)?;
        self.reduce_checked(OP, Reduce::Min, &a, x, &lo)?;
        self.reduce_checked(OP, Reduce::Max, &a, x, &hi)
    }

    fn dot(&self, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let axes = check_dot(&a, &b, &y)?;
        let _timed = self.count("dot");
        let products: Vec<_> =
            gather_f64("dot", a)?.into_iter().zip(gather_f64("dot", b)?).map(|(a, b)| a * b).try_vec()?;
        let s = slices(&products, &groups(a.shape(), &axes)?, axes.keepdim.numel())?;
        store_f64("dot", &y, &s.into_iter().map(sum).try_vec()?)
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
        let _timed = self.count("dot_bwd");
        let g = groups(a.shape(), &axes)?;
        let (dy, av, bv) = (gather_f64(OP, dy)?, gather_f64(OP, a)?, gather_f64(OP, b)?);
        let times = |v: &[f64]| v.iter().zip(&g).map(|(v, &o)| dy[o] * v).try_vec();
        da.map_or(Ok(()), |d| store_grad(OP, &d, &times(&bv)?))?;
        db.map_or(Ok(()), |d| store_grad(OP, &d, &times(&av)?))
    }

    fn sum_to_shape(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let a = check_sum_to_shape(&x, &y)?;
        let _timed = self.count("sum_to_shape");
        let plan = vectorized::Plan::new(Reduce::Sum, x.shape(), &a);
        let without = plan.is_none().then_some(NO_F32);
        if let (true, Some(plan)) =
            (self.in_f32_unless_few("sum_to_shape", x.dtype(), without, x.numel())?, plan)
        {
            let all = plan.run(&vector::values("sum_to_shape", x, &[])?)?;
            return store_grad("sum_to_shape", &y, &all);
        }
        let s = slices(&gather_f64("sum_to_shape", x)?, &groups(x.shape(), &a)?, a.keepdim.numel())?;
        let v: Vec<_> = s.into_iter().map(sum).try_vec()?;
        store_grad("sum_to_shape", &y, &v)
    }
}
