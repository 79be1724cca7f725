//! Normalization on the CPU: one definition for rows, groups and channels, which differ in who shares statistics and parameters.

mod vectorized;

use std::iter::StepBy;
use std::ops::Range;

use crate::cpu::activation::{from_output, gradient, value};
use crate::cpu::reduce::sum;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, collected, each_chunk, sum_of};
use crate::cpu::*;
use crate::ops::activation::Activation;
use crate::ops::norm::*;

/// Which set of values and which parameter an element belongs to.
#[derive(Debug, Clone, Copy)]
enum Places {
    /// Rows of `cols`, parameters per column.
    Rows { rows: usize, cols: usize },
    /// [n, c, s] in groups of `cg` channels, parameters per channel.
    Groups { n: usize, c: usize, s: usize, cg: usize },
    /// [n, c, s], sets and parameters per channel.
    Channels { n: usize, c: usize, s: usize },
}

impl Places {
    /// Length of the runs of neighbouring elements that share a set.
    fn run(self) -> usize {
        match self {
            Places::Rows { cols, .. } => cols,
            Places::Groups { s, .. } | Places::Channels { s, .. } => s,
        }
    }

    /// The set of a run, and its parameter; none for a row, whose elements have one each.
    fn of_run(self, q: usize) -> (usize, Option<usize>) {
        match self {
            Places::Rows { .. } => (q, None),
            Places::Groups { c, cg, .. } => (q / cg, Some(q % c)),
            Places::Channels { c, .. } => (q % c, Some(q % c)),
        }
    }

    /// The runs of a set.
    fn runs(self, set: usize) -> StepBy<Range<usize>> {
        match self {
            Places::Rows { .. } => (set..set + 1).step_by(1),
            Places::Groups { cg, .. } => (set * cg..(set + 1) * cg).step_by(1),
            Places::Channels { n, c, .. } => (set..n * c).step_by(c.max(1)),
        }
    }

    fn sets(self) -> usize {
        match self {
            Places::Rows { rows, .. } => rows,
            Places::Groups { n, c, cg, .. } => n * c / cg,
            Places::Channels { c, .. } => c,
        }
    }

    fn params(self) -> usize {
        match self {
            Places::Rows { cols, .. } => cols,
            Places::Groups { c, .. } | Places::Channels { c, .. } => c,
        }
    }

    /// Values per set.
    fn count(self) -> f64 {
        (match self {
            Places::Rows { cols, .. } => cols,
            Places::Groups { s, cg, .. } => s * cg,
            Places::Channels { n, s, .. } => n * s,
        }) as f64
    }

    /// The elements of a run.
    fn part(self, q: usize) -> Range<usize> {
        q * self.run()..(q + 1) * self.run()
    }

    /// Sums of f(run) per set.
    fn per_set(self, f: impl Fn(usize) -> f64 + Sync) -> Result<Vec<f64>> {
        let few = (CHUNK as f64 / self.count().max(1.0)) as usize;
        let one = |set| self.runs(set).map(&f).sum();
        collected(self.sets(), few.max(1), &one)
    }

    /// Sums of f(a, b) per parameter.
    fn per_param(self, a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64 + Sync) -> Result<Vec<f64>> {
        let cols = match self {
            Places::Groups { n, c, s, .. } | Places::Channels { n, c, s } => {
                let channels = Places::Channels { n, c, s };
                return channels.per_set(|q| sum_of(&a[channels.part(q)], &b[channels.part(q)], &f));
            }
            Places::Rows { cols, .. } => cols.max(1),
        };
        // Sums of blocks of rows, which are added in order.
        let block = |i: usize| -> Result<Vec<f64>> {
            let part = i * 64 * cols..a.len().min((i + 1) * 64 * cols);
            let (a, b) = (&a[part.clone()], &b[part]);
            let mut sums = filled(cols, 0.0)?;
            for (a, b) in a.chunks(cols).zip(b.chunks(cols)) {
                sums.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += f(*a, *b));
            }
            Ok(sums)
        };
        let blocks: Vec<_> = collected(a.len().div_ceil(64 * cols), 1, &block)?;
        let mut out = filled(self.params(), 0.0)?;
        for v in blocks {
            out.iter_mut().zip(v?).for_each(|(o, v)| *o += v);
        }
        Ok(out)
    }

    /// Mean (0 for `raw`) and variance per set, in two passes.
    fn moments(self, x: &[f64], raw: bool) -> Result<(Vec<f64>, Vec<f64>)> {
        let n = self.count();
        let mut mean = filled(self.sets(), 0.0)?;
        if !raw {
            mean = self.per_set(|q| sum_of(&x[self.part(q)], &x[self.part(q)], |x, _| x))?;
            mean.iter_mut().for_each(|m| *m /= n);
        }
        let mut var = self.per_set(|q| {
            let m = mean[self.of_run(q).0];
            sum_of(&x[self.part(q)], &x[self.part(q)], |x, _| (x - m) * (x - m))
        })?;
        var.iter_mut().for_each(|v| *v /= n);
        Ok((mean, var))
    }

    /// Calls `f` with each run of elements and its number.
    fn each_run(self, y: &mut [f64], f: impl Fn(usize, &mut [f64]) + Sync) {
        let len = self.run().max(1);
        each_chunk(y, len, Share::at_least((CHUNK / len).max(1)), &f);
    }
}

