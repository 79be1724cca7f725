//! Embedding.

use trefoil::DType;
use trefoil::ops::{Distribution, EmbeddingGrad, EmbeddingOps, Rng};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{random, randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    if c.op() != "embedding" {
        return Ok(None);
    }
    let (v, w, n, t) = (c.size("vocab")?, c.size("dim")?, c.size("tokens")?, c.dtype()?);
    let (rows, whole) = (n * w * t.size(), v * w * t.size());
    let k = sets(2 * rows);
    let table = random(d, t, &[v, w], 1, 1.0)?;
    let ids = (0..k as u64)
        .map(|i| {
            Ok(Tensor::random(d, DType::I64, &[n], Distribution::Int { lo: 0, hi: v as i64 }, Rng::new(i))?)
        })
        .collect::<Result<Vec<_>>>()?;
    let (y, dy) = (Tensor::empty(d, t, &[n, w])?, randoms(d, t, &[n, w], k, 2)?);
    let dtable = Tensor::empty(d, t, &[v, w])?;
    let (d1, d2, ids2) = (d.clone(), d.clone(), ids.clone());
    let fwd = work(2 * rows, 0.0, move |i| {
        let (ids, table, y) = (ids[i % k].operand(), table.operand(), y.operand());
        Ok(d1.embedding(None, ids.view()?, table.view()?, y.view_mut()?)?)
    });
    let bwd = work(rows + whole, 0.0, move |i| {
        let (g, ids, o) = (dy[i % k].operand(), ids2[i % k].operand(), dtable.operand());
        Ok(d2.embedding_bwd(&EmbeddingGrad::new(), g.view()?, ids.view()?, o.grad(false)?)?)
    });
    Ok(Some(Prepared { fwd, bwd: Some(bwd) }))
}
