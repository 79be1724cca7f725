//! The layer trait, parameters and state dictionaries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use trefoil::DType;

use crate::error::{NnError, Result, invalid};
use crate::glob::fits_within;
use crate::parametrize;
use crate::state_file::{LoadReport, Mismatch};
use crate::tensor::{Device, Tensor, same_handle};

/// A tensor that a layer owns. Clones refer to the same one, so that optimizers, tied layers and state dictionaries see each other's changes.
#[derive(Clone)]
pub struct Param {
    cell: Arc<RwLock<Tensor>>,
}

impl Param {
    /// A trainable parameter.
    pub fn new(t: Tensor) -> Self {
        Param { cell: Arc::new(RwLock::new(t.with_grad())) }
    }

    /// State without a gradient.
    pub fn buffer(t: Tensor) -> Self {
        Param { cell: Arc::new(RwLock::new(t.detach())) }
    }

    /// The tensor (a leaf of the graph, where trainable). While a wrapper such as
    /// [`SpectralNormalization`](crate::layers::SpectralNormalization) runs this parameter's layer: the tensor that stands for it there.
    pub fn get(&self) -> Tensor {
        if let Some(t) = parametrize::of(self) {
            return t;
        }
        self.cell.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Puts another tensor in place; it keeps whether it is trainable. Optimizers that hold the old one will report it.
    pub fn set(&self, t: Tensor) {
        let mut cell = self.cell.write().unwrap_or_else(|p| p.into_inner());
        *cell = if cell.requires_grad() { t.with_grad() } else { t.detach() };
    }

    /// Whether it collects gradients.
    pub fn requires_grad(&self) -> bool {
        self.cell.read().unwrap_or_else(|p| p.into_inner()).requires_grad()
    }

    /// Freezes (`false`) or unfreezes a parameter: frozen it gets no gradient and no update, and stays in the state dictionary. Optimizers
    /// that are built meanwhile leave it out. Integers stay as they are.
    pub fn set_requires_grad(&self, on: bool) {
        let mut cell = self.cell.write().unwrap_or_else(|p| p.into_inner());
        if cell.requires_grad() != on {
            *cell = if on { cell.with_grad() } else { cell.detach() };
        }
    }

    /// Whether both refer to the same tensor.
    pub fn same(&self, other: &Param) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

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
    fn shallow(sink: &'a mut dyn FnMut(&str, Entry<'_>), parts: &'a mut PartSink<'a>) -> Self {
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
    /// Output for an input; layers of several inputs take the others as absent or refuse. Errors name the layer and the argument that does not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// Outputs for a list of inputs, as graphs of layers call it. Only layers of several inputs or outputs implement it; others take one of each.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(vec![self.forward(x)?]),
            _ => Err(invalid(self.kind(), "inputs", "1 tensor", format!("{} tensors", inputs.len()))),
        }
    }

    /// Name of the layer's type, as it stands in configurations and error messages: `Dense`.
    fn kind(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.split('<').next().and_then(|p| p.rsplit("::").next()).unwrap_or("Layer")
    }

    /// Shows parameters, buffers, generator positions and parts under their PyTorch names, each name once.
    fn visit(&self, _v: &mut Visitor<'_>) {}

    /// Switches between training (the state after construction) and evaluation: the layer's own flags and, by their `set_training`, the
    /// parts that [`visit`](Layer::visit) shows. A layer that keeps one of them in a mode of its own does so here.
    fn set_training(&self, on: bool) {
        set_training_of(on, |v| self.visit(v));
    }

    /// Forgets what stateful layers carry from one call to the next: by default, what the parts that [`visit`](Layer::visit) shows carry.
    fn reset_state(&self) {
        self.visit(&mut Visitor::shallow(&mut |_, _| {}, &mut |_, part| part.reset_state()));
    }

    /// Why no gradient comes back through this layer itself (its parts speak for themselves), where that is so: an operation without
    /// backward, say. [`Model::supports_training`](crate::Model::supports_training) reports it.
    fn no_gradient(&self) -> Option<String> {
        None
    }
}

