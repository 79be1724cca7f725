//! Levenberg-Marquardt for least squares.

use super::dense::solve_positive_definite;
use super::space::{Closure, Space};
use crate::core::autograd::{GradOptions, grad, jacobian_rows, push_forward};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// Residuals at the parameters, and what they give.
struct Model {
    residuals: Tensor,
    /// J^T J as a matrix of the parameters alone.
    normal: Option<Tensor>,
    /// Its diagonal, as a vector like all others.
    diagonal: Tensor,
}

/// Damping, and the scales of the parameters.
pub(crate) struct Damping {
    pub(crate) lambda: f64,
    pub(crate) growth: f64,
    scales: Option<Tensor>,
}

impl Damping {
    pub(crate) fn new(lambda: f64) -> Self {
        Damping { lambda, growth: 2.0, scales: None }
    }
}

/// A step of the parameters that was tried.
pub(crate) struct Tried {
    /// |r|^2 / 2 after it.
    pub(crate) after: f64,
    /// The residuals there, if it was accepted.
    pub(crate) residuals: Option<Tensor>,
    /// Lengths of the step and of the parameters.
    pub(crate) step: f64,
    pub(crate) x: f64,
}

/// |r|^2 / 2.
fn half_square(r: &Tensor) -> Result<Tensor> {
    let flat = r.detach().reshape(&[r.numel()])?;
    flat.dot(&flat)?.mul_scalar(0.5)
}

/// Least squares at a point.
pub(crate) struct LeastSquares {
    model: Model,
    /// |r|^2 / 2 and the largest element of its gradient.
    pub(crate) f: f64,
    pub(crate) g_max: f64,
}

impl LeastSquares {
    /// Of residuals at the present parameters: their gradient, and J^T J where there are at most `dense` parameters. The gradient goes to
    /// [`Space::g`].
    pub(crate) fn new(space: &mut Space, residuals: Tensor, dense: usize) -> Result<Self> {
        let model = match space.parameters() <= dense {
            true => with_matrix(space, residuals)?,
            false => with_products(space, residuals)?,
        };
        let v = space.read(&[half_square(&model.residuals)?, space.g.norm(f64::INFINITY)?])?;
        Ok(LeastSquares { model, f: v[0], g_max: v[1] })
    }

    /// Whether it still holds when the parameters have moved and come back.
    pub(crate) fn outlives_a_step(&self) -> bool {
        self.model.normal.is_some()
    }

    /// Tries the step of the present damping, which it adapts (Nielsen, 1999). The parameters stay where the step is not accepted.
    pub(crate) fn advance(
        &self,
        space: &mut Space,
        closure: &mut Closure<'_>,
        damping: &mut Damping,
    ) -> Result<Tried> {
        let scales = match damping.scales.take() {
            Some(s) => s.maximum(&self.model.diagonal)?,
            None => self.model.diagonal.clone(),
        };
        let floor = scales.max()?.mul_scalar(1e-12)?;
        let scales = damping.scales.insert(scales.maximum(&floor)?).mul_scalar(damping.lambda)?;
        let p = self.solve(space, &scales)?;
        let predicted = p.dot(&scales.mul(&p)?.sub(&space.g)?)?.mul_scalar(0.5)?;
        let from = space.x.copy()?;
        space.move_to(&from, 1.0, &p)?;
        let residuals = space.call(closure)?;
        let v = space.read(&[half_square(&residuals)?, predicted, p.dot(&p)?, from.dot(&from)?])?;
        let ratio = (self.f - v[0]) / v[1];
        let accepted = v[0].is_finite() && v[1] > 0.0 && ratio > 0.0;
        if accepted {
            damping.lambda *= (1.0 - (2.0 * ratio - 1.0).powi(3)).max(1.0 / 3.0);
            damping.growth = 2.0;
        } else {
            space.set(&from)?;
            damping.lambda *= damping.growth;
            damping.growth *= 2.0;
        }
        Ok(Tried { after: v[0], residuals: accepted.then_some(residuals), step: v[2].sqrt(), x: v[3].sqrt() })
    }

