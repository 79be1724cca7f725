//! The calls that the rows of the table stand for.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{CausalConvBwd, CausalConvIo, Conv, ConvBwd, ConvIo, DeformConvBwd, DeformConvIo};

use crate::device::{Cx, Fail, R};

/// Stride, padding, dilation, groups, output padding, as far as the row has them.
pub(super) fn plan(cx: &Cx<'_>) -> R<Conv> {
    let mut p = Conv::new();
    if cx.has("s") {
        p = p.stride(cx.dims("s")?.as_slice());
    }
    if cx.has("p") {
        p = p.pad(cx.dims("p")?.as_slice());
    }
    if cx.has("d") {
        p = p.dilation(cx.dims("d")?.as_slice());
    }
    if cx.has("op") {
        p = p.out_pad(cx.dims("op")?.as_slice());
    }
    Ok(if cx.has("g") { p.groups(cx.n("g")?) } else { p })
}

/// Values of an argument for `axes` axes.
pub(super) fn each(cx: &Cx<'_>, name: &str, axes: usize, default: usize) -> R<Vec<usize>> {
    let v = if cx.has(name) { cx.dims(name)? } else { vec![default] };
    Ok(if v.len() == 1 { vec![v[0]; axes] } else { v })
}

/// Output axes of a convolution; 1 where it has none, so that the library gets to refuse it.
pub(super) fn windows(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> R<Vec<usize>> {
    let n = input.len();
    let (s, p, d) = (each(cx, "s", n, 1)?, each(cx, "p", n, 0)?, each(cx, "d", n, 1)?);
    let one = |a: usize| {
        let k = kernel.get(a).copied().unwrap_or(1);
        let room = (input[a] + 2 * p[a]).checked_sub(d[a] * k.saturating_sub(1) + 1);
        room.map_or(1, |r| r / s[a].max(1) + 1)
    };
    Ok((0..n).map(one).collect())
}

/// Output axes of a transposed convolution.
pub(super) fn spread(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> R<Vec<usize>> {
    let n = input.len();
    let (s, p, d) = (each(cx, "s", n, 1)?, each(cx, "p", n, 0)?, each(cx, "d", n, 1)?);
    let op = each(cx, "op", n, 0)?;
    let one = |a: usize| {
        let full = input[a].saturating_sub(1) * s[a] + d[a] * (kernel[a] - 1) + op[a] + 1;
        full.saturating_sub(2 * p[a])
    };
    Ok((0..n).map(one).collect())
}

pub(super) fn depthwise(cx: &Cx<'_>) -> R<Conv> {
    Ok(plan(cx)?.groups(cx.x("x")?.shape()[1]))
}

pub(super) fn forward_with(cx: &Cx<'_>, p: Conv) -> R {
    let (x, w) = (cx.x("x")?, cx.x("w")?);
    let mut shape = vec![x.shape()[0], w.shape()[0]];
    shape.extend(windows(cx, &x.shape()[2..], &w.shape()[2..])?);
    let y = cx.out("y", x.dtype(), &shape)?;
    let mut io = ConvIo::new(x, w, y.m());
    (io.bias, io.residual) = (cx.opt("b"), cx.opt("residual"));
    Ok(cx.gpu.conv(&p, io)?)
}

pub(super) fn forward(cx: &Cx<'_>) -> R {
    forward_with(cx, plan(cx)?)
}

pub(super) fn input_gradient(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    let mut io = ConvBwd::new(dy);
    (io.w, io.dx) = (Some(cx.x("w")?), Some(dx.g()));
    Ok(cx.gpu.conv_bwd(&plan(cx)?, io)?)
}

pub(super) fn weight_gradient(cx: &Cx<'_>) -> R {
    let (p, x, dy) = (plan(cx)?, cx.x("x")?, cx.x("dy")?);
    let mut shape = vec![dy.shape()[1], x.shape()[1] / p.groups.max(1)];
    shape.extend(cx.dims("k")?);
    let dw = cx.out("dw", x.dtype(), &shape)?;
    let db = cx.wants("db").then(|| cx.out("db", x.dtype(), &[shape[0]])).transpose()?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.dw, io.dbias) = (Some(x), Some(dw.g()), db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.conv_bwd(&p, io)?)
}

/// All gradients at once.
pub(super) fn gradients(cx: &Cx<'_>, p: Conv) -> R {
    let (dy, x, w) = (cx.x("dy")?, cx.x("x")?, cx.x("w")?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
    let db = cx.wants("db").then(|| cx.out("db", x.dtype(), &[w.shape()[0]])).transpose()?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.w) = (Some(x), Some(w));
    (io.dx, io.dw, io.dbias) = (Some(dx.g()), Some(dw.g()), db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.conv_bwd(&p, io)?)
}

pub(super) fn transpose(cx: &Cx<'_>) -> R {
    let (p, x, w) = (plan(cx)?, cx.x("x")?, cx.x("w")?);
    let mut shape = vec![x.shape()[0], w.shape()[1] * p.groups];
    shape.extend(spread(cx, &x.shape()[2..], &w.shape()[2..])?);
    let y = cx.out("y", x.dtype(), &shape)?;
    let mut io = ConvIo::new(x, w, y.m());
    io.bias = cx.opt("b");
    Ok(cx.gpu.conv_transpose(&p, io)?)
}

/// The smallest input of a transposed convolution whose output has these axes.
pub(super) fn transpose_input(cx: &Cx<'_>) -> R {
    let (dy, w) = (cx.x("dy")?, cx.x("w")?);
    let n = dy.shape().len() - 2;
    let (s, p, d) = (each(cx, "s", n, 1)?, each(cx, "p", n, 0)?, each(cx, "d", n, 1)?);
    let op = each(cx, "op", n, 0)?;
    let mut shape = vec![dy.shape()[0], w.shape()[0]];
    for a in 0..n {
        let out = dy.shape()[2 + a] + 2 * p[a];
        let taken = d[a] * (w.shape()[2 + a] - 1) + op[a] + 1;
        shape.push(out.saturating_sub(taken) / s[a] + 1);
    }
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    let mut io = ConvBwd::new(dy);
    (io.w, io.dx) = (Some(w), Some(dx.g()));
    Ok(cx.gpu.conv_transpose_bwd(&plan(cx)?, io)?)
}

pub(super) fn transpose_weight(cx: &Cx<'_>) -> R {
    let (p, x, dy) = (plan(cx)?, cx.x("x")?, cx.x("dy")?);
    let mut shape = vec![x.shape()[1], dy.shape()[1] / p.groups.max(1)];
    shape.extend(cx.dims("k")?);
    let dw = cx.out("dw", x.dtype(), &shape)?;
    let db = cx.wants("db").then(|| cx.out("db", x.dtype(), &[dy.shape()[1]])).transpose()?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.dw, io.dbias) = (Some(x), Some(dw.g()), db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.conv_transpose_bwd(&p, io)?)
}

