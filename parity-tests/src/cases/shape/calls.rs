//! The calls that the rows of the table stand for.

use trefoil::ops::shape::{PadMode, Triangle};
use trefoil::{DType, Layout, LayoutError, View};

use crate::cases::element;
use crate::device::{Cx, Fail, R};

/// Copies a view into a fresh contiguous output.
pub(super) fn copy(cx: &Cx<'_>, name: &str, x: View<'_>) -> R {
    let y = cx.like(name, &x)?;
    Ok(cx.gpu.strided_copy(x, y.g())?)
}

/// The output is a view of the input `x`.
pub(super) fn view_of(
    cx: &Cx<'_>,
    what: &'static str,
    f: impl FnOnce(&Layout) -> Result<Layout, LayoutError>,
) -> R {
    copy(cx, "y", cx.x("x")?.map(what, f)?)
}

/// A contiguous version of `x` where its strides forbid the new shape.
pub(super) fn reshape_into(cx: &Cx<'_>, x: View<'_>, shape: &[usize], name: &str) -> R {
    if x.layout().reshape(shape).is_ok() || x.is_contiguous() {
        return copy(cx, name, x.reshape(shape)?);
    }
    let mut tmp = cx.scratch(x.dtype(), x.numel())?;
    cx.gpu.strided_copy(x, tmp.shaped_mut(x.shape())?.into())?;
    copy(cx, name, tmp.view().reshape(shape)?)
}

pub(super) fn reshape(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let wanted = cx.ints("shape")?;
    let known: i64 = wanted.iter().filter(|&&n| n >= 0).product();
    let rest = if known > 0 { x.numel() as i64 / known } else { 0 };
    let shape: Vec<usize> = wanted.iter().map(|&n| if n < 0 { rest as usize } else { n as usize }).collect();
    reshape_into(cx, x, &shape, "y")
}

pub(super) fn expand(cx: &Cx<'_>) -> R {
    copy(cx, "y", cx.x("x")?.broadcast_to(&cx.dims("shape")?)?)
}

pub(super) fn squeeze(cx: &Cx<'_>) -> R {
    let mut axes = cx.dims("axes")?;
    axes.sort_unstable();
    view_of(cx, "axes", |l| axes.iter().rev().try_fold(*l, |l, &a| l.squeeze(a)))
}

pub(super) fn span(cx: &Cx<'_>, size: usize) -> R<(usize, usize, usize)> {
    Ok((cx.n("start")?, cx.opt_n("end")?.unwrap_or(size), cx.n("step")?))
}

pub(super) fn slice(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    let (start, end, step) = span(cx, x.shape().get(axis).copied().unwrap_or(0))?;
    view_of(cx, "axis", |l| l.slice(axis, start, end, step))
}

pub(super) fn set_slice(cx: &Cx<'_>) -> R {
    let v = cx.x("v")?;
    let y = cx.inout("y", "y")?;
    let axis = cx.axis("axis", v.shape().len())?;
    let (start, step) = (cx.n("start")?, cx.n("step")?);
    let end = start + (v.shape()[axis].max(1) - 1) * step + v.shape()[axis].min(1);
    let part = y.m().map("start", |l| l.slice(axis, start, end, step))?;
    Ok(cx.gpu.strided_copy(v, part.into())?)
}

pub(super) fn concat(cx: &Cx<'_>) -> R {
    let xs = cx.list("x");
    let axis = cx.axis("axis", xs[0].shape().len())?;
    let mut shape = xs[0].shape().to_vec();
    shape[axis] = xs.iter().map(|x| x.shape()[axis]).sum();
    let y = cx.out("y", xs[0].dtype(), &shape)?;
    Ok(cx.gpu.concat(axis, &xs, y.m())?)
}