    /// p of (J^T J + diag(scales)) p = -g.
    fn solve(&self, space: &mut Space, scales: &Tensor) -> Result<Tensor> {
        if let Some(normal) = &self.model.normal {
            let at = space.positions()?;
            let scales = scales.index_select(0, &at)?;
            let unit = Tensor::eye(scales.device(), scales.dtype(), scales.numel())?;
            let damped = normal.add(&unit.mul(&scales)?)?;
            let right = space.g.index_select(0, &at)?.neg()?.unsqueeze(1)?;
            return space.spread(&solve_positive_definite(&damped, &right)?.squeeze(1)?);
        }
        self.solve_by_products(space, scales)
    }

    /// The same by conjugate gradients on products, up to a relative residual of 1e-6.
    fn solve_by_products(&self, space: &mut Space, scales: &Tensor) -> Result<Tensor> {
        let mut p = space.zeros()?;
        let mut r = space.g.neg()?;
        let mut d = r.clone();
        let mut rr = r.dot(&r)?;
        let mut first = None;
        for _ in 0..(2 * space.parameters()).clamp(20, 200) {
            let ad = self.product(space, &d)?.add(&d.mul(scales)?)?;
            let alpha = rr.div(&d.dot(&ad)?)?;
            p = p.addcmul(&d, &alpha, 1.0)?;
            r = r.addcmul(&ad, &alpha, -1.0)?;
            let next = r.dot(&r)?;
            let v = space.read(&[rr.clone(), next.clone()])?;
            let start = *first.get_or_insert(v[0]);
            if v[1].is_nan() || v[1] <= 1e-12 * start {
                break;
            }
            d = r.addcmul(&d, &next.div(&rr)?, 1.0)?;
            rr = next;
        }
        Ok(p)
    }

    /// J^T (J v).
    fn product(&self, space: &mut Space, v: &Tensor) -> Result<Tensor> {
        space.products += 1;
        let r = &self.model.residuals;
        let parts = space.tangents(v)?;
        let along = space.with_leaves(|x| push_forward(r, x, &parts.iter().collect::<Vec<_>>()))?;
        pull_back(space, r, &along)
    }
}

/// J^T u as a vector.
fn pull_back(space: &Space, r: &Tensor, u: &Tensor) -> Result<Tensor> {
    let options = GradOptions { allow_unused: true, retain_graph: Some(true), create_graph: false };
    let found = space.with_leaves(|x| {
        let g = grad(&[(r, Some(u))], &x.iter().collect::<Vec<_>>(), options)?;
        g.into_iter().zip(x).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect::<Result<Vec<_>>>()
    })?;
    space.vector(&found)
}

fn with_matrix(space: &mut Space, residuals: Tensor) -> Result<Model> {
    let rows = space.with_leaves(|x| jacobian_rows(&residuals, x))?;
    space.products += rows.len() as u64;
    let rows = rows.iter().map(|r| space.vector(r)).collect::<Result<Vec<_>>>()?;
    let j = match rows.is_empty() {
        true => Tensor::zeros(space.x.device(), space.dtype(), &[0, space.len()])?,
        false => Tensor::stack(0, &rows.iter().collect::<Vec<_>>())?,
    };
    let j = j.index_select(1, &space.positions()?)?;
    let transposed = j.t()?.contiguous()?;
    let r = residuals.detach().reshape(&[residuals.numel()])?;
    let g = space.spread(&transposed.matmul(&r)?)?;
    space.g.assign(&g)?;
    let normal = transposed.matmul(&j)?;
    let diagonal = space.spread(&normal.diagonal(0, 0, 1)?.contiguous()?)?;
    Ok(Model { residuals: residuals.detach(), normal: Some(normal), diagonal })
}

/// Without the matrix its diagonal is not known: all parameters have the scale 1, as Levenberg had it.
fn with_products(space: &mut Space, residuals: Tensor) -> Result<Model> {
    let g = pull_back(space, &residuals, &residuals.detach())?;
    space.g.assign(&g)?;
    let diagonal = space.x.ones_like()?;
    Ok(Model { residuals, normal: None, diagonal })
}
