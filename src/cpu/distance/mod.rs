//! Distances on the CPU, in f64.

mod search;

use crate::cpu::reduce::sum;
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::distance::*;

fn norm(d: impl Iterator<Item = f64>, p: f64) -> f64 {
    let d = d.map(f64::abs);
    match p {
        0.0 => d.filter(|&d| d != 0.0).count() as f64,
        1.0 => sum(d),
        2.0 => sum(d.map(|d| d * d)).sqrt(),
        f64::INFINITY => d.fold(0.0, |a: f64, b| if a > b || a.is_nan() { a } else { b }),
        _ => sum(d.map(|d| d.powf(p))).powf(1.0 / p),
    }
}

fn sign(d: f64) -> f64 {
    if d == 0.0 || d.is_nan() { d } else { d.signum() }
}

/// Derivative of a norm `y` of differences by the difference `d`; for an infinite p without sharing.
fn slope(d: f64, y: f64, p: f64) -> f64 {
    match p {
        0.0 => 0.0,
        1.0 => sign(d),
        f64::INFINITY => {
            if d.abs() == y {
                sign(d)
            } else {
                0.0
            }
        }
        _ if y == 0.0 || d == 0.0 => 0.0,
        2.0 => d / y,
        _ => sign(d) * d.abs().powf(p - 1.0) / y.powf(p - 1.0),
    }
}

/// Place of the pair i < j in the upper triangle, row by row.
fn triangle(i: usize, j: usize, n: usize) -> usize {
    i * n - i * (i + 1) / 2 + j - i - 1
}

fn differences<'a>(a: &'a [f64], b: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    a.iter().zip(b).map(|(a, b)| a - b)
}

/// Adds the gradient of one distance to those of its two vectors.
fn add_pair(p: f64, dy: f64, y: f64, a: &[f64], b: &[f64], mut add: impl FnMut(usize, f64)) {
    // The saved distance was rounded, and a largest difference must be found again.
    let y = if p == f64::INFINITY { norm(differences(a, b), p) } else { y };
    if dy == 0.0 {
        return;
    }
    differences(a, b).enumerate().for_each(|(k, d)| add(k, dy * slope(d, y, p)));
}

/// Positions of the vectors along the middle axis of [outer, len, inner].
fn vectors([outer, len, inner]: [usize; 3]) -> impl Iterator<Item = Result<Vec<usize>>> {
    (0..outer * inner).map(move |s| (0..len).map(|k| (s / inner * len + k) * inner + s % inner).try_vec())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    sum(a.iter().zip(b).map(|(a, b)| a * b))
}

/// NaN stays, unlike with `f64::max`.
fn at_least(x: f64, eps: f64) -> f64 {
    if x < eps { eps } else { x }
}

fn similarity(op: Similarity, a: &[f64], b: &[f64]) -> f64 {
    match op {
        Similarity::Distance { p, eps } => norm(differences(a, b).map(|d| d + eps), p),
        Similarity::Cosine { eps } => {
            dot(a, b) / (at_least(dot(a, a).sqrt(), eps) * at_least(dot(b, b).sqrt(), eps))
        }
    }
}

/// Gradients of both vectors.
fn similarity_grad(op: Similarity, dy: f64, a: &[f64], b: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    match op {
        Similarity::Distance { p, eps } => {
            let d: Vec<f64> = differences(a, b).map(|d| d + eps).try_vec()?;
            let y = norm(d.iter().copied(), p);
            let share = match p {
                f64::INFINITY => dy / d.iter().filter(|d| d.abs() == y).count() as f64,
                _ => dy,
            };
            let g: Vec<f64> =
                d.iter().map(|&d| if dy == 0.0 { 0.0 } else { share * slope(d, y, p) }).try_vec()?;
            let minus = g.iter().map(|g| -g).try_vec()?;
            Ok((g, minus))
        }
        Similarity::Cosine { eps } => {
            let (na, nb) = (dot(a, a).sqrt(), dot(b, b).sqrt());
            let both = at_least(na, eps) * at_least(nb, eps);
            let y = dot(a, b) / both;
            let one = |v: &[f64], n: f64, other: &[f64]| -> Result<Vec<f64>> {
                let k = if n <= eps { 0.0 } else { y / (n * n) };
                v.iter().zip(other).map(|(v, o)| dy * (o / both - k * v)).try_vec()
            };
            Ok((one(a, na, b)?, one(b, nb, a)?))
        }
    }
}

impl DistanceOps for Kernels {
    fn cdist(&self, p: f64, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "cdist";
        let e = check_cdist(p, &a, &b, &y)?;
        let _timed = self.count("cdist");
        let (a, b) = (gather_f64(OP, a)?, gather_f64(OP, b)?);
        let mut out = with_capacity(y.numel())?;
        for n in 0..if e.rows * e.cols == 0 { 0 } else { e.batch } {
            for i in (0..e.rows).map(|i| (n * e.rows + i) * e.len) {
                for j in (0..e.cols).map(|j| (n * e.cols + j) * e.len) {
                    out.try_push(norm(differences(&a[i..i + e.len], &b[j..j + e.len]), p))?;
                }
            }
        }
        store_f64(OP, &y, &out)
    }

