//! Distances and similarities of vectors.

use trefoil::DType;
use trefoil::ops::distance::{CdistBwd, Metric, PQ_CODES, Similarity, SimilarityBwd};

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

fn metric(cx: &Cx<'_>) -> R<Metric> {
    Ok(match cx.s("metric")?.as_str() {
        "ip" => Metric::InnerProduct,
        "cosine" => Metric::Cosine,
        _ => Metric::SquaredEuclidean,
    })
}

/// Numbers of queries and of points.
fn pairs(cx: &Cx<'_>) -> R<[usize; 2]> {
    let first = |name: &str| -> R<usize> { Ok(cx.x(name)?.shape().first().copied().unwrap_or(0)) };
    Ok([first("q")?, first("x")?])
}

fn distance_matrix(cx: &Cx<'_>) -> R {
    let q = cx.x("q")?;
    let y = cx.out("y", q.dtype(), &pairs(cx)?)?;
    Ok(cx.gpu.distance_matrix(metric(cx)?, q, cx.x("x")?, y.m())?)
}

fn nearest(cx: &Cx<'_>, k: usize) -> R {
    let q = cx.x("q")?;
    let shape = [pairs(cx)?[0], k];
    let (y, idx) = (cx.out("y", q.dtype(), &shape)?, cx.out("idx", DType::I64, &shape)?);
    Ok(cx.gpu.nearest(metric(cx)?, q, cx.x("x")?, y.m(), idx.m())?)
}

/// The nearest centroid of each point, and the sums of the points of each.
fn kmeans_step(cx: &Cx<'_>) -> R {
    let (points, centroids) = (cx.x("points")?, cx.x("centroids")?);
    let n = points.shape().first().copied().unwrap_or(0);
    let (nearest, sums) = (cx.out("nearest", DType::I32, &[n])?, cx.like("sums", &centroids)?);
    let mut distance = cx.scratch(points.dtype(), n)?;
    let to = (distance.view_mut().reshape(&[n, 1])?, nearest.m().reshape(&[n, 1])?);
    cx.gpu.nearest(Metric::SquaredEuclidean, points, centroids, to.0, to.1)?;
    cx.gpu.fill(0.0, sums.m())?;
    Ok(cx.gpu.index_add(0, 1.0, nearest.v(), points, sums.m())?)
}

fn pq_tables(cx: &Cx<'_>) -> R {
    let (q, c) = (cx.x("q")?, cx.x("centroids")?);
    let count = q.shape().first().copied().unwrap_or(0);
    let parts = c.shape().first().copied().unwrap_or(0);
    let y = cx.out("y", q.dtype(), &[count, parts, PQ_CODES])?;
    Ok(cx.gpu.pq_tables(metric(cx)?, q, c, y.m())?)
}

fn pq_scan(cx: &Cx<'_>) -> R {
    let (t, c) = (cx.x("tables")?, cx.x("codes")?);
    let first = |v: &trefoil::View<'_>| v.shape().first().copied().unwrap_or(0);
    let y = cx.out("y", t.dtype(), &[first(&t), first(&c)])?;
    Ok(cx.gpu.pq_scan(t, c, y.m())?)
}

/// Vectors whose scores are exact, so that ties are: of whole numbers, or with a norm that is a power of 2.
fn exact_vectors(s: &mut Sample, name: &str, n: usize, len: usize, unit: bool) {
    let mut all = vec![0.0; n * len];
    for v in all.chunks_mut(len.max(1)) {
        if !unit {
            v.iter_mut().for_each(|v| *v = s.below(7) as f64 - 3.0);
            continue;
        }
        let scale = [0.25, 1.0, 8.0][s.below(3)];
        let (first, step) = (s.below(len), (len / 4).max(1));
        for i in 0..if len < 4 { 1 } else { 4 } {
            v[(first + i * step) % len] = if s.coin() { scale } else { -scale };
        }
    }
    s.values(name, &[n, len], &all);
}

fn draw_vectors(s: &mut Sample, [q, x]: [&str; 2]) -> usize {
    let (count, n, len) = match s.aligned() {
        _ if s.small => (2 + s.below(3), 3 + s.below(4), 3),
        Some(0) => (3, 2000, 33),
        Some(1) => (70, 130, 64),
        _ => ([1, 3, 16, 17][s.below(4)], [1, 5, 64, 65, 300][s.below(5)], s.below(50)),
    };
    let kind = s.below(3);
    s.arg("metric", ["l2", "ip", "cosine"][kind]);
    exact_vectors(s, q, count, len, kind == 2);
    exact_vectors(s, x, n, len, kind == 2);
    n
}

fn draw_nearest(s: &mut Sample) {
    let n = draw_vectors(s, ["q", "x"]);
    let k = if s.coin() { 1 + s.below(n.min(20)) } else { n.min(100) };
    s.arg("k", k);
}

fn draw_codes(s: &mut Sample) {
    let (count, n, parts) = match s.aligned() {
        _ if s.small => (2, 3, 2),
        Some(0) => (2, 5000, 8),
        _ => (1 + s.below(5), s.below(300), s.below(20)),
    };
    s.put("tables", &[count, parts, PQ_CODES], Any);
    let codes: Vec<i64> = (0..n * parts).map(|_| s.below(PQ_CODES) as i64).collect();
    s.ints("codes", DType::U8, &[n, parts], &codes);
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
    &[
        k("distance_matrix", "B13.1", "q, x", "metric=\"l2\"", "y", &["distance_matrix"], distance_matrix)
            .bound(Derived)
            .sample(|s| {
                draw_vectors(s, ["q", "x"]);
                for name in ["q", "x"] {
                    let shape = s.drop(name);
                    s.put(name, &shape, Any);
                }
            }),
        k("nearest", "B13.1", "q, x", "k, metric=\"l2\"", "y, idx:i64", &["nearest"], |cx| {
            nearest(cx, cx.n("k")?)
        })
        .bound(Derived)
        .sample(draw_nearest),
        k("ivf_assign", "B13.2", "q, x", "metric=\"l2\"", "y, idx:i64", &["nearest"], |cx| nearest(cx, 1))
            .bound(Derived)
            .sample(|s| {
                draw_vectors(s, ["q", "x"]);
            }),
        k(
            "kmeans_step",
            "B13.2",
            "points, centroids",
            "-",
            "nearest:i32, sums",
            &["nearest", "fill", "index_add"],
            kmeans_step,
        )
        .bound(Derived)
        .composite()
        .sample(|s| {
            let (n, k, len) =
                if s.small { (6, 2, 3) } else { (s.below(200), 1 + s.below(20), 1 + s.below(40)) };
            exact_vectors(s, "points", n, len, false);
            exact_vectors(s, "centroids", k, len, false);
        }),
        k("pq_tables", "B13.3", "q, centroids", "metric=\"l2\"", "y", &["pq_tables"], pq_tables)
            .bound(Derived)
            .sample(|s| {
                let (count, parts, len) = (1 + s.below(5), s.below(9), 1 + s.below(8));
                s.put("q", &[count, parts * len], Any);
                s.put("centroids", &[parts, PQ_CODES, len], Any);
                let inner = s.coin();
                s.arg("metric", if inner { "ip" } else { "l2" });
            }),
        k("pq_scan", "B13.3", "tables, codes:u8", "-", "y", &["pq_scan"], pq_scan)
            .bound(Derived)
            .sample(draw_codes),
    ],
];
