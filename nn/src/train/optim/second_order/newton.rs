//! Steps from products with the Hessian: Newton-CG, the dense Newton step, and Steihaug's step within a trust region.

use super::dense::solve_positive_definite;
use super::space::Space;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// Tolerance of an inner solution: min(0.5, sqrt |g|) |g|.
fn forcing(g_norm: f64) -> f64 {
    g_norm.sqrt().min(0.5) * g_norm
}

/// z of H z = -g by conjugate gradients (Nocedal and Wright, 2006, algorithm 7.1). Ends where the curvature along a direction is not
/// positive, with the z so far, or with -g at the first step. `g_norm`: |g|. The products are those of [`Space::prepare_products`].
pub(crate) fn newton_cg(space: &mut Space, g_norm: f64) -> Result<Tensor> {
    let tol = forcing(g_norm);
    let most = (2 * space.parameters()).max(20);
    let mut z = space.zeros()?;
    let (mut r, mut p) = (space.g.copy()?, space.g.neg()?);
    let mut rr = r.dot(&r)?;
    for i in 0..most {
        let hp = space.hessian(&p)?;
        let curvature = p.dot(&hp)?;
        let alpha = rr.div(&curvature)?;
        let next = z.addcmul(&p, &alpha, 1.0)?;
        r = r.addcmul(&hp, &alpha, 1.0)?;
        let new = r.dot(&r)?;
        let v = space.read(&[curvature, p.dot(&p)?, new.clone()])?;
        // NaN counts as no curvature too.
        if v[0].is_nan() || v[0] <= 1e-12 * v[1] {
            return if i == 0 { space.g.neg() } else { Ok(z) };
        }
        z = next;
        if v[2].sqrt() <= tol {
            break;
        }
        p = p.mul(&new.div(&rr)?)?.sub(&r)?;
        rr = new;
    }
    Ok(z)
}

/// The Hessian as a matrix of the parameters alone, of one product for each.
fn hessian_matrix(space: &mut Space) -> Result<Tensor> {
    let at = space.positions()?;
    let unit = Tensor::eye(space.x.device(), space.dtype(), at.numel())?;
    let mut columns = vec![];
    for i in 0..at.numel() {
        let v = space.spread(&unit.select(0, i)?)?;
        columns.push(space.hessian(&v)?.index_select(0, &at)?);
    }
    let h = Tensor::stack(0, &columns.iter().collect::<Vec<_>>())?;
    h.add(&h.t()?)?.mul_scalar(0.5)
}

/// -(H + tau I)^-1 g for the least tau of 0, 1e-3 max |H_ii|, and doublings, for which the matrix is positive definite.
pub(crate) fn dense_newton(space: &mut Space) -> Result<Tensor> {
    let h = hessian_matrix(space)?;
    let at = space.positions()?;
    let unit = Tensor::eye(space.x.device(), space.dtype(), at.numel())?;
    let right = space.g.index_select(0, &at)?.neg()?.unsqueeze(1)?;
    let largest = h.diagonal(0, 0, 1)?.norm(f64::INFINITY)?;
    let mut tau = 0.0;
    for _ in 0..64 {
        let z = solve_positive_definite(&h.add_scaled(&unit, tau)?, &right)?.squeeze(1)?;
        let v = space.read(&[z.dot(&z)?, largest.clone()])?;
        if v[0].is_finite() {
            return space.spread(&z);
        }
        tau = if tau == 0.0 { 1e-3 * v[1].max(f64::MIN_POSITIVE) } else { 2.0 * tau };
    }
    space.g.neg()
}

/// A step within a radius.
pub(crate) struct Step {
    pub(crate) p: Tensor,
    /// Its length, and the decrease that the quadratic model predicts.
    pub(crate) norm: f64,
    pub(crate) predicted: f64,
    /// Whether the radius bounds it.
    pub(crate) on_boundary: bool,
    /// Largest element.
    pub(crate) max: f64,
}

/// The larger root of a t^2 + b t + c = 0 for c <= 0, without cancellation.
fn positive_root(a: f64, b: f64, c: f64) -> f64 {
    let q = -0.5 * (b + b.signum() * (b * b - 4.0 * a * c).max(0.0).sqrt());
    let (first, second) = (q / a, c / q);
    if second.is_nan() { first } else { first.max(second) }
}

/// The minimizer of the quadratic model within `radius`, by conjugate gradients up to the boundary or a direction without positive curvature
/// (Steihaug, 1983). `g_norm`: |g|.
pub(crate) fn steihaug(space: &mut Space, radius: f64, g_norm: f64) -> Result<Step> {
    let tol = forcing(g_norm);
    let most = (2 * space.parameters()).max(20);
    let mut z = space.zeros()?;
    let (mut r, mut p) = (space.g.copy()?, space.g.neg()?);
    let mut rr = r.dot(&r)?;
    for _ in 0..most {
        let hp = space.hessian(&p)?;
        let curvature = p.dot(&hp)?;
        let alpha = rr.div(&curvature)?;
        let inside = z.addcmul(&p, &alpha, 1.0)?;
        let left = r.addcmul(&hp, &alpha, 1.0)?;
        let new = left.dot(&left)?;
        let scalars = [curvature, inside.dot(&inside)?, z.dot(&z)?, z.dot(&p)?, p.dot(&p)?, new.clone()];
        let v = space.read(&scalars)?;
        if v[0].is_nan() || v[0] <= 0.0 || v[1].sqrt() >= radius {
            let tau = positive_root(v[4], 2.0 * v[3], v[2] - radius * radius);
            let step = z.add_scaled(&p, tau)?;
            return finish(space, step, &r.add_scaled(&hp, tau)?, true);
        }
        (z, r) = (inside, left);
        if v[5].sqrt() <= tol {
            break;
        }
        p = p.mul(&new.div(&rr)?)?.sub(&r)?;
        rr = new;
    }
    finish(space, z, &r, false)
}

/// A step with its numbers; `r` = g + H p, so that p.H p = p.r - p.g.
fn finish(space: &mut Space, p: Tensor, r: &Tensor, on_boundary: bool) -> Result<Step> {
    let scalars = [p.dot(&p)?, p.dot(&space.g)?, p.dot(r)?, p.norm(f64::INFINITY)?];
    let v = space.read(&scalars)?;
    Ok(Step { norm: v[0].sqrt(), predicted: -0.5 * (v[1] + v[2]), on_boundary, max: v[3], p })
}
