//! Tensors of one case on one device, inside guard bands.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value};
use trefoil::{Buffer, DType, GpuError, GradMut, IGpuBackend, Layout, View, ViewMut};

use crate::cases::Kernel;
use crate::suite::{Case, HostTensor, Named, Wanted};

/// Why a call of a kernel did not give results.
#[derive(Debug)]
pub enum Fail {
    /// The library's answer.
    Gpu(GpuError),
    /// The case does not fit the kernel table.
    Case(String),
}

impl From<GpuError> for Fail {
    fn from(e: GpuError) -> Self {
        Fail::Gpu(e)
    }
}

/// Result of a kernel call.
pub type R<T = ()> = Result<T, Fail>;

/// Bytes around and inside outputs before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// All bits set: NaN in every floating type.
    Nan,
    /// A finite value in every floating type.
    Finite,
}

impl Pattern {
    fn byte(self) -> u8 {
        match self {
            Pattern::Nan => 0xff,
            Pattern::Finite => 0x5a,
        }
    }
}

/// Elements of guard before and after a tensor. The unaligned form puts the first element off every vector boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// 16-byte aligned data.
    Aligned,
    /// Data at an odd element.
    Unaligned,
}

impl Placement {
    fn lead(self) -> usize {
        match self {
            Placement::Aligned => 16,
            Placement::Unaligned => 5,
        }
    }
}

const TRAIL: usize = 7;

/// A tensor of a case on the device.
#[derive(Debug)]
pub struct Tensor {
    name: String,
    buf: Buffer,
    layout: Layout,
    lead: usize,
    initial: Vec<u8>,
    accumulate: bool,
    shown: RefCell<Option<Vec<usize>>>,
    written: Cell<bool>,
}

impl Tensor {
    fn new(
        gpu: &dyn IGpuBackend,
        name: &str,
        dtype: DType,
        layout: Layout,
        data: &[u8],
        pattern: Pattern,
        lead: usize,
    ) -> R<Self> {
        let size = dtype.size();
        let mut initial = vec![pattern.byte(); lead * size];
        initial.extend_from_slice(data);
        initial.resize(initial.len() + TRAIL * size, pattern.byte());
        let mut buf = gpu.alloc(dtype, initial.len() / size)?;
        gpu.write_bytes(buf.view_mut(), &initial)?;
        let layout = layout.shifted(lead).map_err(|e| Fail::Case(format!("{name}: {e}")))?;
        Ok(Tensor {
            name: name.to_string(),
            buf,
            layout,
            lead,
            initial,
            accumulate: false,
            shown: RefCell::new(None),
            written: Cell::new(false),
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.buf.dtype()
    }

    /// For reading.
    pub fn v(&self) -> View<'_> {
        self.buf.view().with_layout(self.layout).expect("the layout was made for this buffer")
    }

    /// For writing.
    pub fn m(&self) -> ViewMut<'_> {
        self.written.set(true);
        self.buf.alias_mut().with_layout(self.layout).expect("the layout was made for this buffer")
    }

    /// As a gradient: accumulates where the case says so.
    pub fn g(&self) -> GradMut<'_> {
        self.m().grad(self.accumulate)
    }

    /// Only the first elements count, under this shape; the rest must stay untouched.
    pub fn show(&self, shape: Vec<usize>) {
        *self.shown.borrow_mut() = Some(shape);
    }

    fn bytes(&self, gpu: &dyn IGpuBackend) -> R<Vec<u8>> {
        let mut now = vec![0; self.initial.len()];
        match gpu.read_bytes(self.buf.view(), &mut now) {
            // What was written after an index out of range cannot be read, but a copy of it, made since then, can.
            Err(GpuError::IndexOutOfRange { .. }) => {
                let mut copy = gpu.alloc(self.buf.dtype(), self.buf.len())?;
                gpu.copy(self.buf.view(), copy.view_mut())?;
                gpu.read_bytes(copy.view(), &mut now)?;
            }
            done => done?,
        }
        Ok(now)
    }
}