fn rstd(var: &[f64], eps: f64) -> Result<Vec<f64>> {
    var.iter().map(|v| 1.0 / (v + eps).sqrt()).try_vec()
}

fn optional(op: &'static str, v: Option<View<'_>>) -> Result<Option<Vec<f64>>> {
    v.map(|v| gather_f64(op, v)).transpose()
}

fn store_optional(op: &'static str, v: Option<&ViewMut<'_>>, data: &[f64]) -> Result<()> {
    v.map_or(Ok(()), |v| store_f64(op, v, data))
}

/// The map from normalised values to results.
struct Affine {
    gamma: Option<Vec<f64>>,
    beta: Option<Vec<f64>>,
    offset: f64,
    act: Activation,
}

impl Affine {
    fn scale(&self, p: usize) -> f64 {
        self.gamma.as_ref().map_or(1.0, |g| g[p] + self.offset)
    }

    fn shift(&self, p: usize) -> f64 {
        self.beta.as_ref().map_or(0.0, |b| b[p])
    }

    /// Calls `f(position, factor, offset)` for the elements of a run with this parameter, or with one each.
    fn each(&self, param: Option<usize>, len: usize, mut f: impl FnMut(usize, f64, f64)) {
        match param.map(|p| (self.scale(p), self.shift(p))) {
            Some((a, b)) => (0..len).for_each(|j| f(j, a, b)),
            None => (0..len).for_each(|j| f(j, self.scale(j), self.shift(j))),
        }
    }
}

/// Mean and variance per set.
type Moments = (Vec<f64>, Vec<f64>);

/// Operands of a forward call besides the parameters.
struct Forward<'a> {
    x: View<'a>,
    /// Added to x, the result stored where wanted.
    residual: Option<View<'a>>,
    sum: Option<ViewMut<'a>>,
    /// Added before the activation.
    late: Option<View<'a>>,
    y: GradMut<'a>,
    eps: f64,
    /// Leave out the mean.
    raw: bool,
    /// Statistics that do not come from x.
    given: Option<Moments>,
}

/// y = act((x - mean) * rstd * gamma + beta + late), and the statistics.
fn forward(op: &'static str, at: Places, affine: &Affine, io: Forward<'_>) -> Result<Moments> {
    let mut x = take_sum(op, io.x, io.residual, io.sum.as_ref())?;
    let (mean, var) = match io.given {
        Some(given) => given,
        None => at.moments(&x, io.raw)?,
    };
    let (r, late) = (rstd(&var, io.eps)?, optional(op, io.late)?);
    at.each_run(&mut x, |q, x| {
        let (set, param) = at.of_run(q);
        let (mean, rstd) = (mean[set], r[set]);
        affine.each(param, x.len(), |j, a, b| x[j] = (x[j] - mean) * rstd * a + b);
        if let Some(late) = &late {
            x.iter_mut().zip(&late[at.part(q)]).for_each(|(x, r)| *x += r);
        }
        if affine.act != Activation::Identity {
            x.iter_mut().for_each(|x| *x = value(affine.act, *x));
        }
    });
    store_f64(op, &io.y.out, &x)?;
    Ok((mean, var))
}

/// Saved values of a gradient.
struct Saved<'a> {
    dy: View<'a>,
    x: View<'a>,
    late: Option<View<'a>>,
    y: Option<View<'a>>,
    mean: Option<View<'a>>,
    rstd: View<'a>,
    add: Option<View<'a>>,
    /// The statistics do not depend on x.
    given: bool,
}

/// Where the gradients of x, the late residual, gamma and beta go.
type Grads<'a> = [Option<GradMut<'a>>; 4];

