//! Meshes.

use super::*;
use trefoil::ops::graph::EdgeGroups;
use trefoil::ops::mesh::{MeshBwd, MeshConv, MeshIo, MeshPoolBwd, MeshPoolIo};

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

pub(super) fn pooling(t: &mut Bed<'_>) {
    let (x, w, y, share) = (t.f32(6), t.f32(2), t.f32(4), t.f32(3));
    let kept = t.buf(DType::I64, 2);
    let outs = [&y, &share, &kept];
    let io = || {
        let (kept, share) = (kept.alias_mut(), share.alias_mut());
        MeshPoolIo::new(sh(&x, &[3, 2]), w.view(), out(&y, &[2, 2]), kept, share)
    };
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        t.refuse("a temperature that divides nothing", &outs, |g| g.mesh_pool(temperature, io()));
    }
    t.refuse("a weight of other channels", &outs, |g| g.mesh_pool(1.0, with!(io(), w = share.view())));
    t.refuse("features of other elements", &outs, |g| g.mesh_pool(1.0, with!(io(), y = out(&y, &[1, 4]))));
    t.refuse("numbers that are floats", &outs, |g| g.mesh_pool(1.0, with!(io(), kept = out(&w, &[2]))));
    t.refuse("shares of the kept ones", &outs, |g| g.mesh_pool(1.0, with!(io(), share = out(&w, &[2]))));
    let many = t.buf(DType::I64, 7);
    let all = t.f32(14);
    t.refuse("more elements than there are", &[&all, &share, &many], |g| {
        g.mesh_pool(1.0, with!(io(), y = out(&all, &[7, 2]), kept = many.alias_mut()))
    });
    t.refuse("features over the input", &[&x], |g| {
        let to = out(&x, &[6]).range(0, 4).and_then(|v| v.reshape(&[2, 2]))?;
        g.mesh_pool(1.0, with!(io(), y = to))
    });
    let numbers = t.ids(&[0, 2]);
    let dx = t.f32(6);
    let base = || MeshPoolBwd::new(sh(&y, &[2, 2]), sh(&x, &[3, 2]), w.view(), numbers.view(), share.view());
    t.refuse("a gradient of another shape", &[&dx], |g| {
        g.mesh_pool_bwd(1.0, with!(base(), dx = Some(out(&dx, &[2, 3]).into())))
    });
    t.refuse("a gradient over the weight", &[&w], |g| {
        g.mesh_pool_bwd(1.0, with!(base(), dw = Some(w.alias_mut().into())))
    });
    t.refuse("shares of integers", &[&dx], |g| {
        let io = with!(base(), share = numbers.view(), dx = Some(out(&dx, &[3, 2]).into()));
        g.mesh_pool_bwd(1.0, io)
    });
}
