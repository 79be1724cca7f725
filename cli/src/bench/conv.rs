//! Convolution.

use trefoil::ops::{Conv, ConvBwd, ConvIo, Precision};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{random, randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    Ok(match c.op() {
        "conv1d" => Some(conv(c, d, &["w"], false)?),
        "conv2d" => Some(conv(c, d, &["h", "w"], false)?),
        "conv3d" => Some(conv(c, d, &["d", "h", "w"], false)?),
        "conv_transpose2d" => Some(conv(c, d, &["h", "w"], true)?),
        _ => None,
    })
}

/// Windows of `r` elements on all axes. Tensors are channels first whatever the case asks of others.
fn conv(c: &Case, d: &Device, axes: &[&str], transposed: bool) -> Result<Prepared> {
    let (n, ci, co, r, t) = (c.size("n")?, c.size("c")?, c.size("k")?, c.size("r")?, c.dtype()?);
    let (stride, dilation) = (c.size_or("stride", 1)?, c.size_or("dilation", 1)?);
    let (pad, groups) = (c.axis_or("pad", 0)?, c.size_or("groups", 1)?);
    let (mut x, mut w, mut y) = (vec![n, ci], vec![co, ci / groups], vec![n, co]);
    if transposed {
        w = vec![ci, co / groups];
    }
    for axis in axes {
        let i = c.size(axis)?;
        let span = dilation * (r - 1) + 1;
        let o =
            if transposed { (i - 1) * stride + span - 2 * pad } else { (i + 2 * pad - span) / stride + 1 };
        x.push(i);
        w.push(r);
        y.push(o);
    }
    let count = |s: &[usize]| s.iter().product::<usize>();
    let size = t.size();
    let bytes = (count(&x) + count(&w) + count(&y)) * size;
    // Every element of the smaller map meets a window of weights.
    let per = if transposed { count(&x) } else { count(&y) } as f64;
    let flops = 2.0 * per * (count(&w) / w[0]) as f64;
    let precision = if c.flag("tf32") { Precision::Tf32 } else { Precision::Ieee };
    let p = Conv::new().stride(stride).pad(pad).dilation(dilation).groups(groups).precision(precision);

    let k = sets(bytes);
    let xs = randoms(d, t, &x, k, 1)?;
    let ws = (0..k as u64).map(|i| random(d, t, &w, 2000 + i, 0.05)).collect::<Result<Vec<_>>>()?;
    let (out, dys) = (Tensor::empty(d, t, &y)?, randoms(d, t, &y, k, 3)?);
    let (dx, dw) = (Tensor::empty(d, t, &x)?, Tensor::empty(d, t, &w)?);
    let (d1, d2, x2, w2) = (d.clone(), d.clone(), xs.clone(), ws.clone());
    let fwd = work(bytes, flops, move |i| {
        let (x, w, y) = (xs[i % k].operand(), ws[i % k].operand(), out.operand());
        let io = ConvIo::new(x.view()?, w.view()?, y.view_mut()?);
        Ok(if transposed { d1.conv_transpose(&p, io) } else { d1.conv(&p, io) }?)
    });
    let bwd = work(2 * bytes, 2.0 * flops, move |i| {
        let (g, x, w) = (dys[i % k].operand(), x2[i % k].operand(), w2[i % k].operand());
        let (dx, dw) = (dx.operand(), dw.operand());
        let mut io = ConvBwd::new(g.view()?);
        (io.x, io.w) = (Some(x.view()?), Some(w.view()?));
        (io.dx, io.dw) = (Some(dx.grad(false)?), Some(dw.grad(false)?));
        Ok(if transposed { d2.conv_transpose_bwd(&p, io) } else { d2.conv_bwd(&p, io) }?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}
