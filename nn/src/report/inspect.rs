//! Looking at activations and gradients by the names of their layers.
//!
//! ```
//! use trefoil::{Registry, Selector, ops::activation::Activation};
//! use trefoil_nn::inspect::{self, Inspector, Quantity};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::{InitContext, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = InitContext::new(&device, 1);
//! let model = Sequential::new()
//!     .named("hidden", Dense::new(&cx, 2, 8)?.activation(Activation::Relu))
//!     .named("head", Dense::new(&cx, 8, 1)?);
//! let inspector = Inspector::new();
//! let x = Tensor::from_slice(&device, &[1f32, -2.0], &[1, 2])?;
//! inspector.forward(&model, &x)?.sum()?.backward()?;
//!
//! let seen = inspector.read()?;
//! println!("{}", inspect::Table(&seen));
//! let dead = seen.iter().find(|i| i.name == "hidden" && i.quantity == Quantity::Activation);
//! assert!(dead.is_some_and(|i| i.stats.zeros < 1.0));
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::DType;

use crate::core::autograd::no_grad;
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_handle};
use crate::module::hooks::{self, Observer, OpObserver};
use crate::module::{Layer, LayerExt};

/// What an [`Inspection`] looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Quantity {
    /// A layer's output.
    Activation,
    /// The gradient that reached a layer's output.
    ActivationGradient,
    /// A parameter.
    Parameter,
    /// A parameter's gradient.
    ParameterGradient,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Quantity::Activation => "activation",
            Quantity::ActivationGradient => "gradient of activation",
            Quantity::Parameter => "parameter",
            Quantity::ParameterGradient => "gradient of parameter",
        })
    }
}

/// Statistics of a tensor, found on the device in its accumulator's dtype. Mean, deviation, least and largest value are NaN where a NaN takes
/// part, and for a tensor without elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Mean.
    pub mean: f64,
    /// Standard deviation, of the whole population.
    pub std: f64,
    /// Least value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Share of zeros, 0 to 1.
    pub zeros: f64,
    /// Share of NaN, 0 to 1.
    pub nan: f64,
    /// Share of infinities, 0 to 1.
    pub infinite: f64,
}

/// Numbers of a [`Stats`].
const FIELDS: usize = 7;

impl Stats {
    /// Statistics of one tensor. Waits for the device.
    pub fn of(t: &Tensor) -> Result<Stats> {
        Ok(measure(std::slice::from_ref(t))?[0])
    }

    fn from_slice(v: &[f64]) -> Stats {
        let at = |i: usize| v.get(i).copied().unwrap_or(f64::NAN);
        Stats { mean: at(0), std: at(1), min: at(2), max: at(3), zeros: at(4), nan: at(5), infinite: at(6) }
    }
}

/// Statistics on the device, a vector of [`FIELDS`]; `None` without elements.
fn reduce(t: &Tensor) -> Result<Option<Tensor>> {
    if t.numel() == 0 {
        return Ok(None);
    }
    let dtype = if t.dtype().is_float() { t.dtype().accumulator() } else { DType::F32 };
    let x = t.detach().contiguous()?.reshape(&[t.numel()])?.to_dtype(dtype)?;
    let share = |mask: Tensor| mask.to_dtype(dtype)?.mean();
    let (mean, var) = x.mean_var(&[0], 0.0, false)?;
    let (lo, hi) = x.min_max(&[0], false)?;
    let (zeros, nan, infinite) = (share(x.eq_scalar(0.0)?)?, share(x.is_nan()?)?, share(x.is_inf()?)?);
    Ok(Some(Tensor::stack(0, &[&mean, &var.sqrt()?, &lo, &hi, &zeros, &nan, &infinite])?))
}

/// Statistics of several tensors, with one transfer for each device and dtype.
fn measure(tensors: &[Tensor]) -> Result<Vec<Stats>> {
    no_grad(|| {
        let mut out = vec![Stats::from_slice(&[]); tensors.len()];
        let mut groups: Vec<(Vec<usize>, Vec<Tensor>)> = vec![];
        for (i, t) in tensors.iter().enumerate() {
            let Some(s) = reduce(t)? else { continue };
            let alike = |g: &Tensor| g.dtype() == s.dtype() && same_handle(g.device(), s.device());
            match groups.iter_mut().find(|(_, g)| alike(&g[0])) {
                Some((at, g)) => {
                    at.push(i);
                    g.push(s);
                }
                None => groups.push((vec![i], vec![s])),
            }
        }
        for (at, g) in groups {
            let all = Tensor::concat(0, &g.iter().collect::<Vec<_>>())?;
            let host: Vec<f64> = match all.dtype() {
                DType::F64 => all.to_vec::<f64>()?,
                _ => all.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
            };
            for (i, v) in at.into_iter().zip(host.chunks_exact(FIELDS)) {
                out[i] = Stats::from_slice(v);
            }
        }
        Ok(out)
    })
}

/// One tensor that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// Name of the layer, empty for the model itself; of a parameter, its name in the state dictionary.
    pub name: String,
    /// Type of the layer; empty for parameters.
    pub kind: String,
    /// What it is.
    pub quantity: Quantity,
    /// Which output of the layer.
    pub output: usize,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its statistics.
    pub stats: Stats,
}

