//! Watching a forward pass: which layer runs, which operations it makes, what comes out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::Result;
use crate::layer::Layer;
use crate::tensor::Tensor;

/// Receives what happens in [`observe`].
pub(crate) trait Observer {
    /// An operation has results.
    fn op(&self, _path: &[String], _op: &'static str, _outputs: &[Tensor]) {}
    /// A layer begins, before its parts.
    fn enter(&self, _path: &[String], _layer: &dyn Layer) {}
    /// A layer has results, after its parts.
    fn leave(&self, _path: &[String], _layer: &dyn Layer, _outputs: &[Tensor]) {}
}

thread_local! {
    // Most forwards are not watched: one look at a flag.
    static ON: Cell<bool> = const { Cell::new(false) };
    static OBSERVER: RefCell<Option<Rc<dyn Observer>>> = const { RefCell::new(None) };
    static PATH: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// Puts the former state back, also when a panic of a user's layer unwinds.
struct Restore(Option<Rc<dyn Observer>>, Vec<String>);

impl Drop for Restore {
    fn drop(&mut self) {
        ON.with(|on| on.set(self.0.is_some()));
        OBSERVER.with(|o| *o.borrow_mut() = self.0.take());
        PATH.with(|p| *p.borrow_mut() = std::mem::take(&mut self.1));
    }
}

/// Runs `f` under an observer.
pub(crate) fn observe<T>(observer: Rc<dyn Observer>, f: impl FnOnce() -> T) -> T {
    let before = OBSERVER.with(|o| o.replace(Some(observer)));
    let _restore = Restore(before, PATH.with(|p| p.take()));
    ON.with(|on| on.set(true));
    f()
}

/// Calls the observer, which may itself use tensors.
fn tell(f: impl FnOnce(&dyn Observer, &[String])) {
    let Some(o) = OBSERVER.with(|o| o.borrow().clone()) else { return };
    let path = PATH.with(|p| p.borrow().clone());
    ON.with(|on| on.set(false));
    f(&*o, &path);
    ON.with(|on| on.set(true));
}

/// Reports the results of an operation.
pub(crate) fn op(op: &'static str, outputs: &[Tensor]) {
    if ON.with(Cell::get) {
        tell(|o, path| o.op(path, op, outputs));
    }
}

/// A part's forward under the name by which the layer shows it to visitors. Layers of parts call this, so that summaries and reports of
/// anomalies can name them.
pub(crate) fn layer(name: &str, layer: &dyn Layer, x: &Tensor) -> Result<Tensor> {
    if !ON.with(Cell::get) {
        return layer.forward(x);
    }
    within(name, layer, || layer.forward(x), |y| std::slice::from_ref(y))
}

/// The same for several inputs.
pub(crate) fn layers(name: &str, layer: &dyn Layer, x: &[Tensor]) -> Result<Vec<Tensor>> {
    if !ON.with(Cell::get) {
        return layer.forward_all(x);
    }
    within(name, layer, || layer.forward_all(x), |y| y)
}

fn within<T>(
    name: &str,
    layer: &dyn Layer,
    forward: impl FnOnce() -> Result<T>,
    outputs: impl FnOnce(&T) -> &[Tensor],
) -> Result<T> {
    PATH.with(|p| p.borrow_mut().push(name.to_string()));
    tell(|o, path| o.enter(path, layer));
    let y = forward();
    if let Ok(y) = &y {
        tell(|o, path| o.leave(path, layer, outputs(y)));
    }
    PATH.with(|p| p.borrow_mut().pop());
    y
}
