//! Gradients of operands that are repeated: at the shape of the result first, then summed.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::error::Result;
use crate::ops::reduce::ReduceOps;

/// Where a gradient is computed at the shape of dy: in place, or in scratch memory that is summed to the operand's shape afterwards.
pub(super) struct Full<'a> {
    pub(super) grad: Option<GradMut<'a>>,
    scratch: Option<Buffer>,
}

impl<'a> Full<'a> {
    pub(super) fn new(engine: &Engine, grad: Option<GradMut<'a>>, shape: &[usize]) -> Result<Self> {
        let scratch = match &grad {
            Some(g) if g.out.shape() != shape => Some(engine.scratch(g.out.dtype(), shape.iter().product())?),
            _ => None,
        };
        Ok(Full { grad, scratch })
    }

    /// The destination; `like` stands for an absent one.
    pub(super) fn view<'b>(&'b self, like: &View<'b>, shape: &[usize]) -> Result<View<'b>> {
        match (&self.scratch, &self.grad) {
            (Some(b), _) => b.shaped(shape),
            (None, Some(g)) => Ok(g.out.as_view()),
            (None, None) => Ok(*like),
        }
    }

    pub(super) fn arg(&self, engine: &Engine, view: &View<'_>) -> Ptr {
        if self.grad.is_some() { engine.arg_in(view) } else { Ptr::NULL }
    }

    pub(super) fn accumulate(&self) -> bool {
        self.scratch.is_none() && self.grad.as_ref().is_some_and(|g| g.accumulate)
    }

    pub(super) fn finish(self, engine: &Engine, shape: &[usize]) -> Result<()> {
        match (self.grad, self.scratch) {
            (Some(g), Some(b)) => engine.sum_to_shape(b.shaped(shape)?, g),
            _ => Ok(()),
        }
    }
}
