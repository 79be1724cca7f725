//! Define-by-run differentiation.
//!
//! An operation on tensors that require gradients leaves a node behind: its name, the nodes of its inputs and a closure with the saved
//! tensors. `backward` walks the nodes from the newest to the oldest (inputs are always older than what was made from them, so no
//! further ordering is needed), hands each its upstream gradients and collects what it gives back. Contributions are accumulated on the
//! device: the first one overwrites, later ones add in the same kernel that computes them. Recursion is never used, so a
//! graph can be as deep as memory allows.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::ops::Binary;
use trefoil::{DType, GradMut, Layout};

use crate::error::{NnError, Result, invalid};
use crate::hooks;
use crate::tensor::{Device, Operand, Tensor, same_device};

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations of this thread are recorded.
pub fn grad_enabled() -> bool {
    ENABLED.with(Cell::get)
}

/// While it lives, operations of this thread are not recorded. Made by [`NoGrad::new`]; [`no_grad`] is the closure form.
#[derive(Debug)]
pub struct NoGrad {
    before: bool,
    // The flag belongs to the thread, so the guard must not leave it.
    _thread: PhantomData<*const ()>,
}

impl NoGrad {
    /// Stops recording until dropped.
    #[expect(clippy::new_without_default, reason = "a guard with an effect, not a value")]
    pub fn new() -> Self {
        NoGrad { before: ENABLED.with(|e| e.replace(false)), _thread: PhantomData }
    }
}

impl Drop for NoGrad {
    fn drop(&mut self) {
        ENABLED.with(|e| e.set(self.before));
    }
}

/// Runs `f` without recording its operations.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = NoGrad::new();
    f()
}

/// Runs `f` with its operations recorded, also inside of a backward pass.
pub(crate) fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = NoGrad { before: ENABLED.with(|e| e.replace(true)), _thread: PhantomData };
    f()
}

/// An output of a node.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) index: usize,
}

/// Shape, dtype and device of a node's output, so that a gradient for it can be made.
struct Meta {
    layout: Layout,
    dtype: DType,
    device: Device,
}

impl Meta {
    fn of(t: &Tensor) -> Self {
        Meta { layout: *t.layout(), dtype: t.dtype(), device: t.device().clone() }
    }

    fn shape(&self) -> &[usize] {
        self.layout.shape()
    }
}

type Function = dyn Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync;

/// What a node does in the backward pass.
enum Role {
    Leaf,
    Op(Arc<Function>),
    Freed,
}

/// A gradient that is being collected. `owned`: its memory was made for it, so it can be added to in place.
#[derive(Clone)]
struct Slot {
    grad: Tensor,
    owned: bool,
    /// Of memory of an optimizer, which is zeroed instead of dropped: its version when it was.
    cleared: Option<u64>,
}

impl Slot {
    /// Whether it can be added to in place: a gradient that was handed over belongs to this slot once everybody else has dropped it.
    fn is_own(&self) -> bool {
        self.owned || self.grad.is_sole()
    }
}

/// A leaf or a recorded operation.
pub(crate) struct Node {
    /// Larger than the ids of all inputs.
    id: u64,
    op: &'static str,
    inputs: Vec<Option<Edge>>,
    outputs: Vec<Meta>,
    role: Mutex<Role>,
    /// Gradients that the user can read: of a leaf, or retained ones.
    kept: Mutex<Kept>,
}

/// Both lists are as long as needed so far: most nodes keep nothing and allocate nothing for it.
#[derive(Default)]
struct Kept {
    slots: Vec<Option<Slot>>,
    wanted: Vec<bool>,
}

impl Kept {
    /// The gradient of output `index`.
    fn slot(&mut self, index: usize) -> &mut Option<Slot> {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        &mut self.slots[index]
    }

    fn wants(&self, index: usize) -> bool {
        self.wanted.get(index).copied().unwrap_or(false)
    }
}

static NEXT_NODE: AtomicU64 = AtomicU64::new(1);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

