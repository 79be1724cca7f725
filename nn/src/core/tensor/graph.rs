//! Nodes of the autograd graph: leaves, and recorded operations with their inputs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::{DType, Layout};

use super::{BackwardCtx, Device, MemoryFormat, Tensor};
use crate::core::error::Result;

/// An output of a node.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) index: usize,
}

/// Shape, dtype and device of a node's output, so that a gradient for it can be made.
pub(crate) struct Meta {
    layout: Layout,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

impl Meta {
    pub(crate) fn of(t: &Tensor) -> Self {
        Meta { layout: *t.layout(), dtype: t.dtype(), device: t.device().clone() }
    }

    pub(super) fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    pub(super) fn format(&self) -> MemoryFormat {
        MemoryFormat::of(&self.layout)
    }
}

/// What gives the gradients of an operation's inputs.
pub(crate) type Function = dyn Fn(&mut BackwardCtx<'_>) -> Result<()> + Send + Sync;

/// What a node does in the backward pass.
pub(crate) enum Role {
    Leaf,
    Op(Arc<Function>),
    Freed,
}

/// A gradient that is being collected. `owned`: its memory was made for it, so it can be added to in place.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) grad: Tensor,
    pub(crate) owned: bool,
    /// Of memory of an optimizer, which is zeroed instead of dropped: when it was.
    pub(crate) cleared: Option<Cleared>,
}

thread_local! {
    static RECORDING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Says which recorded step the calling thread makes from now on; each has a number of its own.
pub(crate) fn set_recording(number: Option<u64>) {
    RECORDING.set(number);
}

/// When memory of gradients was zeroed.
#[derive(Clone, Copy)]
pub(crate) struct Cleared {
    /// Its version then; tied parameters share one.
    version: u64,
    /// The recorded step that does it.
    recording: Option<u64>,
}

impl Cleared {
    fn now(grad: &Tensor) -> Self {
        Cleared { version: grad.version(), recording: RECORDING.get() }
    }
}

impl Slot {
    /// Whether it holds zeros of an optimizer, so that the first gradient can be written instead of added. A step that is being recorded must zero them
    /// itself: it may be replayed on gradients that are there.
    pub(super) fn is_zero(&self) -> bool {
        let recording = RECORDING.get();
        let here = |c: Cleared| recording.is_none() || c.recording == recording;
        self.cleared.is_some_and(|c| c.version == self.grad.version() && here(c))
    }

    /// Whether it can be added to in place: a gradient that was passed in belongs to this slot once there is no other handle of it.
    pub(super) fn is_own(&self) -> bool {
        self.owned || self.grad.is_sole()
    }
}

/// A leaf or a recorded operation.
pub(crate) struct Node {
    /// Larger than the ids of all inputs.
    pub(crate) id: u64,
    pub(crate) op: &'static str,
    pub(crate) inputs: Vec<Option<Edge>>,
    pub(super) outputs: Vec<Meta>,
    pub(crate) role: Mutex<Role>,
    /// Gradients that the user can read: of a leaf, or retained ones.
    pub(crate) kept: Mutex<Kept>,
}

/// Both lists are as long as needed so far: most nodes keep nothing and allocate nothing for it.
#[derive(Default)]
pub(crate) struct Kept {
    slots: Vec<Option<Slot>>,
    wanted: Vec<bool>,
}

impl Kept {
    /// The gradient of output `index`.
    pub(crate) fn slot(&mut self, index: usize) -> &mut Option<Slot> {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        &mut self.slots[index]
    }

    pub(crate) fn wants(&self, index: usize) -> bool {
        self.wanted.get(index).copied().unwrap_or(false)
    }
}

static NEXT_NODE: AtomicU64 = AtomicU64::new(1);

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

impl Node {
    pub(crate) fn new(
        op: &'static str,
        inputs: Vec<Option<Edge>>,
        outputs: Vec<Meta>,
        role: Role,
    ) -> Arc<Self> {
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
                    s.cleared = Some(Cleared::now(&s.grad));
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
        let cleared = Cleared::now(&grad);
        if filled {
            grad.storage().touch();
        }
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
        slot.cleared.map(|c| slot.grad.version() != c.version)
    }

    /// Notes that the optimizer has cleared its arena.
    pub(crate) fn note_cleared(&self) {
        if let Some(Some(s)) = lock(&self.kept).slots.first_mut()
            && s.cleared.is_some()
        {
            s.cleared = Some(Cleared::now(&s.grad));
        }
    }

    /// A leaf's gradient in an optimizer's arena.
    pub(crate) fn placed_grad(&self) -> Option<Tensor> {
        let kept = lock(&self.kept);
        let slot = kept.slots.first()?.as_ref()?;
        slot.cleared.map(|_| slot.grad.clone())
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
