//! Comparing two copies of a model, layer by layer: outputs and all gradients as they are, without anything behind them that could hide
//! a difference.
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::compare::{Gate, Table, compare_models};
//! use trefoil_nn::{InitContext, DType, Result, Tensor};
//!
//! let cpu = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let model = |dtype| -> Result<Sequential> {
//!     let cx = InitContext::new(&cpu, 7).dtype(dtype);
//!     Ok(Sequential::new().push(Dense::new(&cx, 3, 8)?).push(Dense::new(&cx, 8, 2)?))
//! };
//! let x = Tensor::from_slice(&cpu, &[0.5f32, -1., 2.], &[1, 3])?;
//! let errors = compare_models(&model(DType::F64)?, &model(DType::F32)?, &[x])?;
//! println!("{}", Table(&errors));
//! assert!(errors.iter().all(|e| e.passes(&Gate::default())));
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use trefoil::{DType, bf16_from_f64, f16_from_f64};

use crate::core::autograd;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::module::hooks::{self, Observer, OpObserver};
use crate::module::{Layer, LayerExt, Param, Snapshot, check_names};

/// What a [`LayerError`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Quantity {
    /// What the layer's forward gave.
    Output,
    /// A buffer after the forward (running statistics, say).
    Buffer,
    /// The gradient that reached an output of the layer.
    OutputGradient,
    /// The gradient of a parameter that is the layer's own.
    ParameterGradient,
    /// The gradient of an input of the model.
    InputGradient,
}

impl Quantity {
    /// Whether it is made by the backward pass.
    pub fn is_gradient(self) -> bool {
        !matches!(self, Quantity::Output | Quantity::Buffer)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Quantity::Output => "output",
            Quantity::Buffer => "buffer",
            Quantity::OutputGradient => "gradient of output",
            Quantity::ParameterGradient => "gradient of parameter",
            Quantity::InputGradient => "gradient of input",
        })
    }
}

/// Levels of agreement by the largest absolute difference, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agreement {
    /// Every element equal.
    Exact,
    /// Below 1e-7.
    Excellent,
    /// Below 1e-5.
    Industry,
    /// Below 1e-3.
    Drift,
    /// 1e-3 or more.
    Fail,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Agreement::Exact => "exact",
            Agreement::Excellent => "excellent",
            Agreement::Industry => "industry",
            Agreement::Drift => "drift",
            Agreement::Fail => "fail",
        })
    }
}

/// Largest allowed [`LayerError::max_rel`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// Of outputs and buffers, 1e-5 by default.
    pub forward: f64,
    /// Of gradients, 1e-4 by default.
    pub gradient: f64,
}

impl Default for Gate {
    /// For f32.
    fn default() -> Self {
        Gate { forward: 1e-5, gradient: 1e-4 }
    }
}

/// How far one tensor of a layer is from the other model's.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerError {
    /// Name of the layer as in the state dictionary; empty for the model itself. A layer that runs again has `#2`, `#3`, ... behind it.
    pub layer: String,
    /// Its type.
    pub kind: String,
    /// What is compared.
    pub quantity: Quantity,
    /// Which one of several: the position of an output or input, the name of a parameter or buffer within the layer.
    pub name: String,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Largest |a - b|; infinite where only one of them is NaN or an infinity.
    pub max_abs: f64,
    /// `max_abs` over the largest |a|: errors of small elements count as what they are beside the large ones.
    pub max_rel: f64,
    /// Largest distance in numbers of the coarser of both dtypes; 0 for integers.
    pub max_ulp: u64,
    /// Where the largest difference is (row-major), and both values; none for an empty tensor.
    pub worst: Option<(usize, f64, f64)>,
}

impl LayerError {
    /// Whether the relative difference is within the bound for its quantity.
    pub fn passes(&self, gate: &Gate) -> bool {
        self.max_rel <= if self.quantity.is_gradient() { gate.gradient } else { gate.forward }
    }

    /// The level of agreement that it reaches.
    pub fn agreement(&self) -> Agreement {
        match self.max_abs {
            0.0 => Agreement::Exact,
            e if e < 1e-7 => Agreement::Excellent,
            e if e < 1e-5 => Agreement::Industry,
            e if e < 1e-3 => Agreement::Drift,
            _ => Agreement::Fail,
        }
    }
}

