//! The walk through the graph of a backward pass.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{BackwardCtx, Collected, Edge, Node, Role, Slot, Tensor, lock, same_device};
use crate::core::timeline;

/// Where a pass starts: outputs, and their gradients at their own places in the graph. One without a gradient has one element and gets 1.
pub(crate) fn seeds(op: &'static str, roots: &[(&Tensor, Option<&Tensor>)]) -> Result<Vec<(Edge, Tensor)>> {
    let mut start = vec![];
    for &(t, grad) in roots {
        let e = t.edge().ok_or(NnError::NoGraph)?;
        let seed = match grad {
            Some(g) => {
                same_device(op, t, g)?;
                if g.shape() != t.shape() {
                    let (expected, got) = (t.shape().to_vec(), g.shape().to_vec());
                    return Err(NnError::GradShape { op, index: 0, expected, got });
                }
                if g.dtype() != t.dtype() {
                    return Err(invalid(op, "grad", t.dtype().name(), g.dtype().name()));
                }
                g.clone()
            }
            None if t.numel() == 1 => Tensor::ones(t.device(), t.dtype(), t.shape())?,
            None => return Err(NnError::NotScalar { shape: t.shape().to_vec() }),
        };
        start.push((e.clone(), seed));
    }
    Ok(start)
}

/// All nodes that can be reached by id; a larger id is nearer to the roots.
fn reachable(start: &[(Edge, Tensor)]) -> BTreeMap<u64, Arc<Node>> {
    let mut nodes: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    let mut stack: Vec<Arc<Node>> = start.iter().map(|(e, _)| e.node.clone()).collect();
    while let Some(node) = stack.pop() {
        if nodes.contains_key(&node.id) {
            continue;
        }
        stack.extend(node.inputs.iter().flatten().map(|e| e.node.clone()));
        nodes.insert(node.id, node);
    }
    nodes
}

/// The nodes of `wanted` and those that depend on one of them.
pub(crate) fn leading_to(start: &[(Edge, Tensor)], wanted: &[Edge]) -> HashSet<u64> {
    let mut useful: HashSet<u64> = wanted.iter().map(|e| e.node.id).collect();
    for (id, node) in reachable(start) {
        if node.inputs.iter().flatten().any(|e| useful.contains(&e.node.id)) {
            useful.insert(id);
        }
    }
    useful
}

/// Visits the operations from the newest to the oldest. Returns the gradients of `wanted`, which are only collected where
/// [`Collected::useful`] says what leads to them. Without `retain` the visited operations give their saved tensors up.
pub(crate) fn run(
    start: Vec<(Edge, Tensor)>,
    into: &mut Collected,
    retain: bool,
    wanted: &[Edge],
) -> Result<Vec<Option<Tensor>>> {
    let mut nodes = reachable(&start);
    let runs = |into: &Collected, node: &Node| match &into.useful {
        Some(ids) => node.inputs.iter().flatten().any(|e| ids.contains(&e.node.id)),
        None => !node.is_leaf(),
    };
    let freed = |n: &&Arc<Node>| matches!(*lock(&n.role), Role::Freed) && runs(into, n);
    if let Some(node) = nodes.values().rev().find(freed) {
        return Err(NnError::GraphFreed { op: node.op });
    }

    // A node whose inputs are the roots, so that their seeds are added like every other gradient.
    let root =
        Node::new("backward", start.iter().map(|(e, _)| Some(e.clone())).collect(), vec![], Role::Leaf);
    let mut cx = BackwardCtx::new(&root, vec![], into);
    for (i, (_, seed)) in start.into_iter().enumerate() {
        cx.give(i, seed)?;
    }

    let mut found: Vec<Option<Tensor>> = vec![None; wanted.len()];
    while let Some((id, node)) = nodes.pop_last() {
        let Some(slots) = into.pending.remove(&id) else { continue };
        for (found, e) in found.iter_mut().zip(wanted).filter(|(_, e)| e.node.id == id) {
            *found = slots[e.index].as_ref().map(|s| s.grad.clone());
        }
        if runs(into, &node) {
            timeline::backward(id, node.op, || visit(&node, slots, into, retain))?;
        }
    }
    Ok(found)
}

/// Runs the backward of one operation.
fn visit(node: &Arc<Node>, slots: Vec<Option<Slot>>, into: &mut Collected, retain: bool) -> Result<()> {
    if into.useful.is_none() {
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
            Role::Leaf => return Ok(()),
            Role::Freed => return Err(NnError::GraphFreed { op: node.op }),
        }
    };
    let upstream = slots.into_iter().map(|s| s.map(|s| s.grad)).collect();
    let mut cx = BackwardCtx::new(node, upstream, into);
    function(&mut cx)?;
    cx.commit()
}
