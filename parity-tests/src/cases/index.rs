//! Gather and scatter along an axis.

use trefoil::DType;
use trefoil::ops::elementwise::Ternary;
use trefoil::ops::index::{ScatterReduce, ScatterReduceBwd};

use super::Bound::{Derived, Sum};
use super::{ANY, F32, Kernel, broadcast, element, k};
use crate::device::{Cx, Fail, R};
use crate::oracle;
use crate::sampler::Dom::{Any, NearOne};
use crate::sampler::Sample;

fn axis_of(cx: &Cx<'_>, name: &str) -> R<usize> {
    cx.axis("axis", cx.x(name)?.shape().len())
}

/// The operation takes contiguous tensors; a strided one is copied first.
fn select_into(cx: &Cx<'_>, axis: usize, x: &str) -> R {
    let (x, idx) = (cx.x(x)?, cx.x("idx")?);
    let mut shape = x.shape().to_vec();
    shape[axis] = idx.numel();
    let y = cx.out("y", x.dtype(), &shape)?;
    if x.is_contiguous() {
        return Ok(cx.gpu.index_select(axis, x, idx, y.g())?);
    }
    let mut tmp = cx.scratch(x.dtype(), x.numel())?;
    cx.gpu.strided_copy(x, tmp.shaped_mut(x.shape())?.into())?;
    Ok(cx.gpu.index_select(axis, tmp.shaped(x.shape())?, idx, y.g())?)
}

/// Zeros of the forward's input shape, then the gradient added at the indices.
fn select_backward(cx: &Cx<'_>) -> R {
    let shape = cx.dims("input_size")?;
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    cx.gpu.fill(0.0, dx.m())?;
    Ok(cx.gpu.index_add(cx.axis("axis", shape.len())?, 1.0, cx.x("idx")?, dy, dx.m())?)
}

fn gather(cx: &Cx<'_>) -> R {
    let (x, idx) = (cx.x("x")?, cx.x("idx")?);
    let y = cx.out("y", x.dtype(), idx.shape())?;
    Ok(cx.gpu.gather(axis_of(cx, "x")?, x, idx, y.g())?)
}

fn gather_backward(cx: &Cx<'_>) -> R {
    let shape = cx.dims("input_size")?;
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    cx.gpu.fill(0.0, dx.m())?;
    Ok(cx.gpu.scatter_reduce(
        ScatterReduce::Sum,
        cx.axis("axis", shape.len())?,
        true,
        cx.x("idx")?,
        dy,
        dx.m(),
    )?)
}

fn scatter(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.scatter(axis_of(cx, "x")?, cx.x("idx")?, cx.x("src")?, y.m())?)
}

fn scatter_backward(cx: &Cx<'_>) -> R {
    let (dy, idx) = (cx.x("dy")?, cx.x("idx")?);
    let (dx, dsrc) = (cx.like("dx", &dy)?, cx.out("dsrc", dy.dtype(), idx.shape())?);
    Ok(cx.gpu.scatter_bwd(axis_of(cx, "dy")?, dy, idx, Some(dx.g()), Some(dsrc.g()))?)
}

fn how(cx: &Cx<'_>) -> R<ScatterReduce> {
    Ok(match cx.s("reduce")?.as_str() {
        "sum" => ScatterReduce::Sum,
        "prod" => ScatterReduce::Prod,
        "mean" => ScatterReduce::Mean,
        "amax" => ScatterReduce::Amax,
        "amin" => ScatterReduce::Amin,
        r => return Err(Fail::Case(format!("reduce {r} is unknown"))),
    })
}

fn scatter_reduce(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.scatter_reduce(
        how(cx)?,
        axis_of(cx, "x")?,
        cx.b("include_self")?,
        cx.x("idx")?,
        cx.x("src")?,
        y.m(),
    )?)
}

fn scatter_reduce_backward(cx: &Cx<'_>) -> R {
    let (x, src) = (cx.x("x")?, cx.x("src")?);
    let (dx, dsrc) = (cx.like("dx", &x)?, cx.like("dsrc", &src)?);
    let (dx, dsrc) = (Some(dx.g()), Some(dsrc.g()));
    let io = ScatterReduceBwd::new(cx.x("dy")?, x, cx.x("idx")?, src, cx.x("y")?).dx(dx).dsrc(dsrc);
    Ok(cx.gpu.scatter_reduce_bwd(how(cx)?, axis_of(cx, "x")?, cx.b("include_self")?, io)?)
}

fn index_add(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.index_add(axis_of(cx, "x")?, cx.f("alpha")?, cx.x("idx")?, cx.x("src")?, y.m())?)
}

fn scatter_add(cx: &Cx<'_>) -> R {
    let y = cx.inout("dst", "dst")?;
    Ok(cx.gpu.index_add(0, 1.0, cx.x("idx")?, cx.x("src")?, y.m())?)
}

fn index_copy(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.index_copy(axis_of(cx, "x")?, cx.x("idx")?, cx.x("src")?, y.m())?)
}

fn index_fill(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.index_fill(axis_of(cx, "x")?, cx.f("value")?, cx.x("idx")?, y.m())?)
}

