//! Hooks of operations: which operations a forward pass makes, in which layer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::core::tensor::Tensor;

/// Receives the operations of [`observe`].
pub(crate) trait OpObserver {
    /// An operation has results.
    fn op(&self, _path: &[String], _op: &'static str, _inputs: &[&Tensor], _outputs: &[Tensor]) {}
}

thread_local! {
    // Most forwards are not watched: one look at a flag.
    static ON: Cell<bool> = const { Cell::new(false) };
    static OBSERVERS: RefCell<Vec<Rc<dyn OpObserver>>> = const { RefCell::new(vec![]) };
    static PATH: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// Puts the former state back, also when a panic of a user's layer unwinds: how many observers there were, and the path.
struct Restore(usize, Vec<String>);

impl Drop for Restore {
    fn drop(&mut self) {
        ON.with(|on| on.set(self.0 > 0));
        OBSERVERS.with(|o| o.borrow_mut().truncate(self.0));
        PATH.with(|p| *p.borrow_mut() = std::mem::take(&mut self.1));
    }
}

/// Runs `f` under an observer, beside those that watch already. The path of layers begins anew.
pub(crate) fn observe<T>(observer: Rc<dyn OpObserver>, f: impl FnOnce() -> T) -> T {
    let before = OBSERVERS.with(|o| {
        o.borrow_mut().push(observer);
        o.borrow().len() - 1
    });
    let _restore = Restore(before, PATH.with(|p| p.take()));
    ON.with(|on| on.set(true));
    f()
}

/// Whether an observer watches.
pub(crate) fn watched() -> bool {
    ON.with(Cell::get)
}

/// Adds a name to the path of the layers that run.
pub(crate) fn enter(name: String) {
    PATH.with(|p| p.borrow_mut().push(name));
}

/// Removes the last name of the path.
pub(crate) fn leave() {
    PATH.with(|p| drop(p.borrow_mut().pop()));
}

/// Calls `f` with the path, and with hooks off: an observer may itself use tensors.
pub(crate) fn pause(f: impl FnOnce(&[String])) {
    let path = PATH.with(|p| p.borrow().clone());
    ON.with(|on| on.set(false));
    f(&path);
    ON.with(|on| on.set(true));
}

/// Reports the results of an operation.
pub(crate) fn op(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
    if watched() {
        let observers = OBSERVERS.with(|o| o.borrow().clone());
        pause(|path| observers.iter().for_each(|o| o.op(path, op, inputs, outputs)));
    }
}

/// A path as it stands in names of parameters: `encoder.0`.
pub(crate) fn join(path: &[String]) -> String {
    path.iter().filter(|p| !p.is_empty()).cloned().collect::<Vec<_>>().join(".")
}
