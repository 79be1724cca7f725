//! Reductions along axes.

use trefoil::ops::reduce::{ArgReduce, Reduce};
use trefoil::{DType, View};

use super::Bound::{Derived, Exact, Function, Product, Sum};
use super::{Bound, F32, Kernel, k};
use crate::device::{Cx, R};
use crate::oracle;
use crate::sampler::Dom::{self, Any, Coarse, Nonzero};
use crate::sampler::Sample;

/// Axes of `names`, negative ones counted from the end; out-of-range ones are passed on for the library to refuse.
fn axes(cx: &Cx<'_>, rank: usize) -> R<Vec<usize>> {
    Ok(cx
        .ints("axes")?
        .into_iter()
        .map(|a| if a < 0 { (a + rank as i64) as usize } else { a as usize })
        .collect())
}

fn reduced(shape: &[usize], axes: &[usize], keepdim: bool) -> Vec<usize> {
    let mut out = Vec::new();
    for (i, &n) in shape.iter().enumerate() {
        match axes.contains(&i) {
            false => out.push(n),
            true if keepdim => out.push(1),
            true => {}
        }
    }
    out
}

fn forward(cx: &Cx<'_>, op: Reduce) -> R {
    let x = cx.x("x")?;
    let axes = axes(cx, x.shape().len())?;
    let dtype = match op {
        Reduce::Sum if !x.dtype().is_float() => DType::I64,
        Reduce::Any | Reduce::All => DType::U8,
        _ => x.dtype(),
    };
    let y = cx.out("y", dtype, &reduced(x.shape(), &axes, cx.b("keepdim")?))?;
    Ok(cx.gpu.reduce(op, &axes, x, y.m())?)
}

fn backward(cx: &Cx<'_>, op: Reduce) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let axes = axes(cx, x.shape().len())?;
    let dx = cx.like("dx", &x)?;
    Ok(cx.gpu.reduce_bwd(op, &axes, dy, Some(x), cx.opt("y"), dx.g())?)
}

fn sum_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let shape = cx.dims("input_size")?;
    let axes = axes(cx, shape.len())?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    Ok(cx.gpu.reduce_bwd(Reduce::Sum, &axes, dy, None, None, dx.g())?)
}

fn extreme(cx: &Cx<'_>, op: Reduce, arg: ArgReduce) -> R {
    let x = cx.x("x")?;
    let axes = axes(cx, x.shape().len())?;
    if !cx.b("with_indices")? {
        return forward(cx, op);
    }
    let shape = reduced(x.shape(), &axes, cx.b("keepdim")?);
    let (y, idx) = (cx.out("y", x.dtype(), &shape)?, cx.out("idx", DType::I64, &shape)?);
    Ok(cx.gpu.arg_reduce(arg, axes[0], x, idx.m(), Some(y.m()))?)
}

fn arg(cx: &Cx<'_>, op: ArgReduce) -> R {
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    let y = cx.out("y", cx.dtype_arg("index")?, &reduced(x.shape(), &[axis], false))?;
    Ok(cx.gpu.arg_reduce(op, axis, x, y.m(), None)?)
}

fn index_backward(cx: &Cx<'_>) -> R {
    let (dy, idx) = (cx.x("dy")?, cx.x("idx")?);
    let shape = cx.dims("input_size")?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    Ok(cx.gpu.arg_reduce_bwd(cx.axis("axis", shape.len())?, dy, idx, dx.g())?)
}

fn mean_var(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axes = axes(cx, x.shape().len())?;
    let shape = reduced(x.shape(), &axes, cx.b("keepdim")?);
    let (mean, var) = (cx.out("mean", x.dtype(), &shape)?, cx.out("var", x.dtype(), &shape)?);
    Ok(cx.gpu.mean_var(&axes, cx.f("correction")?, x, mean.m(), var.m())?)
}

fn min_max(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axes: Vec<usize> = match cx.opt_f("axis")? {
        None => (0..x.shape().len()).collect(),
        Some(_) => vec![cx.axis("axis", x.shape().len())?],
    };
    let shape = reduced(x.shape(), &axes, cx.b("keepdim")?);
    let (lo, hi) = (cx.out("lo", x.dtype(), &shape)?, cx.out("hi", x.dtype(), &shape)?);
    Ok(cx.gpu.min_max(&axes, x, lo.m(), hi.m())?)
}

fn dot(cx: &Cx<'_>) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let y = cx.out("y", a.dtype(), &a.shape()[..a.shape().len() - 1])?;
    Ok(cx.gpu.dot(a, b, y.m())?)
}