fn index_put(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.index_put(cx.b("accumulate")?, &cx.list("idx"), cx.x("v")?, y.m())?)
}

/// c ? value : x.
fn masked(cx: &Cx<'_>, x: &str, out: &str, value: f64) -> R {
    let (x, c) = (cx.x(x)?, cx.x("c")?);
    let mut v = cx.scratch(x.dtype(), 1)?;
    cx.gpu.write_bytes(v.view_mut(), &element(x.dtype(), value))?;
    let y = cx.out(out, x.dtype(), &broadcast(x.shape(), c.shape()))?;
    Ok(cx.gpu.ternary(Ternary::Where, c, v.shaped(&[])?, x, y.m())?)
}

fn masked_scatter(cx: &Cx<'_>) -> R {
    let y = cx.inout("y", "x")?;
    Ok(cx.gpu.masked_scatter(cx.x("c")?, cx.x("src")?, y.m())?)
}

fn masked_select(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (y, count) = (cx.out("y", x.dtype(), &[cx.n("capacity")?])?, cx.out("count", DType::I64, &[])?);
    cx.gpu.masked_select(cx.x("c")?, x, y.m(), count.m())?;
    y.show(vec![cx.read_count(&count)?]);
    Ok(())
}

fn masked_select_backward(cx: &Cx<'_>) -> R {
    let (dy, c) = (cx.x("dy")?, cx.x("c")?);
    let dx = cx.out("dx", dy.dtype(), c.shape())?;
    Ok(cx.gpu.masked_select_bwd(c, dy, dx.g())?)
}

fn nonzero(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let rank = x.shape().len();
    let (idx, count) =
        (cx.out("idx", DType::I64, &[cx.n("capacity")?, rank])?, cx.out("count", DType::I64, &[])?);
    cx.gpu.nonzero(x, idx.m(), count.m())?;
    idx.show(vec![cx.read_count(&count)?, rank]);
    Ok(())
}

fn one_hot(cx: &Cx<'_>) -> R {
    let ids = cx.x("ids")?;
    let mut shape = ids.shape().to_vec();
    shape.push(cx.n("C")?);
    let y = cx.out("y", cx.dtype_arg("to")?, &shape)?;
    Ok(cx.gpu.one_hot(ids, y.m())?)
}

/// x, an axis, and n indices along it.
fn draw_rows(s: &mut Sample, n: Option<usize>) -> (Vec<usize>, usize, usize) {
    let shape = s.ranked(3);
    s.put("x", &shape, Any);
    let axis = s.below(3);
    let n = n.unwrap_or_else(|| if shape[axis] == 0 { 0 } else { s.below(40) });
    s.ids("idx", &[n], shape[axis]);
    s.arg("axis", axis);
    (shape, axis, n)
}

/// x and an index tensor of x's rank, at most its size on the other axes.
fn draw_cells(s: &mut Sample) -> Vec<usize> {
    let shape = s.ranked(2);
    s.put("x", &shape, NearOne);
    let axis = s.below(2);
    let mut cells = shape.clone();
    cells[axis] = if shape[axis] == 0 { 0 } else { s.below(12) };
    s.ids("idx", &cells, shape[axis]);
    s.arg("axis", axis);
    cells
}

