//! Coordinate descent: of least squares with an l1 penalty, and of the parameters of a model tensor by tensor.

use trefoil::DType;

use super::space::{Closure, Space};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Error unless A is `[m, n]` and b `[m]` of one dtype, f32 or f64.
pub(crate) fn check_system(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    same_device(op, a, b)?;
    if !matches!(a.dtype(), DType::F32 | DType::F64) || a.dtype() != b.dtype() {
        let got = format!("{} and {}", a.dtype(), b.dtype());
        return Err(invalid(op, "b", "f32 or f64 for both", got));
    }
    match (a.shape(), b.shape()) {
        (&[m, n], &[k]) if m == k && n > 0 => Ok(()),
        (a, b) => Err(invalid(op, "b", "A of shape [m, n] and b of shape [m]", format!("{a:?} and {b:?}"))),
    }
}

/// Scalars of one dtype, in one copy.
pub(crate) fn host(scalars: &[Tensor]) -> Result<Vec<f64>> {
    let all = Tensor::stack(0, &scalars.iter().collect::<Vec<_>>())?;
    match all.dtype() {
        DType::F64 => all.to_vec::<f64>(),
        _ => Ok(all.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
    }
}

/// min |A x - b|^2 / 2 + l1 |x|_1 by cyclic coordinate descent (Friedman et al., 2010) for A `[m, n]` and b `[m]` of f32 or f64, from 0, until no coordinate
/// moves by more than `tol` times 1 / |A_j|, or `max_sweeps`. Returns x and the number of sweeps. Columns of zeros are skipped. The residual stays on the
/// device; the host reads one number per sweep. Errors: `Invalid` for shapes and dtypes, a negative penalty.
pub fn coordinate_descent_lasso(
    a: &Tensor,
    b: &Tensor,
    l1: f64,
    tol: f64,
    max_sweeps: u64,
) -> Result<(Tensor, u64)> {
    const OP: &str = "coordinate_descent_lasso";
    check_system(OP, a, b)?;
    if !(l1 >= 0.0 && l1.is_finite()) {
        return Err(invalid(OP, "l1", "a finite penalty of at least 0", format!("{l1}")));
    }
    let (columns, mut r) = (a.detach().t()?.contiguous()?, b.detach());
    let n = columns.shape()[0];
    let lengths = columns.dot(&columns)?;
    // A column of zeros has no influence; its coordinate stays 0.
    let some = lengths.gt_scalar(0.0)?;
    let inverse = lengths.recip()?.where_(&some, &lengths.zeros_like()?)?;
    let roots = lengths.sqrt()?;
    let limits = inverse.mul_scalar(l1)?;
    let mut x = (0..n).map(|_| Tensor::zeros(a.device(), a.dtype(), &[])).collect::<Result<Vec<_>>>()?;
    for sweep in 1..=max_sweeps {
        let mut moves = vec![];
        for (j, x) in x.iter_mut().enumerate() {
            let column = columns.select(0, j)?;
            let limit = limits.select(0, j)?;
            let v = x.addcmul(&column.dot(&r)?, &inverse.select(0, j)?, 1.0)?;
            let next = v.sub(&v.clamp_between(&limit.neg()?, &limit)?)?;
            let step = next.sub(x)?;
            r = r.addcmul(&column, &step, -1.0)?;
            moves.push(step);
            *x = next;
        }
        let moved = Tensor::stack(0, &moves.iter().collect::<Vec<_>>())?.mul(&roots)?.norm(f64::INFINITY)?;
        if host(&[moved])?[0] < tol {
            return Ok((Tensor::stack(0, &x.iter().collect::<Vec<_>>())?, sweep));
        }
    }
    Ok((Tensor::stack(0, &x.iter().collect::<Vec<_>>())?, max_sweeps))
}

/// Steps of single parameter tensors, with a Lipschitz constant for each that backtracking finds.
pub(crate) struct Blocks {
    blocks: Vec<(usize, usize)>,
    constants: Vec<f64>,
}

impl Blocks {
    pub(crate) fn new(space: &Space, lr: f64) -> Self {
        let blocks = space.blocks();
        Blocks { constants: vec![1.0 / lr; blocks.len()], blocks }
    }

    /// One cycle over the blocks, from the present gradient and loss `f`. Gives the last loss (with its gradient) and the largest step; nothing
    /// if no block could lower it.
    pub(crate) fn cycle(
        &mut self,
        space: &mut Space,
        closure: &mut Closure<'_>,
        f: f64,
        most: u64,
    ) -> Result<Option<(f64, f64)>> {
        let (mut f, mut largest, mut better) = (f, 0f64, false);
        for (&(start, len), constant) in self.blocks.iter().zip(&mut self.constants) {
            let d = space.zeros()?;
            let (own, g) = (d.narrow(0, start, len)?, space.g.narrow(0, start, len)?);
            own.assign(&g)?;
            let (from, g0) = (space.x.copy()?, space.g.copy()?);
            let mut moved = false;
            for _ in 0..60 {
                if space.evaluations >= most {
                    break;
                }
                space.move_to(&from, -1.0 / *constant, &d)?;
                let value = space.evaluate(closure)?;
                let v = space.read(&[value, d.dot(&d)?, d.norm(f64::INFINITY)?])?;
                if v[1] == 0.0 {
                    break;
                }
                // The descent lemma with the constant that is tried.
                if v[0].is_finite() && v[0] <= f - 0.5 * v[1] / *constant + 1e-12 * f.abs() {
                    largest = largest.max(v[2] / *constant);
                    (f, moved, better) = (v[0], true, true);
                    *constant *= 0.5;
                    break;
                }
                *constant *= 2.0;
            }
            if !moved {
                space.set(&from)?;
                space.g.assign(&g0)?;
            }
        }
        Ok(better.then_some((f, largest)))
    }
}
