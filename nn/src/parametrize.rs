//! Parameters that stand for a function of themselves while a layer runs.
//!
//! A wrapper that reparametrises a layer (spectral normalization, say) keeps the raw parameter as the stored one and lets the layer see
//! another tensor in its place: [`Param::get`] answers with the substitute on this thread for as long as [`with`] runs.

use std::cell::{Cell, RefCell};

use crate::layer::Param;
use crate::tensor::Tensor;

thread_local! {
    // Most parameters are read without any substitute: one look at a flag.
    static ANY: Cell<bool> = const { Cell::new(false) };
    static LIST: RefCell<Vec<(Param, Tensor)>> = const { RefCell::new(vec![]) };
}

/// Forgets what was added, also when a panic of a user's layer unwinds.
struct Restore(usize);

impl Drop for Restore {
    fn drop(&mut self) {
        LIST.with(|l| l.borrow_mut().truncate(self.0));
        ANY.with(|any| any.set(self.0 > 0));
    }
}

/// Runs `f` while each parameter of the list reads as the tensor beside it.
pub(crate) fn with<T>(list: Vec<(Param, Tensor)>, f: impl FnOnce() -> T) -> T {
    if list.is_empty() {
        return f();
    }
    let _restore = Restore(LIST.with(|l| {
        let mut l = l.borrow_mut();
        let before = l.len();
        l.extend(list);
        before
    }));
    ANY.with(|any| any.set(true));
    f()
}

/// What a parameter reads as, if something stands in its place. The innermost substitute counts.
pub(crate) fn of(p: &Param) -> Option<Tensor> {
    if !ANY.with(Cell::get) {
        return None;
    }
    LIST.with(|l| l.borrow().iter().rev().find(|(q, _)| q.same(p)).map(|(_, t)| t.clone()))
}
