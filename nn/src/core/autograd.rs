//! Define-by-run differentiation.
//!
//! An operation on tensors that require gradients adds a node to the graph: its name, the nodes of its inputs and a closure with the saved
//! tensors. [`backward`] visits the nodes from the newest to the oldest (inputs are always older than what was made from them, so no
//! further ordering is needed), passes each its upstream gradients and collects the gradients of its inputs. They are accumulated on the
//! device: the first contribution overwrites, later ones are added by the kernel that computes them. There is no recursion, so a graph can be
//! as deep as memory allows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::core::error::{NnError, Result, invalid};
use crate::core::hooks;
use crate::core::span::span;
use crate::core::tensor::{Edge, Meta, Node, Role, Slot, Tensor, lock, same_device};

pub(crate) use crate::core::grad_mode::enable_grad;
pub use crate::core::grad_mode::{NoGrad, grad_enabled, no_grad};
pub use crate::core::tensor::{BackwardCtx, GradTarget};
pub(crate) use crate::core::tensor::{Saved, out};

/// Whether an operation on these tensors goes into the graph.
fn tracked(inputs: &[&Tensor]) -> bool {
    grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// The node of an operation.
fn node<F>(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor], f: F) -> Arc<Node>
where
    F: Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync + 'static,
{
    let edges = inputs.iter().map(|t| t.edge().cloned()).collect();
    Node::new(op, edges, outputs.iter().map(Meta::of).collect(), Role::Op(Arc::new(f)))
}

/// Puts `outputs` into the graph as results of `op` on `inputs`, if recording is on and an input requires a gradient.
pub(crate) fn record<F>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Tensor>,
    make: impl FnOnce() -> F,
) -> Vec<Tensor>
where
    F: Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync + 'static,
{
    hooks::op(op, inputs, &outputs);
    if !tracked(inputs) {
        return outputs;
    }
    let node = node(op, inputs, &outputs, make());
    outputs.into_iter().enumerate().map(|(index, t)| t.placed(&node, index)).collect()
}

impl Tensor {
    /// This tensor as an output of a node. Integer results (positions, masks) carry no gradient.
    fn placed(self, node: &Arc<Node>, index: usize) -> Tensor {
        let edge = self.dtype().is_float().then(|| Edge { node: node.clone(), index });
        self.into_edge(edge)
    }

    /// [`record`] for an operation with one result.
    pub(crate) fn record<F>(self, op: &'static str, inputs: &[&Tensor], make: impl FnOnce() -> F) -> Tensor
    where
        F: Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync + 'static,
    {
        hooks::op(op, inputs, std::slice::from_ref(&self));
        if !tracked(inputs) {
            return self;
        }
        let node = node(op, inputs, std::slice::from_ref(&self), make());
        self.placed(&node, 0)
    }
}

/// An operation of your own with a hand-written gradient; see [`apply`].
pub trait CustomOp: Send + Sync + 'static {
    /// Its name in errors.
    fn name(&self) -> &'static str;
    /// Results from inputs. Runs without recording. What `save` receives is handed to `backward`.
    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>>;
    /// Gives a gradient to every input that [needs](BackwardCtx::needs) one, through [`BackwardCtx::target`] or [`BackwardCtx::give`].
    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()>;
}

/// Runs a custom operation and records it.
pub fn apply(op: impl CustomOp, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut save = vec![];
    let plain: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let outputs = no_grad(|| op.forward(&plain, &mut save))?;
    let refs: Vec<&Tensor> = inputs.iter().collect();
    // Outputs are detached too: an operation may return one of its inputs.
    let outputs = outputs.iter().map(Tensor::detach).collect();
    Ok(record(op.name(), &refs, outputs, move || {
        let saved: Vec<Saved> = save.iter().map(Saved::new).collect();
        move |cx: &mut BackwardCtx<'_>| {
            let tensors = saved.iter().map(|s| s.get(cx).cloned()).collect::<Result<Vec<_>>>()?;
            op.backward(cx, &tensors)
        }
    }))
}