fn backward(op: &'static str, at: Places, affine: &Affine, s: Saved<'_>, out: Grads<'_>) -> Result<()> {
    let (dy, mut xh) = (gather_f64(op, s.dy)?, gather_f64(op, s.x)?);
    let (mean, rstd) = (optional(op, s.mean)?, gather_f64(op, s.rstd)?);
    let (late, add) = (optional(op, s.late)?, optional(op, s.add)?);
    let y = optional(op, s.y.filter(|y| from_result(affine.act, Some(y))))?;
    at.each_run(&mut xh, |q, x| {
        let set = at.of_run(q).0;
        let (m, r) = (mean.as_ref().map_or(0.0, |m| m[set]), rstd[set]);
        x.iter_mut().for_each(|x| *x = (*x - m) * r);
    });
    // dy becomes the gradient of what the activation reads, and later that of the normalised values.
    let mut dz = dy;
    if affine.act != Activation::Identity {
        at.each_run(&mut dz, |q, d| {
            let (part, param) = (at.part(q), at.of_run(q).1);
            match &y {
                Some(y) => d.iter_mut().zip(&y[part]).for_each(|(d, y)| *d = from_output(affine.act, *d, *y)),
                None => affine.each(param, d.len(), |j, a, b| {
                    let i = part.start + j;
                    let z = xh[i] * a + b + late.as_ref().map_or(0.0, |r| r[i]);
                    d[j] = gradient(affine.act, d[j], z);
                }),
            }
        });
    }
    let [dx, dlate, dgamma, dbeta] = out;
    if let Some(o) = &dgamma {
        store_grad(op, o, &at.per_param(&dz, &xh, |d, x| d * x)?)?;
    }
    if let Some(o) = &dbeta {
        store_grad(op, o, &at.per_param(&dz, &dz, |d, _| d)?)?;
    }
    if let Some(o) = &dlate {
        store_grad(op, o, &dz)?;
    }
    let Some(o) = &dx else { return Ok(()) };
    at.each_run(&mut dz, |q, d| affine.each(at.of_run(q).1, d.len(), |j, a, _| d[j] *= a));
    let sums = |f: fn(f64, f64) -> f64, wanted: bool| match wanted {
        true => at.per_set(|q| sum_of(&dz[at.part(q)], &xh[at.part(q)], f)),
        false => filled(at.sets(), 0.0),
    };
    let (c1, c2) = (sums(|g, _| g, !s.given && mean.is_some())?, sums(|g, x| g * x, !s.given)?);
    let n = at.count();
    at.each_run(&mut dz, |q, d| {
        let (part, set) = (at.part(q), at.of_run(q).0);
        let (r, c1, c2) = (rstd[set], c1[set] / n, c2[set] / n);
        d.iter_mut().zip(&xh[part.clone()]).for_each(|(d, x)| *d = r * (*d - c1 - x * c2));
        if let Some(add) = &add {
            d.iter_mut().zip(&add[part]).for_each(|(d, a)| *d += a);
        }
    });
    store_grad(op, o, &dz)
}

/// Updates running statistics by a batch with these ones; counts the batch.
fn update_running(op: &'static str, r: &Running<'_>, mean: &[f64], var: &[f64]) -> Result<()> {
    let m = match &r.momentum {
        Momentum::Factor(m) => *m,
        Momentum::Cumulative(c) => {
            let before = gather::<i64>(op, c.as_view())?[0];
            store(op, c, &[before.wrapping_add(1)])?;
            1.0 / (before.wrapping_add(1)) as f64
        }
    };
    for (out, new) in [(&r.mean, mean), (&r.var, var)] {
        let old = gather_f64(op, out.as_view())?;
        let v: Vec<f64> = old.iter().zip(new).map(|(o, n)| (1.0 - m) * o + m * n).try_vec()?;
        store_f64(op, out, &v)?;
    }
    Ok(())
}

/// x + residual, stored where wanted.
fn take_sum(
    op: &'static str,
    x: View<'_>,
    residual: Option<View<'_>>,
    out: Option<&ViewMut<'_>>,
) -> Result<Vec<f64>> {
    let mut x = gather_f64(op, x)?;
    if let Some(r) = optional(op, residual)? {
        x.iter_mut().zip(r).for_each(|(x, r)| *x += r);
    }
    store_optional(op, out, &x)?;
    Ok(x)
}

impl Kernels {
    /// A forward call in the arithmetic that is chosen for it.
    fn norm(&self, op: &'static str, at: Places, affine: &Affine, io: Forward<'_>) -> Result<Moments> {
        match self.in_f32(op, io.x.dtype(), None)? {
            true => vectorized::forward(op, at, affine, io),
            false => forward(op, at, affine, io),
        }
    }

