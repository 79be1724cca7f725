//! Embedding.

use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::{DType, Result};

use crate::case::{Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, prepared, problem};

/// Rows of the table, its width, and ids.
fn sizes(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(50, 5_000, 50_257), cx.pick(16, 128, 768), cx.pick(40, 1_000, 32_768)]
}

fn embedding(cx: &Context<'_>, dt: DType, [v, d, n]: [usize; 3]) -> Result<Prepared> {
    let moved = 2 * n * d * dt.size();
    let ids = cx.sets_of(cx.sets(moved), |cx| cx.ids(n, v))?;
    let (table, mut y) = (cx.normal(dt, v * d)?, cx.empty(dt, n * d)?);
    prepared(moved, 0, move |g, i| {
        g.embedding(None, ids.at(i).view(), table.shaped(&[v, d])?, y.shaped_mut(&[n, d])?)
    })
}

fn embedding_bwd(cx: &Context<'_>, dt: DType, [v, d, n]: [usize; 3]) -> Result<Prepared> {
    let k = cx.sets(2 * n * d * dt.size());
    let (ids, dy) = (cx.sets_of(k, |cx| cx.ids(n, v))?, cx.normal_sets(dt, n * d, k)?);
    let mut dtable = cx.empty(dt, v * d)?;
    prepared((n + v) * d * dt.size(), 0, move |g, i| {
        let (dy, to) = (dy.at(i).shaped(&[n, d])?, dtable.shaped_mut(&[v, d])?.into());
        g.embedding_bwd(&EmbeddingGrad::new(), dy, ids.at(i).view(), to)
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("embedding", "tokens", F32_BF16, |cx, dt| embedding(cx, dt, sizes(cx))),
    problem("embedding_bwd", "tokens", F32_BF16, |cx, dt| embedding_bwd(cx, dt, sizes(cx))),
    problem("embedding_renorm", "tokens", F32, |cx, dt| {
        let [v, d, n] = sizes(cx);
        let (mut t, i) = (cx.normal(dt, v * d)?, cx.ids(n, v)?);
        bytes(n.min(v) * d * dt.size(), move |g| {
            g.embedding_renorm(1.0, 2.0, i.view(), t.shaped_mut(&[v, d])?)
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "embedding",
    |cx, c| Ok(embedding(cx, c.dtype()?, c.sizes(["vocab", "dim", "tokens"])?)?),
    |cx, c| Ok(embedding_bwd(cx, c.dtype()?, c.sizes(["vocab", "dim", "tokens"])?)?),
)];