/// One value of a run, on the host.
struct Sample {
    layer: String,
    kind: String,
    quantity: Quantity,
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    values: Vec<f64>,
}

/// Outputs in the order in which layers finish.
#[derive(Default)]
struct Outputs {
    seen: RefCell<BTreeMap<String, usize>>,
    list: RefCell<Vec<(String, String, Vec<Tensor>)>>,
}

impl OpObserver for Outputs {}

impl Observer for Outputs {
    fn leave(&self, path: &[String], layer: &dyn Layer, outputs: &[Tensor]) {
        for t in outputs.iter().filter(|t| t.requires_grad()) {
            // Only fails without a graph.
            let _ = t.retain_grad();
        }
        let mut name = hooks::join(path);
        let mut seen = self.seen.borrow_mut();
        let times = seen.entry(name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            name = format!("{name}#{times}");
        }
        self.list.borrow_mut().push((name, layer.kind().to_string(), outputs.to_vec()));
    }
}

fn host(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.detach();
    Ok(match t.dtype() {
        DType::F64 => t.to_vec()?,
        DType::I64 => t.to_vec::<i64>()?.into_iter().map(|v| v as f64).collect(),
        DType::I32 => t.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
        DType::U8 => t.to_vec::<u8>()?.into_iter().map(f64::from).collect(),
        _ => t.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
    })
}

/// A copy on another device in another dtype. It is converted on the device that has the wider of both dtypes, which has the other too.
fn moved(t: &Tensor, device: &Device, dtype: DType) -> Result<Tensor> {
    let t = t.detach();
    if dtype.size() < t.dtype().size() {
        t.to_dtype(dtype)?.to_device(device)
    } else {
        t.to_device(device)?.to_dtype(dtype)
    }
}

/// Device and floating dtype of a model's state; of the inputs where it has none.
fn device_and_dtype(model: &dyn Layer, inputs: &[Tensor]) -> Result<(Device, Option<DType>)> {
    let state = model.named_state();
    let float = state.iter().map(|(_, p)| p.get().dtype()).find(|d| d.is_float());
    let device = state.first().map(|(_, p)| p.get().device().clone());
    let device = device.or_else(|| inputs.first().map(|t| t.device().clone()));
    let device = device.ok_or_else(|| invalid("compare_models", "inputs", "at least one tensor", "none"))?;
    Ok((device, float))
}

fn moved_to_model(model: &dyn Layer, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let (device, float) = device_and_dtype(model, inputs)?;
    let to = |t: &Tensor| moved(t, &device, float.filter(|_| t.dtype().is_float()).unwrap_or(t.dtype()));
    inputs.iter().map(to).collect()
}

/// Numbers without pattern in steps of 1/64, exact in every dtype.
fn cotangent(seed: u64, n: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            ((s >> 57) as f32 - 63.5).round() / 64.0
        })
        .collect()
}

