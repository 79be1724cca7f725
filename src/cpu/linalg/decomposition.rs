//! Orthogonal and spectral decompositions.

use super::singular::singular;
use super::{Dense, Stack, joined};
use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::*;
use crate::ops::linalg::*;

/// Q and R by one reflection after the other; the reflections are applied to the identity from the last to the first.
pub(super) fn householder(a: &Dense) -> Result<(Dense, Dense)> {
    let (rows, cols, k) = (a.rows, a.cols, a.rows.min(a.cols));
    let (mut r, mut vectors) = (a.clone(), with_capacity(k)?);
    for j in 0..k {
        // The largest magnitude is divided out, so that squares stay in range.
        let largest =
            (j..rows).map(|i| r[(i, j)].abs()).fold(0.0, |a: f64, b| if b.is_nan() { b } else { a.max(b) });
        let below = (j + 1..rows).any(|i| r[(i, j)] != 0.0);
        let mut v = filled(rows, 0.0)?;
        let mut tau = 0.0;
        if below {
            let unit = if largest.is_infinite() || largest == 0.0 { 1.0 } else { largest };
            let x = (j..rows).map(|i| r[(i, j)] / unit).try_vec()?;
            let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let beta = if x[0] >= 0.0 { -norm } else { norm };
            tau = (beta - x[0]) / beta;
            x.iter().enumerate().for_each(|(i, e)| v[j + i] = e / (x[0] - beta));
            v[j] = 1.0;
        }
        reflect(&mut r, &v, tau, j);
        vectors.try_push((v, tau))?;
    }
    let mut q = Dense::identity(rows, k)?;
    for (j, (v, tau)) in vectors.iter().enumerate().rev() {
        reflect(&mut q, v, *tau, j);
    }
    let mut upper = Dense::zeros(k, cols)?;
    for i in 0..k {
        (i..cols).for_each(|c| upper[(i, c)] = r[(i, c)]);
    }
    Ok((q, upper))
}

/// m - tau v (v^T m), for v that begins at `from`.
fn reflect(m: &mut Dense, v: &[f64], tau: f64, from: usize) {
    if tau == 0.0 {
        return;
    }
    for c in 0..m.cols {
        let dot: f64 = (from..m.rows).map(|i| v[i] * m[(i, c)]).sum();
        (from..m.rows).for_each(|i| m[(i, c)] -= tau * dot * v[i]);
    }
}

impl DecompositionOps for Kernels {
    fn qr(&self, io: Qr<'_>) -> Result<()> {
        const OP: &str = "qr";
        let m = check_qr(&io)?;
        let _timed = self.count("qr");
        if m.is_empty() {
            return Ok(());
        }
        let stack = Stack::load(OP, io.a, m.rows, m.cols)?;
        let (mut qs, mut rs) = (with_capacity(m.batch)?, with_capacity(m.batch)?);
        for i in 0..m.batch {
            let (q, r) = householder(&stack.get(i)?)?;
            qs.try_push(q)?;
            rs.try_push(r)?;
        }
        store_f64(OP, &io.r, &joined(rs)?)?;
        io.q.as_ref().map_or(Ok(()), |q| store_f64(OP, q, &joined(qs)?))
    }

    fn eigh(&self, upper: bool, io: Eigh<'_>) -> Result<()> {
        const OP: &str = "eigh";
        let m = check_eigh(&io)?;
        let _timed = self.count("eigh");
        let (mut info, n) = (filled(io.info.numel(), 0i32)?, m.rows);
        if !m.is_empty() {
            let stack = Stack::load(OP, io.a, n, n)?;
            let (mut values, mut vectors) = (with_capacity(m.batch * n)?, with_capacity(m.batch)?);
            for (i, info) in info.iter_mut().enumerate() {
                let (w, v, converged) = eigen(stack.get(i)?, upper)?;
                *info = i32::from(!converged);
                values.try_extend(w)?;
                vectors.try_push(v)?;
            }
            store_f64(OP, &io.w, &values)?;
            io.v.as_ref().map_or(Ok(()), |v| store_f64(OP, v, &joined(vectors)?))?;
        }
        store(OP, &io.info, &info)
    }

