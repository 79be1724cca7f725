//! Watching a forward pass: which layer runs, which operations it makes, what comes out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::Result;
use crate::layer::Layer;
use crate::tensor::Tensor;

/// Receives what happens in [`observe`].
pub(crate) trait Observer {
    /// An operation has results.
    fn op(&self, _path: &[String], _op: &'static str, _inputs: &[&Tensor], _outputs: &[Tensor]) {}
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

/// Two observers of one forward.
struct Both(Rc<dyn Observer>, Rc<dyn Observer>);

impl Observer for Both {
    fn op(&self, path: &[String], op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
        self.0.op(path, op, inputs, outputs);
        self.1.op(path, op, inputs, outputs);
    }
    fn enter(&self, path: &[String], layer: &dyn Layer) {
        self.0.enter(path, layer);
        self.1.enter(path, layer);
    }
    fn leave(&self, path: &[String], layer: &dyn Layer, outputs: &[Tensor]) {
        self.0.leave(path, layer, outputs);
        self.1.leave(path, layer, outputs);
    }
}

/// Runs `f` under an observer, beside those that watch already.
pub(crate) fn observe<T>(observer: Rc<dyn Observer>, f: impl FnOnce() -> T) -> T {
    let before = OBSERVER.with(|o| o.borrow().clone());
    let now = match &before {
        Some(outer) => Rc::new(Both(outer.clone(), observer)),
        None => observer,
    };
    OBSERVER.with(|o| *o.borrow_mut() = Some(now));
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
pub(crate) fn op(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
    if ON.with(Cell::get) {
        tell(|o, path| o.op(path, op, inputs, outputs));
    }
}

/// What a layer gives, as observers see it.
pub(crate) trait Outputs {
    /// The tensors in order.
    fn tensors(&self) -> Vec<Tensor>;
}

impl Outputs for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }
}

impl Outputs for Vec<Tensor> {
    fn tensors(&self) -> Vec<Tensor> {
        self.clone()
    }
}

impl Outputs for (Tensor, Tensor) {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0.clone(), self.1.clone()]
    }
}

/// A part's forward, in whatever way the whole calls it, under the name by which the whole shows it to visitors. Layers of parts run them
/// through this or one of the functions below, so that summaries, reports of anomalies and errors can name them. An empty name is that of
/// the whole.
pub(crate) fn call<T: Outputs>(
    name: &str,
    layer: &dyn Layer,
    inputs: &[&Tensor],
    forward: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let watched = ON.with(Cell::get);
    if watched {
        PATH.with(|p| p.borrow_mut().push(name.to_string()));
        tell(|o, path| o.enter(path, layer));
    }
    let y = forward();
    if watched {
        if let Ok(y) = &y {
            tell(|o, path| o.leave(path, layer, &y.tensors()));
        }
        PATH.with(|p| p.borrow_mut().pop());
    }
    y.map_err(|e| e.within(name, layer.kind(), inputs))
}

/// A part's [`Layer::forward`].
pub(crate) fn layer(name: &str, layer: &dyn Layer, x: &Tensor) -> Result<Tensor> {
    call(name, layer, &[x], || layer.forward(x))
}

/// A part's [`Layer::forward_all`].
pub(crate) fn layers(name: &str, layer: &dyn Layer, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let forward = || layer.forward_all(x);
    match x {
        [one] => call(name, layer, &[one], forward),
        // Few layers have several inputs, so that the list of references does not matter.
        all => call(name, layer, &all.iter().collect::<Vec<_>>(), forward),
    }
}

/// Runs a step of a layer that is no layer of its own; operations and errors in it are named by it.
pub(crate) fn scope<T>(
    name: impl Fn() -> String,
    kind: &'static str,
    x: &Tensor,
    step: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let watched = ON.with(Cell::get);
    if watched {
        PATH.with(|p| p.borrow_mut().push(name()));
    }
    let y = step();
    if watched {
        PATH.with(|p| p.borrow_mut().pop());
    }
    y.map_err(|e| e.within(&name(), kind, &[x]))
}

/// A path as it stands in names of parameters: `encoder.0`.
pub(crate) fn join(path: &[String]) -> String {
    path.iter().filter(|p| !p.is_empty()).cloned().collect::<Vec<_>>().join(".")
}
