//! Covariances of Gaussians in space, in f64.

use super::dual::Dual;
use crate::buffer::{View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::field::*;

/// The covariance of a rotation and scales, each number with its slopes by the four and the three: v v^T summed over the turned axes v.
fn covariance(rotation: &[f64], scale: &[f64]) -> [[Dual<7>; 3]; 3] {
    let q: [Dual<7>; 4] = std::array::from_fn(|a| Dual::variable(rotation[a], a));
    let s: [Dual<7>; 3] = std::array::from_fn(|a| Dual::variable(scale[a], 4 + a));
    let length = q.iter().fold(Dual::constant(0.0), |sum, &q| sum + q * q).power(-0.5);
    let [w, x, y, z] = q.map(|q| q * length);
    // q e q^-1 of the axis e: (w^2 - u.u) e + 2 (u.e) u + 2 w u x e, with u = (x, y, z).
    let (u, plain) = ([x, y, z], w * w - x * x - y * y - z * z);
    let axis = |a: usize| {
        let (b, c) = ((a + 1) % 3, (a + 2) % 3);
        let mut v: [Dual<7>; 3] = std::array::from_fn(|i| u[a] * u[i] * 2.0);
        v[a] = v[a] + plain;
        // u x e_a has u_c at b and -u_b at c.
        v[b] = v[b] + w * u[c] * 2.0;
        v[c] = v[c] - w * u[b] * 2.0;
        v.map(|v| v * s[a])
    };
    let axes: [[Dual<7>; 3]; 3] = std::array::from_fn(axis);
    let entry = |i: usize, j: usize| axes.iter().fold(Dual::constant(0.0), |sum, v| sum + v[i] * v[j]);
    std::array::from_fn(|i| std::array::from_fn(|j| entry(i, j)))
}

impl GaussianOps for Kernels {
    fn gaussian_covariance(&self, rotation: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gaussian_covariance";
        let count = check_gaussian_covariance(&rotation, &scale, &y)?;
        let _timed = self.count(OP);
        let (q, s) = (gather_f64(OP, rotation)?, gather_f64(OP, scale)?);
        let mut all = with_capacity(9 * count)?;
        for (q, s) in q.chunks(4).zip(s.chunks(3)) {
            all.try_extend(covariance(q, s).into_iter().flatten().map(|d| d.value))?;
        }
        store_f64(OP, &y, &all)
    }

    fn gaussian_covariance_bwd(&self, io: CovarianceBwd<'_>) -> Result<()> {
        const OP: &str = "gaussian_covariance_bwd";
        let count = check_gaussian_covariance_bwd(&io)?;
        let _timed = self.count(OP);
        let (q, s) = (gather_f64(OP, io.rotation)?, gather_f64(OP, io.scale)?);
        let dy = gather_f64(OP, io.dy)?;
        let (mut dq, mut ds) = (with_capacity(4 * count)?, with_capacity(3 * count)?);
        for ((q, s), dy) in q.chunks(4).zip(s.chunks(3)).zip(dy.chunks(9)) {
            let entries = covariance(q, s);
            let along = |k: usize| entries.iter().flatten().zip(dy).map(|(d, g)| d.slope[k] * g).sum::<f64>();
            dq.try_extend((0..4).map(along))?;
            ds.try_extend((4..7).map(along))?;
        }
        io.drotation.map_or(Ok(()), |g| store_grad(OP, &g, &dq))?;
        io.dscale.map_or(Ok(()), |g| store_grad(OP, &g, &ds))
    }
}
