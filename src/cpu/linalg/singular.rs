//! Singular values and vectors of one matrix.

use super::Dense;
use super::decomposition::{householder, rotation, turn};
use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::*;

/// U diag(s) V^T.
pub(super) struct Factors {
    pub(super) s: Vec<f64>,
    pub(super) u: Dense,
    pub(super) vh: Dense,
    pub(super) converged: bool,
}

/// Most passes over all pairs of columns.
const SWEEPS: usize = 40;

/// Factors of a matrix; NaN where it is not finite.
pub(super) fn singular(mut a: Dense) -> Result<Factors> {
    if a.rows < a.cols {
        let f = singular(a.t()?)?;
        return Ok(Factors { u: f.vh.t()?, vh: f.u.t()?, ..f });
    }
    let largest =
        a.data.iter().fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x.abs()) });
    if largest.is_infinite() {
        a.data.fill(f64::NAN);
        let vh = Dense { rows: a.cols, cols: a.cols, data: filled(a.cols * a.cols, f64::NAN)? };
        return Ok(Factors { s: filled(a.cols, f64::NAN)?, u: a, vh, converged: false });
    }
    // Squares stay in range.
    let unit = if largest == 0.0 { 1.0 } else { largest };
    a.data.iter_mut().for_each(|x| *x /= unit);
    let mut v = Dense::identity(a.cols, a.cols)?;
    let converged = orthogonalize(&mut a, &mut v);

    let length = (0..a.cols).map(|c| dot(&a, c, c).sqrt()).try_vec()?;
    let mut order = (0..a.cols).try_vec()?;
    sort_positions(&mut order, &|i, j| f64::total_cmp(&length[j], &length[i]).then(i.cmp(&j)));
    let (mut u, mut vh) = (Dense::zeros(a.rows, a.cols)?, Dense::zeros(a.cols, a.cols)?);
    for (place, &from) in order.iter().enumerate() {
        let over = if length[from] == 0.0 { 1.0 } else { length[from] };
        (0..a.rows).for_each(|r| u[(r, place)] = a[(r, from)] / over);
        (0..a.cols).for_each(|r| vh[(place, r)] = v[(r, from)]);
    }
    let s = order.iter().map(|&i| length[i] * unit).try_vec()?;
    Ok(Factors { s, u: orthonormal(&u)?, vh, converged })
}

/// The product of two columns.
fn dot(a: &Dense, p: usize, q: usize) -> f64 {
    (0..a.rows).map(|r| a[(r, p)] * a[(r, q)]).sum()
}

/// Rotates columns, which v takes part in, until they are orthogonal; whether they are. Columns that are but rounding count as longer than they
/// are, so that their directions do not matter.
fn orthogonalize(a: &mut Dense, v: &mut Dense) -> bool {
    let norm = a.data.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (least, bound) = (f64::EPSILON * norm, f64::EPSILON * (a.rows as f64).sqrt());
    for _ in 0..SWEEPS {
        let mut moved = false;
        for p in 0..a.cols {
            for q in p + 1..a.cols {
                let (pp, pq, qq) = (dot(a, p, p), dot(a, p, q), dot(a, q, q));
                if pq.abs() > bound * pp.sqrt().max(least) * qq.sqrt().max(least) {
                    let (cosine, sine) = rotation(pp, pq, qq);
                    turn(a, p, q, cosine, sine);
                    turn(v, p, q, cosine, sine);
                    moved = true;
                }
            }
        }
        if !moved {
            return true;
        }
    }
    false
}

/// Orthonormal columns in place of nearly orthonormal ones and of zeros: Q of their QR factors, with their signs.
fn orthonormal(u: &Dense) -> Result<Dense> {
    let (mut q, r) = householder(u)?;
    for c in (0..q.cols).filter(|&c| r[(c, c)] < 0.0) {
        (0..q.rows).for_each(|i| q[(i, c)] = -q[(i, c)]);
    }
    Ok(q)
}