/// Inspections as a table.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a>(pub &'a [Inspection]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = |i: &Inspection| match (i.name.as_str(), i.kind.as_str()) {
            ("", kind) => kind.to_string(),
            (name, "") => name.to_string(),
            (name, kind) => format!("{name} ({kind})"),
        };
        let width = self.0.iter().map(|i| label(i).chars().count()).max().unwrap_or(0).max(5);
        write!(f, "{:width$}  {:22}", "Layer", "Quantity")?;
        for column in ["Mean", "Std", "Min", "Max", "Zeros", "NaN", "Inf"] {
            write!(f, "  {column:>10}")?;
        }
        for i in self.0 {
            let s = &i.stats;
            write!(f, "\n{:width$}  {:22}", label(i), i.quantity)?;
            for x in [s.mean, s.std, s.min, s.max] {
                write!(f, "  {x:>10.3e}")?;
            }
            for x in [s.zeros, s.nan, s.infinite] {
                write!(f, "  {:>9.2}%", 100.0 * x)?;
            }
        }
        Ok(())
    }
}

/// An output of a layer.
#[derive(Debug)]
struct Seen {
    name: String,
    kind: &'static str,
    output: usize,
    tensor: Tensor,
}

type Filter = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Watches the layers of forward passes and reports statistics of their outputs and of the gradients that reached them. Watching keeps the
/// outputs on the device and computes nothing; only [`read`](Inspector::read) reduces and transfers them. Clones share what they saw.
///
/// Of a layer that runs several times the last outputs stay. Parts of a [`Checkpointed`](crate::layers::Checkpointed) layer show activations
/// but no gradients.
#[derive(Clone, Default)]
pub struct Inspector {
    seen: Arc<Mutex<Vec<Seen>>>,
    filter: Option<Filter>,
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inspector of {} outputs", self.seen().len())
    }
}

impl Inspector {
    /// Watches all layers.
    pub fn new() -> Self {
        Inspector::default()
    }

    /// Watches only layers whose names pass. The model itself has the empty name.
    pub fn only(mut self, filter: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// A forward pass under watch, the model's own output included. What was seen before is forgotten.
    pub fn forward(&self, model: &dyn Layer, x: &Tensor) -> Result<Tensor> {
        self.watch(|| hooks::layer("", model, x))
    }

    /// Runs anything under watch: the parts of models that run in it are seen (what the trainer does, say). What was seen before is forgotten.
    pub fn watch<T>(&self, f: impl FnOnce() -> T) -> T {
        self.clear();
        hooks::observe(Rc::new(self.clone()), f)
    }

    /// Forgets what was seen, and frees it.
    pub fn clear(&self) {
        self.seen().clear();
    }

    /// Statistics of the outputs, in the order in which the layers finished, each followed by its gradient where a backward has reached it.
    /// Waits for the device, which transfers a few numbers for each.
    pub fn read(&self) -> Result<Vec<Inspection>> {
        let (mut rows, mut tensors) = (vec![], vec![]);
        for s in self.seen().iter() {
            let both = [
                (Quantity::Activation, Some(s.tensor.clone())),
                (Quantity::ActivationGradient, s.tensor.grad()),
            ];
            for (quantity, t) in both {
                let Some(t) = t else { continue };
                rows.push((s.name.clone(), s.kind.to_string(), quantity, s.output));
                tensors.push(t);
            }
        }
        inspections(rows, &tensors)
    }
}

fn inspections(rows: Vec<(String, String, Quantity, usize)>, tensors: &[Tensor]) -> Result<Vec<Inspection>> {
    let stats = measure(tensors)?;
    let all = rows.into_iter().zip(tensors).zip(stats);
    Ok(all
        .map(|(((name, kind, quantity, output), t), stats)| Inspection {
            name,
            kind,
            quantity,
            output,
            shape: t.shape().to_vec(),
            stats,
        })
        .collect())
}

/// Statistics of a model's parameters by name, each followed by its gradient where it has one. Waits for the device.
pub fn parameters(model: &dyn Layer) -> Result<Vec<Inspection>> {
    let (mut rows, mut tensors) = (vec![], vec![]);
    for (name, p) in model.named_parameters() {
        let t = p.get();
        for (quantity, t) in
            [(Quantity::Parameter, Some(t.detach())), (Quantity::ParameterGradient, t.grad())]
        {
            let Some(t) = t else { continue };
            rows.push((name.clone(), String::new(), quantity, 0));
            tensors.push(t);
        }
    }
    inspections(rows, &tensors)
}

impl OpObserver for Inspector {}

impl Observer for Inspector {
    fn leave(&self, path: &[String], layer: &dyn Layer, outputs: &[Tensor]) {
        let name = path.iter().filter(|p| !p.is_empty()).cloned().collect::<Vec<_>>().join(".");
        if self.filter.as_ref().is_some_and(|f| !f(&name)) {
            return;
        }
        let mut seen = self.seen();
        seen.retain(|s| s.name != name);
        for (output, t) in outputs.iter().enumerate() {
            // Fails for outputs without gradients alone.
            let _ = t.retain_grad();
            seen.push(Seen { name: name.clone(), kind: layer.kind(), output, tensor: t.clone() });
        }
    }
}