    fn norm_bwd(
        &self,
        op: &'static str,
        at: Places,
        affine: &Affine,
        s: Saved<'_>,
        out: Grads<'_>,
    ) -> Result<()> {
        match self.in_f32(op, s.x.dtype(), None)? {
            true => vectorized::backward(op, at, affine, s, out),
            false => backward(op, at, affine, s, out),
        }
    }

    /// Group norm, and instance norm with its running statistics.
    fn groups(
        &self,
        op: &'static str,
        p: &GroupNorm,
        [n, c, s]: [usize; 3],
        io: GroupNormFwd<'_>,
    ) -> Result<()> {
        let at = Places::Groups { n, c, s, cg: c / p.groups };
        let (gamma, beta) = (optional(op, io.gamma)?, optional(op, io.beta)?);
        let affine = Affine { gamma, beta, offset: 0.0, act: p.act };
        let (x, residual, y) = (io.x, io.residual, io.y.into());
        let all = Forward { x, residual, sum: io.sum, late: None, y, eps: p.eps, raw: false, given: None };
        let (mean, var) = self.norm(op, at, &affine, all)?;
        store_optional(op, io.mean.as_ref(), &mean)?;
        store_optional(op, io.rstd.as_ref(), &rstd(&var, p.eps)?)?;
        if let (Some(running), true) = (&io.running, n > 0 && s > 0) {
            let over_n = |v: &[f64], f: f64| -> Result<Vec<f64>> {
                (0..c).map(|k| f * sum((0..n).map(|i| v[i * c + k])) / n as f64).try_vec()
            };
            let unbiased = s as f64 / (s as f64 - 1.0);
            update_running(op, running, &over_n(&mean, 1.0)?, &over_n(&var, unbiased)?)?;
        }
        Ok(())
    }
}

impl NormOps for Kernels {
    fn row_norm(&self, p: &RowNorm, io: RowNormFwd<'_>) -> Result<()> {
        let (o, [rows, cols]) = check_row_norm(p, &io)?;
        let _timed = self.count("row_norm");
        let (gamma, beta) = (optional(o.op, io.gamma)?, optional(o.op, io.beta)?);
        let affine = Affine { gamma, beta, offset: p.gamma_offset, act: p.act };
        let (x, residual, sum, y) = (io.x, io.residual, io.sum, io.y.into());
        let all = Forward { x, residual, sum, late: None, y, eps: p.eps, raw: p.rms, given: None };
        let (mean, var) = self.norm(o.op, Places::Rows { rows, cols }, &affine, all)?;
        store_optional(o.op, io.mean.as_ref(), &mean)?;
        store_optional(o.op, io.rstd.as_ref(), &rstd(&var, p.eps)?)
    }

    fn group_norm(&self, p: &GroupNorm, io: GroupNormFwd<'_>) -> Result<()> {
        let (o, shape) = check_group_norm(p, &io)?;
        let _timed = self.count("group_norm");
        self.groups(o.op, p, shape, io)
    }

    fn instance_norm(&self, p: &InstanceNorm, io: GroupNormFwd<'_>) -> Result<()> {
        let (o, shape) = check_instance_norm(p, &io)?;
        let _timed = self.count("instance_norm");
        self.groups(o.op, &p.groups(shape[1]), shape, io)
    }

    fn batch_norm(&self, p: &BatchNorm, io: BatchNormFwd<'_>) -> Result<()> {
        let io = io.channels_as_columns()?;
        let (o, [n, c, s]) = check_batch_norm(p, &io)?;
        let _timed = self.count("batch_norm");
        let at = Places::Channels { n, c, s };
        let (running, given) = match io.stats {
            BatchStats::Given { mean, var } => {
                (None, Some((gather_f64(o.op, mean)?, gather_f64(o.op, var)?)))
            }
            BatchStats::Batch(running) => (running, None),
        };
        let (gamma, beta) = (optional(o.op, io.gamma)?, optional(o.op, io.beta)?);
        let affine = Affine { gamma, beta, offset: 0.0, act: p.act };
        let (x, late, y) = (io.x, io.residual, io.y.into());
        let all = Forward { x, residual: None, sum: None, late, y, eps: p.eps, raw: false, given };
        let (mean, var) = self.norm(o.op, at, &affine, all)?;
        store_optional(o.op, io.mean.as_ref(), &mean)?;
        store_optional(o.op, io.rstd.as_ref(), &rstd(&var, p.eps)?)?;
        if let (Some(r), true) = (&running, n * s > 0) {
            let count = at.count();
            let unbiased: Vec<f64> = var.iter().map(|v| v * count / (count - 1.0)).try_vec()?;
            update_running(o.op, r, &mean, &unbiased)?;
        }
        Ok(())
    }

