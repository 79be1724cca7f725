//! Conjugate gradients: of general functions, and of linear systems.

use super::space::Reading;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use trefoil::DType;

/// The last direction, and what the next one needs of the step along it.
#[derive(Default)]
pub(crate) struct Conjugate {
    last: Option<(Tensor, f64)>,
    /// Steps since the last steepest descent.
    since: usize,
}

impl Conjugate {
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    pub(crate) fn clear(&mut self) {
        (self.last, self.since) = (None, 0);
    }

    /// Notes a direction and g.g where it started.
    pub(crate) fn went(&mut self, d: &Tensor, gg: f64) {
        self.last = Some((d.clone(), gg));
        self.since += 1;
    }

    /// -g + beta d with beta of Polak and Ribiere, or -g where a restart is due. `at`: what was read at the end of the last step; `n`: number
    /// of parameters.
    pub(crate) fn direction(&mut self, g: &Tensor, at: &Reading, n: usize) -> Result<Tensor> {
        let beta = match &self.last {
            // g.y = g.(g - g_prev)
            Some((_, gg)) if (at.gg - at.gy).abs() < 0.2 * at.gg && self.since < n => (at.gy / gg).max(0.0),
            _ => 0.0,
        };
        let slope = -at.gg + beta * at.slope;
        match &self.last {
            Some((d, _)) if beta > 0.0 && slope < 0.0 => d.mul_scalar(beta)?.sub(g),
            _ => {
                self.since = 0;
                g.neg()
            }
        }
    }
}

/// x of A x = b for a symmetric positive definite A, given as its product with a vector, by conjugate gradients from 0 until
/// |r| <= `tol` |b|, at most `max_iterations` times; with the number of iterations. The host reads two numbers per iteration. Vectors of f32
/// or f64. `scipy.sparse.linalg.cg`. Errors: those of the product; `Invalid` for another rank or dtype, a tolerance that is negative or NaN, a direction
/// without positive curvature.
pub fn linear_conjugate_gradient(
    mut product: impl FnMut(&Tensor) -> Result<Tensor>,
    b: &Tensor,
    tol: f64,
    max_iterations: u64,
) -> Result<(Tensor, u64)> {
    const OP: &str = "linear_conjugate_gradient";
    if b.rank() != 1 || !matches!(b.dtype(), DType::F32 | DType::F64) {
        let got = format!("{} of shape {:?}", b.dtype(), b.shape());
        return Err(invalid(OP, "b", "a vector of f32 or f64", got));
    }
    if tol.is_nan() || tol < 0.0 {
        return Err(invalid(OP, "tol", "a value of at least 0", format!("{tol}")));
    }
    let b = b.detach();
    let (mut x, mut r, mut p) = (b.zeros_like()?, b.clone(), b.clone());
    let mut rr = r.dot(&r)?;
    let start = pair(&rr, &rr)?[0];
    let goal = tol * tol * start;
    if start <= goal {
        return Ok((x, 0));
    }
    for i in 1..=max_iterations {
        let ap = product(&p)?;
        let curvature = p.dot(&ap)?;
        let alpha = rr.div(&curvature)?;
        x = x.addcmul(&p, &alpha, 1.0)?;
        r = r.addcmul(&ap, &alpha, -1.0)?;
        let next = r.dot(&r)?;
        let [left, curved] = pair(&next, &curvature)?;
        if curved.is_nan() || curved <= 0.0 {
            return Err(invalid(OP, "product", "a positive definite matrix", format!("curvature {curved}")));
        }
        if left <= goal {
            return Ok((x, i));
        }
        p = r.addcmul(&p, &next.div(&rr)?, 1.0)?;
        rr = next;
    }
    Ok((x, max_iterations))
}

/// Two scalars in one copy.
fn pair(a: &Tensor, b: &Tensor) -> Result<[f64; 2]> {
    let both = Tensor::stack(0, &[a, b])?;
    Ok(match both.dtype() {
        DType::F64 => <[f64; 2]>::try_from(both.to_vec::<f64>()?).unwrap_or_default(),
        _ => <[f32; 2]>::try_from(both.to_vec::<f32>()?).unwrap_or_default().map(f64::from),
    })
}
