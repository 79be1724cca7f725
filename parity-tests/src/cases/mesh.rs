//! Meshes.

use trefoil::DType;
use trefoil::ops::graph::EdgeGroups;
use trefoil::ops::mesh::{MeshBwd, MeshConv, MeshIo, MeshPoolBwd, MeshPoolIo};

use super::Bound::{Derived, Stored};
use super::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Coarse};
use crate::sampler::Sample;

fn kind(cx: &Cx<'_>) -> R<MeshConv> {
    if !cx.has("mode") {
        return Ok(MeshConv::Spiral);
    }
    Ok(match cx.s("mode")?.as_str() {
        "concat" => MeshConv::Concat,
        "symmetric" => MeshConv::Symmetric,
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    })
}

fn forward(cx: &Cx<'_>, list: &str) -> R {
    let (x, w) = (cx.x("x")?, cx.x("W")?);
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = w.shape()[0];
    }
    let y = cx.out("y", x.dtype(), &shape)?;
    Ok(cx.gpu.mesh_conv(kind(cx)?, MeshIo::new(x, cx.x(list)?, w, y.m()).b(cx.opt("b")))?)
}

fn backward(cx: &Cx<'_>, list: &str, planned: bool) -> R {
    let (x, w, ids) = (cx.x("x")?, cx.x("W")?, cx.x(list)?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dW", &w)?);
    let db = cx.out("db", x.dtype(), &w.shape()[..1])?;
    let (n, ways) = (ids.shape()[0], ids.shape()[1]);
    let places = n * (ways + (kind(cx)? != MeshConv::Spiral) as usize);
    let (mut rowptr, mut perm) = (cx.scratch(ids.dtype(), n + 1)?, cx.scratch(ids.dtype(), places)?);
    if planned {
        cx.gpu.mesh_plan(kind(cx)?, ids, rowptr.view_mut(), perm.view_mut())?;
    }
    let plan = planned.then(|| EdgeGroups::new(rowptr.view()).perm(perm.view()));
    let (dx, dw, db) = (Some(dx.g()), Some(dw.g()), Some(db.g()));
    Ok(cx
        .gpu
        .mesh_conv_bwd(kind(cx)?, MeshBwd::new(cx.x("dy")?, x, ids, w).plan(plan).dx(dx).dw(dw).db(db))?)
}

/// Elements, channels, neighbours and outputs; a third of the neighbours absent.
fn draw(s: &mut Sample, list: &str, batched: bool, ways: usize, blocks: usize) {
    let n = if s.small { 4 + s.below(3) } else { [1, 33, 300, 70][s.below(4)] };
    let c = if s.small { 1 + s.below(3) } else { [1, 4, 16, 5, 32][s.below(5)] };
    let o = 1 + s.below(6);
    let batch = if batched && s.coin() { vec![2] } else { vec![] };
    s.put("x", &[&batch[..], &[n, c]].concat(), Any);
    let ids: Vec<i64> = (0..n * ways).map(|_| if s.below(3) == 0 { -1 } else { s.below(n) as i64 }).collect();
    s.ints(list, DType::I32, &[n, ways], &ids);
    s.put("W", &[o, blocks * c], Any);
    s.put("b", &[o], Any);
}

fn draw_mesh(s: &mut Sample) {
    if s.coin() {
        let ways = 1 + s.below(5);
        draw(s, "nbr", true, ways, ways + 1);
        s.arg("mode", "concat");
    } else {
        draw(s, "nbr", true, 4, 5);
        s.arg("mode", "symmetric");
    }
}

fn pool(cx: &Cx<'_>) -> R {
    let (x, w, keep) = (cx.x("x")?, cx.x("w")?, cx.n("keep")?);
    let (elements, channels) = (x.shape()[0], x.shape().get(1).copied().unwrap_or(0));
    let y = cx.out("y", x.dtype(), &[keep, channels])?;
    let (kept, share) =
        (cx.out("kept", DType::I64, &[keep])?, cx.out("share", x.dtype().accumulator(), &[elements])?);
    let io = MeshPoolIo::new(x, w, y.m(), kept.m(), share.m());
    Ok(cx.gpu.mesh_pool(cx.f("temperature")?, io)?)
}

fn pool_backward(cx: &Cx<'_>) -> R {
    let (dy, x, w) = (cx.x("dy")?, cx.x("x")?, cx.x("w")?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
    let io = MeshPoolBwd::new(dy, x, w, cx.x("kept")?, cx.x("share")?).dx(dx.g()).dw(dw.g());
    Ok(cx.gpu.mesh_pool_bwd(cx.f("temperature")?, io)?)
}

/// Multiples of 1/2: scores are exact, and equal ones occur.
fn draw_pool(s: &mut Sample) {
    let n = if s.small { 5 } else { [1, 33, 300, 70][s.below(4)] };
    let c = if s.small { 2 } else { [1, 4, 33, 260][s.below(4)] };
    s.put("x", &[n, c], Coarse);
    s.put("w", &[c], Coarse);
    let keep = if s.small { 3 } else { 1 + s.below(n) };
    s.arg("keep", keep);
    let temperature = [1.0, 4.0, 32.0][s.below(3)];
    s.arg("temperature", temperature);
}

/// Products over the elements and outputs, summed over the places of an element; the features of 16-bit data are rounded once.
const GRADS: super::Bound = Stored;
const MESH: &str = "dy, x, nbr:i32, W";
const SPIRAL: &str = "dy, x, spiral:i32, W";

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("mesh_conv_forward", "S14.3", "x, nbr:i32, W, [b]", "mode=\"concat\"", "y", &["mesh_conv"], |cx| {
        forward(cx, "nbr")
    })
    .bound(Stored)
    .sample(draw_mesh),
    k("mesh_conv_backward", "S14.4", MESH, "mode=\"concat\"", "dx, dW, db", &["mesh_conv_bwd"], |cx| {
        backward(cx, "nbr", false)
    })
    .bound(GRADS)
    .grad_of("mesh_conv_forward"),
    k(
        "mesh_conv_planned_backward",
        "S14.4",
        MESH,
        "mode=\"concat\"",
        "dx, dW, db",
        &["mesh_conv_bwd", "mesh_plan"],
        |cx| backward(cx, "nbr", true),
    )
    .bound(GRADS)
    .grad_of("mesh_conv_forward"),
    k("spiral_conv_forward", "S14.5", "x, spiral:i32, W, [b]", "-", "y", &["mesh_conv"], |cx| {
        forward(cx, "spiral")
    })
    .bound(Stored)
    .sample(|s| {
        let ways = 1 + s.below(9);
        draw(s, "spiral", true, ways, ways);
    }),
    k("spiral_conv_backward", "S14.6", SPIRAL, "-", "dx, dW, db", &["mesh_conv_bwd"], |cx| {
        backward(cx, "spiral", false)
    })
    .bound(GRADS)
    .grad_of("spiral_conv_forward"),
    k(
        "spiral_conv_planned_backward",
        "S14.6",
        SPIRAL,
        "-",
        "dx, dW, db",
        &["mesh_conv_bwd", "mesh_plan"],
        |cx| backward(cx, "spiral", true),
    )
    .bound(GRADS)
    .grad_of("spiral_conv_forward"),
    k("mesh_pool", "B11.8", "x, w", "keep, temperature=1.0", "y, kept:i64, share:f32", &["mesh_pool"], pool)
        .bound(Derived)
        .sample(draw_pool),
    k(
        "mesh_pool_backward",
        "B11.8",
        "dy, x, w, kept:idx, share:f32",
        "temperature=1.0",
        "dx, dw",
        &["mesh_pool_bwd"],
        pool_backward,
    )
    .bound(Derived)
    .grad_of("mesh_pool"),
]];
