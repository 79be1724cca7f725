//! Normalization in f32. A run of elements shares a set and has one parameter, or, as a row, one per column; the channels of [n, c, 1] are columns,
//! whose statistics are taken over rows too.

use super::{Affine, Forward, Grads, Moments, Places, Saved, from_result};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, collected, each_chunk};
use crate::cpu::vector::activation::{activate, differentiate, differentiate_from_output};
use crate::cpu::vector::{self, column_sums, fill, put, row, simd};
use crate::cpu::{View, ViewMut, gather_f64, store_grad};
use crate::error::Result;
use crate::ops::activation::Activation;

fn narrowed(x: &[f64]) -> Result<Vec<f32>> {
    x.iter().map(|&x| x as f32).try_vec()
}

/// The map from elements to results before the activation, with what a run of elements needs of it.
struct Map {
    at: Places,
    /// Length of a run.
    len: usize,
    mean: Vec<f32>,
    rstd: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
}

/// Sets and parameters of a run.
enum Run {
    /// One set, a parameter for each column.
    Row { set: usize },
    /// One set, one parameter.
    Shared { set: usize, param: usize },
    /// A set and a parameter for each column.
    Columns,
}

/// Whether sets are columns.
fn columns(at: Places) -> bool {
    matches!(at, Places::Channels { s: 1, .. })
}

/// Length of the runs of neighbouring elements: rows where sets are columns.
fn run_of(at: Places) -> usize {
    match at {
        Places::Channels { c, s: 1, .. } => c,
        _ => at.run(),
    }
}

/// Mean (0 for `raw`) and variance per set, in two passes.
fn moments(at: Places, x: &[f32], raw: bool) -> Result<Moments> {
    let n = at.count();
    if let (true, Places::Channels { n: rows, c, .. }) = (columns(at), at) {
        let row = |q: usize| &x[q * c..(q + 1) * c];
        let sum = |q: usize, s: &mut [f32]| s.iter_mut().zip(row(q)).for_each(|(s, x)| *s += x);
        let mut mean = column_sums::<f32>(rows, c, sum)?;
        mean.iter_mut().for_each(|m| *m /= n);
        let center = narrowed(&mean)?;
        let mut var = column_sums::<f32>(rows, c, |q, s| {
            let all = s.iter_mut().zip(row(q).iter().zip(&center));
            all.for_each(|(s, (x, m))| *s += (x - m) * (x - m));
        })?;
        var.iter_mut().for_each(|v| *v /= n);
        return Ok((mean, var));
    }
    let one = |set: usize| {
        simd!({
            let sum: f64 = match raw {
                true => 0.0,
                false => at.runs(set).map(|q| row::sum(&x[at.part(q)])).sum(),
            };
            let mean = sum / n;
            let m = mean as f32;
            let square = |x: f32, _| (x - m) * (x - m);
            let var = at.runs(set).map(|q| row::sum_of(&x[at.part(q)], &x[at.part(q)], square)).sum::<f64>();
            (mean, var / n)
        })
    };
    let few = (CHUNK as f64 / n.max(1.0)) as usize;
    let all: Vec<(f64, f64)> = collected(at.sets(), few.max(1), &one)?;
    Ok((TryVec::try_vec(all.iter().map(|m| m.0))?, TryVec::try_vec(all.iter().map(|m| m.1))?))
}

impl Map {
    fn new(at: Places, affine: &Affine, mean: &[f64], rstd: &[f64]) -> Result<Self> {
        let params = |f: &dyn Fn(usize) -> f64| TryVec::try_vec((0..at.params()).map(|p| f(p) as f32));
        Ok(Map {
            at,
            len: run_of(at).max(1),
            mean: narrowed(mean)?,
            rstd: narrowed(rstd)?,
            scale: params(&|p| affine.scale(p))?,
            shift: params(&|p| affine.shift(p))?,
        })
    }

    fn run(&self, q: usize) -> Run {
        match self.at.of_run(q) {
            _ if columns(self.at) => Run::Columns,
            (set, Some(param)) => Run::Shared { set, param },
            (set, None) => Run::Row { set },
        }
    }

    /// Calls `f` with parts of whole runs and the number of their first element.
    fn parts(&self, y: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
        vector::row_parts(y, self.len, f);
    }

    /// y = (x - mean) * rstd * gamma + beta for a part that begins at element `first`.
    fn apply(&self, first: usize, x: &[f32], y: &mut [f32]) {
        simd!({
            for (i, (y, x)) in y.chunks_mut(self.len).zip(x.chunks(self.len)).enumerate() {
                self.apply_run(first / self.len + i, x, y);
            }
        });
    }