fn dot_backward(cx: &Cx<'_>) -> R {
    let (dy, a, b): (View<'_>, View<'_>, View<'_>) = (cx.x("dy")?, cx.x("a")?, cx.x("b")?);
    let (da, db) = (cx.like("da", &a)?, cx.like("db", &b)?);
    Ok(cx.gpu.dot_bwd(dy, a, b, Some(da.g()), Some(db.g()))?)
}

fn sum_to_shape(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.out("y", x.dtype(), &cx.dims("shape")?)?;
    Ok(cx.gpu.sum_to_shape(x, y.g())?)
}

fn draw(s: &mut Sample, dom: Dom) {
    let shape = s.solid();
    s.put("x", &shape, dom);
    let axes: Vec<usize> = match s.below(4) {
        0 => (0..shape.len()).collect(),
        1 if shape.len() > 2 => vec![0, shape.len() - 1],
        2 => vec![0],
        _ => vec![shape.len() - 1],
    };
    s.arg("axes", axes);
    let keepdim = s.coin();
    s.arg("keepdim", keepdim);
}

fn draw_mask(s: &mut Sample) {
    draw(s, Any);
    let shape = s.drop("x");
    s.mask("x", &shape);
}

/// A shape, and an axis so long that its reduction is split over blocks: rows, then columns.
fn split(s: &Sample) -> Option<([usize; 2], usize)> {
    match s.aligned()? {
        1 => Some(([2, 70_000], 1)),
        2 => Some(([5000, 64], 0)),
        _ => None,
    }
}

/// Operands of mean and variance.
fn draw_moments(s: &mut Sample) {
    let Some((shape, axis)) = split(s) else { return draw(s, Dom::Spread) };
    s.put("x", &shape, Dom::Spread);
    s.arg("axes", vec![axis]);
}

fn draw_axis(s: &mut Sample) {
    let (shape, axis) = match split(s) {
        Some((shape, axis)) => (shape.to_vec(), axis),
        None => {
            let shape = s.solid();
            let axis = s.below(shape.len());
            (shape, axis)
        }
    };
    s.put("x", &shape, Coarse);
    s.arg("axis", axis);
}

fn draw_pair(s: &mut Sample, rank1: bool) {
    let shape = if rank1 { vec![s.size()] } else { s.shape() };
    s.put("a", &shape, Any);
    s.put("b", &shape, Any);
}

macro_rules! red {
    ($name:literal, $row:literal, $args:literal, $op:expr, $bound:expr, $grad:expr, $dom:expr) => {
        &[
            k($name, $row, "x", $args, "y", &["reduce"], |cx| forward(cx, $op(cx)?))
                .bound($bound)
                .sample(|s| draw(s, $dom)),
            k(concat!($name, "_backward"), $row, "dy, x", $args, "dx", &["reduce_bwd"], |cx| {
                backward(cx, $op(cx)?)
            })
            .bound($grad)
            .grad_of($name),
        ]
    };
}

macro_rules! extreme {
    ($name:literal, $op:expr, $arg:expr) => {
        &[
            k(
                $name,
                "S11.13",
                "x",
                "axes, keepdim=false, with_indices=false",
                "y, [idx:i64]",
                &["reduce", "arg_reduce"],
                |cx| extreme(cx, $op, $arg),
            )
            .sample(|s| draw(s, Coarse)),
            k(
                concat!($name, "_backward"),
                "S11.13",
                "dy, x, y",
                "axes, keepdim=false",
                "dx",
                &["reduce_bwd"],
                |cx| backward(cx, $op),
            )
            .bound(Derived)
            .grad_of($name),
        ]
    };
}

macro_rules! fixed {
    ($op:expr) => {
        |_: &Cx<'_>| -> R<Reduce> { Ok($op) }
    };
}

fn var(cx: &Cx<'_>) -> R<Reduce> {
    Ok(Reduce::Var { correction: cx.f("correction")? })
}

fn std(cx: &Cx<'_>) -> R<Reduce> {
    Ok(Reduce::Std { correction: cx.f("correction")? })
}

fn norm(cx: &Cx<'_>) -> R<Reduce> {
    Ok(Reduce::Norm { p: cx.f("p")? })
}

fn log_var(cx: &Cx<'_>) -> R<Reduce> {
    Ok(Reduce::LogVar { correction: cx.f("correction")?, eps: cx.f("eps")? })
}

/// The upstream gradient times or divided by a number.
const SCALED: Bound = Function { ulps: 2.0, units: 0.0 };
const STAT: Bound = Derived;
const STAT_GRAD: Bound = Derived;

pub(super) const ROWS: &[&[Kernel]] = &[
    red!("mean", "T3.1", "axes, keepdim=false", fixed!(Reduce::Mean), Sum, SCALED, Any),
    red!("prod", "T3.2", "axes, keepdim=false", fixed!(Reduce::Prod), Derived, Derived, Dom::NearOne),
    red!("var", "T3.4", "axes, keepdim=false, correction=1", var, STAT, STAT_GRAD, Dom::Spread),
    red!("std", "T3.4", "axes, keepdim=false, correction=1", std, STAT, STAT_GRAD, Dom::Spread),
    red!("norm", "T3.5", "axes, keepdim=false, p=2.0", norm, Derived, Derived, Any),
    red!("logsumexp", "T3.6", "axes, keepdim=false", fixed!(Reduce::LogSumExp), Derived, Derived, Any),
    red!("sum_sq", "T3.7", "axes, keepdim=false", fixed!(Reduce::SumSq), Sum, SCALED, Any),
    red!("l2_norm", "T3.7", "axes, keepdim=false", fixed!(Reduce::Norm { p: 2.0 }), Derived, Derived, Any),
    red!("max_abs", "T3.12", "axes, keepdim=false", fixed!(Reduce::MaxAbs), Exact, SCALED, Any),
    red!("min_abs", "T3.12", "axes, keepdim=false", fixed!(Reduce::MinAbs), Exact, Derived, Nonzero),
    red!(
        "log_var",
        "T3.13",
        "axes, keepdim=false, correction=1, eps=1e-05",
        log_var,
        Derived,
        STAT_GRAD,
        Dom::Spread
    ),
    &[k("any", "T3.3", "x:u8", "axes, keepdim=false", "y:u8", &["reduce"], |cx| forward(cx, Reduce::Any))
        .dtypes(F32)
        .by(|q| oracle::reduce_mask(q, false))
        .sample(draw_mask)],
    &[k("all", "T3.3", "x:u8", "axes, keepdim=false", "y:u8", &["reduce"], |cx| forward(cx, Reduce::All))
        .dtypes(F32)
        .by(|q| oracle::reduce_mask(q, true))
        .sample(draw_mask)],
    &[
        k("reduce_sum", "S11.12", "x", "axes, keepdim=false", "y", &["reduce"], |cx| {
            forward(cx, Reduce::Sum)
        })
        .bound(Sum)
        .sample(|s| draw(s, Any)),
        k(
            "reduce_sum_backward",
            "S11.12",
            "dy",
            "input_size, axes, keepdim=false",
            "dx",
            &["reduce_bwd"],
            sum_backward,
        )
        .grad_of("reduce_sum"),
    ],
    extreme!("reduce_max", Reduce::Max, ArgReduce::Max),
    extreme!("reduce_min", Reduce::Min, ArgReduce::Min),
    &[
        k("argmax_axis", "S11.10", "x", "axis, index=\"i64\"", "y:i64", &["arg_reduce"], |cx| {
            arg(cx, ArgReduce::Max)
        })
        .sample(draw_axis),
        k("argmin_axis", "S11.11", "x", "axis, index=\"i64\"", "y:i64", &["arg_reduce"], |cx| {
            arg(cx, ArgReduce::Min)
        })
        .sample(draw_axis),
        k(
            "reduce_max_index_backward",
            "S11.13",
            "dy, idx:idx",
            "input_size, axis",
            "dx",
            &["arg_reduce_bwd"],
            index_backward,
        )
        .sample(|s| {
            let shape = s.solid();
            let axis = s.below(shape.len());
            let mut r = shape.clone();
            r.remove(axis);
            s.put("dy", &r, Any);
            s.ids("idx", &r, shape[axis]);
            s.arg("input_size", shape);
            s.arg("axis", axis);
        }),
    ],
    &[k("mean_var", "T3.10", "x", "axes, keepdim=false, correction=1", "mean, var", &["mean_var"], mean_var)
        .bound(STAT)
        .sample(draw_moments)],
    &[k("min_max", "T3.11", "x", "axis=null, keepdim=false", "lo, hi", &["min_max"], min_max)
        .sample(draw_axis)],
    &[k("dot", "T3.8", "a, b", "-", "y", &["dot"], dot).bound(Product).sample(|s| draw_pair(s, true))],
    &[
        k("batched_dot", "T3.8", "a, b", "-", "y", &["dot"], dot)
            .bound(Product)
            .sample(|s| draw_pair(s, false)),
        k("batched_dot_backward", "T3.8", "dy, a, b", "-", "da, db", &["dot_bwd"], dot_backward)
            .bound(Derived)
            .grad_of("batched_dot"),
    ],
    &[k("sum_to_shape", "T3.9", "x", "shape", "y", &["sum_to_shape"], sum_to_shape).bound(Sum).sample(|s| {
        let shape = s.shape();
        s.put("x", &shape, Any);
        let mut to = shape;
        match s.below(3) {
            0 => to[0] = 1,
            1 => *to.last_mut().expect("rank is at least 1") = 1,
            _ => to = to[to.len() - 1..].to_vec(),
        }
        s.arg("shape", to);
    })],
];
