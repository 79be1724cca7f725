//! Gradients of movement: the inverse movement, or a sum over the copies.

use trefoil::ops::shape::Triangle;
use trefoil::{GradMut, View};

use super::calls::{channels, padded, pads, pixel_plan, shuffle, span, split_into, tiles, unpixel_plan};
use crate::cases::Bound::Sum;
use crate::cases::{Kernel, k};
use crate::device::{Cx, R, Tensor};

/// The gradient `dx` with the forward's input shape.
fn dx(cx: &Cx<'_>) -> R<std::rc::Rc<Tensor>> {
    cx.out("dx", cx.x("dy")?.dtype(), &cx.dims("input_size")?)
}

/// Zeros, then `dy` placed into a part of `dx`.
fn place(
    cx: &Cx<'_>,
    dy: View<'_>,
    part: impl FnOnce(&trefoil::Layout) -> Result<trefoil::Layout, trefoil::LayoutError>,
) -> R {
    let dx = dx(cx)?;
    cx.gpu.fill(0.0, dx.m())?;
    Ok(cx.gpu.strided_copy(dy, dx.m().map("part", part)?.into())?)
}

fn reshape(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let dy = cx.x("dy")?;
    Ok(cx.gpu.strided_copy(dy.reshape(&cx.dims("input_size")?)?, dx.g())?)
}

fn expand(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    Ok(cx.gpu.sum_to_shape(cx.x("dy")?, dx.g())?)
}

fn slice(cx: &Cx<'_>) -> R {
    let shape = cx.dims("input_size")?;
    let axis = cx.axis("axis", shape.len())?;
    let (start, end, step) = span(cx, shape[axis])?;
    place(cx, cx.x("dy")?, |l| l.slice(axis, start, end, step))
}

fn set_slice(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let axis = cx.axis("axis", dy.shape().len())?;
    let (start, step, n) = (cx.n("start")?, cx.n("step")?, cx.n("n")?);
    let end = start + (n.max(1) - 1) * step + n.min(1);
    let dbase = cx.like("dbase", &dy)?;
    cx.gpu.strided_copy(dy, dbase.g())?;
    cx.gpu.fill(0.0, dbase.m().map("start", |l| l.slice(axis, start, end, step))?)?;
    let part = dy.map("start", |l| l.slice(axis, start, end, step))?;
    let dv = cx.like("dv", &part)?;
    Ok(cx.gpu.strided_copy(part, dv.g())?)
}

fn repeat(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let repeats = cx.dims("repeats")?;
    let shape = padded(&cx.dims("input_size")?, repeats.len());
    let once: Vec<usize> = shape.iter().flat_map(|&n| [1, n]).collect();
    let dy = cx.x("dy")?.reshape(&tiles(&shape, &repeats))?;
    let GradMut { out, accumulate, .. } = dx.g();
    Ok(cx.gpu.sum_to_shape(dy, out.reshape(&once)?.grad(accumulate))?)
}

fn repeat_interleave(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let axis = cx.axis("axis", cx.dims("input_size")?.len())?;
    let repeats = cx.opt_n("repeats")?.unwrap_or(0);
    Ok(cx.gpu.repeat_interleave_bwd(axis, repeats, cx.opt("counts"), cx.x("dy")?, dx.g())?)
}

fn flip(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    Ok(cx.gpu.flip(&cx.dims("axes")?, cx.x("dy")?, dx.g())?)
}

fn roll(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let back: Vec<isize> = cx.ints("shifts")?.into_iter().map(|s| -s as isize).collect();
    Ok(cx.gpu.roll(&back, &cx.dims("axes")?, cx.x("dy")?, dx.g())?)
}

fn pad(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let (mode, pads) = pads(cx, cx.dims("input_size")?.len())?;
    Ok(cx.gpu.pad_bwd(mode, &pads, cx.x("dy")?, dx.g())?)
}

fn unfold(cx: &Cx<'_>) -> R {
    let dx = dx(cx)?;
    let axis = cx.axis("axis", cx.dims("input_size")?.len())?;
    Ok(cx.gpu.unfold_bwd(axis, cx.n("size")?, cx.n("step")?, cx.x("dy")?, dx.g())?)
}

fn triangle(cx: &Cx<'_>, side: Triangle) -> R {
    let dx = dx(cx)?;
    Ok(cx.gpu.triangle(side, cx.i("k")? as isize, cx.x("dy")?, dx.g())?)
}

