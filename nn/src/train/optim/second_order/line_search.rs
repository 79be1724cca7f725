//! Line search for the strong Wolfe conditions (Nocedal and Wright, 2006, algorithms 3.5 and 3.6) with the approximate ones of Hager and
//! Zhang (2005), without which f32 would stop early.

use super::space::{Closure, Ray, Reading, Space};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use trefoil::DType;

/// Evaluations of a search.
const MOST: usize = 25;

/// A direction with its numbers, and the constants of a search along it.
pub(crate) struct Search<'a> {
    pub(crate) from: &'a Tensor,
    pub(crate) g0: &'a Tensor,
    pub(crate) d: &'a Tensor,
    /// Loss, and slope along d, at the start.
    pub(crate) f0: f64,
    pub(crate) slope0: f64,
    /// Largest element of d.
    pub(crate) d_max: f64,
    pub(crate) c1: f64,
    pub(crate) c2: f64,
    /// First trial.
    pub(crate) first: f64,
    /// Evaluations that are left.
    pub(crate) left: u64,
}

/// A step, and what was read there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) a: f64,
    pub(crate) at: Reading,
}

/// How a search ended. But for `Failed` the parameters and the gradient are those of the step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    /// Both conditions hold, or only the first does.
    Step(Trial),
    /// No lower point was found; the parameters and the gradient are those of the start.
    Failed,
}

/// Where a bracketing stands.
enum Bracket {
    Done(Trial),
    Between(Trial, Trial),
}

/// The minimum of the cubic with the values and slopes of two trials.
fn cubic(p: &Trial, q: &Trial) -> f64 {
    let d1 = p.at.slope + q.at.slope - 3.0 * (p.at.f - q.at.f) / (p.a - q.a);
    let d2 = (d1 * d1 - p.at.slope * q.at.slope).sqrt() * (q.a - p.a).signum();
    q.a - (q.a - p.a) * (q.at.slope + d2 - d1) / (q.at.slope - p.at.slope + 2.0 * d2)
}

impl Search<'_> {
    fn decreases(&self, t: &Trial) -> bool {
        t.at.f <= self.f0 + self.c1 * t.a * self.slope0
    }

    /// Whether a point is good enough: strong Wolfe, or the approximate conditions close to a minimum.
    fn accepts(&self, dtype: DType, t: &Trial) -> bool {
        if self.decreases(t) && t.at.slope.abs() <= self.c2 * self.slope0.abs() {
            return true;
        }
        let e = if dtype == DType::F64 { 1e-12 } else { 4e-7 };
        let near = (t.at.f - self.f0).abs() <= e * self.f0.abs();
        near && (2.0 * self.c1.min(0.1) - 1.0) * self.slope0 >= t.at.slope
            && t.at.slope >= self.c2 * self.slope0
    }

    fn trial(&self, space: &mut Space, closure: &mut Closure<'_>, a: f64) -> Result<Trial> {
        space.move_to(self.from, a, self.d)?;
        let at = space.measure(closure, Some(Ray { d: self.d, g0: self.g0 }))?;
        Ok(Trial { a, at })
    }

    /// Widens until an interval holds an acceptable point.
    fn bracket(&self, space: &mut Space, closure: &mut Closure<'_>, lo: &mut Lowest) -> Result<Bracket> {
        let mut before = lo.trial;
        let mut a = self.first;
        for round in 0..MOST as u64 {
            if round >= self.left {
                break;
            }
            let t = self.trial(space, closure, a)?;
            if !t.at.is_finite() {
                a = before.a + 0.5 * (a - before.a);
                continue;
            }
            if self.accepts(space.dtype(), &t) {
                return Ok(Bracket::Done(t));
            }
            if !self.decreases(&t) || (before.a > 0.0 && t.at.f >= before.at.f) {
                return Ok(Bracket::Between(before, t));
            }
            lo.keep(space, t)?;
            if t.at.slope >= 0.0 {
                return Ok(Bracket::Between(t, before));
            }
            let (least, most) = (t.a + 1.1 * (t.a - before.a), t.a + 4.0 * (t.a - before.a));
            let next = cubic(&before, &t);
            a = if next.is_finite() { next.clamp(least, most) } else { most };
            before = t;
        }
        Ok(Bracket::Between(before, before))
    }

    /// Narrows an interval.
    fn zoom(
        &self,
        space: &mut Space,
        closure: &mut Closure<'_>,
        mut lo: Trial,
        mut hi: Trial,
        lowest: &mut Lowest,
        left: u64,
    ) -> Result<Option<Trial>> {
        let tol = if space.dtype() == DType::F64 { 1e-14 } else { 1e-9 };
        for round in 0..MOST as u64 {
            if round >= left || (hi.a - lo.a).abs() * self.d_max < tol {
                break;
            }
            let (least, most) = (lo.a.min(hi.a), lo.a.max(hi.a));
            let margin = 0.1 * (most - least);
            let a = if hi.at.is_finite() { cubic(&lo, &hi) } else { f64::NAN };
            let a = if a.is_finite() { a.clamp(least + margin, most - margin) } else { 0.5 * (least + most) };
            let t = self.trial(space, closure, a)?;
            if t.at.is_finite() && self.accepts(space.dtype(), &t) {
                return Ok(Some(t));
            }
            if !t.at.is_finite() || !self.decreases(&t) || t.at.f >= lo.at.f {
                hi = t;
                continue;
            }
            if t.at.slope * (hi.a - lo.a) >= 0.0 {
                hi = lo;
            }
            lo = t;
            lowest.keep(space, t)?;
        }
        Ok(None)
    }

    /// Searches. `start`: what was read at the start.
    pub(crate) fn run(&self, space: &mut Space, closure: &mut Closure<'_>, start: Reading) -> Result<Found> {
        let at = Reading { slope: self.slope0, ..start };
        let mut lowest = Lowest { trial: Trial { a: 0.0, at }, g: None };
        let done = space.evaluations;
        let found = match self.bracket(space, closure, &mut lowest)? {
            Bracket::Done(t) => Some(t),
            Bracket::Between(lo, hi) => {
                let left = self.left.saturating_sub(space.evaluations - done);
                self.zoom(space, closure, lo, hi, &mut lowest, left)?
            }
        };
        if let Some(t) = found {
            return Ok(Found::Step(t));
        }
        let Trial { a, .. } = lowest.trial;
        let Some(g) = lowest.g.filter(|_| a > 0.0) else {
            space.set(self.from)?;
            space.g.assign(self.g0)?;
            return Ok(Found::Failed);
        };
        space.move_to(self.from, a, self.d)?;
        space.g.assign(&g)?;
        Ok(Found::Step(lowest.trial))
    }
}

/// The lowest point of a search that satisfies the first condition, with its gradient.
struct Lowest {
    trial: Trial,
    g: Option<Tensor>,
}

impl Lowest {
    fn keep(&mut self, space: &Space, t: Trial) -> Result<()> {
        if self.g.is_none() || t.at.f < self.trial.at.f {
            (self.trial, self.g) = (t, Some(space.g.copy()?));
        }
        Ok(())
    }
}