    fn cdist_bwd(&self, p: f64, io: CdistBwd<'_>) -> Result<()> {
        const OP: &str = "cdist_bwd";
        let e = check_cdist_bwd(p, &io)?;
        let _timed = self.count("cdist_bwd");
        let (a, b) = (gather_f64(OP, io.a)?, gather_f64(OP, io.b)?);
        let (dy, y) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.y)?);
        let (mut da, mut db) = (filled(a.len(), 0.0)?, filled(b.len(), 0.0)?);
        for n in 0..if e.rows * e.cols == 0 { 0 } else { e.batch } {
            for r in 0..e.rows {
                for c in 0..e.cols {
                    let at = (n * e.rows + r) * e.cols + c;
                    let (i, j) = ((n * e.rows + r) * e.len, (n * e.cols + c) * e.len);
                    add_pair(p, dy[at], y[at], &a[i..i + e.len], &b[j..j + e.len], |k, g| {
                        da[i + k] += g;
                        db[j + k] -= g;
                    });
                }
            }
        }
        io.da.map_or(Ok(()), |g| store_grad(OP, &g, &da))?;
        io.db.map_or(Ok(()), |g| store_grad(OP, &g, &db))
    }

    fn pdist(&self, p: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "pdist";
        let e = check_pdist(p, &x, &y)?;
        let _timed = self.count("pdist");
        let x = gather_f64(OP, x)?;
        let row = |i: usize| &x[i * e.len..(i + 1) * e.len];
        let pairs = (0..e.rows).flat_map(|i| (i + 1..e.rows).map(move |j| (i, j)));
        let out: Vec<f64> = pairs.map(|(i, j)| norm(differences(row(i), row(j)), p)).try_vec()?;
        store_f64(OP, &y, &out)
    }

    fn pdist_bwd(&self, p: f64, dy: View<'_>, x: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "pdist_bwd";
        let e = check_pdist_bwd(p, &dy, &x, &y, &dx)?;
        let _timed = self.count("pdist_bwd");
        let (x, dy, y) = (gather_f64(OP, x)?, gather_f64(OP, dy)?, gather_f64(OP, y)?);
        let row = |i: usize| &x[i * e.len..(i + 1) * e.len];
        let mut out = filled(x.len(), 0.0)?;
        for i in 0..e.rows {
            for j in i + 1..e.rows {
                let at = triangle(i, j, e.rows);
                add_pair(p, dy[at], y[at], row(i), row(j), |k, g| {
                    out[i * e.len + k] += g;
                    out[j * e.len + k] -= g;
                });
            }
        }
        store_grad(OP, &dx, &out)
    }

    fn similarity(
        &self,
        op: Similarity,
        axis: usize,
        a: View<'_>,
        b: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "similarity";
        let e = check_similarity(op, axis, &a, &b, &y)?;
        let _timed = self.count("similarity");
        let (a, b) = (gather_f64(OP, a)?, gather_f64(OP, b)?);
        let pick = |x: &[f64], at: &[usize]| at.iter().map(|&i| x[i]).try_vec();
        let one = |at: Vec<usize>| Ok(similarity(op, &pick(&a, &at)?, &pick(&b, &at)?));
        let out: Vec<f64> = vectors(e).map(|at| at.and_then(one)).try_vec_ok()?;
        store_f64(OP, &y, &out)
    }

    fn similarity_bwd(&self, op: Similarity, axis: usize, io: SimilarityBwd<'_>) -> Result<()> {
        const OP: &str = "similarity_bwd";
        let e = check_similarity_bwd(op, axis, &io)?;
        let _timed = self.count("similarity_bwd");
        let (a, b, dy) = (gather_f64(OP, io.a)?, gather_f64(OP, io.b)?, gather_f64(OP, io.dy)?);
        let (mut da, mut db) = (filled(a.len(), 0.0)?, filled(b.len(), 0.0)?);
        let pick = |x: &[f64], at: &[usize]| at.iter().map(|&i| x[i]).try_vec();
        for (at, dy) in vectors(e).zip(dy) {
            let at = at?;
            let (ga, gb) = similarity_grad(op, dy, &pick(&a, &at)?, &pick(&b, &at)?)?;
            for (k, &i) in at.iter().enumerate() {
                (da[i], db[i]) = (ga[k], gb[k]);
            }
        }
        io.da.map_or(Ok(()), |g| store_grad(OP, &g, &da))?;
        io.db.map_or(Ok(()), |g| store_grad(OP, &g, &db))
    }
}