/// Gradients of several tensors at once. A root without a gradient must have one element and starts from 1. With `retain` the graph can be
/// used again. Errors: as [`Tensor::backward`]; nothing is accumulated if the graph was freed.
pub fn backward(roots: &[(&Tensor, Option<&Tensor>)], retain: bool) -> Result<()> {
    span!("backward");
    let _guard = NoGrad::new();
    let mut start = vec![];
    for &(t, grad) in roots {
        let e = t.edge().ok_or(NnError::NoGraph)?;
        let seed = match grad {
            Some(g) => {
                same_device("backward", t, g)?;
                if g.shape() != t.shape() {
                    let (expected, got) = (t.shape().to_vec(), g.shape().to_vec());
                    return Err(NnError::GradShape { op: "backward", index: 0, expected, got });
                }
                if g.dtype() != t.dtype() {
                    return Err(invalid("backward", "grad", t.dtype().name(), g.dtype().name()));
                }
                g.detach()
            }
            None if t.numel() == 1 => Tensor::ones(t.device(), t.dtype(), t.shape())?,
            None => return Err(NnError::NotScalar { shape: t.shape().to_vec() }),
        };
        start.push((e.clone(), seed));
    }

    // All reachable operations by id; a larger id is nearer to the roots.
    let mut nodes: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    let mut stack: Vec<Arc<Node>> = start.iter().map(|(e, _)| e.node.clone()).collect();
    while let Some(node) = stack.pop() {
        if node.is_leaf() || nodes.contains_key(&node.id) {
            continue;
        }
        if matches!(*lock(&node.role), Role::Freed) {
            return Err(NnError::GraphFreed { op: node.op });
        }
        stack.extend(node.inputs.iter().flatten().map(|e| e.node.clone()));
        nodes.insert(node.id, node);
    }

    // A node whose inputs are the roots, so that their seeds are added like every other gradient.
    let root =
        Node::new("backward", start.iter().map(|(e, _)| Some(e.clone())).collect(), vec![], Role::Leaf);
    let mut pending = HashMap::new();
    let mut cx = BackwardCtx::new(&root, vec![], &mut pending);
    for (i, (_, seed)) in start.into_iter().enumerate() {
        cx.give(i, seed)?;
    }

    while let Some((id, node)) = nodes.pop_last() {
        let Some(slots) = pending.remove(&id) else { continue };
        {
            let mut kept = lock(&node.kept);
            for (i, s) in slots.iter().enumerate() {
                if let (true, Some(s)) = (kept.wants(i), s) {
                    *kept.slot(i) = Some(Slot { owned: false, ..s.clone() });
                }
            }
        }
        let function = {
            let mut role = lock(&node.role);
            let taken = if retain { None } else { Some(std::mem::replace(&mut *role, Role::Freed)) };
            match taken.as_ref().unwrap_or(&role) {
                Role::Op(f) => f.clone(),
                Role::Leaf => continue,
                Role::Freed => return Err(NnError::GraphFreed { op: node.op }),
            }
        };
        let upstream = slots.into_iter().map(|s| s.map(|s| s.grad)).collect();
        let mut cx = BackwardCtx::new(&node, upstream, &mut pending);
        function(&mut cx)?;
        cx.commit()?;
    }
    Ok(())
}

impl Tensor {
    /// Gradients of this tensor (one element, seeded with 1) for all leaves it depends on; the graph is freed.
    ///
    /// Errors: [`NnError::NoGraph`], [`NnError::NotScalar`], [`NnError::GraphFreed`], [`NnError::SavedModified`].
    pub fn backward(&self) -> Result<()> {
        backward(&[(self, None)], false)
    }

    /// As [`backward`](Tensor::backward), but the graph can be used again.
    pub fn backward_retain(&self) -> Result<()> {
        backward(&[(self, None)], true)
    }

    /// As [`backward`](Tensor::backward) from a given gradient of this tensor's shape and dtype.
    pub fn backward_with(&self, grad: &Tensor) -> Result<()> {
        backward(&[(self, Some(grad))], false)
    }
}