impl Node {
    fn new(op: &'static str, inputs: Vec<Option<Edge>>, outputs: Vec<Meta>, role: Role) -> Arc<Self> {
        let id = NEXT_NODE.fetch_add(1, Ordering::Relaxed);
        Arc::new(Node { id, op, inputs, outputs, role: Mutex::new(role), kept: Mutex::default() })
    }

    pub(crate) fn leaf(t: &Tensor) -> Arc<Self> {
        Node::new("leaf", vec![], vec![Meta::of(t)], Role::Leaf)
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.inputs.is_empty()
    }

    pub(crate) fn grad(&self, index: usize) -> Option<Tensor> {
        lock(&self.kept).slots.get(index)?.as_ref().map(|s| s.grad.clone())
    }

    pub(crate) fn retain(&self, index: usize) {
        let mut kept = lock(&self.kept);
        if kept.wanted.len() <= index {
            kept.wanted.resize(index + 1, false);
        }
        kept.wanted[index] = true;
    }

    pub(crate) fn zero_grad(&self) -> Result<()> {
        for slot in &mut lock(&self.kept).slots {
            match slot {
                Some(s) if s.cleared.is_some() => {
                    s.grad.fill(0.0)?;
                    s.cleared = Some(s.grad.version());
                }
                other => *other = None,
            }
        }
        Ok(())
    }

    /// Gives a leaf the gradient that it has collected elsewhere.
    pub(crate) fn put_grad(&self, grad: Tensor) {
        *lock(&self.kept).slot(0) = Some(Slot { grad, owned: true, cleared: None });
    }

    /// Lets a leaf collect its gradient in an optimizer's arena. `filled`: it has collected some, which was copied there.
    pub(crate) fn place_grad(&self, grad: Tensor, filled: bool) {
        if filled {
            grad.storage().touch();
        }
        let cleared = grad.version() - u64::from(filled);
        *lock(&self.kept).slot(0) = Some(Slot { grad, owned: true, cleared: Some(cleared) });
    }

    /// Whether a leaf has collected a gradient since it was cleared.
    pub(crate) fn has_grad(&self) -> bool {
        self.is_filled().unwrap_or_else(|| self.grad(0).is_some())
    }

    /// Whether a leaf's gradient in an optimizer's arena was written since it was cleared; `None` if the leaf has none there.
    pub(crate) fn is_filled(&self) -> Option<bool> {
        let kept = lock(&self.kept);
        let slot = kept.slots.first()?.as_ref()?;
        slot.cleared.map(|version| slot.grad.version() != version)
    }

    /// Notes that the optimizer has cleared its arena.
    pub(crate) fn note_cleared(&self) {
        if let Some(Some(s)) = lock(&self.kept).slots.first_mut()
            && s.cleared.is_some()
        {
            s.cleared = Some(s.grad.version());
        }
    }
}

impl Drop for Node {
    /// Frees a chain of nodes with a loop; the default would recurse once per operation.
    fn drop(&mut self) {
        let mut stack = std::mem::take(&mut self.inputs);
        while let Some(edge) = stack.pop() {
            if let Some(mut node) = edge.and_then(|e| Arc::into_inner(e.node)) {
                stack.append(&mut node.inputs);
            }
        }
    }
}

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

/// Memory handed out by [`BackwardCtx::target`] that is booked when the operation's backward has succeeded.
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

impl BackwardCtx<'_> {
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

    fn finish(mut self) -> Result<()> {
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

    // The roots hang below a node of their own, so that their seeds take the same way as every other gradient.
    let root =
        Node::new("backward", start.iter().map(|(e, _)| Some(e.clone())).collect(), vec![], Role::Leaf);
    let mut pending = HashMap::new();
    let mut cx =
        BackwardCtx { node: &root, upstream: vec![], pending: &mut pending, claims: vec![], targets: vec![] };
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
        let mut cx =
            BackwardCtx { node: &node, upstream, pending: &mut pending, claims: vec![], targets: vec![] };
        function(&mut cx)?;
        cx.finish()?;
    }
    Ok(())
}
