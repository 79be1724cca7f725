//! What the backward of an operation works with: saved tensors, upstream gradients, and targets for the gradients of its inputs.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use trefoil::GradMut;
use trefoil::ops::elementwise::Binary;

use super::graph::{Edge, Node, Slot, lock};
use super::{MemoryFormat, Operand, Tensor};
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

    /// The tensor, or [`NnError::SavedModified`]. It is cut from the graph, so a pass that [creates one](BackwardCtx::create_graph) would
    /// miss what depends on it: floats are [`NnError::NotTwiceDifferentiable`] there.
    pub(crate) fn get(&self, cx: &BackwardCtx<'_>) -> Result<&Tensor> {
        if self.tensor.dtype().is_float() {
            cx.first_order_only()?;
        }
        self.unmodified(cx)
    }

    /// The tensor as a constant, also in a pass that creates a graph.
    pub(crate) fn constant(&self, cx: &BackwardCtx<'_>) -> Result<Tensor> {
        self.unmodified(cx).cloned()
    }

    /// The tensor, which is input `index` of the operation (or equals it), at its place in the graph.
    pub(crate) fn input(&self, cx: &BackwardCtx<'_>, index: usize) -> Result<Tensor> {
        Ok(self.unmodified(cx)?.with_edge(cx.node.inputs.get(index).cloned().flatten()))
    }

    /// The tensor, which is output `index` of the operation, at its place in the graph.
    pub(crate) fn output(&self, cx: &BackwardCtx<'_>, index: usize) -> Result<Tensor> {
        Ok(self.unmodified(cx)?.with_edge(Some(Edge { node: cx.node.clone(), index })))
    }

    fn unmodified(&self, cx: &BackwardCtx<'_>) -> Result<&Tensor> {
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
    /// Whether the memory holds zeros.
    zero: bool,
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
        if !self.accumulate && !self.zero {
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

/// What a backward pass collects, and how.
#[derive(Default)]
pub(crate) struct Collected {
    /// Gradients by node: of operations whose turn has yet to come, and of leaves that do not collect their own.
    pub(crate) pending: HashMap<u64, Vec<Option<Slot>>>,
    /// The nodes that lead to those whose gradients are asked for. Without it all take part, and leaves collect their own gradients.
    pub(crate) useful: Option<HashSet<u64>>,
    /// Whether the gradients themselves are recorded.
    pub(crate) create_graph: bool,
}

impl Collected {
    fn takes(&self, e: &Edge) -> bool {
        self.useful.as_ref().is_none_or(|ids| ids.contains(&e.node.id))
    }
}

/// What an operation's backward sees: upstream gradients, and targets for the gradients of its inputs.
pub struct BackwardCtx<'a> {
    node: &'a Arc<Node>,
    upstream: Vec<Option<Tensor>>,
    into: &'a mut Collected,
    claims: Vec<Claim>,
    targets: Vec<(u64, usize)>,
}

impl<'a> BackwardCtx<'a> {
    /// The context of a node whose outputs have the gradients `upstream`. Those of its inputs go to `into`.
    pub(crate) fn new(node: &'a Arc<Node>, upstream: Vec<Option<Tensor>>, into: &'a mut Collected) -> Self {
        BackwardCtx { node, upstream, into, claims: vec![], targets: vec![] }
    }

    /// Whether the gradients are to be differentiated again. They must then be made of operations on tensors and go through
    /// [`give`](BackwardCtx::give): [`target`](BackwardCtx::target) is an error.
    pub fn create_graph(&self) -> bool {
        self.into.create_graph
    }

    /// Whether leaves collect nothing and gradients are returned: a backward within this one must return its own too.
    pub(crate) fn returns_gradients(&self) -> bool {
        self.into.useful.is_some()
    }

    /// Error in a pass that creates a graph, for gradients that cannot be differentiated.
    pub(crate) fn first_order_only(&self) -> Result<()> {
        match self.into.create_graph {
            true => Err(NnError::NotTwiceDifferentiable { op: self.node.op }),
            false => Ok(()),
        }
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
        self.edge(index).is_some()
    }

    /// Hands the upstream gradient on as that of input `index`, where that costs nothing: not for leaves, which keep memory of their own,
    /// nor for another shape. Returns whether it did (or nothing is wanted).
    pub(crate) fn pass(&mut self, index: usize, dy: &Tensor) -> Result<bool> {
        let Some(e) = self.edge(index) else { return Ok(true) };
        let apart = e.node.is_leaf() && !self.create_graph();
        if apart || e.node.outputs[e.index].shape() != dy.shape() {
            return Ok(false);
        }
        self.give(index, dy.clone())?;
        Ok(true)
    }

    fn edge(&self, index: usize) -> Option<Edge> {
        self.node.inputs.get(index).cloned().flatten().filter(|e| self.into.takes(e))
    }

    fn with_slot<T>(&mut self, e: &Edge, f: impl FnOnce(&mut Option<Slot>) -> T) -> T {
        if e.node.is_leaf() && self.into.useful.is_none() {
            return f(lock(&e.node.kept).slot(e.index));
        }
        let slots = self.into.pending.entry(e.node.id).or_insert_with(|| vec![None; e.node.outputs.len()]);
        f(&mut slots[e.index])
    }

    /// Contiguous memory for the gradient of input `index`, or `None` if it does not require one. Every element must be written (see
    /// [`GradTarget::accumulate`]). Errors: [`NnError::NotTwiceDifferentiable`] in a pass that [creates a
    /// graph](BackwardCtx::create_graph), which does not see what is written into memory.
    pub fn target(&mut self, index: usize) -> Result<Option<GradTarget>> {
        self.target_in(index, MemoryFormat::Contiguous)
    }

    /// As [`target`](BackwardCtx::target), in the memory format that the input has.
    pub(crate) fn target_like_input(&mut self, index: usize) -> Result<Option<GradTarget>> {
        let format = self.edge(index).map_or(MemoryFormat::Contiguous, |e| e.node.outputs[e.index].format());
        self.target_in(index, format)
    }

    fn target_in(&mut self, index: usize, format: MemoryFormat) -> Result<Option<GradTarget>> {
        let Some(e) = self.edge(index) else { return Ok(None) };
        self.first_order_only()?;
        // The same tensor as two inputs: operands of one call must not overlap, so the second gets memory of its own.
        let repeated = self.targets.contains(&(e.node.id, e.index));
        self.targets.push((e.node.id, e.index));
        if !repeated {
            let ready = self.with_slot(&e, |slot| {
                let Some(s) = slot else { return Ok(None) };
                // Memory of an optimizer stays where and as it is.
                let kept = s.cleared.is_some() || format.describes(s.grad.layout());
                if !(s.is_own() && kept) {
                    let copy = s.grad.empty_in(format, s.grad.dtype(), s.grad.shape())?;
                    copy.assign(&s.grad)?;
                    *s = Slot { grad: copy, owned: true, cleared: None };
                }
                Ok::<_, NnError>(Some((s.grad.clone(), s.is_zero())))
            })?;
            if let Some((grad, zero)) = ready {
                grad.storage().touch();
                let operand = grad.operand();
                return Ok(Some(GradTarget { grad, operand, accumulate: !zero, zero }));
            }
        }
        let m = &e.node.outputs[e.index];
        let grad = Tensor::empty_on(&m.device, format, m.dtype, m.shape())?;
        self.claims.push(Claim { index, grad: grad.clone() });
        let operand = grad.operand();
        Ok(Some(GradTarget { grad, operand, accumulate: false, zero: false }))
    }

    /// Hands over a finished gradient of input `index` (a view of the upstream gradient, say). Ignored if the input requires none.
    pub fn give(&mut self, index: usize, grad: Tensor) -> Result<()> {
        let Some(e) = self.edge(index) else { return Ok(()) };
        let m = &e.node.outputs[e.index];
        if grad.shape() != m.shape() {
            let (expected, got) = (m.shape().to_vec(), grad.shape().to_vec());
            return Err(NnError::GradShape { op: self.node.op, index, expected, got });
        }
        if !self.create_graph() {
            return self.add(&e, grad.detach(), false);
        }
        if !grad.requires_grad() && self.upstream.iter().flatten().any(Tensor::requires_grad) {
            self.first_order_only()?;
        }
        self.sum(&e, grad)
    }

    /// [`give`](BackwardCtx::give) in a pass that creates a graph; nothing stands for a gradient without a differentiable form.
    pub(crate) fn give_form(&mut self, index: usize, grad: Option<Tensor>) -> Result<()> {
        match grad {
            Some(g) => self.give(index, g),
            None => self.first_order_only(),
        }
    }

    /// As [`add`](BackwardCtx::add) where the sums are recorded.
    fn sum(&mut self, e: &Edge, grad: Tensor) -> Result<()> {
        let before = self.with_slot(e, |slot| slot.take());
        let grad = match before {
            Some(s) => s.grad.add(&grad)?,
            None => grad,
        };
        self.with_slot(e, |slot| *slot = Some(Slot { grad, owned: false, cleared: None }));
        Ok(())
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
                let zero = s.is_zero();
                s.grad.storage().touch();
                let (src, dst) = (grad.operand(), s.grad.operand());
                Ok(s.grad.device().strided_copy(src.view()?, dst.grad(!zero)?)?)
            }
            Some(s) => {
                let sum = Tensor::result_of(&[&grad], grad.dtype(), grad.shape())?;
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
