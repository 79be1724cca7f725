//! What the backward of an operation works with: saved tensors, upstream gradients, and targets for the gradients of its inputs.

use std::collections::HashMap;
use std::fmt;

use trefoil::GradMut;
use trefoil::ops::elementwise::Binary;

use super::graph::{Edge, Node, Slot, lock};
use super::{Operand, Tensor};
use crate::core::error::{NnError, Result, invalid};

/// A tensor kept for the backward pass, without its graph. Notices when the memory was overwritten since.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    tensor: Tensor,
    version: u64,
}

impl Saved {
    pub(crate) fn new(t: &Tensor) -> Self {
        Saved { tensor: t.detach(), version: t.version() }
    }

    /// The tensor, or [`NnError::SavedModified`].
    pub(crate) fn get(&self, cx: &BackwardCtx<'_>) -> Result<&Tensor> {
        let found = self.tensor.version();
        if found != self.version {
            return Err(NnError::SavedModified { op: cx.node.op, expected: self.version, found });
        }
        Ok(&self.tensor)
    }

    /// The tensor whatever its contents, for backwards that need only its shape and layout.
    pub(crate) fn any(&self) -> &Tensor {
        &self.tensor
    }
}

/// Where a backward writes the gradient of one input: overwritten if it is the first contribution, added to otherwise.
pub struct GradTarget {
    grad: Tensor,
    operand: Operand,
    accumulate: bool,
}

impl GradTarget {
    /// The gradient operand for a backend call.
    pub fn out(&self) -> Result<GradMut<'_>> {
        self.operand.grad(self.accumulate)
    }

    /// The gradient's memory as a tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.grad
    }

    /// Whether the memory holds earlier contributions that must be added to.
    pub fn accumulate(&self) -> bool {
        self.accumulate
    }

    /// Zeros the memory unless it holds earlier contributions, for operations that only write some of its elements.
    pub fn prepare(&self) -> Result<()> {
        if !self.accumulate {
            self.grad.device().fill(0.0, self.operand.view_mut()?)?;
        }
        Ok(())
    }
}

/// The gradient operands of optional targets, as backend calls take them.
pub(crate) fn out(t: &Option<GradTarget>) -> Result<Option<GradMut<'_>>> {
    t.as_ref().map(GradTarget::out).transpose()
}

/// Memory given out by [`BackwardCtx::target`], which becomes a gradient when the operation's backward has succeeded.
struct Claim {
    index: usize,
    grad: Tensor,
}

/// What an operation's backward sees: upstream gradients, and targets for the gradients of its inputs.
pub struct BackwardCtx<'a> {
    node: &'a Node,
    upstream: Vec<Option<Tensor>>,
    pending: &'a mut HashMap<u64, Vec<Option<Slot>>>,
    claims: Vec<Claim>,
    targets: Vec<(u64, usize)>,
}

impl<'a> BackwardCtx<'a> {
    /// The context of a node whose outputs have the gradients `upstream`. Those of operations further back are collected in `pending`, by node.
    pub(crate) fn new(
        node: &'a Node,
        upstream: Vec<Option<Tensor>>,
        pending: &'a mut HashMap<u64, Vec<Option<Slot>>>,
    ) -> Self {
        BackwardCtx { node, upstream, pending, claims: vec![], targets: vec![] }
    }

    /// Gradient of output `index`; `None` if nothing used that output.
    pub fn upstream(&self, index: usize) -> Option<&Tensor> {
        self.upstream.get(index).and_then(Option::as_ref)
    }

    /// Gradient of the first output (zeros if only other outputs were used).
    pub fn dy(&self) -> Result<Tensor> {
        self.dy_at(0)
    }

    /// Gradient of output `index`, zeros if nothing used it.
    pub fn dy_at(&self, index: usize) -> Result<Tensor> {
        match (self.upstream(index), self.node.outputs.get(index)) {
            (Some(g), _) => Ok(g.clone()),
            (None, Some(m)) => Tensor::zeros(&m.device, m.dtype, m.shape()),
            (None, None) => {
                Err(invalid(self.node.op, "output", "an output of the operation", format!("{index}")))
            }
        }
    }

    /// Whether input `index` requires a gradient.
    pub fn needs(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(Option::is_some)
    }

