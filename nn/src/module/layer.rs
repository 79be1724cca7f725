//! The layer trait, and visitors of a layer's state.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::param::Param;

/// Something that [`Layer::visit`] shows.
#[derive(Debug)]
#[non_exhaustive]
pub enum Entry<'a> {
    /// A trainable parameter.
    Param(&'a Param),
    /// State that is saved but not trained (running statistics, say).
    Buffer(&'a Param),
    /// Position of a random number generator.
    Counter(&'a AtomicU64),
    /// Whether the layer trains (or evaluates); not saved.
    Training(&'a AtomicBool),
}

/// Sees the parts of a layer with full names.
type PartSink<'a> = dyn FnMut(&str, &dyn Layer) + 'a;

/// Receives a layer's state with full names (`encoder.0.weight`).
pub struct Visitor<'a> {
    prefix: String,
    sink: &'a mut dyn FnMut(&str, Entry<'_>),
    parts: Option<&'a mut PartSink<'a>>,
    /// Whether parts show their own state too.
    deep: bool,
}

impl fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Visitor({:?})", self.prefix)
    }
}

impl<'a> Visitor<'a> {
    /// A visitor of a whole model.
    pub fn new(sink: &'a mut dyn FnMut(&str, Entry<'_>)) -> Self {
        Visitor { prefix: String::new(), sink, parts: None, deep: true }
    }

    /// A visitor that also sees the parts of the layer, each by its name before its state.
    pub(crate) fn with_parts(sink: &'a mut dyn FnMut(&str, Entry<'_>), parts: &'a mut PartSink<'a>) -> Self {
        Visitor { prefix: String::new(), sink, parts: Some(parts), deep: true }
    }

    /// A visitor of a layer's own state and its direct parts, not of what those show.
    pub(crate) fn shallow(sink: &'a mut dyn FnMut(&str, Entry<'_>), parts: &'a mut PartSink<'a>) -> Self {
        Visitor { prefix: String::new(), sink, parts: Some(parts), deep: false }
    }

    fn show(&mut self, name: &str, e: Entry<'_>) {
        (self.sink)(&format!("{}{name}", self.prefix), e);
    }

    /// Shows a trainable parameter.
    pub fn param(&mut self, name: &str, p: &Param) {
        self.show(name, Entry::Param(p));
    }

    /// Shows a buffer.
    pub fn buffer(&mut self, name: &str, p: &Param) {
        self.show(name, Entry::Buffer(p));
    }

    /// Shows the position of a random number generator.
    pub fn counter(&mut self, name: &str, c: &AtomicU64) {
        self.show(name, Entry::Counter(c));
    }

    /// Shows the flag that [`Layer::set_training`] switches.
    pub fn training(&mut self, on: &AtomicBool) {
        self.show("training", Entry::Training(on));
    }

    /// Shows what a part shows as the layer's own, without a name of the part in front: wrappers that add no state of their own.
    pub fn flattened(&mut self, part: &dyn Layer) {
        self.renamed(part, str::to_string);
    }

    /// Shows what a part shows, under other names.
    pub(crate) fn renamed(&mut self, layer: &dyn Layer, rename: impl Fn(&str) -> String) {
        if let (Some(parts), false) = (&mut self.parts, self.deep) {
            return parts(&self.prefix, layer);
        }
        let (prefix, sink) = (&self.prefix, &mut *self.sink);
        let mut show = |name: &str, e: Entry<'_>| sink(&format!("{prefix}{}", rename(name)), e);
        match &mut self.parts {
            None => layer.visit(&mut Visitor::new(&mut show)),
            Some(parts) => {
                let mut part = |name: &str, l: &dyn Layer| parts(&format!("{prefix}{}", rename(name)), l);
                layer.visit(&mut Visitor::with_parts(&mut show, &mut part));
            }
        }
    }

    /// Shows a part of the layer under `name.`.
    pub fn child(&mut self, name: &str, layer: &dyn Layer) {
        let before = self.prefix.len();
        self.prefix.push_str(name);
        if let Some(parts) = &mut self.parts {
            parts(&self.prefix, layer);
        }
        if self.deep {
            self.prefix.push('.');
            layer.visit(self);
        }
        self.prefix.truncate(before);
    }
}