/// Forward and backward of one model. Gradients of its parameters are left cleared.
fn run(model: &dyn Layer, inputs: &[Tensor]) -> Result<Vec<Sample>> {
    let before = Snapshot::take(model)?;
    model.zero_grad()?;
    let inputs: Vec<Tensor> = moved_to_model(model, inputs)?.iter().map(Tensor::with_grad).collect();
    let watch = Rc::new(Outputs::default());
    let outputs = hooks::observe(watch.clone(), || hooks::layers("", model, &inputs))?;
    let mut samples = vec![];
    let mut add = |layer: &str, kind: &str, quantity, name: String, t: &Tensor| {
        let (shape, dtype, values) = (t.shape().to_vec(), t.dtype(), host(t)?);
        let (layer, kind) = (layer.to_string(), kind.to_string());
        samples.push(Sample { layer, kind, quantity, name, shape, dtype, values });
        Ok::<(), NnError>(())
    };

    let list = watch.list.take();
    for (layer, kind, tensors) in &list {
        for (i, t) in tensors.iter().enumerate() {
            add(layer, kind, Quantity::Output, i.to_string(), t)?;
        }
    }
    let kinds: BTreeMap<&str, &str> = list.iter().map(|(l, k, _)| (l.as_str(), k.as_str())).collect();
    let params = model.named_parameters();
    let split = |full: &str| match full.rsplit_once('.') {
        Some((layer, name)) => (layer.to_string(), name.to_string()),
        None => (String::new(), full.to_string()),
    };
    // A state name may go deeper than the layers that forwards report; the nearest layer around it owns it.
    let owner = |full: &str| {
        let (mut layer, mut name) = split(full);
        while !layer.is_empty() && !kinds.contains_key(layer.as_str()) {
            let (outer, part) = split(&layer);
            (layer, name) = (outer, format!("{part}.{name}"));
        }
        let kind = kinds.get(layer.as_str()).copied().unwrap_or(model.kind()).to_string();
        (layer, kind, name)
    };
    for (full, p) in model.named_state() {
        if !params.iter().any(|(_, q)| q.same(&p)) {
            let (layer, kind, name) = owner(&full);
            add(&layer, &kind, Quantity::Buffer, name, &p.get())?;
        }
    }

    let roots: Vec<&Tensor> = outputs.iter().filter(|t| t.requires_grad()).collect();
    let seeds = roots
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let seed = Tensor::from_slice(t.device(), &cotangent(1 + i as u64, t.numel()), t.shape())?;
            seed.to_dtype(t.dtype())
        })
        .collect::<Result<Vec<_>>>()?;
    let pairs: Vec<_> = roots.iter().zip(&seeds).map(|(t, s)| (*t, Some(s))).collect();
    autograd::backward(&pairs, false)?;
    for (layer, kind, tensors) in list.iter().rev() {
        for (i, t) in tensors.iter().enumerate() {
            if let Some(g) = t.grad() {
                add(layer, kind, Quantity::OutputGradient, i.to_string(), &g)?;
            }
        }
    }
    for (full, p) in &params {
        if let Some(g) = p.get().grad() {
            let (layer, kind, name) = owner(full);
            add(&layer, &kind, Quantity::ParameterGradient, name, &g)?;
        }
    }
    for (i, t) in inputs.iter().enumerate() {
        if let Some(g) = t.grad() {
            add("", model.kind(), Quantity::InputGradient, i.to_string(), &g)?;
        }
    }
    model.zero_grad()?;
    before.restore(model)?;
    Ok(samples)
}

/// Position of a number among all of its dtype, so that neighbours differ by 1.
fn rank(v: f64, dtype: DType) -> i64 {
    let ordered = |bits: u64, width: u32| {
        let sign = 1u64 << (width - 1);
        if bits & sign == 0 { bits as i64 } else { -((bits & (sign - 1)) as i64) }
    };
    match dtype {
        DType::F64 => ordered(v.to_bits(), 64),
        DType::F32 => ordered((v as f32).to_bits().into(), 32),
        DType::F16 => ordered(f16_from_f64(v).to_bits().into(), 16),
        DType::Bf16 => ordered(bf16_from_f64(v).to_bits().into(), 16),
        _ => 0,
    }
}

fn compare(a: Sample, b: &Sample) -> Result<LayerError> {
    if a.shape != b.shape {
        let at = format!("{} of {} `{}`", a.quantity, a.kind, a.layer);
        let (want, got) = (format!("shape {:?} for the {at}", a.shape), format!("{:?}", b.shape));
        return Err(invalid("compare_models", "b", want, got));
    }
    let coarse = if b.dtype.size() < a.dtype.size() { b.dtype } else { a.dtype };
    let scale = a.values.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let (mut max_abs, mut max_ulp, mut worst) = (0.0, 0, None);
    for (i, (&x, &y)) in a.values.iter().zip(&b.values).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan());
        let distance = if same {
            0.0
        } else if x.is_finite() && y.is_finite() {
            max_ulp = max_ulp.max(rank(x, coarse).abs_diff(rank(y, coarse)));
            (x - y).abs()
        } else {
            max_ulp = u64::MAX;
            f64::INFINITY
        };
        if worst.is_none() || distance > max_abs {
            (max_abs, worst) = (distance, Some((i, x, y)));
        }
    }
    let max_rel = match max_abs {
        0.0 => 0.0,
        e => e / scale,
    };
    let Sample { layer, kind, quantity, name, shape, .. } = a;
    Ok(LayerError { layer, kind, quantity, name, shape, max_abs, max_rel, max_ulp, worst })
}

