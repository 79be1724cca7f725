//! Derivatives of reductions.

use trefoil::ops::reduce::Reduce;

use super::elementwise::indicator;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// How many elements are combined into one.
fn count(x: &Tensor, over: &[usize]) -> f64 {
    over.iter().map(|&i| x.shape()[i]).product::<usize>() as f64
}

/// The gradient of a reduction of x along axes, of which `dy` and `y` still have each with size 1, or nothing where it has no
/// differentiable form.
pub(crate) fn reduce(
    op: Reduce,
    over: &[usize],
    dy: &Tensor,
    x: &Tensor,
    y: &Tensor,
) -> Result<Option<Tensor>> {
    let axes: Vec<isize> = over.iter().map(|&i| i as isize).collect();
    let wide = |t: &Tensor| t.expand(x.shape());
    let centred = || x.sub(&x.mean_axes(&axes, true)?);
    Ok(Some(match op {
        Reduce::Sum => wide(dy)?,
        Reduce::Mean => wide(&dy.mul_scalar(1.0 / count(x, over))?)?,
        Reduce::Max | Reduce::Min => {
            let ties = indicator(&x.detach().eq(&y.detach())?, x)?;
            let shared = ties.div(&ties.sum_axes(&axes, true)?)?;
            dy.mul(&shared)?
        }
        Reduce::Var { correction } => dy.mul_scalar(2.0 / (count(x, over) - correction))?.mul(&centred()?)?,
        Reduce::Std { correction } => {
            dy.div(y)?.mul_scalar(1.0 / (count(x, over) - correction))?.mul(&centred()?)?
        }
        Reduce::LogVar { correction, eps } => {
            let n = count(x, over) - correction;
            let d = centred()?;
            let var = d.square()?.sum_axes(&axes, true)?.mul_scalar(1.0 / n)?.add_scalar(eps)?;
            dy.div(&var)?.mul_scalar(2.0 / n)?.mul(&d)?
        }
        Reduce::SumSq => dy.mul_scalar(2.0)?.mul(x)?,
        Reduce::LogSumExp => dy.mul(&x.sub(y)?.exp()?)?,
        Reduce::Norm { p: 1.0 } => dy.mul(&x.detach().sign()?)?,
        Reduce::Norm { p: 2.0 } => {
            // 0 at the origin, as the kernel gives.
            let safe = y.where_(&y.detach().gt_scalar(0.0)?, &y.ones_like()?)?;
            dy.div(&safe)?.mul(x)?
        }
        _ => return Ok(None),
    }))
}
