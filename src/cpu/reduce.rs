//! Reductions along axes, in f64.

use super::*;
use crate::ops::*;

/// Neumaier's compensated sum, so that the oracle's error does not grow with the count.
pub(super) fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
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
fn groups(shape: &[usize], axes: &Axes) -> Vec<usize> {
    let layout = Layout::contiguous(&axes.keepdim).and_then(|l| l.broadcast_to(shape));
    layout.map_or(vec![], |l| offsets(&l).collect())
}

/// The elements of each slice in row-major order.
fn slices<T: Copy>(x: &[T], groups: &[usize], results: usize) -> Vec<Vec<T>> {
    let mut out = vec![vec![]; results];
    for (&v, &g) in x.iter().zip(groups) {
        out[g].push(v);
    }
    out
}

fn integers(op: &'static str, x: View<'_>) -> Result<Vec<i64>> {
    Ok(match x.dtype() {
        DType::I64 => gather::<i64>(op, x)?,
        _ => gather_f64(op, x)?.into_iter().map(|v| v as i64).collect(),
    })
}

fn store_integers(op: &'static str, y: &ViewMut<'_>, data: &[i64]) -> Result<()> {
    match y.dtype() {
        DType::I64 => store::<i64>(op, y, data),
        DType::I32 => store::<i32>(op, y, &data.iter().map(|&v| v as i32).collect::<Vec<_>>()),
        _ => store::<u8>(op, y, &data.iter().map(|&v| v as u8).collect::<Vec<_>>()),
    }
}

#[allow(unused_variables)]
impl ReduceOps for CpuBackend {
    fn reduce(&self, op: Reduce, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let a = check_reduce(op, axes, &x, &y)?;
        self.count();
        let g = groups(x.shape(), &a);
        let results = a.keepdim.numel();
        if x.dtype().is_float() || matches!(op, Reduce::Any | Reduce::All) {
            let s = slices(&gather_f64("reduce", x)?, &g, results);
            let v: Vec<_> = s.iter().map(|v| value(op, v)).collect();
            return store_f64("reduce", &y, &v);
        }
        let s = slices(&integers("reduce", x)?, &g, results);
        let one = |v: &Vec<i64>| match op {
            Reduce::Max => v.iter().copied().max().unwrap_or(0),
            Reduce::Min => v.iter().copied().min().unwrap_or(0),
            _ => v.iter().fold(0i64, |a, &b| a.wrapping_add(b)),
        };
        store_integers("reduce", &y, &s.iter().map(one).collect::<Vec<_>>())
    }

    fn reduce_bwd(&self, op: Reduce, axes: &[usize], dy: View<'_>, x: Option<View<'_>>, y: Option<View<'_>>, dx: GradMut<'_>) -> Result<()> { todo!() }
    fn arg_reduce(&self, op: ArgReduce, axis: usize, x: View<'_>, index: ViewMut<'_>, value: Option<ViewMut<'_>>) -> Result<()> { todo!() }
    fn arg_reduce_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> { todo!() }
    fn mean_var(&self, axes: &[usize], correction: f64, x: View<'_>, mean: ViewMut<'_>, var: ViewMut<'_>) -> Result<()> { todo!() }
    fn min_max(&self, axes: &[usize], x: View<'_>, lo: ViewMut<'_>, hi: ViewMut<'_>) -> Result<()> { todo!() }
    fn dot(&self, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> { todo!() }
    fn dot_bwd(&self, dy: View<'_>, a: View<'_>, b: View<'_>, da: Option<GradMut<'_>>, db: Option<GradMut<'_>>) -> Result<()> { todo!() }

    fn sum_to_shape(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let a = check_sum_to_shape(&x, &y)?;
        self.count();
        let s = slices(&gather_f64("sum_to_shape", x)?, &groups(x.shape(), &a), a.keepdim.numel());
        let v: Vec<_> = s.into_iter().map(sum).collect();
        store_grad("sum_to_shape", &y, &v)
    }
}
