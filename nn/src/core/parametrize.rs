//! Parameters that read as a function of themselves while a layer runs.
//!
//! A wrapper that reparametrises a layer (spectral normalization, say) stores the raw parameter and lets the layer read another tensor in its
//! place, on this thread and for as long as [`with`] runs. PyTorch's `torch.nn.utils.parametrize`.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, RwLock};

use crate::core::tensor::Tensor;

/// Where a parameter keeps its tensor.
pub(crate) type ParamCell = Arc<RwLock<Tensor>>;

thread_local! {
    // Most parameters are read without any substitute: one look at a flag.
    static ANY: Cell<bool> = const { Cell::new(false) };
    static LIST: RefCell<Vec<(ParamCell, Tensor)>> = const { RefCell::new(vec![]) };
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
pub(crate) fn with<T>(list: Vec<(ParamCell, Tensor)>, f: impl FnOnce() -> T) -> T {
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
pub(crate) fn of(p: &ParamCell) -> Option<Tensor> {
    if !ANY.with(Cell::get) {
        return None;
    }
    LIST.with(|l| l.borrow().iter().rev().find(|(q, _)| Arc::ptr_eq(q, p)).map(|(_, t)| t.clone()))
}