/// Diagonal k of `dy`, the gradient of an embedding.
fn take_diagonal(cx: &Cx<'_>, kth: isize) -> R {
    let dy = cx.x("dy")?;
    let r = dy.shape().len();
    let part = dy.map("k", |l| l.diagonal(kth, r - 2, r - 1))?;
    let dx = dx(cx)?;
    Ok(cx.gpu.strided_copy(part, dx.g())?)
}

fn diag(cx: &Cx<'_>) -> R {
    let kth = cx.i("k")? as isize;
    match cx.dims("input_size")?.len() {
        1 => take_diagonal(cx, kth),
        _ => place(cx, cx.x("dy")?, |l| l.diagonal(kth, 0, 1)),
    }
}

fn diagonal(cx: &Cx<'_>) -> R {
    let rank = cx.dims("input_size")?.len();
    let (kth, a, b) = (cx.i("k")? as isize, cx.axis("axis1", rank)?, cx.axis("axis2", rank)?);
    place(cx, cx.x("dy")?, |l| l.diagonal(kth, a, b))
}

fn pixel_shuffle(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let (split, perm, out) = unpixel_plan(dy.shape(), cx.n("r")?);
    shuffle(cx, dy, "dx", &split, &perm, &out)
}

fn pixel_unshuffle(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let (split, perm, out) = pixel_plan(dy.shape(), cx.n("r")?);
    shuffle(cx, dy, "dx", &split, &perm, &out)
}

fn channel_shuffle(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    channels(cx, dy, dy.shape()[1] / cx.n("groups")?, "dx")
}

macro_rules! grad {
    ($name:literal, $row:literal, $args:literal, $ops:expr, $run:expr) => {
        k(concat!($name, "_backward"), $row, "dy", $args, "dx", $ops, $run).grad_of($name)
    };
}

const COPY: &[&str] = &["strided_copy"];
const PLACE: &[&str] = &["strided_copy", "fill"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        grad!("reshape", "T4.1", "input_size, shape", COPY, reshape),
        grad!("expand", "T4.1", "input_size, shape", &["sum_to_shape"], expand).bound(Sum),
        grad!("slice", "T4.2", "input_size, axis, start=0, end=null, step=1", PLACE, slice),
        k("set_slice_backward", "T4.3", "dy", "axis, start=0, step=1, n", "dbase, dv", PLACE, set_slice)
            .grad_of("set_slice"),
        k("concat_backward", "T4.4", "dy", "axis, sizes", "dx0, dx1, ...", COPY, |cx| {
            split_into(cx, cx.x("dy")?, "dx")
        })
        .grad_of("concat"),
        grad!("repeat", "T4.6", "input_size, repeats", &["sum_to_shape"], repeat).bound(Sum),
        k(
            "repeat_interleave_backward",
            "T4.6",
            "dy, [counts:i32]",
            "input_size, axis, repeats=null",
            "dx",
            &["repeat_interleave_bwd"],
            repeat_interleave,
        )
        .bound(Sum)
        .grad_of("repeat_interleave"),
    ],
    &[
        grad!("flip", "T4.7", "input_size, axes", &["flip"], flip),
        grad!("roll", "T4.7", "input_size, shifts, axes", &["roll"], roll),
        grad!("pad", "T4.8", "input_size, pad, mode=\"constant\", value=0.0", &["pad_bwd"], pad).bound(Sum),
        grad!("unfold_windows", "T4.9", "input_size, axis, size, step=1", &["unfold_bwd"], unfold).bound(Sum),
        grad!("tril", "T4.10", "input_size, k=0", &["triangle"], |cx| triangle(cx, Triangle::Lower)),
        grad!("triu", "T4.10", "input_size, k=0", &["triangle"], |cx| triangle(cx, Triangle::Upper)),
        grad!("diag", "T4.10", "input_size, k=0", PLACE, diag),
        grad!("diag_embed", "T4.10", "input_size, k=0", COPY, |cx| take_diagonal(cx, cx.i("k")? as isize)),
        grad!("diagonal", "T4.10", "input_size, k=0, axis1=0, axis2=1", PLACE, diagonal),
        grad!("pixel_shuffle", "T4.11", "input_size, r", COPY, pixel_shuffle),
        grad!("pixel_unshuffle", "T4.11", "input_size, r", COPY, pixel_unshuffle),
        grad!("channel_shuffle", "T4.11", "input_size, groups", COPY, channel_shuffle),
    ],
];
