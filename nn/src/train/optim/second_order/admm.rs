//! Alternating directions, for penalties and constraints.

use trefoil::ops::optimizer::Prox;

use super::dense::solve_positive_definite;
use super::method::check_prox;
use super::space::{Closure, Space};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Over-relaxation.
const RELAXATION: f64 = 1.6;

/// The proximal map of `prox` / rho.
pub(crate) fn proximal(prox: &Prox, v: &Tensor, rho: f64) -> Result<Tensor> {
    match *prox {
        Prox::Box { lo, hi } => {
            let bound = |x: f64| Some(x).filter(|x| x.is_finite());
            v.clamp(bound(lo), bound(hi))
        }
        Prox::ElasticNet { l1, l2 } => {
            let t = l1 / rho;
            // v beyond [-t, t], without a branch.
            let soft = if t > 0.0 { v.sub(&v.clamp(Some(-t), Some(t))?)? } else { v.clone() };
            soft.mul_scalar(1.0 / (1.0 + l2 / rho))
        }
        _ => Err(invalid("admm", "prox", "an elastic net or a box", format!("{prox:?}"))),
    }
}

/// The split variable z and the scaled dual u, with the weight of the pull.
pub(crate) struct Splitting {
    pub(crate) z: Tensor,
    pub(crate) u: Tensor,
    pub(crate) rho: f64,
    iteration: u64,
}

/// Residuals and sizes of an iteration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residuals {
    pub(crate) primal: f64,
    pub(crate) dual: f64,
    x: f64,
    z: f64,
    u: f64,
}

impl Residuals {
    /// Boyd et al. (2011), section 3.3.1.
    pub(crate) fn small(&self, n: usize, absolute: f64, relative: f64) -> bool {
        let floor = (n as f64).sqrt() * absolute;
        self.primal <= floor + relative * self.x.max(self.z) && self.dual <= floor + relative * self.u
    }
}

impl Splitting {
    pub(crate) fn new(x: &Tensor, rho: f64) -> Result<Self> {
        Ok(Splitting { z: x.copy()?, u: x.zeros_like()?, rho, iteration: 0 })
    }

    /// z and u from a new x; five sums that the host needs.
    pub(crate) fn update(&mut self, prox: &Prox, x: &Tensor) -> Result<[Tensor; 5]> {
        let relaxed = self.z.lerp(x, RELAXATION)?;
        let z = proximal(prox, &relaxed.add(&self.u)?, self.rho)?;
        let u = self.u.add(&relaxed)?.sub(&z)?;
        let square = |t: &Tensor| t.dot(t);
        let sums = [square(&x.sub(&z)?)?, square(&z.sub(&self.z)?)?, square(x)?, square(&z)?, square(&u)?];
        (self.z, self.u) = (z, u);
        Ok(sums)
    }

    /// Balances the residuals every ten iterations for the first 200. `v`: the five sums. Gives the residuals, and whether rho changed.
    pub(crate) fn balance(&mut self, v: &[f64]) -> Result<(Residuals, bool)> {
        let root = |i: usize| v.get(i).copied().unwrap_or(f64::NAN).sqrt();
        let found = Residuals {
            primal: root(0),
            dual: self.rho * root(1),
            x: root(2),
            z: root(3),
            u: self.rho * root(4),
        };
        self.iteration += 1;
        if self.iteration > 200 || !self.iteration.is_multiple_of(10) {
            return Ok((found, false));
        }
        let factor = match (found.primal, found.dual) {
            (r, s) if r > 10.0 * s => 2.0,
            (r, s) if s > 10.0 * r => 0.5,
            _ => return Ok((found, false)),
        };
        self.rho *= factor;
        self.u = self.u.mul_scalar(1.0 / factor)?;
        Ok((found, true))
    }
}

/// Gradient steps on the loss with the pull rho/2 |x - z + u|^2.
pub(crate) fn inner_steps(
    space: &mut Space,
    closure: &mut Closure<'_>,
    s: &Splitting,
    lr: f64,
    steps: usize,
) -> Result<()> {
    let towards = s.z.sub(&s.u)?;
    for _ in 0..steps {
        space.evaluate(closure)?;
        // x - lr (g + rho (x - z + u))
        let pull = space.x.sub(&towards)?;
        let step = space.g.add_scaled(&pull, s.rho)?;
        let from = space.x.copy()?;
        space.move_to(&from, -lr, &step)?;
    }
    Ok(())
}

/// min |A x - b|^2 / 2 + `prox` by alternating directions with exact x-steps, for A `[m, n]` and b `[m]` of f32 or f64; ends as Boyd et al.
/// (2011) do, with `tol` absolute and relative, or after `max_iterations`. Returns x (which is z, and so satisfies the constraint) and the
/// number of iterations. The matrix A^T A + rho I is inverted once for each rho, by n steps on the device. Errors: `Invalid` for shapes,
/// dtypes, penalties out of range, `rho` not above 0.
pub fn admm_lasso(
    a: &Tensor,
    b: &Tensor,
    prox: Prox,
    rho: f64,
    tol: f64,
    max_iterations: u64,
) -> Result<(Tensor, u64)> {
    const OP: &str = "admm_lasso";
    super::coordinate::check_system(OP, a, b)?;
    check_prox(OP, &prox)?;
    same_device(OP, a, b)?;
    if !(rho > 0.0 && rho.is_finite()) {
        return Err(invalid(OP, "rho", "a finite value above 0", format!("{rho}")));
    }
    let (a, b) = (a.detach(), b.detach());
    let n = a.shape()[1];
    let transposed = a.t()?.contiguous()?;
    let (normal, right) = (transposed.matmul(&a)?, transposed.matmul(&b)?);
    let unit = Tensor::eye(a.device(), a.dtype(), n)?;
    let inverse = |rho: f64| solve_positive_definite(&normal.add_scaled(&unit, rho)?, &unit);
    let mut s = Splitting::new(&right.zeros_like()?, rho)?;
    let mut inverted = inverse(rho)?;
    for i in 1..=max_iterations {
        let x = inverted.matmul(&right.add_scaled(&s.z.sub(&s.u)?, s.rho)?)?;
        let sums = s.update(&prox, &x)?;
        let v = super::coordinate::host(&sums)?;
        let (found, changed) = s.balance(&v)?;
        if found.small(n, tol, tol) {
            return Ok((s.z, i));
        }
        if changed {
            inverted = inverse(s.rho)?;
        }
    }
    Ok((s.z, max_iterations))
}
