//! Table lookup.

mod bag;

pub use self::bag::{BagMode, EmbeddingBag};

use std::sync::Arc;

use trefoil::ops::embedding::EmbeddingGrad;

use crate::core::autograd::{BackwardCtx, Saved, linear_map};
use crate::core::error::Result;
use crate::core::index_check::{self, Range};
use crate::core::tensor::{Tensor, same_device};

impl Tensor {
    /// Rows of this table `[V, D]`: ids (i32, i64) `[..] -> [.., D]`. The gradient of a row is the sum over the ids that name it (the mean
    /// with `scale_grad_by_freq`); the padding row gets none. An id out of range gives zeros and is reported by the next call that waits.
    /// Oracle `torch.nn.functional.embedding`. Errors: `Invalid` for other dtypes, ranks, or a padding row that the table does not have.
    pub fn embedding(&self, ids: &Tensor, options: &EmbeddingGrad) -> Result<Tensor> {
        same_device("embedding", self, ids)?;
        if let Some(&limit) = self.shape().first() {
            index_check::note(ids, Range { op: "embedding", limit, ignore: None, labels: false });
        }
        let (table, ids) = (self.contiguous()?, ids.contiguous()?);
        let width = table.shape().last().copied().unwrap_or(0);
        let y = self.like(&[ids.shape(), &[width]].concat())?;
        let (to, io, yo) = (table.operand(), ids.operand(), y.operand());
        self.device().embedding(options.padding_idx, io.view()?, to.view()?, yo.view_mut()?)?;
        let options = *options;
        Ok(y.record("embedding", &[&table], || {
            let ids = Saved::new(&ids);
            let full = table.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                // Scaled by frequency the gradient is not the adjoint of the lookup.
                if cx.create_graph() && !options.scale_grad_by_freq {
                    let (full, ids, again) = (full.clone(), ids.get(cx)?.clone(), ids.get(cx)?.clone());
                    let put = move |dy: &Tensor| {
                        let (dy, table) = (dy.contiguous()?, dy.like(&full)?);
                        let [dyo, io, to] = [&dy, &ids, &table].map(Tensor::operand);
                        dy.device().embedding_bwd(&options, dyo.view()?, io.view()?, to.grad(false)?)?;
                        Ok(table)
                    };
                    let take = move |u: &Tensor| u.embedding(&again, &options);
                    let dx = linear_map("embedding", &cx.dy()?, Arc::new(put), Arc::new(take))?;
                    return cx.give(0, dx);
                }
                let Some(dtable) = cx.target(0)? else { return Ok(()) };
                let (dy, ids) = (cx.dy()?.contiguous()?, ids.get(cx)?.operand());
                Ok(dy.device().embedding_bwd(&options, dy.operand().view()?, ids.view()?, dtable.out()?)?)
            }
        }))
    }

    /// Scales the rows that `ids` name down to a `norm_type`-norm of at most `max_norm`, in place and outside of the graph. Oracle
    /// `F.embedding` with `max_norm`, which does this before the lookup. Errors: `Invalid` for a table that is not contiguous, a negative
    /// bound, a degree not above 0.
    pub fn embedding_renorm(&self, ids: &Tensor, max_norm: f64, norm_type: f64) -> Result<()> {
        same_device("embedding_renorm", self, ids)?;
        let ids = ids.contiguous()?;
        let (io, to) = (ids.operand(), self.operand());
        self.device().embedding_renorm(max_norm, norm_type, io.view()?, to.view_mut()?)?;
        self.storage().touch();
        Ok(())
    }
}