    fn svd(&self, io: Svd<'_>) -> Result<()> {
        const OP: &str = "svd";
        let m = check_svd(&io)?;
        let _timed = self.count("svd");
        let mut info = filled(io.info.numel(), 0i32)?;
        if !m.is_empty() {
            let stack = Stack::load(OP, io.a, m.rows, m.cols)?;
            let mut values = with_capacity(m.batch * m.least())?;
            let (mut left, mut right) = (with_capacity(m.batch)?, with_capacity(m.batch)?);
            for (i, info) in info.iter_mut().enumerate() {
                let f = singular(stack.get(i)?)?;
                *info = i32::from(!f.converged);
                values.try_extend(f.s)?;
                left.try_push(f.u)?;
                right.try_push(f.vh)?;
            }
            store_f64(OP, &io.s, &values)?;
            io.u.as_ref().map_or(Ok(()), |u| store_f64(OP, u, &joined(left)?))?;
            io.vh.as_ref().map_or(Ok(()), |vh| store_f64(OP, vh, &joined(right)?))?;
        }
        store(OP, &io.info, &info)
    }
}

/// Eigenvalues in ascending order, the eigenvectors in columns, and whether the rotations converged.
fn eigen(mut a: Dense, upper: bool) -> Result<(Vec<f64>, Dense, bool)> {
    let n = a.rows;
    for r in 0..n {
        (0..r).for_each(|c| if upper { a[(r, c)] = a[(c, r)] } else { a[(c, r)] = a[(r, c)] });
    }
    let mut v = Dense::identity(n, n)?;
    let largest =
        a.data.iter().fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x.abs()) });
    let mut converged = largest == 0.0;
    for _ in 0..ROTATED {
        if converged || largest.is_infinite() {
            break;
        }
        let mut moved = false;
        for p in 0..n {
            for q in p + 1..n {
                if a[(p, q)].abs() > f64::EPSILON / 64.0 * largest {
                    moved |= a[(p, q)].abs() > f64::EPSILON * largest;
                    rotate(&mut a, &mut v, p, q);
                }
            }
        }
        converged = !moved;
    }
    let mut order = (0..n).try_vec()?;
    sort_positions(&mut order, &|i, j| {
        let (x, y) = (a[(i, i)], a[(j, j)]);
        x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan())).then(i.cmp(&j))
    });
    let mut sorted = Dense::zeros(n, n)?;
    for (c, &from) in order.iter().enumerate() {
        (0..n).for_each(|r| sorted[(r, c)] = v[(r, from)]);
    }
    let unknown = if largest.is_infinite() { f64::NAN } else { 0.0 };
    sorted.data.iter_mut().for_each(|x| *x += unknown);
    Ok((order.iter().map(|&i| a[(i, i)] + unknown).try_vec()?, sorted, converged))
}

/// Most passes over all elements.
const ROTATED: usize = 40;

/// Makes elements (p, q) and (q, p) of a symmetric matrix 0, by a rotation of these rows and columns that v takes part in.
fn rotate(a: &mut Dense, v: &mut Dense, p: usize, q: usize) {
    let (cosine, sine) = rotation(a[(p, p)], a[(p, q)], a[(q, q)]);
    turn(a, p, q, cosine, sine);
    turn(v, p, q, cosine, sine);
    for c in 0..a.cols {
        let (x, y) = (a[(p, c)], a[(q, c)]);
        (a[(p, c)], a[(q, c)]) = (cosine * x - sine * y, sine * x + cosine * y);
    }
    (a[(p, q)], a[(q, p)]) = (0.0, 0.0);
}

/// Cosine and sine of the rotation that makes a symmetric matrix of two rows diagonal.
pub(super) fn rotation(pp: f64, pq: f64, qq: f64) -> (f64, f64) {
    let half = (qq - pp) / (2.0 * pq);
    let tangent = if half < 0.0 { -1.0 } else { 1.0 } / (half.abs() + half.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    (cosine, tangent * cosine)
}

/// Rotates two columns.
pub(super) fn turn(m: &mut Dense, p: usize, q: usize, cosine: f64, sine: f64) {
    for r in 0..m.rows {
        let (x, y) = (m[(r, p)], m[(r, q)]);
        (m[(r, p)], m[(r, q)]) = (cosine * x - sine * y, sine * x + cosine * y);
    }
}
