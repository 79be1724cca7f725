//! Distances and similarities of vectors.

use trefoil::DType;
use trefoil::ops::distance::{CdistBwd, Similarity, SimilarityBwd};

use super::Bound::Derived;
use super::{Bound, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

fn cdist(cx: &Cx<'_>) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let mut shape = a.shape().to_vec();
    if let (Some(last), [.., n, _]) = (shape.last_mut(), b.shape()) {
        *last = *n;
    }
    let y = cx.out("y", a.dtype(), &shape)?;
    Ok(cx.gpu.cdist(cx.f("p")?, a, b, y.m())?)
}

fn cdist_backward(cx: &Cx<'_>) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let (da, db) = (cx.like("da", &a)?, cx.like("db", &b)?);
    let io = CdistBwd::new(cx.x("dy")?, a, b, cx.x("y")?).da(da.g()).db(db.g());
    Ok(cx.gpu.cdist_bwd(cx.f("p")?, io)?)
}

fn pdist(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let n = x.shape().first().copied().unwrap_or(0);
    let y = cx.out("y", x.dtype(), &[n * n.saturating_sub(1) / 2])?;
    Ok(cx.gpu.pdist(cx.f("p")?, x, y.m())?)
}

fn pdist_backward(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let dx = cx.like("dx", &x)?;
    Ok(cx.gpu.pdist_bwd(cx.f("p")?, cx.x("dy")?, x, cx.x("y")?, dx.g())?)
}

fn distance(cx: &Cx<'_>) -> R<Similarity> {
    Ok(Similarity::Distance { p: cx.f("p")?, eps: cx.f("eps")? })
}

fn cosine(cx: &Cx<'_>) -> R<Similarity> {
    Ok(Similarity::Cosine { eps: cx.f("eps")? })
}

fn axis_of(cx: &Cx<'_>) -> R<usize> {
    let rank = cx.x("a")?.shape().len();
    if cx.has("axis") { cx.axis("axis", rank) } else { Ok(rank.saturating_sub(1)) }
}

fn forward(cx: &Cx<'_>, op: Similarity) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let axis = axis_of(cx)?;
    let mut shape = a.shape().to_vec();
    if cx.has("keepdim") && cx.b("keepdim")? {
        shape[axis] = 1;
    } else if axis < shape.len() {
        shape.remove(axis);
    }
    let y = cx.out("y", a.dtype(), &shape)?;
    Ok(cx.gpu.similarity(op, axis, a, b, y.m())?)
}

fn backward(cx: &Cx<'_>, op: Similarity) -> R {
    let (a, b) = (cx.x("a")?, cx.x("b")?);
    let (da, db) = (cx.like("da", &a)?, cx.like("db", &b)?);
    let io = SimilarityBwd::new(cx.x("dy")?, a, b).da(da.g()).db(db.g());
    Ok(cx.gpu.similarity_bwd(op, axis_of(cx)?, io)?)
}

/// One of the kinds of p. 16-bit rounding lets several differences be the largest.
fn draw_p(s: &mut Sample) {
    let kinds = if s.dtype == DType::F32 { 6 } else { 5 };
    match s.below(kinds) {
        0 => s.arg("p", 1.0),
        1 => s.arg("p", 3.0),
        2 => s.arg("p", 0.0),
        3 => s.arg("p", 2.5),
        4 => s.arg("p", 2.0),
        _ => s.arg("p", "inf"),
    }
}

fn draw_cdist(s: &mut Sample) {
    let (p, r, m) = match s.below(4) {
        _ if s.small => (2 + s.below(3), 2 + s.below(3), 3),
        0 => (3, 1500, 3),
        1 => (65, 70, 33),
        2 => (1 + s.below(9), s.below(5), 1 + s.below(40)),
        _ => (130, 20, 5),
    };
    let batch = s.below(3);
    let lead = if batch == 0 { vec![] } else { vec![batch] };
    s.put("a", &[&lead[..], &[p, m]].concat(), Any);
    s.put("b", &[&lead[..], &[r, m]].concat(), Any);
    draw_p(s);
}

fn draw_pdist(s: &mut Sample) {
    let (n, m) = if s.small { (4, 3) } else { ([1, 2, 65, 130][s.below(4)], [1, 3, 35][s.below(3)]) };
    s.put("x", &[n, m], Any);
    draw_p(s);
}

fn draw_pair(s: &mut Sample) {
    let shape = s.solid();
    s.put("a", &shape, Any);
    s.put("b", &shape, Any);
}

fn draw_cosine(s: &mut Sample) {
    draw_pair(s);
    let axis = s.below(s.rank_of("a"));
    s.arg("axis", axis);
}

/// Roots and powers of sums.
const ROOT: Bound = Derived;
/// Their derivatives, summed over many pairs.
const SLOPE: Bound = Derived;

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("cdist", "B2.14", "a, b", "p=2.0", "y", &["cdist"], cdist).bound(ROOT).sample(draw_cdist),
        k("cdist_backward", "B2.14", "dy, a, b, y", "p=2.0", "da, db", &["cdist_bwd"], cdist_backward)
            .bound(SLOPE)
            .grad_of("cdist"),
        k("pdist", "B2.14", "x", "p=2.0", "y", &["pdist"], pdist).bound(ROOT).sample(draw_pdist),
        k("pdist_backward", "B2.14", "dy, x, y", "p=2.0", "dx", &["pdist_bwd"], pdist_backward)
            .bound(SLOPE)
            .grad_of("pdist"),
    ],
    &[
        k(
            "pairwise_distance",
            "B2.14",
            "a, b",
            "p=2.0, eps=1e-06, keepdim=false",
            "y",
            &["similarity"],
            |cx| forward(cx, distance(cx)?),
        )
        .bound(ROOT)
        .sample(|s| {
            draw_pair(s);
            draw_p(s);
            let keep = s.coin();
            s.arg("keepdim", keep);
        }),
        k(
            "pairwise_distance_backward",
            "B2.14",
            "dy, a, b",
            "p=2.0, eps=1e-06, keepdim=false",
            "da, db",
            &["similarity_bwd"],
            |cx| backward(cx, distance(cx)?),
        )
        .bound(SLOPE)
        .grad_of("pairwise_distance"),
        k("cosine_similarity", "B2.15", "a, b", "axis=-1, eps=1e-08", "y", &["similarity"], |cx| {
            forward(cx, cosine(cx)?)
        })
        .bound(ROOT)
        .sample(draw_cosine),
        k(
            "cosine_similarity_backward",
            "B2.15",
            "dy, a, b",
            "axis=-1, eps=1e-08",
            "da, db",
            &["similarity_bwd"],
            |cx| backward(cx, cosine(cx)?),
        )
        .bound(SLOPE)
        .units(64.0, "the part of b along a is taken from b: unit vectors that are nearly parallel")
        .grad_of("cosine_similarity"),
    ],
];
