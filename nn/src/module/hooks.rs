//! Forward hooks of layers: which layer runs, and what comes out.

use std::cell::RefCell;
use std::rc::Rc;

use crate::core::error::{NnError, Result};
use crate::core::hooks;
pub(crate) use crate::core::hooks::{OpObserver, join};
use crate::core::tensor::{Tensor, shapes};
use crate::module::layer::Layer;

/// Receives what happens in [`observe`]: operations, and the layers that make them.
pub(crate) trait Observer: OpObserver {
    /// A layer begins, before its parts.
    fn enter(&self, _path: &[String], _layer: &dyn Layer) {}
    /// A layer has results, after its parts.
    fn leave(&self, _path: &[String], _layer: &dyn Layer, _outputs: &[Tensor]) {}
}

thread_local! {
    static OBSERVERS: RefCell<Vec<Rc<dyn Observer>>> = const { RefCell::new(vec![]) };
}

/// Removes the last observer, also when a panic of a user's layer unwinds.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        OBSERVERS.with(|o| drop(o.borrow_mut().pop()));
    }
}

/// Runs `f` under an observer, beside those that watch already.
pub(crate) fn observe<T>(observer: Rc<dyn Observer>, f: impl FnOnce() -> T) -> T {
    OBSERVERS.with(|o| o.borrow_mut().push(observer.clone()));
    let _restore = Restore;
    hooks::observe(observer, f)
}

/// Calls the observers, which may themselves use tensors.
fn tell(f: impl Fn(&dyn Observer, &[String])) {
    let observers = OBSERVERS.with(|o| o.borrow().clone());
    hooks::pause(|path| observers.iter().for_each(|o| f(&**o, path)));
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
    let watched = hooks::watched();
    if watched {
        enter(name, layer);
    }
    let y = forward();
    if watched {
        leave(layer, y.as_ref().ok().map(T::tensors));
    }
    y.map_err(|e| failed(e, name, layer, inputs))
}

fn enter(name: &str, layer: &dyn Layer) {
    hooks::enter(name.to_string());
    tell(|o, path| o.enter(path, layer));
}

fn leave(layer: &dyn Layer, outputs: Option<Vec<Tensor>>) {
    if let Some(outputs) = outputs {
        tell(|o, path| o.leave(path, layer, &outputs));
    }
    hooks::leave();
}

fn failed(e: NnError, name: &str, layer: &dyn Layer, inputs: &[&Tensor]) -> NnError {
    e.within(name, layer.kind(), || shapes(inputs))
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
    let watched = hooks::watched();
    if watched {
        hooks::enter(name());
    }
    let y = step();
    if watched {
        hooks::leave();
    }
    y.map_err(|e| e.within(&name(), kind, || shapes(&[x])))
}
