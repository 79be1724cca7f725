//! Interpolation.

use trefoil::ops::{Interpolate, InterpolateMode};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    if c.op() != "upsample3d_nearest" {
        return Ok(None);
    }
    let (n, ch, r, t) = (c.size("n")?, c.size("c")?, c.size("scale")?, c.dtype()?);
    let x = [n, ch, c.size("d")?, c.size("h")?, c.size("w")?];
    let y = [n, ch, x[2] * r, x[3] * r, x[4] * r];
    let bytes = (x.iter().product::<usize>() + y.iter().product::<usize>()) * t.size();
    let (k, p) = (sets(bytes), Interpolate::new(InterpolateMode::Nearest));
    let (from, up) = (randoms(d, t, &x, k, 1)?, randoms(d, t, &y, k, 2)?);
    let (to, dx) = (Tensor::empty(d, t, &y)?, Tensor::empty(d, t, &x)?);
    let (d1, d2) = (d.clone(), d.clone());
    let fwd = work(bytes, 0.0, move |i| {
        Ok(d1.interpolate(p, from[i % k].operand().view()?, to.operand().view_mut()?)?)
    });
    let bwd = work(bytes, 0.0, move |i| {
        Ok(d2.interpolate_bwd(p, up[i % k].operand().view()?, dx.operand().grad(false)?)?)
    });
    Ok(Some(Prepared { fwd, bwd: Some(bwd) }))
}