pub(super) fn stack(cx: &Cx<'_>) -> R {
    let axis = cx.n("axis")?;
    let xs = cx
        .list("x")
        .into_iter()
        .map(|x| x.map("axis", |l| l.unsqueeze(axis)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut shape = xs[0].shape().to_vec();
    shape[axis] = xs.len();
    let y = cx.out("y", xs[0].dtype(), &shape)?;
    Ok(cx.gpu.concat(axis, &xs, y.m())?)
}

/// Parts of `x` along an axis; all parts must be used up.
pub(super) fn split_into(cx: &Cx<'_>, x: View<'_>, name: &str) -> R {
    let axis = cx.axis("axis", x.shape().len())?;
    let sizes = cx.dims("sizes")?;
    if sizes.iter().sum::<usize>() != x.shape()[axis] {
        return Err(trefoil::GpuError::invalid(
            "split",
            "sizes",
            "sizes that add up to the axis",
            format!("{sizes:?}"),
        )
        .into());
    }
    let mut at = 0;
    for (i, &n) in sizes.iter().enumerate() {
        copy(cx, &format!("{name}{i}"), x.map("sizes", |l| l.narrow(axis, at, n))?)?;
        at += n;
    }
    Ok(())
}

pub(super) fn unstack(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axis = cx.n("axis")?;
    for i in 0..x.shape()[axis] {
        copy(cx, &format!("y{i}"), x.map("axis", |l| l.select(axis, i))?)?;
    }
    Ok(())
}

/// The view [r0, n0, r1, n1, ...] of a tensor [r0*n0, r1*n1, ...].
pub(super) fn tiles(shape: &[usize], repeats: &[usize]) -> Vec<usize> {
    repeats.iter().zip(shape).flat_map(|(&r, &n)| [r, n]).collect()
}

/// Shape of `x` with leading ones, so that it has one axis per repeat.
pub(super) fn padded(shape: &[usize], rank: usize) -> Vec<usize> {
    let mut s = vec![1; rank.saturating_sub(shape.len())];
    s.extend(shape);
    s
}

pub(super) fn repeat(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let repeats = cx.dims("repeats")?;
    let shape = padded(x.shape(), repeats.len());
    let once: Vec<usize> = shape.iter().flat_map(|&n| [1, n]).collect();
    let out: Vec<usize> = shape.iter().zip(&repeats).map(|(n, r)| n * r).collect();
    let y = cx.out("y", x.dtype(), &out)?;
    let from = x.reshape(&once)?.broadcast_to(&tiles(&shape, &repeats))?;
    Ok(cx.gpu.strided_copy(from, y.m().reshape(&tiles(&shape, &repeats))?.into())?)
}

pub(super) fn repeat_interleave(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    let mut shape = x.shape().to_vec();
    let counts = cx.opt("counts");
    let repeats = cx.opt_n("repeats")?.unwrap_or(0);
    shape[axis] = match counts {
        Some(_) => cx.host_i64("counts")?.iter().sum::<i64>() as usize,
        None => shape[axis] * repeats,
    };
    let y = cx.out("y", x.dtype(), &shape)?;
    Ok(cx.gpu.repeat_interleave(axis, repeats, counts, x, y.m())?)
}

pub(super) fn flip(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.flip(&cx.dims("axes")?, x, y.g())?)
}

pub(super) fn roll(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let shifts: Vec<isize> = cx.ints("shifts")?.into_iter().map(|s| s as isize).collect();
    Ok(cx.gpu.roll(&shifts, &cx.dims("axes")?, x, y.g())?)
}

/// Mode and pads per axis; the argument lists the last axis first.
pub(super) fn pads(cx: &Cx<'_>, rank: usize) -> R<(PadMode, Vec<(isize, isize)>)> {
    let flat = cx.ints("pad")?;
    let mut pads = vec![(0, 0); rank];
    for (i, p) in flat.chunks_exact(2).enumerate() {
        let axis = rank.checked_sub(i + 1).ok_or_else(|| Fail::Case("more pads than axes".into()))?;
        pads[axis] = (p[0] as isize, p[1] as isize);
    }
    let mode = match cx.s("mode")?.as_str() {
        "constant" => PadMode::Constant(cx.f("value")?),
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    };
    Ok((mode, pads))
}

pub(super) fn pad(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (mode, pads) = pads(cx, x.shape().len())?;
    let shape: Vec<usize> =
        x.shape().iter().zip(&pads).map(|(&n, p)| (n as isize + p.0 + p.1).max(0) as usize).collect();
    let y = cx.out("y", x.dtype(), &shape)?;
    Ok(cx.gpu.pad(mode, &pads, x, y.m())?)
}

pub(super) fn unfold(cx: &Cx<'_>) -> R {
    let axis = cx.axis("axis", cx.x("x")?.shape().len())?;
    let (size, step) = (cx.n("size")?, cx.n("step")?);
    view_of(cx, "size", |l| l.unfold(axis, size, step))
}

pub(super) fn triangle(cx: &Cx<'_>, side: Triangle) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.triangle(side, cx.i("k")? as isize, x, y.g())?)
}

/// Zeros with `x` on diagonal k of the last two axes.
pub(super) fn embed(cx: &Cx<'_>, x: View<'_>, kth: isize, name: &str) -> R {
    let mut shape = x.shape().to_vec();
    let n = shape.pop().unwrap_or(1) + kth.unsigned_abs();
    shape.extend([n, n]);
    let y = cx.out(name, x.dtype(), &shape)?;
    let r = shape.len();
    cx.gpu.fill(0.0, y.m())?;
    let part = y.m().map("k", |l| l.diagonal(kth, r - 2, r - 1))?;
    Ok(cx.gpu.strided_copy(x, part.into())?)
}

pub(super) fn diag(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let kth = cx.i("k")? as isize;
    match x.shape().len() {
        1 => embed(cx, x, kth, "y"),
        _ => view_of(cx, "k", |l| l.diagonal(kth, 0, 1)),
    }
}

pub(super) fn diagonal(cx: &Cx<'_>) -> R {
    let rank = cx.x("x")?.shape().len();
    let (kth, a, b) = (cx.i("k")? as isize, cx.axis("axis1", rank)?, cx.axis("axis2", rank)?);
    view_of(cx, "k", |l| l.diagonal(kth, a, b))
}

pub(super) fn eye(cx: &Cx<'_>) -> R {
    let n = cx.n("n")?;
    let m = cx.opt_n("m")?.unwrap_or(n);
    let y = cx.out("y", cx.dtype, &[n, m])?;
    cx.gpu.fill(0.0, y.m())?;
    Ok(cx.gpu.fill(1.0, y.m().map("k", |l| l.diagonal(0, 0, 1))?)?)
}

/// Views that shuffle [N, C*r*r, H, W] into [N, C, H*r, W*r]: (shape to split into, permutation, output shape).
pub(super) fn pixel_plan(s: &[usize], r: usize) -> ([usize; 6], [usize; 6], [usize; 4]) {
    let c = s[1] / (r * r);
    ([s[0], c, r, r, s[2], s[3]], [0, 1, 4, 2, 5, 3], [s[0], c, s[2] * r, s[3] * r])
}

/// The inverse of [`pixel_plan`].
pub(super) fn unpixel_plan(s: &[usize], r: usize) -> ([usize; 6], [usize; 6], [usize; 4]) {
    let (h, w) = (s[2] / r, s[3] / r);
    ([s[0], s[1], h, r, w, r], [0, 1, 3, 5, 2, 4], [s[0], s[1] * r * r, h, w])
}

/// Splits, permutes and copies into an output of another shape.
pub(super) fn shuffle(
    cx: &Cx<'_>,
    x: View<'_>,
    name: &str,
    split: &[usize],
    perm: &[usize],
    out: &[usize],
) -> R {
    let from = x.reshape(split)?.map("perm", |l| l.permute(perm))?;
    let y = cx.out(name, x.dtype(), out)?;
    let to: Vec<usize> = from.shape().to_vec();
    Ok(cx.gpu.strided_copy(from, y.m().reshape(&to)?.grad(false))?)
}

pub(super) fn pixel_shuffle(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (split, perm, out) = pixel_plan(x.shape(), cx.n("r")?);
    shuffle(cx, x, "y", &split, &perm, &out)
}

pub(super) fn pixel_unshuffle(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (split, perm, out) = unpixel_plan(x.shape(), cx.n("r")?);
    shuffle(cx, x, "y", &split, &perm, &out)
}

/// [N, g, C/g, rest] with the middle axes exchanged.
pub(super) fn channels(cx: &Cx<'_>, x: View<'_>, groups: usize, name: &str) -> R {
    let s = x.shape().to_vec();
    let rest: usize = s[2..].iter().product();
    shuffle(cx, x, name, &[s[0], groups, s[1] / groups, rest], &[0, 2, 1, 3], &s)
}

pub(super) fn meshgrid(cx: &Cx<'_>) -> R {
    let xs = cx.list("x");
    let mut shape: Vec<usize> = xs.iter().map(|x| x.numel()).collect();
    // `xy` exchanges the first two axes, where there are two.
    let xy = match cx.s("indexing")?.as_str() {
        "ij" => false,
        "xy" => xs.len() > 1,
        i => return Err(Fail::Case(format!("indexing {i} is unknown"))),
    };
    if xy {
        shape.swap(0, 1);
    }
    for (i, x) in xs.iter().enumerate() {
        let axis = if xy && i < 2 { 1 - i } else { i };
        let mut one = vec![1; xs.len()];
        one[axis] = x.numel();
        copy(cx, &format!("y{i}"), x.reshape(&one)?.broadcast_to(&shape)?)?;
    }
    Ok(())
}

pub(super) fn cartesian(cx: &Cx<'_>) -> R {
    let xs = cx.list("x");
    let shape: Vec<usize> = xs.iter().map(|x| x.numel()).collect();
    let total = shape.iter().product();
    let y = cx.out("y", cx.dtype, &[total, xs.len()])?;
    for (i, x) in xs.iter().enumerate() {
        let mut one = vec![1; xs.len()];
        one[i] = x.numel();
        let column = y.m().map("axis", |l| l.select(1, i))?.reshape(&shape)?;
        cx.gpu.strided_copy(x.reshape(&one)?.broadcast_to(&shape)?, column.into())?;
    }
    Ok(())
}

pub(super) fn permute(cx: &Cx<'_>) -> R {
    let perm = cx.dims("perm")?;
    view_of(cx, "perm", |l| l.permute(&perm))
}

pub(super) fn transpose(cx: &Cx<'_>) -> R {
    let r = cx.x("x")?.shape().len();
    view_of(cx, "axis", |l| l.transpose(r - 2, r - 1))
}

pub(super) fn strided_copy(cx: &Cx<'_>) -> R {
    copy(cx, "y", cx.x("x")?)
}

pub(super) fn fill(cx: &Cx<'_>, value: f64) -> R {
    let y = cx.out("y", cx.dtype, &cx.dims("shape")?)?;
    Ok(cx.gpu.fill(value, y.m())?)
}

pub(super) fn fill_buffer(cx: &Cx<'_>) -> R {
    let y = cx.out("y", cx.dtype, &cx.dims("shape")?)?;
    let pattern = match cx.dtype {
        DType::I64 => cx.i("value")?.to_le_bytes().to_vec(),
        d => element(d, cx.f("value")?),
    };
    Ok(cx.gpu.fill_bytes(&pattern, y.m())?)
}

pub(super) fn arange(cx: &Cx<'_>) -> R {
    let (start, end, step) = (cx.f("start")?, cx.f("end")?, cx.f("step")?);
    // A step of 0 has no length: the library gets to refuse it.
    let n = if step == 0.0 { 1 } else { ((end - start) / step).ceil().max(0.0) as usize };
    let y = cx.out("y", cx.dtype, &[n])?;
    Ok(cx.gpu.arange(start, step, y.m())?)
}

pub(super) fn linspace(cx: &Cx<'_>) -> R {
    let y = cx.out("y", cx.dtype, &[cx.n("n")?])?;
    Ok(cx.gpu.linspace(cx.f("start")?, cx.f("end")?, y.m())?)
}