pub(super) fn im2col(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let kernel = each(cx, "k", x.shape().len() - 2, 1)?;
    let count = windows(cx, &x.shape()[2..], &kernel)?;
    let rows = x.shape()[1] * kernel.iter().product::<usize>();
    let col = cx.out("col", x.dtype(), &[x.shape()[0], rows, count.iter().product()])?;
    Ok(cx.gpu.im2col(&plan(cx)?, &kernel, x, col.g())?)
}

pub(super) fn col2im(cx: &Cx<'_>) -> R {
    let (col, size) = (cx.x("col")?, cx.dims("output_size")?);
    let kernel = each(cx, "k", size.len(), 1)?;
    let mut shape = vec![col.shape()[0], col.shape()[1] / kernel.iter().product::<usize>().max(1)];
    shape.extend(size);
    let x = cx.out("x", col.dtype(), &shape)?;
    Ok(cx.gpu.col2im(&plan(cx)?, &kernel, col, x.g())?)
}

pub(super) fn act(cx: &Cx<'_>) -> R<Activation> {
    Ok(match cx.s("act")?.as_str() {
        "none" => Activation::Identity,
        "relu" => Activation::Relu,
        "leaky_relu" => Activation::LeakyRelu { slope: 0.01 },
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "swish" | "silu" => Activation::Swish { beta: 1.0 },
        "hardswish" => Activation::Hardswish,
        a => return Err(Fail::Case(format!("act {a} is unknown"))),
    })
}

pub(super) fn causal(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let state = cx.opt("state");
    let new = state.map(|s| cx.like("state", &s)).transpose()?;
    let io = CausalConvIo::new(x, cx.x("w")?, y.m())
        .bias(cx.opt("b"))
        .state(state)
        .new_state(new.as_ref().map(|t| t.m()));
    Ok(cx.gpu.causal_conv1d(act(cx)?, io)?)
}