/// One call of a kernel in progress: inputs on the device, arguments, outputs made so far.
pub struct Cx<'a> {
    /// The device.
    pub gpu: &'a dyn IGpuBackend,
    /// Storage type of the data tensors.
    pub dtype: DType,
    args: &'a Map<String, Value>,
    defaults: BTreeMap<String, Value>,
    results: &'static str,
    gradient: bool,
    wanted: &'a Wanted,
    previous: &'a BTreeMap<String, HostTensor>,
    failing: bool,
    inputs: Vec<Tensor>,
    host: &'a [(String, HostTensor)],
    outputs: RefCell<Vec<Rc<Tensor>>>,
    pattern: Pattern,
    place: Placement,
}

impl<'a> Cx<'a> {
    /// Uploads the inputs of `case`.
    pub fn new(
        gpu: &'a dyn IGpuBackend,
        kernel: &Kernel,
        case: &'a Case,
        pattern: Pattern,
        place: Placement,
    ) -> R<Self> {
        let mut inputs = Vec::new();
        for (name, t) in &case.inputs {
            let layout = match case.strides.get(name) {
                Some(s) => Layout::strided(&s.shape, &s.strides, s.offset),
                None => Layout::contiguous(&t.shape),
            };
            let layout = layout.map_err(|e| Fail::Case(format!("input {name} has no valid layout: {e}")))?;
            inputs.push(Tensor::new(gpu, name, t.dtype, layout, &t.bytes, pattern, place.lead())?);
        }
        Ok(Cx {
            gpu,
            dtype: case.dtype,
            args: &case.args,
            defaults: kernel.defaults(),
            results: kernel.outputs,
            gradient: kernel.forward.is_some(),
            wanted: &case.wanted,
            previous: &case.accumulate,
            failing: case.error.is_some(),
            inputs,
            host: &case.inputs,
            outputs: RefCell::default(),
            pattern,
            place,
        })
    }