/// Gives `b` the parameters, buffers and random positions of `a`, across devices and dtypes. Errors: `StateNames`, `StateShape`.
fn adopt(b: &dyn Layer, a: &dyn Layer) -> Result<()> {
    let (from, to): (BTreeMap<String, Param>, Vec<(String, Param)>) =
        (a.named_state().into_iter().collect(), b.named_state());
    check_names(to.iter().map(|(n, _)| n), from.keys())?;
    let state = to
        .iter()
        .map(|(n, p)| {
            let own = p.get();
            Ok((n.clone(), moved(&from[n].get(), own.device(), own.dtype())?))
        })
        .collect::<Result<_>>()?;
    b.load_state_dict(&state)?;
    b.set_counters(&a.counters())
}

/// Runs forward and backward of two copies of a model on the same numbers and reports for every layer how far `b`'s outputs and gradients
/// are from `a`'s: first outputs in the order of execution, then buffers, then gradients from the back to the front, those of parameters and
/// of the model's inputs. Errors of earlier layers propagate: the first row that differs names the layer to look at.
///
/// The copies may live on different devices and differ in dtype (an f64 copy on the CPU is the best reference): `b` takes over `a`'s
/// parameters, buffers and random positions, the inputs go to each; models with random layers must be built from equal seeds. The upstream
/// gradient of every output is a fixed pattern. Both run in the mode they are in; buffers and random positions are put back, gradients are
/// cleared, lazy layers get their parameters.
///
/// Errors: `Invalid` for layers that differ in order or shape, `StateNames` and `StateShape` for parameters that do, and what the models
/// themselves report.
pub fn compare_models(a: &dyn Layer, b: &dyn Layer, inputs: &[Tensor]) -> Result<Vec<LayerError>> {
    // Lazy layers need their parameters before these can be copied.
    for model in [a, b] {
        let inputs = moved_to_model(model, inputs)?;
        let before = Snapshot::take(model)?;
        let done = autograd::no_grad(|| model.forward_all(&inputs));
        before.restore(model)?;
        done?;
    }
    adopt(b, a)?;
    let (x, y) = (run(a, inputs)?, run(b, inputs)?);
    let key = |s: &Sample| (s.layer.clone(), s.quantity, s.name.clone());
    if let Some((s, t)) = x.iter().zip(&y).find(|(s, t)| key(s) != key(t)) {
        let say = |s: &Sample| format!("{} {} of {} `{}`", s.quantity, s.name, s.kind, s.layer);
        return Err(invalid("compare_models", "b", say(s), say(t)));
    }
    if x.len() != y.len() {
        let (want, got) = (format!("{} tensors", x.len()), format!("{}", y.len()));
        return Err(invalid("compare_models", "b", want, got));
    }
    x.into_iter().zip(&y).map(|(s, t)| compare(s, t)).collect()
}

/// The rows of [`compare_models`] as a text table.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a>(pub &'a [LayerError]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["Layer", "Quantity", "Shape", "max abs", "max rel", "ULP", "Agreement"].map(String::from);
        let mut lines = vec![head];
        for e in self.0 {
            let layer = if e.layer.is_empty() { e.kind.clone() } else { format!("{} ({})", e.layer, e.kind) };
            let ulp = if e.max_ulp == u64::MAX { "inf".to_string() } else { e.max_ulp.to_string() };
            lines.push([
                layer,
                format!("{} {}", e.quantity, e.name),
                format!("{:?}", e.shape),
                format!("{:.2e}", e.max_abs),
                format!("{:.2e}", e.max_rel),
                ulp,
                e.agreement().to_string(),
            ]);
        }
        let width: Vec<usize> =
            (0..7).map(|i| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0)).collect();
        for (at, l) in lines.iter().enumerate() {
            for (i, cell) in l.iter().enumerate() {
                let w = width[i];
                match i {
                    3..=5 => write!(f, "{cell:>w$}  ")?,
                    6 => writeln!(f, "{cell}")?,
                    _ => write!(f, "{cell:<w$}  ")?,
                }
            }
            if at == 0 {
                writeln!(f, "{}", "-".repeat(width.iter().sum::<usize>() + 12))?;
            }
        }
        let fails = self.0.iter().filter(|e| !e.passes(&Gate::default())).count();
        write!(
            f,
            "{} tensors compared, {fails} beyond 1e-5 (outputs) or 1e-4 (gradients) relative",
            self.0.len()
        )
    }
}