    #[inline(always)]
    fn apply_run(&self, q: usize, x: &[f32], y: &mut [f32]) {
        match self.run(q) {
            Run::Row { set } => {
                let (m, r) = (self.mean[set], self.rstd[set]);
                let params = self.scale.iter().zip(&self.shift);
                y.iter_mut().zip(x).zip(params).for_each(|((y, x), (a, b))| *y = (x - m) * r * a + b);
            }
            Run::Shared { set, param } => {
                let (m, a, b) = (self.mean[set], self.rstd[set] * self.scale[param], self.shift[param]);
                y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - m) * a + b);
            }
            Run::Columns => {
                let stats = self.mean.iter().zip(&self.rstd);
                let params = stats.zip(self.scale.iter().zip(&self.shift));
                let each = y.iter_mut().zip(x).zip(params);
                each.for_each(|((y, x), ((m, r), (a, b)))| *y = (x - m) * (r * a) + b);
            }
        }
    }
}

/// x + residual, stored where wanted.
fn take_sum<'a>(
    op: &'static str,
    x: View<'a>,
    residual: Option<View<'a>>,
    sum: Option<ViewMut<'a>>,
    block: u64,
) -> Result<Values<'a, f32>> {
    let Some(residual) = residual else {
        let x = vector::values(op, x, &[block])?;
        if let Some(sum) = sum {
            // What is stored may lie in the block of x.
            let copy = x.try_to_vec()?;
            drop(x);
            put(op, &sum.into(), &copy)?;
            return Ok(Values::Copied(copy));
        }
        return Ok(x);
    };
    let mut all = vector::values(op, x, &[])?.try_to_vec()?;
    let more = vector::values(op, residual, &[])?;
    each_chunk(&mut all, CHUNK, Share::ANY, &|i, y| vector::add(y, &more[i * CHUNK..][..y.len()]));
    drop(more);
    if let Some(sum) = sum {
        put(op, &sum.into(), &all)?;
    }
    Ok(Values::Copied(all))
}

/// y = act((x - mean) * rstd * gamma + beta + late) and the statistics.
pub(super) fn forward(op: &'static str, at: Places, affine: &Affine, io: Forward<'_>) -> Result<Moments> {
    let block = io.y.out.block().id();
    let late = io.late.map(|v| vector::values(op, v, &[block, io.x.block().id()])).transpose()?;
    let x = take_sum(op, io.x, io.residual, io.sum, block)?;
    let (mean, var) = match io.given {
        Some(given) => given,
        None => moments(at, &x, io.raw)?,
    };
    let map = Map::new(at, affine, &mean, &super::rstd(&var, io.eps)?)?;
    fill(op, &io.y, |y| {
        map.parts(y, |first, y| {
            let part = first..first + y.len();
            map.apply(first, &x[part.clone()], y);
            if let Some(late) = &late {
                vector::add(y, &late[part]);
            }
            activate(affine.act, y);
        });
        Ok(())
    })?;
    Ok((mean, var))
}

/// Sums over elements with the gradient d of what the activation reads: of d, and of d times the normalised x.
struct Sums {
    /// Per parameter: the gradients of beta and gamma.
    beta: Vec<f64>,
    gamma: Vec<f64>,
    /// Per set, of d times the scale, divided by the count; rows find theirs as they go.
    mean: Vec<f32>,
    slope: Vec<f32>,
}

impl Sums {
    fn zero(map: &Map) -> Result<Self> {
        let [params, sets] = [map.at.params(), map.at.sets()];
        let (beta, gamma) = (filled(params, 0.0)?, filled(params, 0.0)?);
        Ok(Sums { beta, gamma, mean: filled(sets, 0.0)?, slope: filled(sets, 0.0)? })
    }

