//! Orthogonal and spectral decompositions.

use super::{Dense, Stack, joined};
use crate::cpu::scratch::*;
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

impl DecompositionOps for CpuBackend {
    fn qr(&self, io: Qr<'_>) -> Result<()> {
        const OP: &str = "qr";
        let m = check_qr(&io)?;
        self.count();
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
}
