//! Convolution.

use trefoil::ops::*;
use trefoil::{DType, View};

use super::Bound::{Exact, Product, Stored, Sum};
use super::{Bound, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::random_cases::Dom::{Any, Range};
use crate::random_cases::Sample;

/// Stride, padding, dilation, groups, output padding, as far as the row has them.
fn plan(cx: &Cx<'_>) -> R<Conv> {
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
fn each(cx: &Cx<'_>, name: &str, axes: usize, default: usize) -> R<Vec<usize>> {
    let v = if cx.has(name) { cx.dims(name)? } else { vec![default] };
    Ok(if v.len() == 1 { vec![v[0]; axes] } else { v })
}

/// Output axes of a convolution; 1 where it has none, so that the library gets to refuse it.
fn windows(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> R<Vec<usize>> {
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
fn spread(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> R<Vec<usize>> {
    let n = input.len();
    let (s, p, d) = (each(cx, "s", n, 1)?, each(cx, "p", n, 0)?, each(cx, "d", n, 1)?);
    let op = each(cx, "op", n, 0)?;
    let one = |a: usize| {
        let full = input[a].saturating_sub(1) * s[a] + d[a] * (kernel[a] - 1) + op[a] + 1;
        full.saturating_sub(2 * p[a])
    };
    Ok((0..n).map(one).collect())
}

fn depthwise(cx: &Cx<'_>) -> R<Conv> {
    Ok(plan(cx)?.groups(cx.x("x")?.shape()[1]))
}

fn forward_with(cx: &Cx<'_>, p: Conv) -> R {
    let (x, w) = (cx.x("x")?, cx.x("w")?);
    let mut shape = vec![x.shape()[0], w.shape()[0]];
    shape.extend(windows(cx, &x.shape()[2..], &w.shape()[2..])?);
    let y = cx.out("y", x.dtype(), &shape)?;
    let mut io = ConvIo::new(x, w, y.m());
    (io.bias, io.residual) = (cx.opt("b"), cx.opt("residual"));
    Ok(cx.gpu.conv(&p, io)?)
}

fn forward(cx: &Cx<'_>) -> R {
    forward_with(cx, plan(cx)?)
}

fn input_gradient(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    let mut io = ConvBwd::new(dy);
    (io.w, io.dx) = (Some(cx.x("w")?), Some(dx.g()));
    Ok(cx.gpu.conv_bwd(&plan(cx)?, io)?)
}

fn weight_gradient(cx: &Cx<'_>) -> R {
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
fn gradients(cx: &Cx<'_>, p: Conv) -> R {
    let (dy, x, w) = (cx.x("dy")?, cx.x("x")?, cx.x("w")?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
    let db = cx.wants("db").then(|| cx.out("db", x.dtype(), &[w.shape()[0]])).transpose()?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.w) = (Some(x), Some(w));
    (io.dx, io.dw, io.dbias) = (Some(dx.g()), Some(dw.g()), db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.conv_bwd(&p, io)?)
}

fn transpose(cx: &Cx<'_>) -> R {
    let (p, x, w) = (plan(cx)?, cx.x("x")?, cx.x("w")?);
    let mut shape = vec![x.shape()[0], w.shape()[1] * p.groups];
    shape.extend(spread(cx, &x.shape()[2..], &w.shape()[2..])?);
    let y = cx.out("y", x.dtype(), &shape)?;
    let mut io = ConvIo::new(x, w, y.m());
    io.bias = cx.opt("b");
    Ok(cx.gpu.conv_transpose(&p, io)?)
}

/// The smallest input of a transposed convolution whose output has these axes.
fn transpose_input(cx: &Cx<'_>) -> R {
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

fn transpose_weight(cx: &Cx<'_>) -> R {
    let (p, x, dy) = (plan(cx)?, cx.x("x")?, cx.x("dy")?);
    let mut shape = vec![x.shape()[1], dy.shape()[1] / p.groups.max(1)];
    shape.extend(cx.dims("k")?);
    let dw = cx.out("dw", x.dtype(), &shape)?;
    let db = cx.wants("db").then(|| cx.out("db", x.dtype(), &[dy.shape()[1]])).transpose()?;
    let mut io = ConvBwd::new(dy);
    (io.x, io.dw, io.dbias) = (Some(x), Some(dw.g()), db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.conv_transpose_bwd(&p, io)?)
}

fn im2col(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let kernel = each(cx, "k", x.shape().len() - 2, 1)?;
    let count = windows(cx, &x.shape()[2..], &kernel)?;
    let rows = x.shape()[1] * kernel.iter().product::<usize>();
    let col = cx.out("col", x.dtype(), &[x.shape()[0], rows, count.iter().product()])?;
    Ok(cx.gpu.im2col(&plan(cx)?, &kernel, x, col.g())?)
}

fn col2im(cx: &Cx<'_>) -> R {
    let (col, size) = (cx.x("col")?, cx.dims("output_size")?);
    let kernel = each(cx, "k", size.len(), 1)?;
    let mut shape = vec![col.shape()[0], col.shape()[1] / kernel.iter().product::<usize>().max(1)];
    shape.extend(size);
    let x = cx.out("x", col.dtype(), &shape)?;
    Ok(cx.gpu.col2im(&plan(cx)?, &kernel, col, x.g())?)
}

fn act(cx: &Cx<'_>) -> R<Activation> {
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

fn causal(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let state = cx.opt("state");
    let new = state.map(|s| cx.like("state", &s)).transpose()?;
    let io = CausalConvIo {
        x,
        w: cx.x("w")?,
        bias: cx.opt("b"),
        state,
        y: y.m(),
        new_state: new.as_ref().map(|t| t.m()),
    };
    Ok(cx.gpu.causal_conv1d(act(cx)?, io)?)
}

/// The state is replaced where it lies, as in decoding.
fn causal_in_place(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (y, state) = (cx.like("y", &x)?, cx.inout("state", "state")?);
    let io = CausalConvIo {
        x,
        w: cx.x("w")?,
        bias: cx.opt("b"),
        state: Some(state.v()),
        y: y.m(),
        new_state: Some(state.m()),
    };
    Ok(cx.gpu.causal_conv1d(act(cx)?, io)?)
}

fn causal_backward(cx: &Cx<'_>) -> R {
    let (x, w, b) = (cx.x("x")?, cx.x("w")?, cx.opt("b"));
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
    let db = cx.wants("db").then(|| b.map(|b| cx.like("db", &b))).flatten().transpose()?;
    let io = CausalConvBwd {
        dy: cx.x("dy")?,
        x,
        w,
        bias: b,
        state: None,
        dx: Some(dx.g()),
        dw: Some(dw.g()),
        dbias: db.as_ref().map(|t| t.g()),
    };
    Ok(cx.gpu.causal_conv1d_bwd(act(cx)?, io)?)
}

/// y with the value before the activation, which the gradient reads.
fn fused(cx: &Cx<'_>) -> R {
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

fn fused_backward(cx: &Cx<'_>) -> R {
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

fn asymmetric(cx: &Cx<'_>) -> R<Conv> {
    Ok(plan(cx)?.pad_end(cx.dims("pe")?.as_slice()))
}

fn deform(cx: &Cx<'_>) -> R {
    let (x, w, offset) = (cx.x("x")?, cx.x("w")?, cx.x("offset")?);
    let y = cx.out("y", x.dtype(), &[x.shape()[0], w.shape()[0], offset.shape()[2], offset.shape()[3]])?;
    let io = DeformConvIo { x, w, offset, mask: cx.opt("mask"), bias: cx.opt("b"), y: y.m() };
    Ok(cx.gpu.deform_conv(&plan(cx)?, io)?)
}

fn deform_backward(cx: &Cx<'_>) -> R {
    let (x, w, offset, mask) = (cx.x("x")?, cx.x("w")?, cx.x("offset")?, cx.opt("mask"));
    let (dx, dw, doffset) = (cx.like("dx", &x)?, cx.like("dw", &w)?, cx.like("doffset", &offset)?);
    let dmask = mask.as_ref().map(|m| cx.like("dmask", m)).transpose()?;
    let db = cx.out("db", x.dtype(), &[w.shape()[0]])?;
    let io = DeformConvBwd {
        dy: cx.x("dy")?,
        x,
        w,
        offset,
        mask,
        dx: Some(dx.g()),
        dw: Some(dw.g()),
        doffset: Some(doffset.g()),
        dmask: dmask.as_ref().map(|t| t.g()),
        dbias: Some(db.g()),
    };
    Ok(cx.gpu.deform_conv_bwd(&plan(cx)?, io)?)
}

/// What a sampler draws: shapes of a convolution that has an output.
struct Drawn {
    axes: usize,
    groups: usize,
    cig: usize,
    cog: usize,
    n: usize,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    pad: Vec<usize>,
    dilation: Vec<usize>,
}

impl Drawn {
    fn new(s: &mut Sample, axes: usize) -> Self {
        let mut list =
            |least: usize, count: usize| (0..axes).map(|_| least + s.below(count)).collect::<Vec<_>>();
        let (kernel, stride, pad, dilation) = (list(1, 3), list(1, 3), list(0, 3), list(1, 2));
        let edge = [1, 2, 3, 5, 17, 33];
        let (groups, cig, cog, n) = if s.small {
            (1 + s.below(2), 1 + s.below(2), 1 + s.below(2), 1 + s.below(2))
        } else {
            (1 + s.below(3), edge[s.below(6)], edge[s.below(6)], [0, 1, 2, 3][s.below(4)])
        };
        Drawn { axes, groups, cig, cog, n, kernel, stride, pad, dilation }
    }

    /// Elements of a window on an axis.
    fn span(&self, a: usize) -> usize {
        self.dilation[a] * (self.kernel[a] - 1) + 1
    }

    /// Axes of an input that a window fits into.
    fn input(&self, s: &mut Sample) -> Vec<usize> {
        let extra = if s.small { 3 } else { [1, 40, 13, 6][self.axes] };
        (0..self.axes)
            .map(|a| {
                let least = self.span(a).saturating_sub(2 * self.pad[a]).max(1);
                least + s.below(extra)
            })
            .collect()
    }

    fn output(&self, input: &[usize]) -> Vec<usize> {
        let one = |a: usize| (input[a] + 2 * self.pad[a] - self.span(a)) / self.stride[a] + 1;
        (0..self.axes).map(one).collect()
    }

    fn args(&self, s: &mut Sample) {
        s.arg("s", self.stride.clone());
        s.arg("p", self.pad.clone());
        s.arg("d", self.dilation.clone());
    }
}

fn cat(a: &[usize], b: &[usize]) -> Vec<usize> {
    [a, b].concat()
}

/// A half-wide range keeps the sums near 1.
fn weight(s: &mut Sample, shape: &[usize]) {
    let terms: usize = shape[1..].iter().product();
    let r = (terms.max(1) as f64).sqrt().recip() * 2.0;
    s.put("w", shape, Range(-r, r));
}

fn draw(s: &mut Sample, axes: usize) -> Drawn {
    let d = Drawn::new(s, axes);
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    d.args(s);
    s.arg("g", d.groups);
    d
}

/// A bias, except where a gradient without one is derived from the case.
fn draw_biased(s: &mut Sample, axes: usize) {
    let d = draw(s, axes);
    if s.coin() || s.small {
        s.put("b", &[d.groups * d.cog], Any);
    }
    // The weight gradients have the kernel's sizes as an argument, of which the forward knows nothing.
}

fn draw_depthwise(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    (d.groups, d.cig, d.cog) = (d.groups * d.cig, 1, 1 + s.below(2));
    if s.coin() {
        (d.stride, d.dilation) = (vec![1, d.stride[1]], vec![1, d.dilation[1]]);
    }
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.groups], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, 1], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
}

fn draw_transpose(s: &mut Sample, axes: usize) {
    let d = Drawn::new(s, axes);
    let mut op = Vec::new();
    let mut input = Vec::new();
    for a in 0..axes {
        op.push(s.below(d.stride[a].max(d.dilation[a])));
        // The output keeps an element when the padding is taken off.
        let least = (2 * d.pad[a]).saturating_sub(d.span(a) + op[a]) / d.stride[a] + 1;
        input.push(least + 1 + s.below(if s.small { 2 } else { [1, 30, 9, 4][axes] }));
    }
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cig, d.cog], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
    s.arg("op", op);
    s.arg("g", d.groups);
}

fn draw_causal(s: &mut Sample) {
    let (n, c, kk) = (1 + s.below(3), 1 + s.below(5), 1 + s.below(6));
    let len = if s.small { 1 + s.below(5) } else { [1, 2, 31, 257, 1000, 0][s.below(6)] };
    s.put("x", &[n, c, len], Any);
    s.put("w", &[c, kk], Any);
    s.put("b", &[c], Any);
    let act = if s.coin() { "swish" } else { "none" };
    s.arg("act", act);
}

fn draw_state(s: &mut Sample) {
    draw_causal(s);
    let (x, w) = (s.shape_of("x"), s.shape_of("w"));
    s.put("state", &[x[0], x[1], w[1] - 1], Any);
}

fn draw_fused(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    d.n = d.n.max(1);
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    s.put("residual", &cat(&[d.n, d.groups * d.cog], &d.output(&input)), Any);
    d.args(s);
    s.arg("g", d.groups);
    let acts = ["none", "leaky_relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "swish", "relu", "hardswish"];
    let act = acts[s.below(if s.small { 7 } else { 9 })];
    s.arg("act", act);
}

fn draw_deform(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    let deform = 1 + s.below(2);
    (d.cig, d.n) = ((d.cig * deform).min(6), d.n.min(2));
    d.cig = d.cig.next_multiple_of(deform);
    let input = d.input(s);
    let (taps, out) = (d.kernel[0] * d.kernel[1], d.output(&input));
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    // The bound of 16-bit storage compares with sums of magnitudes, which have to be sampled at the same places.
    let shift = if s.dtype.is_half() { Range(0.05, 1.7) } else { Any };
    s.put("offset", &[d.n, deform * taps * 2, out[0], out[1]], shift);
    if s.coin() {
        s.put("mask", &[d.n, deform * taps, out[0], out[1]], Any);
    }
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
    s.arg("g", d.groups);
}

fn draw_columns(s: &mut Sample) {
    let d = Drawn::new(s, 2);
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.cig], &input), Any);
    d.args(s);
    s.arg("k", d.kernel.clone());
}

fn draw_folded(s: &mut Sample) {
    let d = Drawn::new(s, 2);
    let input = d.input(s);
    let out = d.output(&input);
    s.put("col", &[d.n, d.cig * d.kernel[0] * d.kernel[1], out[0] * out[1]], Any);
    d.args(s);
    s.arg("k", d.kernel.clone());
    s.arg("output_size", input);
}

/// Sums of up to some thousand products near 1, then an activation; in 16 bits the gradient before it is stored in between.
const FUSED: Bound = Stored(2e-6, 2e-4);
/// Sums of up to a few hundred products whose factors are themselves short sums.
const DEFORM: Bound = Stored(4e-6, 2e-4);

const CONV: &str = "s=1, p=0, d=1, g=1";
const SIZED: &str = "input_size, s=1, p=0, d=1, g=1";
const KERNEL: &str = "k, s=1, p=0, d=1, g=1";
const TRANSPOSE: &str = "s=1, p=0, op=0, d=1, g=1";
const TRANSPOSE_KERNEL: &str = "k, s=1, p=0, op=0, d=1, g=1";

macro_rules! conv {
    ($name:literal, $row:literal, $axes:literal) => {
        k($name, $row, "x, w, [b]", CONV, "y", &["conv"], forward)
            .bound(Product)
            .sample(|s| draw_biased(s, $axes))
    };
}

macro_rules! conv_grads {
    ($axes:literal, $of:literal, $input:literal, $ri:literal, $weights:literal, $rw:literal) => {
        &[
            k($input, $ri, "dy, w", SIZED, "dx", &["conv_bwd"], input_gradient).bound(Product).grad_of($of),
            k($weights, $rw, "x, dy", KERNEL, "dw, [db]", &["conv_bwd"], weight_gradient)
                .bound(Product)
                .grad_of($of),
        ]
    };
}

macro_rules! transposed {
    ($axes:literal, $name:literal, $row:literal, $input:literal, $ri:literal, $weights:literal, $rw:literal) => {
        &[
            k($name, $row, "x, w, [b]", TRANSPOSE, "y", &["conv_transpose"], transpose)
                .bound(Product)
                .sample(|s| draw_transpose(s, $axes)),
            k($input, $ri, "dy, w", TRANSPOSE, "dx", &["conv_transpose_bwd"], transpose_input)
                .bound(Product)
                .grad_of($name),
            k(
                $weights,
                $rw,
                "x, dy",
                TRANSPOSE_KERNEL,
                "dw, [db]",
                &["conv_transpose_bwd"],
                transpose_weight,
            )
            .bound(Product)
            .grad_of($name),
        ]
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        conv!("conv1d", "B4.1", 1),
        conv!("conv2d_direct", "S3.2", 2),
        conv!("conv3d_direct", "S3.5", 3),
        conv!("conv2d_half", "B4.7", 2).dtypes(&[DType::F16, DType::Bf16]),
        k("depthwise_conv2d", "S3.3", "x, w, [b]", "s=1, p=0, d=1", "y", &["conv"], |cx| {
            forward_with(cx, depthwise(cx)?)
        })
        .bound(Product)
        .sample(draw_depthwise),
        k(
            "depthwise_conv2d_backward",
            "S3.13",
            "dy, x, w",
            "s=1, p=0, d=1",
            "dx, dw, [db]",
            &["conv_bwd"],
            |cx| gradients(cx, depthwise(cx)?),
        )
        .bound(Product)
        .grad_of("depthwise_conv2d"),
        k("dilated_conv2d_backward", "S3.14", "dy, x, w", CONV, "dx, dw, [db]", &["conv_bwd"], |cx| {
            gradients(cx, plan(cx)?)
        })
        .bound(Product)
        .grad_of("conv2d_direct"),
    ],
    conv_grads!(1, "conv1d", "conv1d_backward_input", "B4.1", "conv1d_backward_weights", "B4.1"),
    conv_grads!(2, "conv2d_direct", "conv2d_backward_input", "S3.7", "conv2d_backward_weights", "S3.8"),
    conv_grads!(3, "conv3d_direct", "conv3d_backward_input", "S3.9", "conv3d_backward_weights", "S3.10"),
    transposed!(
        1,
        "conv_transpose1d",
        "B4.2",
        "conv_transpose1d_backward_input",
        "B4.2",
        "conv_transpose1d_backward_weights",
        "B4.2"
    ),
    transposed!(
        2,
        "conv_transpose2d",
        "S3.4",
        "deconv_backward_input",
        "S3.11",
        "deconv_backward_weights",
        "S3.12"
    ),
    transposed!(
        3,
        "conv_transpose3d",
        "B4.2",
        "conv_transpose3d_backward_input",
        "B4.2",
        "conv_transpose3d_backward_weights",
        "B4.2"
    ),
    &[
        k("im2col", "S3.1", "x", "k, s=1, p=0, d=1", "col", &["im2col"], im2col)
            .bound(Exact)
            .sample(draw_columns),
        k("col2im", "S3.6", "col", "output_size, k, s=1, p=0, d=1", "x", &["col2im"], col2im)
            .bound(Sum)
            .sample(draw_folded),
        k(
            "causal_conv1d",
            "B4.3",
            "x, w, [b], [state]",
            "act=\"none\"",
            "y, [state]",
            &["causal_conv1d"],
            causal,
        )
        .bound(Stored(1e-6, 2e-6))
        .sample(draw_causal),
        k(
            "causal_conv1d_backward",
            "B4.3",
            "dy, x, w, [b]",
            "act=\"none\"",
            "dx, dw, [db]",
            &["causal_conv1d_bwd"],
            causal_backward,
        )
        .bound(Stored(4e-6, 1e-4))
        .grad_of("causal_conv1d"),
        k(
            "causal_conv1d_step",
            "B4.3",
            "x, w, [b], state",
            "act=\"none\"",
            "y, state",
            &["causal_conv1d"],
            causal_in_place,
        )
        .bound(Stored(1e-6, 2e-6))
        .sample(draw_state),
        k(
            "conv_bias_act",
            "B4.6",
            "x, w, [b], [residual]",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "y",
            &["conv"],
            |cx| forward_with(cx, plan(cx)?.act(act(cx)?)),
        )
        .bound(FUSED)
        .sample(draw_fused),
        k(
            "conv_scale_act",
            "B4.6",
            "x, w, [b], [scale], [residual]",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "y, z",
            &["conv"],
            fused,
        )
        .bound(FUSED)
        .sample(|s| {
            draw_fused(s);
            let c = s.shape_of("b");
            if !s.small {
                s.put("scale", &c, Range(0.5, 1.5));
            }
        }),
        k(
            "conv_scale_act_backward",
            "B4.6",
            "dy, x, w, y, z",
            "s=1, p=0, d=1, g=1, act=\"relu\"",
            "dx, dw, db, dresidual",
            &["conv_bwd"],
            fused_backward,
        )
        .bound(Stored(4e-6, 2e-3))
        .grad_of("conv_scale_act"),
        k("conv1d_asymmetric", "B4.1", "x, w", "s=1, p=0, pe=0, d=1, g=1", "y", &["conv"], |cx| {
            let (p, x, w) = (asymmetric(cx)?, cx.x("x")?, cx.x("w")?);
            let (before, behind, d, s) = (cx.n("p")?, cx.n("pe")?, cx.n("d")?, cx.n("s")?);
            let span = d * (w.shape()[2] - 1) + 1;
            let len = (x.shape()[2] + before + behind - span) / s + 1;
            let y = cx.out("y", x.dtype(), &[x.shape()[0], w.shape()[0], len])?;
            Ok(cx.gpu.conv(&p, ConvIo::new(x, w, y.m()))?)
        })
        .bound(Product)
        .sample(|s| {
            let (kk, d, len) = (1 + s.below(4), 1 + s.below(3), 12 + s.below(9));
            s.put("x", &[2, 3, len], Any);
            weight(s, &[4, 3, kk]);
            for (name, v) in [("s", 1 + s.below(3)), ("p", s.below(5)), ("pe", s.below(5)), ("d", d)] {
                s.arg(name, v);
            }
        }),
        k(
            "conv1d_asymmetric_backward",
            "B4.1",
            "dy, x, w",
            "s=1, p=0, pe=0, d=1, g=1",
            "dx, dw",
            &["conv_bwd"],
            |cx| {
                let (x, w): (View<'_>, View<'_>) = (cx.x("x")?, cx.x("w")?);
                let (dx, dw) = (cx.like("dx", &x)?, cx.like("dw", &w)?);
                let mut io = ConvBwd::new(cx.x("dy")?);
                (io.x, io.w, io.dx, io.dw) = (Some(x), Some(w), Some(dx.g()), Some(dw.g()));
                Ok(cx.gpu.conv_bwd(&asymmetric(cx)?, io)?)
            },
        )
        .bound(Product)
        .grad_of("conv1d_asymmetric"),
        k("deform_conv2d", "B4.5", "x, w, offset, [mask], [b]", CONV, "y", &["deform_conv"], deform)
            .bound(DEFORM)
            .sample(draw_deform),
        k(
            "deform_conv2d_backward",
            "B4.5",
            "dy, x, w, offset, [mask]",
            CONV,
            "dx, dw, doffset, [dmask], db",
            &["deform_conv_bwd"],
            deform_backward,
        )
        .bound(Stored(8e-6, 2e-3))
        .grad_of("deform_conv2d"),
    ],
];
