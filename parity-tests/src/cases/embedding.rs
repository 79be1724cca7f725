//! Embedding.

use trefoil::ops::embedding::EmbeddingGrad;

use super::Bound::{Derived, Sum};
use super::{ANY, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

/// A row by number, from the end if negative; null for none.
fn padding(cx: &Cx<'_>) -> R<Option<i64>> {
    Ok(if cx.opt_f("padding_idx")?.is_some() { Some(cx.i("padding_idx")?) } else { None })
}

/// The lookup; with `max_norm` in a table that is rescaled first, which is an output then.
fn forward(cx: &Cx<'_>, norm_type: f64) -> R {
    let (ids, table) = (cx.x("ids")?, cx.x("table")?);
    let shape: Vec<usize> = ids.shape().iter().copied().chain(table.shape().last().copied()).collect();
    let y = cx.out("y", table.dtype(), &shape)?;
    let Some(max_norm) = cx.opt_f("max_norm")? else {
        return Ok(cx.gpu.embedding(padding(cx)?, ids, table, y.m())?);
    };
    let kept = cx.inout("table", "table")?;
    cx.gpu.embedding_renorm(max_norm, norm_type, ids, kept.m())?;
    Ok(cx.gpu.embedding(padding(cx)?, ids, kept.v(), y.m())?)
}

fn backward(cx: &Cx<'_>) -> R {
    let (dy, ids) = (cx.x("dy")?, cx.x("ids")?);
    let width = dy.shape().last().copied().unwrap_or(0);
    let dtable = cx.out("dTable", dy.dtype(), &[cx.n("V")?, width])?;
    let p = EmbeddingGrad::new().padding_idx(padding(cx)?).scale_grad_by_freq(cx.b("scale_grad_by_freq")?);
    Ok(cx.gpu.embedding_bwd(&p, dy, ids, dtable.g())?)
}

fn draw(s: &mut Sample) -> usize {
    let rows = 1 + s.below(40);
    let width = if s.small { 3 } else { [1, 4, 5, 33, 64, 260][s.below(6)] };
    let shape = match s.below(3) {
        0 => vec![s.below(9)],
        1 => vec![3, 5],
        _ if s.small => vec![2, 1, 3],
        _ => vec![2, 1, 700],
    };
    s.ids("ids", &shape, rows);
    s.put("table", &[rows, width], Any);
    rows
}

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k(
        "embedding_forward",
        "S9.1",
        "ids:idx, table",
        "padding_idx=null, max_norm=null",
        "y, [table]",
        &["embedding", "embedding_renorm"],
        |cx| forward(cx, 2.0),
    )
    .dtypes(ANY)
    .sample(|s| {
        // The gradient, which takes its inputs from here, needs the size of the table.
        let rows = draw(s);
        s.arg("V", rows);
    }),
    k(
        "embedding_backward",
        "S9.2",
        "dy, ids:idx",
        "V, padding_idx=null, scale_grad_by_freq=false",
        "dTable",
        &["embedding_bwd"],
        backward,
    )
    .bound(Sum)
    .grad_of("embedding_forward"),
    k(
        "embedding_renorm",
        "S9.1",
        "ids:idx, table",
        "max_norm, norm_type=2.0, padding_idx=null",
        "y, table",
        &["embedding", "embedding_renorm"],
        |cx| forward(cx, cx.f("norm_type")?),
    )
    .bound(Derived)
    .sample(|s| {
        draw(s);
        s.arg("max_norm", 1.5);
        match s.below(4) {
            0 => s.arg("norm_type", 1.0),
            1 => s.arg("norm_type", "inf"),
            2 => s.arg("norm_type", 3.0),
            _ => {}
        }
    }),
    k("embedding_mean_backward", "S9.2", "dy, ids:idx", "V", "dTable", &["embedding_bwd"], |cx| {
        let (dy, ids) = (cx.x("dy")?, cx.x("ids")?);
        let width = dy.shape().last().copied().unwrap_or(0);
        let dtable = cx.out("dTable", dy.dtype(), &[cx.n("V")?, width])?;
        let p = EmbeddingGrad::new().scale_grad_by_freq(true).padding_idx(Some(-1));
        Ok(cx.gpu.embedding_bwd(&p, dy, ids, dtable.g())?)
    })
    .bound(Sum)
    .sample(|s| {
        let rows = draw(s);
        let width = s.drop("table")[1];
        let shape: Vec<usize> = s.shape_of("ids").into_iter().chain([width]).collect();
        s.put("dy", &shape, Any);
        s.arg("V", rows);
    }),
]];