    fn l2_normalize(&self, axis: usize, eps: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (o, [outer, cols, inner]) = check_l2(axis, eps, x, &y)?;
        let _timed = self.count("l2_normalize");
        let mut v = gather_f64(o.op, x)?;
        for at in 0..outer * inner {
            let (row, i) = (at / inner, at % inner);
            let at = |k: usize| (row * cols + k) * inner + i;
            let r = sum((0..cols).map(|k| v[at(k)] * v[at(k)])).sqrt();
            let r = if r < eps { eps } else { r };
            (0..cols).for_each(|k| v[at(k)] /= r);
        }
        store_f64(o.op, &y, &v)
    }

    fn l2_normalize_bwd(
        &self,
        axis: usize,
        eps: f64,
        dy: View<'_>,
        x: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        let (o, [outer, cols, inner]) = check_l2_bwd(axis, eps, dy, x, &dx)?;
        let _timed = self.count("l2_normalize_bwd");
        let (mut g, x) = (gather_f64(o.op, dy)?, gather_f64(o.op, x)?);
        for at in 0..outer * inner {
            let (row, i) = (at / inner, at % inner);
            let at = |k: usize| (row * cols + k) * inner + i;
            let r = sum((0..cols).map(|k| x[at(k)] * x[at(k)])).sqrt();
            if r <= eps {
                (0..cols).for_each(|k| g[at(k)] /= eps);
                continue;
            }
            let t = sum((0..cols).map(|k| g[at(k)] * x[at(k)])) / (r * r);
            (0..cols).for_each(|k| g[at(k)] = (g[at(k)] - x[at(k)] * t) / r);
        }
        store_grad(o.op, &dx, &g)
    }
}

impl NormBackwardOps for Kernels {
    fn row_norm_bwd(&self, p: &RowNorm, io: RowNormBwd<'_>) -> Result<()> {
        let (o, [rows, cols]) = check_row_norm_bwd(p, &io)?;
        let _timed = self.count("row_norm_bwd");
        let (gamma, beta) = (optional(o.op, io.gamma)?, optional(o.op, io.beta)?);
        let affine = Affine { gamma, beta, offset: p.gamma_offset, act: p.act };
        let saved = Saved {
            dy: io.dy,
            x: io.x,
            late: None,
            y: io.y,
            mean: io.mean,
            rstd: io.rstd,
            add: io.add,
            given: false,
        };
        self.norm_bwd(o.op, Places::Rows { rows, cols }, &affine, saved, [io.dx, None, io.dgamma, io.dbeta])
    }

    fn group_norm_bwd(&self, p: &GroupNorm, io: GroupNormBwd<'_>) -> Result<()> {
        let (o, [n, c, s]) = check_group_norm_bwd(p, &io)?;
        let _timed = self.count("group_norm_bwd");
        let (gamma, beta) = (optional(o.op, io.gamma)?, optional(o.op, io.beta)?);
        let affine = Affine { gamma, beta, offset: 0.0, act: p.act };
        let saved = Saved {
            dy: io.dy,
            x: io.x,
            late: None,
            y: io.y,
            mean: Some(io.mean),
            rstd: io.rstd,
            add: io.add,
            given: false,
        };
        let at = Places::Groups { n, c, s, cg: c / p.groups };
        self.norm_bwd(o.op, at, &affine, saved, [io.dx, None, io.dgamma, io.dbeta])
    }

    fn batch_norm_bwd(&self, p: &BatchNorm, io: BatchNormBwd<'_>) -> Result<()> {
        let io = io.channels_as_columns()?;
        let (o, [n, c, s]) = check_batch_norm_bwd(p, &io)?;
        let _timed = self.count("batch_norm_bwd");
        let (gamma, beta) = (optional(o.op, io.gamma)?, optional(o.op, io.beta)?);
        let affine = Affine { gamma, beta, offset: 0.0, act: p.act };
        let saved = Saved {
            dy: io.dy,
            x: io.x,
            late: io.residual,
            y: io.y,
            mean: Some(io.mean),
            rstd: io.rstd,
            add: None,
            given: !io.training,
        };
        let out = [io.dx, io.dresidual, io.dgamma, io.dbeta];
        self.norm_bwd(o.op, Places::Channels { n, c, s }, &affine, saved, out)
    }
}
