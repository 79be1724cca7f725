//! Meshes with the sizes of a body scan.

use trefoil::ops::*;
use trefoil::{Buffer, DType, Result};

use super::{Bed, F32, Row, flops, row};

/// Batch, vertices, spiral length, channels.
fn sizes(b: &Bed<'_>) -> [usize; 4] {
    [b.pick(2, 2, 16), b.pick(40, 500, 6_890), 9, b.pick(8, 16, 64)]
}

fn spiral(b: &Bed<'_>) -> Result<Buffer> {
    let [_, v, l, _] = sizes(b);
    b.ids(v * l, v)
}

fn plan(b: &Bed<'_>, list: &Buffer) -> Result<(Buffer, Buffer)> {
    let [_, v, l, _] = sizes(b);
    let (mut rowptr, mut perm) = (b.empty(DType::I64, v + 1)?, b.empty(DType::I64, v * l)?);
    b.gpu.mesh_plan(MeshConv::Spiral, list.shaped(&[v, l])?, rowptr.view_mut(), perm.view_mut())?;
    Ok((rowptr, perm))
}

pub(super) const ROWS: &[Row] = &[
    row("mesh_conv", "spiral", F32, |b, dt| {
        let [n, v, l, c] = sizes(b);
        let (x, w, mut y) = (b.normal(dt, n * v * c)?, b.normal(dt, c * l * c)?, b.empty(dt, n * v * c)?);
        let list = spiral(b)?;
        flops(2 * n * v * l * c * c, move |gpu| {
            let s = [n, v, c];
            let (x, w, y) = (x.shaped(&s)?, w.shaped(&[c, l * c])?, y.shaped_mut(&s)?);
            gpu.mesh_conv(MeshConv::Spiral, MeshIo { x, list: list.shaped(&[v, l])?, w, b: None, y })
        })
    }),
    row("mesh_conv_bwd", "spiral", F32, |b, dt| {
        let [n, v, l, c] = sizes(b);
        let (x, w, dy) = (b.normal(dt, n * v * c)?, b.normal(dt, c * l * c)?, b.normal(dt, n * v * c)?);
        let (mut dx, mut dw) = (b.empty(dt, n * v * c)?, b.empty(dt, c * l * c)?);
        let list = spiral(b)?;
        let made = plan(b, &list)?;
        flops(4 * n * v * l * c * c, move |gpu| {
            let (s, k) = ([n, v, c], [c, l * c]);
            let (dx, dw) = (Some(dx.shaped_mut(&s)?.into()), Some(dw.shaped_mut(&k)?.into()));
            let plan = Some(EdgeGroups::new(made.0.view()).perm(made.1.view()));
            let (dy, x, w) = (dy.shaped(&s)?, x.shaped(&s)?, w.shaped(&k)?);
            let io = MeshBwd { dy, x, list: list.shaped(&[v, l])?, w, plan, dx, dw, db: None };
            gpu.mesh_conv_bwd(MeshConv::Spiral, io)
        })
    }),
    row("mesh_conv_bwd", "symmetric", F32, |b, dt| {
        let [n, v, _, c] = sizes(b);
        let (x, w, dy) = (b.normal(dt, n * v * c)?, b.normal(dt, c * 5 * c)?, b.normal(dt, n * v * c)?);
        let (list, mut dx) = (b.ids(v * 4, v)?, b.empty(dt, n * v * c)?);
        flops(2 * n * v * 5 * c * c, move |gpu| {
            let s = [n, v, c];
            let dx = Some(dx.shaped_mut(&s)?.into());
            let (dy, x, w) = (dy.shaped(&s)?, x.shaped(&s)?, w.shaped(&[c, 5 * c])?);
            let io = MeshBwd { dy, x, list: list.shaped(&[v, 4])?, w, plan: None, dx, dw: None, db: None };
            gpu.mesh_conv_bwd(MeshConv::Symmetric, io)
        })
    }),
    row("mesh_plan", "spiral", F32, |b, _| {
        let [_, v, l, _] = sizes(b);
        let list = spiral(b)?;
        let (mut rowptr, mut perm) = (b.empty(DType::I64, v + 1)?, b.empty(DType::I64, v * l)?);
        super::bytes(3 * 8 * v * l, move |gpu| {
            gpu.mesh_plan(MeshConv::Spiral, list.shaped(&[v, l])?, rowptr.view_mut(), perm.view_mut())
        })
    }),
];