/// [`Layer::set_training`] of whatever `visit` shows.
pub(crate) fn set_training_of(on: bool, visit: impl FnOnce(&mut Visitor<'_>)) {
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
}

/// What a forward may change besides its results: positions of random number generators, and buffers such as running statistics. A
/// forward that is repeated, or made on trial, takes it before and puts it back after.
pub(crate) struct Snapshot {
    counters: Vec<u64>,
    buffers: Vec<(Param, Tensor)>,
}

impl Snapshot {
    /// Positions, and copies of the buffers on the device.
    pub(crate) fn take(layer: &dyn Layer) -> Result<Self> {
        let (mut counters, mut all) = (vec![], vec![]);
        layer.visit(&mut Visitor::new(&mut |_, e| match e {
            Entry::Counter(c) => counters.push(c.load(Ordering::Relaxed)),
            Entry::Buffer(p) => all.push(p.clone()),
            Entry::Param(_) | Entry::Training(_) => {}
        }));
        let copy = |p: Param| Ok((p.clone(), p.get().copy()?));
        Ok(Snapshot { counters, buffers: all.into_iter().map(copy).collect::<Result<_>>()? })
    }

    /// Puts everything back. Generators that did not exist then start at 0.
    pub(crate) fn restore(&self, layer: &dyn Layer) -> Result<()> {
        let mut counters = self.counters.iter();
        layer.visit(&mut Visitor::new(&mut |_, e| {
            if let Entry::Counter(c) = e {
                c.store(counters.next().copied().unwrap_or(0), Ordering::Relaxed);
            }
        }));
        self.buffers.iter().try_for_each(|(p, old)| p.get().assign(old))
    }
}

/// Named tensors of a model on the device, parameters and buffers.
pub type StateDict = BTreeMap<String, Tensor>;

/// What every layer can do, derived from [`Layer::visit`].
pub trait LayerExt: Layer {
    /// Parameters by name, in the order of the model, frozen ones too.
    fn named_parameters(&self) -> Vec<(String, Param)>;
    /// Parameters and buffers by name, in the order of the model.
    fn named_state(&self) -> Vec<(String, Param)>;
    /// Positions of the random number generators by name.
    fn counters(&self) -> BTreeMap<String, u64>;
    /// Sets positions of random number generators. Errors: [`NnError::StateNames`] for names that differ from the model's,
    /// [`NnError::DuplicateName`].
    fn set_counters(&self, values: &BTreeMap<String, u64>) -> Result<()>;
    /// Parameters in the order of the model, frozen ones too, shared ones once.
    fn parameters(&self) -> Vec<Param> {
        let mut out: Vec<Param> = vec![];
        for (_, p) in self.named_parameters() {
            if !out.iter().any(|q| q.same(&p)) {
                out.push(p);
            }
        }
        out
    }
    /// Number of scalars of the parameters, frozen ones too, shared ones once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|p| p.get().numel()).sum()
    }
    /// Parameters and buffers; the tensors share memory with the model. Errors: [`NnError::DuplicateName`].
    fn state_dict(&self) -> Result<StateDict> {
        Ok(self.unique_state()?.into_iter().map(|(n, p)| (n, p.get().detach())).collect())
    }
    /// [`named_state`](LayerExt::named_state), each name once. Errors: [`NnError::DuplicateName`], also for two generators of one name.
    fn unique_state(&self) -> Result<Vec<(String, Param)>>;
    /// Copies tensors into the model (from any device). Names, shapes and dtypes are checked before the first is written. Errors:
    /// [`NnError::StateNames`], [`NnError::StateShape`], [`NnError::DuplicateName`].
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        let own = self.unique_state()?;
        check_names(own.iter().map(|(n, _)| n), state.keys())?;
        for (name, p) in &own {
            check_fit(name, &p.get(), state[name].dtype(), state[name].shape())?;
        }
        for (name, p) in &own {
            let dst = p.get().detach();
            dst.assign(&state[name].detach().to_device(dst.device())?)?;
        }
        Ok(())
    }
    /// How a state dictionary differs from the model's: what [`load_matching`](LayerExt::load_matching) would load, names that are missing or
    /// unexpected, tensors of other shapes or dtypes. Nothing is changed.
    fn state_diff(&self, state: &StateDict) -> LoadReport {
        let mut report = LoadReport::default();
        let own = self.named_state();
        for (name, p) in &own {
            let t = p.get();
            match state.get(name) {
                None => report.missing.push(name.clone()),
                Some(s) if s.shape() == t.shape() && s.dtype() == t.dtype() => {
                    report.loaded.push(name.clone())
                }
                Some(s) => report.mismatched.push(Mismatch {
                    name: name.clone(),
                    expected: t.shape().to_vec(),
                    expected_dtype: t.dtype(),
                    found: s.shape().to_vec(),
                    found_dtype: Some(s.dtype()),
                }),
            }
        }
        report.unexpected = state.keys().filter(|&n| own.iter().all(|(m, _)| m != n)).cloned().collect();
        report
    }
    /// Copies the tensors that fit into the model (from any device) and tells what was left: PyTorch's `strict=False`, with shapes checked.
    /// Errors: [`NnError::DuplicateName`].
    fn load_matching(&self, state: &StateDict) -> Result<LoadReport> {
        let own = self.unique_state()?;
        let report = self.state_diff(state);
        for (name, p) in own {
            if let (Some(s), true) = (state.get(&name), report.loaded.contains(&name)) {
                let dst = p.get().detach();
                dst.assign(&s.detach().to_device(dst.device())?)?;
            }
        }
        Ok(report)
    }
    /// [Freezes](Param::set_requires_grad) the parameters that a pattern fits and returns how many they are. The pattern is the name of a
    /// parameter or layer, in which `*` stands for any characters and `?` for one: `encoder`, `*.bias`. Errors: a pattern that fits none.
    fn freeze(&self, pattern: &str) -> Result<usize> {
        set_requires_grad(self.named_parameters(), pattern, false)
    }
    /// Undoes [`freeze`](LayerExt::freeze).
    fn unfreeze(&self, pattern: &str) -> Result<usize> {
        set_requires_grad(self.named_parameters(), pattern, true)
    }
    /// Clears all gradients.
    fn zero_grad(&self) -> Result<()> {
        self.named_parameters().iter().try_for_each(|(_, p)| p.get().zero_grad())
    }
    /// Moves parameters with their gradients, and buffers, to another device; tensors that shared memory still do. An optimizer holds its
    /// parameters in memory of its own: move it first, with [`Optimizer::to_device`](crate::Optimizer::to_device), or build it afterwards.
    fn to_device(&self, device: &Device) -> Result<()> {
        let mut moved: Vec<(Tensor, Tensor)> = vec![];
        for (_, p) in self.named_state() {
            let old = p.get();
            if same_handle(old.device(), device) {
                continue;
            }
            let shared = moved.iter().find(|(o, _)| o.shares_storage(&old) && o.layout() == old.layout());
            let new = match shared {
                Some((_, n)) => n.clone(),
                None => old.detach().to_device(device)?,
            };
            p.set(new.clone());
            if let (Some(g), Some(edge)) = (old.grad(), p.get().edge()) {
                edge.node.put_grad(g.detach().to_device(device)?);
            }
            moved.push((old, new));
        }
        Ok(())
    }
    /// Training mode.
    fn train(&self) {
        self.set_training(true);
    }
    /// Evaluation mode.
    fn eval(&self) {
        self.set_training(false);
    }
}

