//! What the calling thread does in a step, by layer and operation, with the times of the host: for profiles.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Instant;

/// Part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// Outputs and loss.
    Forward,
    /// Gradients.
    Backward,
    /// Clearing of the gradients, clipping, update.
    Optimizer,
}

/// Something that the thread did.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// The layer.
    pub(crate) layer: String,
    /// The operation on tensors.
    pub(crate) op: &'static str,
    pub(crate) pass: Pass,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    /// Its arithmetic; 0 where it is not known.
    pub(crate) flops: u64,
}

struct Timeline {
    work: Vec<Work>,
    /// When the last work ended.
    mark: Instant,
    /// Layers of operations that can be differentiated, by their nodes.
    layers: HashMap<u64, String>,
    /// Operations that something else is made of are part of it.
    within: bool,
}

thread_local! {
    // Most steps are not profiled: one look at a flag.
    static ON: Cell<bool> = const { Cell::new(false) };
    static TIMELINE: RefCell<Option<Timeline>> = const { RefCell::new(None) };
}

/// The timeline ends with this.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        ON.set(false);
        TIMELINE.set(None);
    }
}

/// Runs `f`, and gives what it did.
pub(crate) fn record<T>(f: impl FnOnce() -> T) -> (T, Vec<Work>) {
    let start = Timeline { work: vec![], mark: Instant::now(), layers: HashMap::new(), within: false };
    TIMELINE.set(Some(start));
    ON.set(true);
    let ends = Ends;
    let result = f();
    let work = TIMELINE.take().map(|t| t.work).unwrap_or_default();
    drop(ends);
    (result, work)
}

fn with<T>(f: impl FnOnce(&mut Timeline) -> T) -> Option<T> {
    if !ON.get() {
        return None;
    }
    TIMELINE.with_borrow_mut(|t| t.as_mut().map(f))
}

/// An operation of a forward has its results.
pub(crate) fn forward(layer: String, op: &'static str, flops: u64) {
    with(|t| {
        let to = Instant::now();
        let from = std::mem::replace(&mut t.mark, to);
        if !t.within {
            t.work.push(Work { layer, op, pass: Pass::Forward, from, to, flops });
        }
    });
}

/// The last operation can be differentiated, at this node.
pub(crate) fn made(node: u64) {
    with(|t| {
        if let Some(w) = t.work.last() {
            t.layers.insert(node, w.layer.clone());
        }
    });
}

/// Work of which the operations are part.
fn whole<T>(
    layer: impl FnOnce(&Timeline) -> String,
    op: &'static str,
    pass: Pass,
    f: impl FnOnce() -> T,
) -> T {
    let outer = with(|t| (std::mem::replace(&mut t.within, true), layer(t), Instant::now()));
    let result = f();
    if let Some((within, layer, from)) = outer {
        with(|t| {
            let to = Instant::now();
            (t.within, t.mark) = (within, to);
            if !within {
                t.work.push(Work { layer, op, pass, from, to, flops: 0 });
            }
        });
    }
    result
}

/// The backward of an operation, by its node.
pub(crate) fn backward<T>(node: u64, op: &'static str, f: impl FnOnce() -> T) -> T {
    whole(|t| t.layers.get(&node).cloned().unwrap_or_default(), op, Pass::Backward, f)
}

/// A part of a step that belongs to no layer.
pub(crate) fn optimizer<T>(op: &'static str, f: impl FnOnce() -> T) -> T {
    whole(|_| String::new(), op, Pass::Optimizer, f)
}
