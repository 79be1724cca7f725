//! Sorting, selection and search.

use trefoil::DType;
use trefoil::ops::sort::SortIo;

use super::{ANY, F32, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Coarse};
use crate::sampler::Sample;

fn sort(cx: &Cx<'_>, values: bool) -> R {
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    let y = values.then(|| cx.like("y", &x)).transpose()?;
    let index = cx.out("idx", cx.dtype_arg("index")?, x.shape())?;
    let io = SortIo::new(x).y(y.as_ref().map(|y| y.m())).index(index.m());
    Ok(cx.gpu.sort(axis, cx.b("descending")?, io)?)
}

fn sort_backward(cx: &Cx<'_>) -> R {
    let (dy, idx) = (cx.x("dy")?, cx.x("idx")?);
    let dx = cx.like("dx", &dy)?;
    Ok(cx.gpu.sort_bwd(cx.axis("axis", dy.shape().len())?, dy, idx, dx.g())?)
}

fn topk(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let axis = cx.axis("axis", x.shape().len())?;
    // The result is in order whether or not that is asked for.
    cx.b("sorted")?;
    let mut shape = x.shape().to_vec();
    if let Some(n) = shape.get_mut(axis) {
        *n = cx.n("k")?;
    }
    let (y, idx) = (cx.out("y", x.dtype(), &shape)?, cx.out("idx", DType::I64, &shape)?);
    Ok(cx.gpu.topk(axis, cx.b("largest")?, x, y.m(), idx.m())?)
}

fn topk_backward(cx: &Cx<'_>) -> R {
    let (dy, idx) = (cx.x("dy")?, cx.x("idx")?);
    let shape = cx.dims("input_size")?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    Ok(cx.gpu.sort_bwd(cx.axis("axis", shape.len())?, dy, idx, dx.g())?)
}

fn linear_assignment(cx: &Cx<'_>) -> R {
    let cost = cx.x("cost")?;
    let column = cx.out("column", DType::I64, &cost.shape()[..2])?;
    Ok(cx.gpu.linear_assignment(cost, cx.opt("counts"), column.m())?)
}

fn search(cx: &Cx<'_>) -> R {
    let values = cx.x("values")?;
    let y = cx.out("y", cx.dtype_arg("index")?, values.shape())?;
    Ok(cx.gpu.search_sorted(cx.b("right")?, cx.x("sorted")?, values, y.m())?)
}

/// Values that repeat or not, in rows that fit a block, rows that do not, and along inner axes.
fn draw(s: &mut Sample) {
    let shape = match s.below(4) {
        0 if !s.small => {
            [vec![3, 2500], vec![5000], vec![2, 2100, 3], vec![40_000], vec![140_000]][s.below(5)].clone()
        }
        _ => s.shape(),
    };
    // Differences need distinct values.
    let dom = if s.coin() { Any } else { Coarse };
    s.put("x", &shape, dom);
    let axis = s.below(shape.len());
    s.arg("axis", axis);
}

fn draw_sort(s: &mut Sample) {
    draw(s);
    let down = s.coin();
    s.arg("descending", down);
}

fn draw_topk(s: &mut Sample) {
    draw(s);
    let shape = s.shape_of("x");
    // Where draw() put the axis is an argument; k must fit every axis.
    let axis = s.below(shape.len());
    s.arg("axis", axis);
    let size = shape[axis];
    let k = [1, 7, 60, 900, size][s.below(5)].min(size);
    s.arg("k", k);
    let largest = s.coin();
    s.arg("largest", largest);
}

fn draw_search(s: &mut Sample, shared: bool) {
    let (rows, edges, n) = (1 + s.below(5), s.below(300), s.below(700));
    // Whole steps with repetitions, which every dtype holds.
    let mut sorted = Vec::new();
    for _ in 0..if shared { 1 } else { rows } {
        let mut at = 0.0;
        for _ in 0..edges {
            at += s.below(2) as f64 * 0.5;
            sorted.push(at);
        }
    }
    let shape = if shared { vec![edges] } else { vec![rows, edges] };
    s.values("sorted", &shape, &sorted);
    let values: Vec<f64> = (0..rows * n).map(|_| s.below(2 * edges + 8) as f64 * 0.25 - 1.0).collect();
    s.values("values", &[rows, n], &values);
    let right = s.coin();
    s.arg("right", right);
    let index = if s.coin() { "i64" } else { "i32" };
    s.arg("index", index);
}

/// Costs whose best assignment has no equal: few enough rows that sums of them do not come close to each other.
fn draw_assignment(s: &mut Sample) {
    let (problems, rows) = ([1, 3, 0, 5][s.below(4)], [1, 4, 13, 30][s.below(4)]);
    let columns = [1, 7, 13, 100, 300, 600][s.below(6)];
    s.put("cost", &[problems, rows, columns], Any);
    if s.coin() {
        let counts: Vec<i64> = (0..problems).map(|_| s.below(rows + 1) as i64).collect();
        s.ids_of("counts", &[problems], &counts);
    }
}

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("sort", "B2.5", "x", "axis=-1, descending=false, index=\"i64\"", "y, idx:i64", &["sort"], |cx| {
        sort(cx, true)
    })
    .dtypes(ANY)
    .sample(draw_sort),
    k("argsort", "B2.5", "x", "axis=-1, descending=false, index=\"i64\"", "idx:i64", &["sort"], |cx| {
        sort(cx, false)
    })
    .dtypes(ANY)
    .sample(|s| {
        draw_sort(s);
        let index = if s.coin() { "i64" } else { "i32" };
        s.arg("index", index);
    }),
    k("sort_backward", "B2.5", "dy, idx:idx", "axis=-1", "dx", &["sort_bwd"], sort_backward).grad_of("sort"),
    k("topk", "B2.6", "x", "k, axis=-1, largest=true, sorted=true", "y, idx:i64", &["topk"], topk)
        .dtypes(ANY)
        .sample(draw_topk),
    k("topk_backward", "B2.6", "dy, idx:idx", "input_size, axis=-1", "dx", &["sort_bwd"], topk_backward)
        .grad_of("topk"),
    k(
        "searchsorted",
        "B2.10",
        "sorted, values",
        "right=false, index=\"i64\"",
        "y:i64",
        &["search_sorted"],
        search,
    )
    .sample(|s| draw_search(s, false)),
    k(
        "bucketize",
        "B2.10",
        "sorted, values",
        "right=false, index=\"i64\"",
        "y:i64",
        &["search_sorted"],
        search,
    )
    .sample(|s| draw_search(s, true)),
    k(
        "linear_assignment",
        "L57",
        "cost, [counts:idx]",
        "-",
        "column:i64",
        &["linear_assignment"],
        linear_assignment,
    )
    .dtypes(F32)
    .sample(draw_assignment),
]];