impl<L: Layer + ?Sized> LayerExt for L {
    fn named_parameters(&self) -> Vec<(String, Param)> {
        let mut out = vec![];
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Param(p) = e {
                out.push((name.to_string(), p.clone()));
            }
        }));
        out
    }

    fn named_state(&self) -> Vec<(String, Param)> {
        let mut out = vec![];
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Param(p) | Entry::Buffer(p) = e {
                out.push((name.to_string(), p.clone()));
            }
        }));
        out
    }

    fn unique_state(&self) -> Result<Vec<(String, Param)>> {
        let (mut out, mut generators) = (vec![], vec![]);
        self.visit(&mut Visitor::new(&mut |name, e| match e {
            Entry::Param(p) | Entry::Buffer(p) => out.push((name.to_string(), p.clone())),
            Entry::Counter(_) => generators.push(name.to_string()),
            Entry::Training(_) => {}
        }));
        check_unique(out.iter().map(|(name, _)| name))?;
        check_unique(generators.iter())?;
        Ok(out)
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let mut out = BTreeMap::new();
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Counter(c) = e {
                out.insert(name.to_string(), c.load(Ordering::Relaxed));
            }
        }));
        out
    }

    fn set_counters(&self, values: &BTreeMap<String, u64>) -> Result<()> {
        self.unique_state()?;
        check_names(LayerExt::counters(self).keys(), values.keys())?;
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let (Entry::Counter(c), Some(&v)) = (e, values.get(name)) {
                c.store(v, Ordering::Relaxed);
            }
        }));
        Ok(())
    }
}

