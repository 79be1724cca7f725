//! Define-by-run differentiation.
//!
//! An operation on tensors that require gradients adds a node to the graph: its name, the nodes of its inputs and a closure with the saved
//! tensors. [`backward`] visits the nodes from the newest to the oldest (inputs are always older than what was made from them, so no
//! further ordering is needed), passes each its upstream gradients and collects the gradients of its inputs. They are accumulated on the
//! device: the first contribution overwrites, later ones are added by the kernel that computes them. There is no recursion, so a graph can be
//! as deep as memory allows.
//!
//! [`grad`] returns gradients instead of collecting them in leaves, and can record them (`create_graph`), so that they can be differentiated
//! again: [`hvp`], [`jvp`] and [`jacobian`] are made of it. An operation takes part in that if its closure makes gradients of operations on
//! tensors; the memory that [`BackwardCtx::target`] gives out is invisible to the graph, so such an operation is
//! [`NnError::NotTwiceDifferentiable`](crate::NnError::NotTwiceDifferentiable), never a wrong number.

use std::sync::Arc;

use crate::core::engine;
use crate::core::error::Result;
use crate::core::hooks;
use crate::core::span::span;
use crate::core::tensor::{Collected, Edge, Function, Meta, Node, Role, Tensor};
use crate::core::timeline;

pub use crate::core::derivatives::{GradOptions, grad, hvp, jacobian, jvp, vjp};
pub(crate) use crate::core::derivatives::{Map, compose, linear_map};
pub(crate) use crate::core::derivatives::{hessian_product, jacobian_rows, push_forward};
pub(crate) use crate::core::grad_mode::enable_grad;
pub use crate::core::grad_mode::{NoGrad, grad_enabled, no_grad};
pub use crate::core::tensor::{BackwardCtx, GradTarget};
pub(crate) use crate::core::tensor::{Saved, out};

/// Whether an operation on these tensors goes into the graph.
fn tracked(inputs: &[&Tensor]) -> bool {
    grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// The node of an operation.
fn node(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor], f: Arc<Function>) -> Arc<Node> {
    let edges = inputs.iter().map(|t| t.edge().cloned()).collect();
    let node = Node::new(op, edges, outputs.iter().map(Meta::of).collect(), Role::Op(f));
    timeline::made(node.id);
    node
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
    behind(op, inputs, outputs, Arc::new(make()))
}

/// [`record`] for an operation with a fixed number of results.
pub(crate) fn record_all<F, const N: usize>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: [Tensor; N],
    make: impl FnOnce() -> F,
) -> [Tensor; N]
where
    F: Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync + 'static,
{
    hooks::op(op, inputs, &outputs);
    if !tracked(inputs) {
        return outputs;
    }
    all_behind(op, inputs, outputs, Arc::new(make()))
}

/// As [`behind`], for a fixed number of outputs.
fn all_behind<const N: usize>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: [Tensor; N],
    f: Arc<Function>,
) -> [Tensor; N] {
    let node = node(op, inputs, &outputs, f);
    let mut index = 0..;
    outputs.map(|t| t.placed(&node, index.next().unwrap_or_default()))
}

/// `outputs` as those of a new node.
fn behind(op: &'static str, inputs: &[&Tensor], outputs: Vec<Tensor>, f: Arc<Function>) -> Vec<Tensor> {
    let node = node(op, inputs, &outputs, f);
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
        let [y] = record_all(op, inputs, [self], make);
        y
    }
}

/// An operation of your own with a hand-written gradient; see [`apply`]. The gradient cannot be differentiated again.
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
            // Saved tensors are cut from the graph, and the trait does not say what they depend on.
            cx.first_order_only()?;
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
    let start = engine::seeds("backward", roots)?;
    engine::run(start, &mut Collected::default(), retain, &[]).map(drop)
}

impl Tensor {
    /// Gradients of this tensor (one element, seeded with 1) for all leaves it depends on; the graph is freed.
    ///
    /// Errors: [`NoGraph`](crate::NnError::NoGraph), [`NotScalar`](crate::NnError::NotScalar), [`GraphFreed`](crate::NnError::GraphFreed),
    /// [`SavedModified`](crate::NnError::SavedModified).
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