/// The state is replaced where it lies, as in decoding.
pub(super) fn causal_in_place(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (y, state) = (cx.like("y", &x)?, cx.inout("state", "state")?);
    let io = CausalConvIo::new(x, cx.x("w")?, y.m()).bias(cx.opt("b")).state(state.v()).new_state(state.m());
    Ok(cx.gpu.causal_conv1d(act(cx)?, io)?)
}

pub(super) fn causal_backward(cx: &Cx<'_>) -> R {
    let (x, w, b) = (cx.x("x")?, cx.x("w")?, cx.opt("b"));
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
    let db = cx.wants("db").then(|| b.map(|b| cx.like("db", &b))).flatten().transpose()?;
    let io =
        CausalConvBwd::new(cx.x("dy")?, x, w).bias(b).dx(dx.g()).dw(dw.g()).dbias(db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.causal_conv1d_bwd(act(cx)?, io)?)
}

/// y with the value before the activation, which the gradient reads.
pub(super) fn fused(cx: &Cx<'_>) -> R {
    let p = plan(cx)?.act(act(cx)?);
    let (x, w) = (cx.x("x")?, cx.x("w")?);
    let mut shape = vec![x.shape()[0], w.shape()[0]];
    shape.extend(windows(cx, &x.shape()[2..], &w.shape()[2..])?);
    let (y, z) = (cx.out("y", x.dtype(), &shape)?, cx.out("z", x.dtype(), &shape)?);
    let mut io = ConvIo::new(x, w, y.m());
    (io.bias, io.scale, io.residual) = (cx.opt("b"), cx.opt("scale"), cx.opt("residual"));
    io.z = Some(z.m());
    Ok(cx.gpu.conv(&p, io)?)
}

pub(super) fn fused_backward(cx: &Cx<'_>) -> R {
    let p = plan(cx)?.act(act(cx)?);
    let (dy, x, w) = (cx.x("dy")?, cx.x("x")?, cx.x("w")?);
    let saved = cx.x(if p.act.reads_output() { "y" } else { "z" })?;
    let (dx, dw, db) = (cx.like("dx", &x)?, cx.like("dw", &w)?, cx.out("db", x.dtype(), &[w.shape()[0]])?);
    let dr = cx.like("dresidual", &dy)?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.w, io.saved) = (Some(x), Some(w), Some(saved));
    (io.dx, io.dw, io.dbias, io.dresidual) = (Some(dx.g()), Some(dw.g()), Some(db.g()), Some(dr.g()));
    Ok(cx.gpu.conv_bwd(&p, io)?)
}

pub(super) fn asymmetric(cx: &Cx<'_>) -> R<Conv> {
    Ok(plan(cx)?.pad_end(cx.dims("pe")?.as_slice()))
}

pub(super) fn deform(cx: &Cx<'_>) -> R {
    let (x, w, offset) = (cx.x("x")?, cx.x("w")?, cx.x("offset")?);
    let y = cx.out("y", x.dtype(), &[x.shape()[0], w.shape()[0], offset.shape()[2], offset.shape()[3]])?;
    let io = DeformConvIo::new(x, w, offset, y.m()).mask(cx.opt("mask")).bias(cx.opt("b"));
    Ok(cx.gpu.deform_conv(&plan(cx)?, io)?)
}

pub(super) fn deform_backward(cx: &Cx<'_>) -> R {
    let (x, w, offset, mask) = (cx.x("x")?, cx.x("w")?, cx.x("offset")?, cx.opt("mask"));
    let (dx, dw, doffset) = (cx.like("dx", &x)?, cx.like("dw", &w)?, cx.like("doffset", &offset)?);
    let dmask = mask.as_ref().map(|m| cx.like("dmask", m)).transpose()?;
    let db = cx.out("db", x.dtype(), &[w.shape()[0]])?;
    let io = DeformConvBwd::new(cx.x("dy")?, x, w, offset)
        .mask(mask)
        .dx(dx.g())
        .dw(dw.g())
        .doffset(doffset.g())
        .dmask(dmask.as_ref().map(|t| t.g()))
        .dbias(db.g());
    Ok(cx.gpu.deform_conv_bwd(&plan(cx)?, io)?)
}
