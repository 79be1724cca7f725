//! Copies with a part replaced, and matrices made of their diagonals.

use std::sync::Arc;

use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axis, same_device};
use crate::functional::position::Position;

/// A view of a part of a tensor.
type Part = Arc<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

impl Tensor {
    /// A copy in which `src` stands in place of a part.
    fn with_part(&self, op: &'static str, src: &Tensor, part: Part) -> Result<Tensor> {
        same_device(op, self, src)?;
        let y = self.detach().copy()?;
        part(&y)?.assign(src)?;
        Ok(y.record(op, &[self, src], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                let dpart = part(&dy)?;
                if cx.needs(0) {
                    let dx = dy.with_part(op, &dpart.detach().zeros_like()?, part.clone())?;
                    cx.give(0, dx)?;
                }
                cx.give(1, dpart)
            }
        }))
    }

    /// A copy in which `src` stands in place of [`slice`](Tensor::slice) of the same arguments. Source `torch.slice_scatter`. Errors: `src` of
    /// another shape than the slice.
    pub fn slice_scatter(
        &self,
        src: &Tensor,
        along: isize,
        start: usize,
        end: usize,
        step: usize,
    ) -> Result<Tensor> {
        self.with_part("slice_scatter", src, Arc::new(move |t| t.slice(along, start, end, step)))
    }

    /// A copy in which `src` stands in place of [`select`](Tensor::select) of the same arguments. Source `torch.select_scatter`. Errors: `src`
    /// of another shape than that part.
    pub fn select_scatter(&self, src: &Tensor, along: isize, index: impl Position) -> Result<Tensor> {
        let at = axis("select_scatter", along, self.rank())?;
        let index = index.resolve("select_scatter", "index", self.shape()[at], false)?;
        self.with_part("select_scatter", src, Arc::new(move |t| t.select(along, index)))
    }

    /// A copy in which `src` stands in place of [`diagonal`](Tensor::diagonal) of the same arguments. Source `torch.diagonal_scatter`. Errors:
    /// `src` of another shape than the diagonal.
    pub fn diagonal_scatter(&self, src: &Tensor, k: isize, a: isize, b: isize) -> Result<Tensor> {
        self.with_part("diagonal_scatter", src, Arc::new(move |t| t.diagonal(k, a, b)))
    }

    /// Matrices with the last axis on diagonal `k` and zeros elsewhere; their rows and columns are axes `a` and `b` of the result (-2 and -1 by
    /// default in PyTorch). Source `torch.diag_embed`. Errors: a scalar, equal axes.
    pub fn diag_embed(&self, k: isize, a: isize, b: isize) -> Result<Tensor> {
        const OP: &str = "diag_embed";
        let Some((&n, lead)) = self.shape().split_last() else {
            return Err(invalid(OP, "self", "at least one axis", "a scalar"));
        };
        let rank = self.rank() + 1;
        let (first, second) = (axis(OP, a, rank)?, axis(OP, b, rank)?);
        if first == second {
            return Err(invalid(OP, "b", "two different axes", format!("{a} and {b}")));
        }
        let mut lead = lead.iter();
        let side = n.saturating_add(k.unsigned_abs());
        let size = |at: usize| if at == first || at == second { side } else { *lead.next().unwrap_or(&1) };
        let shape: Vec<usize> = (0..rank).map(size).collect();
        let zeros = Tensor::zeros(self.device(), self.dtype(), &shape)?;
        zeros.diagonal_scatter(self, k, first as isize, second as isize)
    }

    /// The matrix with a vector on its diagonal `k`, or the diagonal `k` of a matrix. Source `torch.diag`. Errors: other ranks.
    pub fn diag(&self, k: isize) -> Result<Tensor> {
        match self.rank() {
            1 => self.diag_embed(k, 0, 1),
            2 => self.diagonal(k, 0, 1),
            _ => Err(invalid("diag", "self", "a vector or a matrix", format!("shape {:?}", self.shape()))),
        }
    }
}