/// A function of tensors with parameters. Layers are shared by reference: forward and mode changes take `&self`.
pub trait Layer: Send + Sync + fmt::Debug {
    /// Output for an input; layers of several inputs take the others as absent or refuse. Errors name the layer and the argument that does
    /// not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// Outputs for a list of inputs, as graphs of layers call it. Only layers of several inputs or outputs implement it; others take one of
    /// each.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => self.forward(x).map(alone),
            _ => Err(not_alone(self.kind(), inputs)),
        }
    }

    /// Name of the layer's type, as it stands in configurations and error messages: `Dense`.
    fn kind(&self) -> &'static str {
        last_name(std::any::type_name::<Self>())
    }

    /// Shows parameters, buffers, generator positions and parts under their PyTorch names, each name once.
    fn visit(&self, _v: &mut Visitor<'_>) {}

    /// Switches between training (the state after construction) and evaluation: the layer's own flags and, by their `set_training`, the
    /// parts that [`visit`](Layer::visit) shows. A layer that keeps one of them in a mode of its own does so here.
    fn set_training(&self, on: bool) {
        set_training_of(on, &|v| self.visit(v));
    }

    /// Forgets what stateful layers carry from one call to the next: by default, what the parts that [`visit`](Layer::visit) shows carry.
    fn reset_state(&self) {
        reset_state_of(&|v| self.visit(v));
    }

    /// Why no gradient comes back through this layer itself (its parts speak for themselves), where that is so: an operation without
    /// backward, say. [`Model::supports_training`](crate::Model::supports_training) reports it.
    fn no_gradient(&self) -> Option<String> {
        None
    }

    /// The layer's own learning rule, where it has one (Hebbian learning, contrastive divergence, ...). What it changes are buffers, which
    /// optimizers do not see.
    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        None
    }
}

/// A learning rule that needs no gradient of a loss, only what the layer itself saw.
pub trait LocalLearning {
    /// One step of learning from the layer's last forward pass in training mode; nothing where there was none since the last step.
    /// [`Trainer`](crate::Trainer) calls it once per batch, after the backward pass; hand-written loops call
    /// [`LayerExt::learn`](crate::LayerExt::learn).
    fn learn(&self) -> Result<()>;
}

/// Whether a layer or one of its parts has a learning rule.
pub(crate) fn has_learning_rule(layer: &dyn Layer) -> bool {
    let mut found = layer.local_learning().is_some();
    layer.visit(&mut Visitor::with_parts(&mut |_, _| {}, &mut |_, part| {
        found |= part.local_learning().is_some()
    }));
    found
}

/// Calls `f` for every learning rule of a layer and its parts.
pub(crate) fn learning_rules(
    layer: &(impl Layer + ?Sized),
    f: &mut dyn FnMut(&dyn LocalLearning) -> Result<()>,
) -> Result<()> {
    if let Some(rule) = layer.local_learning() {
        f(rule)?;
    }
    let mut result = Ok(());
    layer.visit(&mut Visitor::shallow(&mut |_, _| {}, &mut |_, part| {
        if result.is_ok() {
            result = learning_rules(part, f);
        }
    }));
    result
}

/// The name of a type without its path and its parameters.
fn last_name(path: &'static str) -> &'static str {
    path.split('<').next().and_then(|p| p.rsplit("::").next()).unwrap_or("Layer")
}

/// The only output of a layer. Apart from the trait, as what follows: default methods are compiled for every layer.
fn alone(y: Tensor) -> Vec<Tensor> {
    vec![y]
}

#[cold]
fn not_alone(kind: &'static str, inputs: &[Tensor]) -> NnError {
    invalid(kind, "inputs", "1 tensor", format!("{} tensors", inputs.len()))
}

/// [`Layer::reset_state`] of whatever `visit` shows.
fn reset_state_of(visit: &dyn Fn(&mut Visitor<'_>)) {
    visit(&mut Visitor::shallow(&mut |_, _| {}, &mut |_, part| part.reset_state()));
}

/// [`Layer::set_training`] of whatever `visit` shows.
pub(crate) fn set_training_of(on: bool, visit: &dyn Fn(&mut Visitor<'_>)) {
    let mut own = |_: &str, e: Entry<'_>| {
        if let Entry::Training(flag) = e {
            flag.store(on, Ordering::Relaxed);
        }
    };
    visit(&mut Visitor::shallow(&mut own, &mut |_, part| part.set_training(on)));
}

impl<T: Layer + ?Sized> Layer for Arc<T> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        (**self).forward_all(inputs)
    }
    fn kind(&self) -> &'static str {
        (**self).kind()
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        (**self).visit(v);
    }
    fn set_training(&self, on: bool) {
        (**self).set_training(on);
    }
    fn reset_state(&self) {
        (**self).reset_state();
    }
    fn no_gradient(&self) -> Option<String> {
        (**self).no_gradient()
    }
    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        (**self).local_learning()
    }
}

impl<T: Layer + ?Sized> Layer for Box<T> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        (**self).forward_all(inputs)
    }
    fn kind(&self) -> &'static str {
        (**self).kind()
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        (**self).visit(v);
    }
    fn set_training(&self, on: bool) {
        (**self).set_training(on);
    }
    fn reset_state(&self) {
        (**self).reset_state();
    }
    fn no_gradient(&self) -> Option<String> {
        (**self).no_gradient()
    }
    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        (**self).local_learning()
    }
}