    /// A tensor input.
    pub fn x(&self, name: &str) -> R<View<'_>> {
        self.opt(name).ok_or_else(|| Fail::Case(format!("input {name} is missing")))
    }

    /// An optional tensor input.
    pub fn opt(&self, name: &str) -> Option<View<'_>> {
        self.inputs.iter().find(|t| t.name == name).map(Tensor::v)
    }

    /// The inputs `name0`, `name1`, ...
    pub fn list(&self, name: &str) -> Vec<View<'_>> {
        (0..).map_while(|i| self.opt(&format!("{name}{i}"))).collect()
    }

    /// Values of an integer input that the host knows.
    pub fn host_i64(&self, name: &str) -> R<Vec<i64>> {
        let t = self.host.iter().find(|(n, _)| n == name);
        t.map(|(_, t)| t.to_i64()).ok_or_else(|| Fail::Case(format!("input {name} is missing")))
    }

    fn arg(&self, name: &str) -> R<&Value> {
        self.args
            .get(name)
            .or_else(|| self.defaults.get(name))
            .ok_or_else(|| Fail::Case(format!("argument {name} is missing")))
    }

    fn convert<T>(&self, name: &str, f: impl Fn(&Value) -> Option<T>) -> R<T> {
        let v = self.arg(name)?;
        f(v).ok_or_else(|| Fail::Case(format!("argument {name} = {v} has the wrong type")))
    }

    /// A number; the strings `inf`, `-inf` and `nan` are accepted.
    pub fn f(&self, name: &str) -> R<f64> {
        self.convert(name, number)
    }

    /// Whether the row is the gradient of another.
    pub fn is_gradient(&self) -> bool {
        self.gradient
    }

    /// Whether the row has an argument of this name.
    pub fn has(&self, name: &str) -> bool {
        self.arg(name).is_ok()
    }

    /// Whether the row has an output of this name.
    pub fn has_output(&self, name: &str) -> bool {
        crate::cases::fields(self.results).iter().any(|f| f.matches(name))
    }

    /// A list of numbers.
    pub fn numbers(&self, name: &str) -> R<Vec<f64>> {
        self.convert(name, |v| v.as_array()?.iter().map(number).collect())
    }

    /// A list of numbers; `None` for a single number.
    pub fn opt_list(&self, name: &str) -> R<Option<Vec<f64>>> {
        self.convert(name, |v| match v {
            Value::Array(a) => a.iter().map(number).collect::<Option<Vec<_>>>().map(Some),
            v => number(v).map(|_| None),
        })
    }

    /// A number or null.
    pub fn opt_f(&self, name: &str) -> R<Option<f64>> {
        self.convert(name, |v| if v.is_null() { Some(None) } else { number(v).map(Some) })
    }

    /// A signed integer.
    pub fn i(&self, name: &str) -> R<i64> {
        self.convert(name, |v| {
            v.as_i64().or_else(|| v.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as i64))
        })
    }

    /// A 64-bit unsigned integer.
    pub fn bits(&self, name: &str) -> R<u64> {
        self.convert(name, Value::as_u64)
    }

    /// A size.
    pub fn n(&self, name: &str) -> R<usize> {
        self.convert(name, |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))
    }

    /// A size or null.
    pub fn opt_n(&self, name: &str) -> R<Option<usize>> {
        self.convert(name, |v| if v.is_null() { Some(None) } else { v.as_u64().map(|v| Some(v as usize)) })
    }

    /// A flag.
    pub fn b(&self, name: &str) -> R<bool> {
        self.convert(name, Value::as_bool)
    }

    /// A string.
    pub fn s(&self, name: &str) -> R<String> {
        self.convert(name, |v| v.as_str().map(String::from))
    }

    /// A list of lists of sizes.
    pub fn size_lists(&self, name: &str) -> R<Vec<Vec<usize>>> {
        let sizes = |v: &Value| -> Option<Vec<usize>> {
            v.as_array()?.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        };
        self.convert(name, |v| v.as_array()?.iter().map(sizes).collect())
    }

    /// A string or null.
    pub fn opt_s(&self, name: &str) -> R<Option<String>> {
        self.convert(name, |v| if v.is_null() { Some(None) } else { v.as_str().map(|s| Some(s.to_string())) })
    }

    /// A list of signed integers or null.
    pub fn opt_ints(&self, name: &str) -> R<Option<Vec<i64>>> {
        self.convert(name, |v| match v {
            Value::Null => Some(None),
            v => v.as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<_>>>().map(Some),
        })
    }

    /// A list of signed integers (a number is a list of one).
    pub fn ints(&self, name: &str) -> R<Vec<i64>> {
        self.convert(name, |v| match v {
            Value::Array(a) => a.iter().map(Value::as_i64).collect(),
            v => v.as_i64().map(|i| vec![i]),
        })
    }

    /// A list of sizes.
    pub fn dims(&self, name: &str) -> R<Vec<usize>> {
        let v = self.ints(name)?;
        v.into_iter()
            .map(|i| usize::try_from(i).map_err(|_| Fail::Case(format!("argument {name} is negative"))))
            .collect()
    }

    /// An axis; negative ones count from the end.
    pub fn axis(&self, name: &str, rank: usize) -> R<usize> {
        let a = self.i(name)?;
        let a = if a < 0 { a + rank as i64 } else { a };
        usize::try_from(a).map_err(|_| Fail::Case(format!("argument {name} = {a} is out of range")))
    }

    /// A dtype by name, null for the case's own.
    pub fn dtype_arg(&self, name: &str) -> R<DType> {
        self.convert(name, |v| match v {
            Value::Null => Some(self.dtype),
            v => DType::from_name(v.as_str()?),
        })
    }

    /// A dtype by name or null.
    pub fn opt_dtype(&self, name: &str) -> R<Option<DType>> {
        self.convert(name, |v| match v {
            Value::Null => Some(None),
            v => DType::from_name(v.as_str()?).map(Some),
        })
    }

    /// Whether an optional output is asked for.
    pub fn wants(&self, name: &str) -> bool {
        match self.wanted {
            Wanted::All => true,
            // A case that must fail names no outputs: it is run with the required ones.
            Wanted::Named(names) => names.contains(name),
        }
    }

    /// An output filled with the pattern, or with the previous contents if the case accumulates into it.
    pub fn out(&self, name: &str, dtype: DType, shape: &[usize]) -> R<Rc<Tensor>> {
        let previous = self.previous.get(name);
        let data = match previous {
            Some(t) => t.bytes.clone(),
            None => vec![self.pattern.byte(); size_of_output(name, dtype, shape)?],
        };
        self.add(name, dtype, shape, &data, previous.is_some())
    }

    /// An output that starts with the contents of the input `from` (a copy: the input itself must stay as it is).
    pub fn inout(&self, name: &str, from: &str) -> R<Rc<Tensor>> {
        let t = self.host.iter().find(|(n, _)| n == from).map(|(_, t)| t);
        let t = t.ok_or_else(|| Fail::Case(format!("input {from} is missing")))?;
        self.add(name, t.dtype, &t.shape, &t.bytes, false)
    }

    /// An output that starts at zero.
    pub fn zeroed(&self, name: &str, dtype: DType, shape: &[usize]) -> R<Rc<Tensor>> {
        self.add(name, dtype, shape, &vec![0; size_of_output(name, dtype, shape)?], false)
    }

    /// An output of the shape and dtype of `x`.
    pub fn like(&self, name: &str, x: &View<'_>) -> R<Rc<Tensor>> {
        self.out(name, x.dtype(), x.shape())
    }

    fn add(&self, name: &str, dtype: DType, shape: &[usize], data: &[u8], accumulate: bool) -> R<Rc<Tensor>> {
        let layout = Layout::contiguous(shape)
            .map_err(|e| Fail::Case(format!("output {name}: shape {shape:?}: {e}")))?;
        let mut t = Tensor::new(self.gpu, name, dtype, layout, data, self.pattern, self.place.lead())?;
        if data.len() != layout.numel() * dtype.size() {
            return Err(Fail::Case(format!("output {name}: previous contents do not have shape {shape:?}")));
        }
        t.accumulate = accumulate;
        let t = Rc::new(t);
        self.outputs.borrow_mut().push(t.clone());
        Ok(t)
    }

    /// A buffer of zeros that is neither input nor output.
    pub fn scratch(&self, dtype: DType, len: usize) -> R<Buffer> {
        let mut b = self.gpu.alloc(dtype, len)?;
        self.gpu.write_bytes(b.view_mut(), &vec![0; len * dtype.size()])?;
        Ok(b)
    }

    /// Reads one i64 output back.
    pub fn read_count(&self, t: &Tensor) -> R<usize> {
        let mut b = [0; 8];
        self.gpu.read_bytes(t.v(), &mut b)?;
        usize::try_from(i64::from_le_bytes(b))
            .map_err(|_| Fail::Case(format!("output {} is negative", t.name)))
    }

    /// Whether the case expects an error.
    pub fn must_fail(&self) -> bool {
        self.failing
    }

    /// Contents of the outputs and everything that was written where nothing may be written. With `untouched` the outputs must hold what
    /// they held before the call.
    pub fn finish(&self, untouched: bool) -> R<(Named, Vec<String>)> {
        let mut problems = Vec::new();
        for t in &self.inputs {
            if t.bytes(self.gpu)? != t.initial {
                problems.push(format!("input {} was changed", t.name));
            }
        }
        let mut results = Vec::new();
        for t in self.outputs.borrow().iter() {
            let now = t.bytes(self.gpu)?;
            let size = t.dtype().size();
            let full = t.layout.numel();
            let shape = t.shown.borrow().clone().unwrap_or_else(|| t.layout.shape().to_vec());
            let count = shape.iter().product::<usize>().min(full);
            let (from, to) = (t.lead * size, (t.lead + count) * size);
            if now[..from] != t.initial[..from] {
                problems.push(format!("output {}: the guard before it was overwritten", t.name));
            }
            if now[to..] != t.initial[to..] {
                problems.push(format!("output {}: elements behind it were overwritten", t.name));
            }
            if untouched && now[from..to] != t.initial[from..to] {
                problems.push(format!("output {} was changed by a call that failed", t.name));
            }
            results.push((
                t.name.clone(),
                HostTensor { dtype: t.dtype(), shape, bytes: now[from..to].to_vec() },
            ));
        }
        Ok((results, problems))
    }
}

/// Bytes of an output; cases need no more than a few hundred MiB.
fn size_of_output(name: &str, dtype: DType, shape: &[usize]) -> R<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |a, &n| a.checked_mul(n));
    bytes
        .filter(|&b| b <= 1 << 29)
        .ok_or_else(|| Fail::Case(format!("output {name}: shape {shape:?} is too large")))
}

fn number(v: &Value) -> Option<f64> {
    match v {
        Value::String(s) => match s.as_str() {
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            "nan" => Some(f64::NAN),
            _ => None,
        },
        v => v.as_f64(),
    }
}
