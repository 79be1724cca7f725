//! Distances and similarities of vectors.

mod search;

pub use self::search::ProductQuantizer;

use trefoil::ops::distance::{CdistBwd, Similarity, SimilarityBwd};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};
use crate::functional::elementwise::arithmetic::broadcast;

impl Tensor {
    /// The p-norm distances of all pairs of vectors of this tensor `[.., P, M]` and of `b` `[.., R, M]`: `[.., P, R]`, floats; leading axes
    /// broadcast. p is at least 0, infinity included; 0 counts the elements that differ. Differences are taken directly, so that near
    /// vectors keep their digits. Source `torch.cdist(compute_mode="donot_use_mm_for_euclid_dist")`. Errors: `Invalid` for a negative p,
    /// fewer than two axes, vectors of different length, dtypes that differ.
    pub fn cdist(&self, b: &Tensor, p: f64) -> Result<Tensor> {
        const OP: &str = "cdist";
        same_device(OP, self, b)?;
        let (Some((la, [rows, _])), Some((lb, [cols, _]))) =
            (self.shape().split_last_chunk::<2>(), b.shape().split_last_chunk::<2>())
        else {
            let got = format!("shapes {:?} and {:?}", self.shape(), b.shape());
            return Err(invalid(OP, "b", "tensors of two axes or more", got));
        };
        let lead = broadcast(OP, la, lb)?;
        let whole = |t: &Tensor| t.expand(&[&*lead, &t.shape()[t.rank() - 2..]].concat())?.contiguous();
        let (a, b) = (whole(self)?, whole(b)?);
        let y = a.like(&[&*lead, &[*rows, *cols]].concat())?;
        let (ao, bo, yo) = (a.operand(), b.operand(), y.operand());
        y.device().cdist(p, ao.view()?, bo.view()?, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record(OP, &[&a, &b], || {
            let [a, b, y] = [&a, &b, &plain].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (a, b, y) = (a.get(cx)?.operand(), b.get(cx)?.operand(), y.get(cx)?.operand());
                let dyo = dy.operand();
                let mut io = CdistBwd::new(dyo.view()?, a.view()?, b.view()?, y.view()?);
                (io.da, io.db) = (out(&da)?, out(&db)?);
                Ok(dy.device().cdist_bwd(p, io)?)
            }
        }))
    }

    /// The p-norm distances of the pairs i < j of the rows of this tensor `[n, M]`, row by row: `[n (n - 1) / 2]`, floats. p as in
    /// [`cdist`](Tensor::cdist). Source `F.pdist`. Errors: `Invalid` for a negative p, another rank.
    pub fn pdist(&self, p: f64) -> Result<Tensor> {
        const OP: &str = "pdist";
        let &[n, _] = self.shape() else {
            return Err(invalid(OP, "x", "shape [n, M]", format!("{:?}", self.shape())));
        };
        let x = self.contiguous()?;
        let y = x.like(&[n * n.saturating_sub(1) / 2])?;
        let (xo, yo) = (x.operand(), y.operand());
        y.device().pdist(p, xo.view()?, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record(OP, &[&x], || {
            let (x, y) = (Saved::new(&x), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let (x, y, dyo) = (x.get(cx)?.operand(), y.get(cx)?.operand(), dy.operand());
                Ok(dy.device().pdist_bwd(p, dyo.view()?, x.view()?, y.view()?, dx.out()?)?)
            }
        }))
    }

    /// The distance or the cosine of the vectors along an axis of this tensor and of `b`, which broadcast: their shape without the axis, or
    /// with 1 for it where `keep` is set; floats. Source `F.pairwise_distance`, `F.cosine_similarity`. Errors: `Invalid` for the axis, the
    /// numbers of `op`, shapes that do not broadcast, dtypes that differ.
    pub fn similarity(&self, op: Similarity, b: &Tensor, along: isize, keep: bool) -> Result<Tensor> {
        const OP: &str = "similarity";
        same_device(OP, self, b)?;
        let shape = broadcast(OP, self.shape(), b.shape())?;
        let (a, b) = (self.expand(&shape)?.contiguous()?, b.expand(&shape)?.contiguous()?);
        let at = axis(OP, along, a.rank())?;
        let mut sizes = a.shape().to_vec();
        match keep {
            true => sizes[at] = 1,
            false => drop(sizes.remove(at)),
        }
        let y = a.like(&sizes)?;
        let (ao, bo, yo) = (a.operand(), b.operand(), y.operand());
        y.device().similarity(op, at, ao.view()?, bo.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[&a, &b], || {
            let [a, b] = [&a, &b].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (a, b, dyo) = (a.get(cx)?.operand(), b.get(cx)?.operand(), dy.operand());
                let mut io = SimilarityBwd::new(dyo.view()?, a.view()?, b.view()?);
                (io.da, io.db) = (out(&da)?, out(&db)?);
                Ok(dy.device().similarity_bwd(op, at, io)?)
            }
        }))
    }

    /// a.b / (max(|a|, eps) max(|b|, eps)) along an axis. Source `F.cosine_similarity`, whose eps is 1e-8. Errors: as for
    /// [`similarity`](Tensor::similarity).
    pub fn cosine_similarity(&self, b: &Tensor, along: isize, eps: f64) -> Result<Tensor> {
        self.similarity(Similarity::Cosine { eps }, b, along, false)
    }

    /// The p-norm of a - b + eps along the last axis. Source `F.pairwise_distance`, whose eps is 1e-6. Errors: as for
    /// [`similarity`](Tensor::similarity).
    pub fn pairwise_distance(&self, b: &Tensor, p: f64, eps: f64) -> Result<Tensor> {
        self.similarity(Similarity::Distance { p, eps }, b, -1, false)
    }
}