fn draw_mask(s: &mut Sample) {
    let shape = s.shape();
    s.put("x", &shape, Any);
    s.mask("c", &shape);
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("index_select", "T5.1", "x, idx:idx", "axis", "y", &["index_select", "strided_copy"], |cx| {
            select_into(cx, axis_of(cx, "x")?, "x")
        })
        .dtypes(ANY)
        .sample(|s| {
            draw_rows(s, None);
        }),
        k(
            "index_select_backward",
            "T5.1",
            "dy, idx:idx",
            "input_size, axis",
            "dx",
            &["fill", "index_add"],
            select_backward,
        )
        .bound(Sum)
        .grad_of("index_select"),
        k("gather", "T5.2", "x, idx:idx", "axis", "y", &["gather"], gather).dtypes(ANY).sample(|s| {
            draw_cells(s);
        }),
        k(
            "gather_backward",
            "T5.2",
            "dy, idx:idx",
            "input_size, axis",
            "dx",
            &["fill", "scatter_reduce"],
            gather_backward,
        )
        .bound(Sum)
        .grad_of("gather"),
    ],
    &[
        k("scatter", "T5.3", "x, idx:idx, src", "axis", "y", &["scatter"], scatter).dtypes(ANY).sample(|s| {
            let cells = draw_cells(s);
            s.put("src", &cells, Any);
        }),
        k("scatter_backward", "T5.3", "dy, idx:idx", "axis", "dx, dsrc", &["scatter_bwd"], scatter_backward)
            .grad_of("scatter"),
        k(
            "scatter_reduce",
            "T5.4",
            "x, idx:idx, src",
            "axis, reduce, include_self=true",
            "y",
            &["scatter_reduce"],
            scatter_reduce,
        )
        .bound(Derived)
        .sample(|s| {
            let cells = draw_cells(s);
            s.put("src", &cells, NearOne);
            let how = ["sum", "prod", "mean", "amax", "amin"][s.below(5)];
            s.arg("reduce", how);
            let own = s.coin();
            s.arg("include_self", own);
        }),
        k(
            "scatter_reduce_backward",
            "T5.4",
            "dy, x, idx:idx, src, y",
            "axis, reduce, include_self=true",
            "dx, dsrc",
            &["scatter_reduce_bwd"],
            scatter_reduce_backward,
        )
        .bound(Derived)
        .grad_of("scatter_reduce"),
    ],
    &[
        k("index_add", "T5.5", "x, idx:idx, src", "axis, alpha=1", "y", &["index_add"], index_add)
            .bound(Sum)
            .sample(|s| {
                let (mut shape, axis, n) = draw_rows(s, None);
                shape[axis] = n;
                s.put("src", &shape, Any);
                s.arg("alpha", 1.5);
            }),
        k("index_copy", "T5.5", "x, idx:idx, src", "axis", "y", &["index_copy"], index_copy)
            .dtypes(ANY)
            .sample(|s| {
                let (mut shape, axis, n) = draw_rows(s, None);
                shape[axis] = n;
                s.put("src", &shape, Any);
            }),
        k("index_fill", "T5.5", "x, idx:idx", "axis, value", "y", &["index_fill"], index_fill)
            .dtypes(ANY)
            .sample(|s| {
                draw_rows(s, None);
                s.arg("value", 3);
            }),
        k(
            "index_put",
            "T5.6",
            "x, idx0, idx1, ...:idx, v",
            "accumulate=false",
            "y",
            &["index_put"],
            index_put,
        )
        .bound(Sum)
        .sample(|s| {
            // Rows of elements, or single cells, some of them in more than one block of sources.
            let mut shape = vec![1 + s.below(6), 1 + s.below(6)];
            if s.coin() {
                shape.push(1 + s.below(20));
            }
            let n = if shape.len() == 2 && !s.small && s.coin() { s.below(1500) } else { s.below(9) };
            s.put("x", &shape, Any);
            s.ids("idx0", &[n, 1], shape[0]);
            s.ids("idx1", &[3], shape[1]);
            s.put("v", &[&[n, 3], &shape[2..]].concat(), Any);
            let acc = s.coin();
            s.arg("accumulate", acc);
        }),
    ],
    &[
        k("masked_fill", "T5.7", "x, c:u8", "value", "y", &["ternary"], |cx| {
            masked(cx, "x", "y", cx.f("value")?)
        })
        .sample(|s| {
            draw_mask(s);
            s.arg("value", 2.5);
        }),
        k("masked_fill_backward", "T5.7", "dy, c:u8", "-", "dx", &["ternary"], |cx| {
            masked(cx, "dy", "dx", 0.0)
        })
        .grad_of("masked_fill"),
        k("masked_scatter", "T5.7", "x, c:u8, src", "-", "y", &["masked_scatter"], masked_scatter)
            .dtypes(ANY)
            .sample(|s| {
                draw_mask(s);
                let n = s.numel_of("x") + 2;
                s.put("src", &[n], Any);
            }),
        k("masked_select", "T5.8", "x, c:u8", "capacity", "y, count:i64", &["masked_select"], masked_select)
            .dtypes(ANY)
            .sample(|s| {
                draw_mask(s);
                let n = s.numel_of("x") + 3;
                s.arg("capacity", n);
            }),
        k(
            "masked_select_backward",
            "T5.8",
            "dy, c:u8",
            "-",
            "dx",
            &["masked_select_bwd"],
            masked_select_backward,
        )
        .grad_of("masked_select"),
        k("nonzero", "T5.8", "x", "capacity", "idx:i64, count:i64", &["nonzero"], nonzero)
            .dtypes(ANY)
            .sample(|s| {
                let shape = s.shape();
                s.put("x", &shape, crate::sampler::Dom::Coarse);
                let n = s.numel_of("x") + 3;
                s.arg("capacity", n);
            }),
        k("one_hot", "T5.9", "ids:idx", "C, to=\"f32\"", "y", &["one_hot"], one_hot)
            .dtypes(F32)
            .by(oracle::one_hot)
            .sample(|s| {
                let shape = s.shape();
                s.ids("ids", &shape, 7);
                s.arg("C", 7);
                let to = ["f32", "u8", "f16", "bf16"][s.below(4)];
                s.arg("to", to);
            }),
    ],
    &[
        k("gather_kernel", "S9.3", "src, idx:idx", "-", "y", &["index_select"], |cx| {
            select_into(cx, 0, "src")
        })
        .dtypes(ANY)
        .sample(|s| {
            let r = 1 + s.below(9);
            let f = s.size();
            s.put("src", &[r, f], Any);
            s.ids("idx", &[13], r);
        }),
        k("scatter_add_kernel", "S9.4", "src, idx:idx, dst", "-", "dst", &["index_add"], scatter_add)
            .bound(Sum)
            .sample(|s| {
                let r = 1 + s.below(9);
                let f = s.size();
                s.put("src", &[13, f], Any);
                s.ids("idx", &[13], r);
                s.put("dst", &[r, f], Any);
            }),
    ],
];
