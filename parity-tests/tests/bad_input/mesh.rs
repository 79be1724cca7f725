//! Meshes.

use super::*;
use trefoil::ops::graph::EdgeGroups;
use trefoil::ops::mesh::{MeshBwd, MeshConv, MeshIo};

pub(super) fn mesh(t: &mut Bed<'_>) {
    let (x, y, w, b) = (t.f32(6), t.f32(6), t.f32(20), t.f32(2));
    let four = t.ids(&[0; 12]);
    let three = t.ids(&[0; 9]);
    let io = |list, w, y| MeshIo::new(sh(&x, &[3, 2]), list, w, y);
    t.refuse("symmetric with three neighbours", &[&y], |g| {
        g.mesh_conv(MeshConv::Symmetric, io(sh(&three, &[3, 3]), sh(&w, &[2, 10]), out(&y, &[3, 2])))
    });
    t.refuse("weights of another width", &[&y], |g| {
        g.mesh_conv(MeshConv::Concat, io(sh(&four, &[3, 4]), sh(&w, &[4, 5]), out(&y, &[3, 2])))
    });
    t.refuse("a list of other elements", &[&y], |g| {
        g.mesh_conv(MeshConv::Concat, io(sh(&four, &[4, 3]), sh(&w, &[2, 10]), out(&y, &[3, 2])))
    });
    t.refuse("an output of other channels", &[&y], |g| {
        g.mesh_conv(MeshConv::Concat, io(sh(&four, &[3, 4]), sh(&w, &[2, 10]), out(&y, &[2, 3])))
    });
    t.refuse("a bias of another length", &[&y], |g| {
        let io = io(sh(&four, &[3, 4]), sh(&w, &[2, 10]), out(&y, &[3, 2]));
        g.mesh_conv(MeshConv::Concat, io.b(x.view()))
    });
    t.refuse("an output onto the input", &[&x], |g| {
        g.mesh_conv(MeshConv::Concat, io(sh(&four, &[3, 4]), sh(&w, &[2, 10]), out(&x, &[3, 2])))
    });
    let (dx, dy, rows) = (t.f32(6), t.f32(6), t.ids(&[0, 0, 0, 0]));
    let grads = |plan, dx, db| {
        MeshBwd::new(sh(&dy, &[3, 2]), sh(&x, &[3, 2]), sh(&four, &[3, 4]), sh(&w, &[2, 10]))
            .plan(plan)
            .dx(dx)
            .db(db)
    };
    t.refuse("a gradient of another shape", &[&dx], |g| {
        g.mesh_conv_bwd(MeshConv::Concat, grads(None, Some(out(&dx, &[2, 3]).into()), None))
    });
    t.refuse("a plan without places", &[&dx], |g| {
        let plan = Some(EdgeGroups::new(rows.view()));
        g.mesh_conv_bwd(MeshConv::Concat, grads(plan, Some(out(&dx, &[3, 2]).into()), None))
    });
    t.refuse("two gradients in one place", &[&b], |g| {
        let (a, c) = (out(&dx, &[3, 2]).into(), b.alias_mut().grad(false));
        let io = grads(None, Some(a), Some(c)).dw(None);
        g.mesh_conv_bwd(MeshConv::Concat, io.dx(out(&b, &[2])))
    });
    let (r, p) = (t.buf(DType::I64, 4), t.buf(DType::I64, 15));
    t.accept("a plan", |g| g.mesh_plan(MeshConv::Concat, sh(&four, &[3, 4]), out(&r, &[4]), out(&p, &[15])));
    let (r, p) = (t.buf(DType::I64, 4), t.buf(DType::I64, 15));
    t.refuse("a plan that is too long", &[&r, &p], |g| {
        g.mesh_plan(MeshConv::Spiral, sh(&four, &[3, 4]), out(&r, &[4]), out(&p, &[15]))
    });
    let n = t.buf(DType::I32, 15);
    t.refuse("a plan of another dtype", &[&r, &n], |g| {
        g.mesh_plan(MeshConv::Concat, sh(&four, &[3, 4]), out(&r, &[4]), out(&n, &[15]))
    });
}
