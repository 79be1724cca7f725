//! Meshes. The plan of a mesh is made once and is not part of the times.

use trefoil::DType;
use trefoil::ops::{Distribution, EdgeGroups, MeshBwd, MeshConv, MeshIo, Rng};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{random, randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    if c.op() != "spiral_conv" {
        return Ok(None);
    }
    let (n, v, width, out, len, t) =
        (c.size("n")?, c.size("v")?, c.size("c")?, c.size("k")?, c.size("s")?, c.dtype()?);
    let bytes = n * v * (width + out) * t.size();
    let flops = 2.0 * (n * v * len * width * out) as f64;
    let k = sets(bytes);
    let x = randoms(d, t, &[n, v, width], k, 1)?;
    let list =
        Tensor::random(d, DType::I64, &[v, len], Distribution::Int { lo: 0, hi: v as i64 }, Rng::new(3))?;
    let w = random(d, t, &[out, len * width], 4, 0.05)?;
    let (y, dx, dw) = (
        Tensor::empty(d, t, &[n, v, out])?,
        Tensor::empty(d, t, &[n, v, width])?,
        Tensor::empty(d, t, &[out, len * width])?,
    );
    let dy = randoms(d, t, &[n, v, out], k, 2)?;
    let (rowptr, perm) = (Tensor::empty(d, DType::I64, &[v + 1])?, Tensor::empty(d, DType::I64, &[v * len])?);
    {
        let (l, r, p) = (list.operand(), rowptr.operand(), perm.operand());
        d.mesh_plan(MeshConv::Spiral, l.view()?, r.view_mut()?, p.view_mut()?)?;
    }
    let (d1, x1, list1, w1) = (d.clone(), x.clone(), list.clone(), w.clone());
    let fwd = work(bytes, flops, move |i| {
        let (x, l, w, y) = (x1[i % k].operand(), list1.operand(), w1.operand(), y.operand());
        let io = MeshIo { x: x.view()?, list: l.view()?, w: w.view()?, b: None, y: y.view_mut()? };
        Ok(d1.mesh_conv(MeshConv::Spiral, io)?)
    });
    let d2 = d.clone();
    let bwd = work(2 * bytes, 2.0 * flops, move |i| {
        let (g, x, l, w) = (dy[i % k].operand(), x[i % k].operand(), list.operand(), w.operand());
        let (r, p, dx, dw) = (rowptr.operand(), perm.operand(), dx.operand(), dw.operand());
        let io = MeshBwd {
            dy: g.view()?,
            x: x.view()?,
            list: l.view()?,
            w: w.view()?,
            plan: Some(EdgeGroups::new(r.view()?).perm(p.view()?)),
            dx: Some(dx.grad(false)?),
            dw: Some(dw.grad(false)?),
            db: None,
        };
        Ok(d2.mesh_conv_bwd(MeshConv::Spiral, io)?)
    });
    Ok(Some(Prepared { fwd, bwd: Some(bwd) }))
}