    /// Of rows and of columns: parameters per column.
    fn of_columns(map: &Map, d: &[f32], x: &[f32]) -> Result<Self> {
        let (mut sums, cols) = (Sums::zero(map)?, map.len);
        if x.is_empty() {
            return Ok(sums);
        }
        let both = column_sums::<f32>(
            x.len() / cols,
            2 * cols,
            #[inline(always)]
            |q, s| {
                let (beta, gamma) = s.split_at_mut(cols);
                let part = q * cols..(q + 1) * cols;
                let each = beta.iter_mut().zip(gamma).zip(d[part.clone()].iter().zip(&x[part]));
                match map.run(q) {
                    Run::Row { set } | Run::Shared { set, .. } => {
                        let (m, r) = (map.mean[set], map.rstd[set]);
                        each.for_each(|((b, g), (d, x))| {
                            *b += d;
                            *g += d * ((x - m) * r);
                        });
                    }
                    Run::Columns => {
                        each.zip(map.mean.iter().zip(&map.rstd)).for_each(|(((b, g), (d, x)), (m, r))| {
                            *b += d;
                            *g += d * ((x - m) * r);
                        })
                    }
                }
            },
        )?;
        sums.beta.copy_from_slice(&both[..cols]);
        sums.gamma.copy_from_slice(&both[cols..]);
        if columns(map.at) {
            let n = map.at.count();
            for (c, scale) in map.scale.iter().enumerate() {
                let a = f64::from(*scale) / n;
                (sums.mean[c], sums.slope[c]) = ((a * sums.beta[c]) as f32, (a * sums.gamma[c]) as f32);
            }
        }
        Ok(sums)
    }

    /// Of runs with one parameter.
    fn of_runs(map: &Map, d: &[f32], x: &[f32]) -> Result<Self> {
        let (at, n, mut sums) = (map.at, map.at.count(), Sums::zero(map)?);
        if x.is_empty() {
            return Ok(sums);
        }
        let one = |q: usize| {
            let (set, part) = (at.of_run(q).0, at.part(q));
            let (m, d, x) = (map.mean[set], &d[part.clone()], &x[part]);
            let [a, b] = simd!([row::sum(d), row::sum_of(d, x, |d, x| d * (x - m))]);
            [a, b * f64::from(map.rstd[set])]
        };
        let runs: Vec<[f64; 2]> = collected(x.len() / map.len, (CHUNK / map.len).max(1), &one)?;
        let param = |q: usize| at.of_run(q).1.unwrap_or(0);
        for (q, [d, dx]) in runs.iter().enumerate() {
            sums.beta[param(q)] += d;
            sums.gamma[param(q)] += dx;
        }
        for (set, (mean, slope)) in sums.mean.iter_mut().zip(&mut sums.slope).enumerate() {
            let over =
                |i: usize| at.runs(set).map(|q| f64::from(map.scale[param(q)]) * runs[q][i]).sum::<f64>();
            (*mean, *slope) = ((over(0) / n) as f32, (over(1) / n) as f32);
        }
        Ok(sums)
    }
}

/// dx = rstd * (g - mean(g) - xh * mean(g * xh)) with g = d * scale.
struct InputGradient<'a> {
    map: &'a Map,
    sums: &'a Sums,
    d: &'a [f32],
    x: &'a [f32],
    /// Rows: with mean(g).
    centered: bool,
    /// Without either mean: the statistics are given.
    given: bool,
}

impl InputGradient<'_> {
    /// For a part that begins at element `first`.
    fn apply(&self, first: usize, y: &mut [f32]) {
        let len = self.map.len;
        simd!({
            for (i, y) in y.chunks_mut(len).enumerate() {
                self.apply_run(first / len + i, y);
            }
        });
    }

    #[inline(always)]
    fn apply_run(&self, q: usize, y: &mut [f32]) {
        let (map, n) = (self.map, self.map.at.count());
        let part = q * map.len..q * map.len + y.len();
        let (d, x) = (&self.d[part.clone()], &self.x[part]);
        match map.run(q) {
            Run::Row { set } => {
                let (m, r) = (map.mean[set], map.rstd[set]);
                y.iter_mut().zip(d.iter().zip(&map.scale)).for_each(|(y, (d, a))| *y = d * a);
                let mean = if self.centered { (row::sum(y) / n) as f32 } else { 0.0 };
                let slope = (row::sum_of(y, x, |g, x| g * (x - m)) * f64::from(r) / n) as f32;
                y.iter_mut().zip(x).for_each(|(y, x)| *y = r * (*y - mean - (x - m) * r * slope));
            }
            Run::Shared { set, param } => {
                let (m, r, a) = (map.mean[set], map.rstd[set], map.scale[param]);
                let (mean, slope) =
                    if self.given { (0.0, 0.0) } else { (self.sums.mean[set], self.sums.slope[set]) };
                let each = y.iter_mut().zip(d.iter().zip(x));
                each.for_each(|(y, (d, x))| *y = r * (d * a - mean - (x - m) * r * slope));
            }
            Run::Columns if self.given => {
                let each = y.iter_mut().zip(d).zip(map.scale.iter().zip(&map.rstd));
                each.for_each(|((y, d), (a, r))| *y = r * (d * a));
            }
            Run::Columns => {
                let stats = map.scale.iter().zip(map.mean.iter().zip(&map.rstd));
                let each = y.iter_mut().zip(d.iter().zip(x)).zip(stats);
                let sums = self.sums.mean.iter().zip(&self.sums.slope);
                each.zip(sums).for_each(|(((y, (d, x)), (a, (m, r))), (mean, slope))| {
                    *y = r * (d * a - mean - (x - m) * r * slope);
                });
            }
        }
    }
}

