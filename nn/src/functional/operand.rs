//! Optional operands of backend calls.

use trefoil::{View, ViewMut};

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::Result;
use crate::core::tensor::{Operand, Tensor};

/// An operand that may be absent in row-major order, as most kernels take theirs. Gradients go back to the tensor that was given.
pub(crate) fn whole(t: Option<&Tensor>) -> Result<Option<Tensor>> {
    t.map(Tensor::contiguous).transpose()
}

/// The memory of a tensor that may be absent.
pub(crate) fn operand(t: Option<&Tensor>) -> Option<Operand> {
    t.map(Tensor::operand)
}

/// Its elements, shared.
pub(crate) fn view(o: &Option<Operand>) -> Result<Option<View<'_>>> {
    o.as_ref().map(Operand::view).transpose()
}

/// Its elements, writable.
pub(crate) fn view_mut(o: &Option<Operand>) -> Result<Option<ViewMut<'_>>> {
    o.as_ref().map(Operand::view_mut).transpose()
}

/// Notes an optional tensor for the backward pass.
pub(crate) fn save(t: Option<&Tensor>) -> Option<Saved> {
    t.map(Saved::new)
}

/// The memory of a saved tensor that may be absent.
pub(crate) fn saved(cx: &BackwardCtx<'_>, s: &Option<Saved>) -> Result<Option<Operand>> {
    Ok(s.as_ref().map(|s| s.get(cx)).transpose()?.map(Tensor::operand))
}

/// Saved operands at their places in the graph, with their places among the operation's inputs; absent ones are left out.
pub(crate) struct Placed {
    pub(crate) list: Vec<(usize, Tensor)>,
}

impl Placed {
    pub(crate) fn new(cx: &BackwardCtx<'_>, operands: &[(usize, Option<&Saved>)]) -> Result<Self> {
        let present = operands.iter().filter_map(|&(i, s)| Some((i, s?)));
        Ok(Placed { list: present.map(|(i, s)| Ok((i, s.input(cx, i)?))).collect::<Result<_>>()? })
    }

    /// The tensor among `given`, one for each of the list, that stands for input `index`.
    pub(crate) fn get<'a>(&self, given: &'a [Tensor], index: usize) -> Option<&'a Tensor> {
        given.get(self.list.iter().position(|(i, _)| *i == index)?)
    }
}

/// A list of inputs some of which may be absent, and their places in it; an absent one has a place that no input has.
#[derive(Default)]
pub(crate) struct Inputs<'a> {
    pub(crate) list: Vec<&'a Tensor>,
}

impl<'a> Inputs<'a> {
    pub(crate) fn push(&mut self, t: Option<&'a Tensor>) -> usize {
        let Some(t) = t else { return usize::MAX };
        self.list.push(t);
        self.list.len() - 1
    }

    /// Whether an operation on them will be recorded.
    pub(crate) fn tracked(&self) -> bool {
        crate::core::autograd::grad_enabled() && self.list.iter().any(|t| t.requires_grad())
    }
}
