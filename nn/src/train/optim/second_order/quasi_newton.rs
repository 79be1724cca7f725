//! Approximations of the inverse Hessian from steps s and changes y of the gradient.

use std::collections::VecDeque;

use super::space::Space;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// A step s and the change y of the gradient, with the numbers that decide whether it is used.
pub(crate) struct Pair {
    pub(crate) s: Tensor,
    pub(crate) y: Tensor,
    pub(crate) sy: f64,
    pub(crate) ss: f64,
    pub(crate) yy: f64,
}

impl Pair {
    /// Whether the curvature along the step is safely positive.
    fn is_convex(&self) -> bool {
        self.sy > 1e-10 * (self.ss * self.yy).sqrt()
    }
}

/// The last pairs (Nocedal, 1980).
pub(crate) struct Memory {
    pairs: VecDeque<Pair>,
    most: usize,
}

impl Memory {
    pub(crate) fn new(most: usize) -> Self {
        Memory { pairs: VecDeque::new(), most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.pairs.clear();
    }

    pub(crate) fn add(&mut self, pair: Pair) {
        if !pair.is_convex() {
            return;
        }
        if self.pairs.len() == self.most {
            self.pairs.pop_front();
        }
        self.pairs.push_back(pair);
    }

    /// -H g by the two-loop recursion; its factors stay on the device.
    pub(crate) fn direction(&self, g: &Tensor) -> Result<Tensor> {
        let mut q = g.neg()?;
        let mut factors = vec![];
        for p in self.pairs.iter().rev() {
            let alpha = p.s.dot(&q)?.mul_scalar(1.0 / p.sy)?;
            q = q.addcmul(&p.y, &alpha, -1.0)?;
            factors.push(alpha);
        }
        if let Some(p) = self.pairs.back() {
            q = q.mul_scalar(p.sy / p.yy)?;
        }
        for (p, alpha) in self.pairs.iter().zip(factors.iter().rev()) {
            let beta = p.y.dot(&q)?.mul_scalar(1.0 / p.sy)?;
            q = q.addcmul(&p.s, &alpha.sub(&beta)?, 1.0)?;
        }
        Ok(q)
    }
}

/// The formula of a [`Matrix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formula {
    Bfgs { damping: bool },
    Dfp,
}

/// The inverse Hessian as a matrix of the parameters alone, once there is a pair.
pub(crate) struct Matrix {
    formula: Formula,
    h: Option<Tensor>,
}

impl Matrix {
    pub(crate) fn new(formula: Formula) -> Self {
        Matrix { formula, h: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.h.is_none()
    }

    pub(crate) fn clear(&mut self) {
        self.h = None;
    }

    /// The matrix, for tests of its properties.
    pub(crate) fn get(&self) -> Option<&Tensor> {
        self.h.as_ref()
    }

    pub(crate) fn direction(&self, space: &mut Space) -> Result<Tensor> {
        let Some(h) = &self.h else { return space.g.neg() };
        let at = space.positions()?;
        let g = space.g.index_select(0, &at)?;
        space.spread(&h.matmul(&g)?.neg()?)
    }

    /// Takes a pair in. `a`, `slope`, `g0`: step along d = -H g0, slope g0.d, and gradient where it started.
    pub(crate) fn add(
        &mut self,
        space: &mut Space,
        pair: Pair,
        a: f64,
        slope: f64,
        g0: &Tensor,
    ) -> Result<()> {
        let mut pair = pair;
        if let Formula::Bfgs { damping: true } = self.formula {
            pair = damped(pair, a, slope, g0)?;
        }
        if !pair.is_convex() {
            return Ok(());
        }
        let at = space.positions()?;
        let pair = Pair { s: pair.s.index_select(0, &at)?, y: pair.y.index_select(0, &at)?, ..pair };
        let h = match self.h.take() {
            Some(h) => h,
            None => {
                let unit = Tensor::eye(space.x.device(), space.dtype(), at.numel())?;
                unit.mul_scalar(pair.sy / pair.yy)?
            }
        };
        self.h = Some(match self.formula {
            Formula::Bfgs { .. } => bfgs(&h, &pair)?,
            Formula::Dfp => dfp(&h, &pair)?,
        });
        Ok(())
    }
}

/// y moved towards B s, so that s.y is at least 0.2 s.Bs (Powell, 1978). B s is -a g0, since s = -a H g0.
fn damped(pair: Pair, a: f64, slope: f64, g0: &Tensor) -> Result<Pair> {
    let sbs = -a * a * slope;
    if pair.sy >= 0.2 * sbs {
        return Ok(pair);
    }
    let theta = 0.8 * sbs / (sbs - pair.sy);
    let y = pair.y.mul_scalar(theta)?.add_scaled(g0, -(1.0 - theta) * a)?;
    let sy = theta * pair.sy + (1.0 - theta) * sbs;
    // An upper bound serves where only the order of magnitude counts.
    Ok(Pair { y, sy, ..pair })
}

/// H + rho (1 + rho y.u) s s^T - rho (s u^T + u s^T) with u = H y, rho = 1 / s.y, as H + s w^T + w s^T.
fn bfgs(h: &Tensor, p: &Pair) -> Result<Tensor> {
    let rho = 1.0 / p.sy;
    let u = h.matmul(&p.y)?;
    let half = p.y.dot(&u)?.mul_scalar(0.5 * rho * rho)?.add_scalar(0.5 * rho)?;
    let w = p.s.mul(&half)?.add_scaled(&u, -rho)?;
    let one = p.s.outer(&w)?;
    h.add(&one.add(&one.t()?)?)
}

/// H + s s^T / s.y - u u^T / y.u with u = H y; the second term is left out where y.u is not positive.
fn dfp(h: &Tensor, p: &Pair) -> Result<Tensor> {
    let u = h.matmul(&p.y)?;
    let yu = p.y.dot(&u)?;
    let inverse = yu.recip()?.where_(&yu.gt_scalar(0.0)?, &yu.zeros_like()?)?;
    let h = h.add(&p.s.outer(&p.s)?.mul_scalar(1.0 / p.sy)?)?;
    h.sub(&u.outer(&u)?.mul(&inverse)?)
}