fn set_requires_grad(params: Vec<(String, Param)>, pattern: &str, on: bool) -> Result<usize> {
    let chosen: Vec<_> = params.into_iter().filter(|(name, _)| fits_within(pattern, name)).collect();
    if chosen.is_empty() {
        let expected = "a pattern that fits a parameter or a layer with parameters";
        return Err(invalid("freeze", "pattern", expected, format!("`{pattern}`")));
    }
    chosen.iter().for_each(|(_, p)| p.set_requires_grad(on));
    Ok(chosen.len())
}

/// Error if a name occurs twice.
pub(crate) fn check_unique<'a>(names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(NnError::DuplicateName { name: name.clone() });
        }
    }
    Ok(())
}

/// Error unless both lists hold the same names.
pub(crate) fn check_names<'a>(
    own: impl Iterator<Item = &'a String>,
    given: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let own: BTreeSet<&String> = own.collect();
    let given: BTreeSet<&String> = given.collect();
    if own == given {
        return Ok(());
    }
    Err(NnError::StateNames {
        missing: own.difference(&given).map(|s| s.to_string()).collect(),
        unexpected: given.difference(&own).map(|s| s.to_string()).collect(),
    })
}

/// Error unless a received tensor fits the model's.
pub(crate) fn check_fit(name: &str, own: &Tensor, dtype: DType, shape: &[usize]) -> Result<()> {
    if own.shape() == shape && own.dtype() == dtype {
        return Ok(());
    }
    Err(NnError::StateShape {
        name: name.to_string(),
        expected: own.shape().to_vec(),
        expected_dtype: own.dtype(),
        found: shape.to_vec(),
        found_dtype: dtype,
    })
}

/// What layer constructors need: device, dtype and a seed from which every parameter gets its own random sequence, in the order of
/// construction. Two models built alike from equal seeds have equal parameters on every backend.
#[derive(Debug, Clone)]
pub struct Build {
    device: Device,
    dtype: DType,
    seed: u64,
    next: Arc<AtomicU64>,
}

impl Build {
    /// f32 parameters on `device`.
    pub fn new(device: &Device, seed: u64) -> Self {
        Build { device: device.clone(), dtype: DType::F32, seed, next: Arc::default() }
    }

    /// Parameters of another dtype (floats).
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of parameters.
    pub fn param_dtype(&self) -> DType {
        self.dtype
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next unused stream of random numbers.
    pub fn next_stream(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