    /// Hands the upstream gradient on as that of input `index`, where that costs nothing: not for leaves, which keep memory of their own,
    /// nor for another shape. Returns whether it did (or nothing is wanted).
    pub(crate) fn pass(&mut self, index: usize, dy: &Tensor) -> Result<bool> {
        let Some(e) = self.edge(index) else { return Ok(true) };
        if e.node.is_leaf() || e.node.outputs[e.index].shape() != dy.shape() {
            return Ok(false);
        }
        self.give(index, dy.clone())?;
        Ok(true)
    }

    fn edge(&self, index: usize) -> Option<Edge> {
        self.node.inputs.get(index).cloned().flatten()
    }

    fn with_slot<T>(&mut self, e: &Edge, f: impl FnOnce(&mut Option<Slot>) -> T) -> T {
        if e.node.is_leaf() {
            return f(lock(&e.node.kept).slot(e.index));
        }
        let slots = self.pending.entry(e.node.id).or_insert_with(|| vec![None; e.node.outputs.len()]);
        f(&mut slots[e.index])
    }

    /// Memory for the gradient of input `index`, or `None` if it does not require one. Every element must be written (see
    /// [`GradTarget::accumulate`]).
    pub fn target(&mut self, index: usize) -> Result<Option<GradTarget>> {
        let Some(e) = self.edge(index) else { return Ok(None) };
        // The same tensor as two inputs: operands of one call must not overlap, so the second gets memory of its own.
        let repeated = self.targets.contains(&(e.node.id, e.index));
        self.targets.push((e.node.id, e.index));
        if !repeated {
            let ready = self.with_slot(&e, |slot| {
                let Some(s) = slot else { return Ok(None) };
                if !s.is_own() {
                    let copy = s.grad.like(s.grad.shape())?;
                    copy.assign(&s.grad)?;
                    *s = Slot { grad: copy, owned: true, cleared: None };
                }
                Ok::<_, NnError>(Some(s.grad.clone()))
            })?;
            if let Some(grad) = ready {
                grad.storage().touch();
                let operand = grad.operand();
                return Ok(Some(GradTarget { grad, operand, accumulate: true }));
            }
        }
        let m = &e.node.outputs[e.index];
        let grad = Tensor::empty(&m.device, m.dtype, m.shape())?;
        self.claims.push(Claim { index, grad: grad.clone() });
        let operand = grad.operand();
        Ok(Some(GradTarget { grad, operand, accumulate: false }))
    }

    /// Hands over a finished gradient of input `index` (a view of the upstream gradient, say). Ignored if the input requires none.
    pub fn give(&mut self, index: usize, grad: Tensor) -> Result<()> {
        let Some(e) = self.edge(index) else { return Ok(()) };
        let m = &e.node.outputs[e.index];
        if grad.shape() != m.shape() {
            let (expected, got) = (m.shape().to_vec(), grad.shape().to_vec());
            return Err(NnError::GradShape { op: self.node.op, index, expected, got });
        }
        self.add(&e, grad.detach(), false)
    }

    fn add(&mut self, e: &Edge, grad: Tensor, owned: bool) -> Result<()> {
        // A leaf's gradient is what users and optimizers read: keep it dense and apart from other tensors.
        let leaf = e.node.is_leaf();
        self.with_slot(e, |slot| match slot {
            None if leaf && !owned => {
                let copy = grad.like(grad.shape())?;
                copy.assign(&grad)?;
                *slot = Some(Slot { grad: copy, owned: true, cleared: None });
                Ok(())
            }
            None => {
                *slot = Some(Slot { grad, owned, cleared: None });
                Ok(())
            }
            Some(s) if s.is_own() => {
                s.grad.storage().touch();
                let (src, dst) = (grad.operand(), s.grad.operand());
                Ok(s.grad.device().strided_copy(src.view()?, dst.grad(true)?)?)
            }
            Some(s) => {
                let sum = grad.like(grad.shape())?;
                let (a, b, y) = (s.grad.operand(), grad.operand(), sum.operand());
                grad.device().binary(Binary::Add { alpha: 1.0 }, a.view()?, b.view()?, y.view_mut()?)?;
                *s = Slot { grad: sum, owned: true, cleared: None };
                Ok(())
            }
        })
    }

    /// Adds the gradients that the backward has written to those of the graph; to be called when it has succeeded.
    pub(crate) fn commit(mut self) -> Result<()> {
        for claim in std::mem::take(&mut self.claims) {
            if let Some(e) = self.edge(claim.index) {
                self.add(&e, claim.grad, true)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BackwardCtx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackwardCtx({})", self.node.op)
    }
}
