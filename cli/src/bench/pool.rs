//! Pooling.

use trefoil::DType;
use trefoil::ops::{Pooling, Window};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{randoms, sets, work};
use super::timing::Prepared;
use crate::error::{CliError, Result};

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    Ok(Some(match c.op() {
        "maxpool2d" => maxpool2d(c, d)?,
        "avgpool2d" => avgpool2d(c, d)?,
        _ => return Ok(None),
    }))
}

/// Input shape, output shape and windows.
fn windows(c: &Case) -> Result<([usize; 4], [usize; 4], Pooling)> {
    let (h, w, r) = (c.size("h")?, c.size("w")?, c.size("r")?);
    let pad = if c.has("pad") { c.axis("pad")? } else { 0 };
    let window = Window::new(&[r]).stride(&[c.size_or("stride", r)?]).padding(&[pad]);
    let out = window.output_size(&[h, w]).map_err(|e| CliError::Input(format!("case `{}`: {e}", c.id())))?;
    let (n, ch) = (c.size("n")?, c.size("c")?);
    Ok(([n, ch, h, w], [n, ch, out[0], out[1]], window.into()))
}

fn maxpool2d(c: &Case, d: &Device) -> Result<Prepared> {
    let ((xs, ys, p), t) = (windows(c)?, c.dtype()?);
    let (nx, ny) = (xs.iter().product::<usize>(), ys.iter().product::<usize>());
    let bytes = nx * t.size() + ny * (t.size() + 4);
    let k = sets(bytes);
    let (x, dy) = (randoms(d, t, &xs, k, 1)?, randoms(d, t, &ys, k, 2)?);
    let (y, dx) = (Tensor::empty(d, t, &ys)?, Tensor::empty(d, t, &xs)?);
    let index = (0..k).map(|_| Tensor::empty(d, DType::I32, &ys)).collect::<trefoil_nn::Result<Vec<_>>>()?;
    // The gradient's windows are those of the forward, whichever is timed first.
    for (x, i) in x.iter().zip(&index) {
        d.max_pool(p, x.operand().view()?, y.operand().view_mut()?, Some(i.operand().view_mut()?))?;
    }
    let (d1, d2, i1) = (d.clone(), d.clone(), index.clone());
    let fwd = work(bytes, 0.0, move |i| {
        let (x, to) = (x[i % k].operand(), i1[i % k].operand());
        Ok(d1.max_pool(p, x.view()?, y.operand().view_mut()?, Some(to.view_mut()?))?)
    });
    let bwd = work(bytes, 0.0, move |i| {
        let (g, at) = (dy[i % k].operand(), index[i % k].operand());
        Ok(d2.max_pool_bwd(p, g.view()?, at.view()?, dx.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn avgpool2d(c: &Case, d: &Device) -> Result<Prepared> {
    let ((xs, ys, p), t) = (windows(c)?, c.dtype()?);
    let bytes = (xs.iter().product::<usize>() + ys.iter().product::<usize>()) * t.size();
    let k = sets(bytes);
    let (x, dy) = (randoms(d, t, &xs, k, 1)?, randoms(d, t, &ys, k, 2)?);
    let (y, dx) = (Tensor::empty(d, t, &ys)?, Tensor::empty(d, t, &xs)?);
    let (d1, d2) = (d.clone(), d.clone());
    let fwd =
        work(bytes, 0.0, move |i| Ok(d1.avg_pool(p, x[i % k].operand().view()?, y.operand().view_mut()?)?));
    let bwd = work(bytes, 0.0, move |i| {
        Ok(d2.avg_pool_bwd(p, dy[i % k].operand().view()?, dx.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}
