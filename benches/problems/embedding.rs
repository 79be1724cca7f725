//! Embedding.

use trefoil::ops::*;

use super::*;

/// Rows of the table, its width, and ids.
fn sizes(b: &Bed<'_>) -> [usize; 3] {
    [b.pick(50, 5_000, 50_257), b.pick(16, 128, 768), b.pick(40, 1_000, 32_768)]
}

pub(super) const ROWS: &[Row] = &[
    row("embedding", "tokens", F32_BF16, |b, dt| {
        let [v, d, n] = sizes(b);
        let (t, i, mut y) = (b.normal(dt, v * d)?, b.ids(n, v)?, b.empty(dt, n * d)?);
        bytes(2 * n * d * dt.size(), move |g| {
            g.embedding(None, i.view(), t.shaped(&[v, d])?, y.shaped_mut(&[n, d])?)
        })
    }),
    row("embedding_renorm", "tokens", F32, |b, dt| {
        let [v, d, n] = sizes(b);
        let (mut t, i) = (b.normal(dt, v * d)?, b.ids(n, v)?);
        bytes(n.min(v) * d * dt.size(), move |g| {
            g.embedding_renorm(1.0, 2.0, i.view(), t.shaped_mut(&[v, d])?)
        })
    }),
    row("embedding_bwd", "tokens", F32_BF16, |b, dt| {
        let [v, d, n] = sizes(b);
        let (dy, i, mut t) = (b.normal(dt, n * d)?, b.ids(n, v)?, b.empty(dt, v * d)?);
        bytes((n + v) * d * dt.size(), move |g| {
            let p = EmbeddingGrad::new();
            g.embedding_bwd(&p, dy.shaped(&[n, d])?, i.view(), t.shaped_mut(&[v, d])?.into())
        })
    }),
];