/// An operand's elements, copied if another of the operands, whose blocks are `blocks`, lies in its block: a block is locked once.
fn values<'a>(op: &'static str, blocks: &[u64], v: View<'a>) -> Result<Values<'a, f32>> {
    let id = v.block().id();
    let shared = blocks.iter().filter(|b| **b == id).count() > 1;
    vector::values(op, v, if shared { std::slice::from_ref(&id) } else { &[] })
}

/// Gradients of x, the late residual, gamma and beta.
pub(super) fn backward(
    op: &'static str,
    at: Places,
    affine: &Affine,
    s: Saved<'_>,
    out: Grads<'_>,
) -> Result<()> {
    let written = out.iter().flatten().map(|g| g.out.block().id());
    let read = [Some(s.dy), Some(s.x), s.late, s.y, s.add].into_iter().flatten().map(|v| v.block().id());
    let blocks: Vec<u64> = written.chain(read).try_vec()?;
    let (dy, x) = (values(op, &blocks, s.dy)?, values(op, &blocks, s.x)?);
    let mean = s.mean.map_or_else(|| filled(at.sets(), 0.0), |m| gather_f64(op, m))?;
    let map = Map::new(at, affine, &mean, &gather_f64(op, s.rstd)?)?;
    let mut changed = Vec::new();
    if affine.act != Activation::Identity {
        changed = dy.try_to_vec()?;
        let y =
            s.y.filter(|y| from_result(affine.act, Some(y))).map(|v| values(op, &blocks, v)).transpose()?;
        let late = s.late.map(|v| values(op, &blocks, v)).transpose()?;
        match y {
            Some(y) => map.parts(&mut changed, |first, d| {
                differentiate_from_output(affine.act, d, &y[first..first + d.len()]);
            }),
            None => through_activation(&map, affine.act, &mut changed, &x, late.as_deref())?,
        }
    }
    let d = if affine.act == Activation::Identity { &*dy } else { &*changed };
    let [dx, dlate, dgamma, dbeta] = out;
    let by_column = columns(at) || matches!(at, Places::Rows { .. });
    let sums = match (by_column, dgamma.is_some() || dbeta.is_some() || columns(at)) {
        (true, true) => Sums::of_columns(&map, d, &x)?,
        (true, false) => Sums::zero(&map)?,
        (false, _) => Sums::of_runs(&map, d, &x)?,
    };
    dgamma.map_or(Ok(()), |g| store_grad(op, &g, &sums.gamma))?;
    dbeta.map_or(Ok(()), |g| store_grad(op, &g, &sums.beta))?;
    dlate.map_or(Ok(()), |g| put(op, &g, d))?;
    let Some(dx) = dx else { return Ok(()) };
    let (centered, given) = (s.mean.is_some(), s.given);
    let whole = InputGradient { map: &map, sums: &sums, d, x: &x, centered, given };
    let add = s.add.map(|v| values(op, &blocks, v)).transpose()?;
    fill(op, &dx, |y| {
        map.parts(y, |first, y| {
            whole.apply(first, y);
            if let Some(add) = &add {
                vector::add(y, &add[first..first + y.len()]);
            }
        });
        Ok(())
    })
}

/// d becomes d times the derivative of the activation at what it read.
fn through_activation(
    map: &Map,
    act: Activation,
    d: &mut [f32],
    x: &[f32],
    late: Option<&[f32]>,
) -> Result<()> {
    let mut z = filled(x.len(), 0.0)?;
    map.parts(&mut z, |first, z| {
        let part = first..first + z.len();
        map.apply(first, &x[part.clone()], z);
        if let Some(late) = late {
            vector::add(z, &late[part]);
        }
    });
    map.parts(d, |first, d| differentiate(act, d, &z[first..first + d.len()]));
    Ok(())
}
