//! The kernel table: what every kernel name of the golden suites means in calls of the library.
//!
//! One row per name. Inputs, arguments and outputs are written as in `golden/INDEX.md` (a test compares them), so that an unknown name or
//! argument is an error and not a silent skip.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::Family;

use crate::device::{Cx, R};
use crate::oracle::Definition;
use crate::sampler::Sample;
use crate::suite::{Case, HostTensor};

mod activation;
mod attention;
mod conv;
mod core;
mod distance;
mod elementwise;
mod embedding;
mod field;
mod fourier;
mod gemm;
mod graph;
mod index;
mod language_model;
mod linalg;
mod loss;
mod mesh;
mod moe;
mod norm;
mod optimizer;
mod pool;
mod quantized;
mod random;
mod reduce;
mod resample;
mod rnn;
mod scan;
mod shape;
mod softmax;
mod sort;
mod state_space;

/// How closely a device must agree with the reference. All bounds are for f32 arithmetic; 16-bit storage gets two of its own ULP on top.
/// `docs/NUMERICS.md` derives them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Equal values.
    Exact,
    /// A function of single elements: so many ULP of f32, and so many roundings of 1 where its formula has constants of that size.
    Function {
        /// accuracy that the dialects promise of the functions in it
        ulps: f64,
        /// roundings (2^-24) of terms of size 1
        units: f64,
    },
    /// A sum of K terms: 8 + log2 K roundings of the same sum of magnitudes, beside the rounding of the result.
    Sum,
    /// Products over an axis of length K: 8 + sqrt K roundings of the product of magnitudes, beside the rounding of the result.
    Product,
    /// Anything else: roundings of the result and of the size of its terms, which is measured (see [`crate::tolerance`]).
    Derived,
    /// As `Derived`; what is summed or multiplied last was stored in between, as in PyTorch (the gradient before an activation, a gradient before
    /// broadcast axes are summed): 16-bit storage adds one rounding of it.
    Stored,
}

/// One rounding.
pub(crate) const ULP: Bound = Bound::Function { ulps: 1.0, units: 0.0 };
/// Transcendental functions and activations: OpenCL promises 4 ULP of most; two roundings of a constant.
pub(crate) const TRANS: Bound = Bound::Function { ulps: 4.0, units: 2.0 };

/// Floating types that every device kernel stores.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// Kernels whose data type does not matter.
pub(crate) const F32: &[DType] = &[DType::F32];
/// Integer kernels.
pub(crate) const INTS: &[DType] = &[DType::I32, DType::I64, DType::U8];
/// Movement: floats and integers.
pub(crate) const ANY: &[DType] = &[DType::F32, DType::F16, DType::Bf16, DType::I32, DType::I64, DType::U8];

/// The reference of random cases.
#[derive(Debug, Clone, Copy)]
pub enum Oracle {
    /// The CPU backend with everything in f64 (operands rounded to the storage type first).
    F64,
    /// Written from the definition in this crate: where the storage type decides, and where there is nothing but integers or random words.
    Definition(Definition),
}

/// One kernel name.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Name in the suites.
    pub name: &'static str,
    /// Row of the specification.
    pub row: &'static str,
    /// Family of the operations it calls.
    pub family: Family,
    /// Inputs in order, as in the index.
    pub inputs: &'static str,
    /// Arguments with defaults, as in the index.
    pub args: &'static str,
    /// Outputs, as in the index.
    pub outputs: &'static str,
    /// Methods of the backend that it calls.
    pub ops: &'static [&'static str],
    /// The calls.
    pub run: fn(&Cx<'_>) -> R,
    /// Tolerance for random cases.
    pub bound: Bound,
    /// Roundings of 1 (2^-24) on top, and what they are for: terms that neither the results nor the sensitivity to the inputs show.
    pub units: (f64, &'static str),
    /// Storage types of random cases.
    pub dtypes: &'static [DType],
    /// Reference of random cases.
    pub oracle: Oracle,
    /// Consists of several calls that write outputs: a later one may be refused when earlier ones have written.
    pub composite: bool,
    /// Draws inputs and arguments; `None` for gradients, which take theirs from the forward kernel.
    pub sample: Option<fn(&mut Sample)>,
    /// The forward kernel of a gradient.
    pub forward: Option<&'static str>,
}

pub(crate) const fn k(
    name: &'static str,
    row: &'static str,
    inputs: &'static str,
    args: &'static str,
    outputs: &'static str,
    ops: &'static [&'static str],
    run: fn(&Cx<'_>) -> R,
) -> Kernel {
    Kernel {
        name,
        row,
        family: Family::Core,
        inputs,
        args,
        outputs,
        ops,
        run,
        bound: Bound::Exact,
        units: (0.0, ""),
        dtypes: FLOATS,
        oracle: Oracle::F64,
        composite: false,
        sample: None,
        forward: None,
    }
}

/// A forward row and its gradient's, made from one line by [`pair!`].
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    forward: Kernel,
    gradient: Kernel,
}

impl Pair {
    /// Two rows that differ in names, outputs and operations; `run` asks [`Cx::is_gradient`].
    pub(crate) const fn new(forward: Kernel, gradient: Kernel) -> Self {
        let forward = forward.bound(Bound::Derived).units(8.0, LOGARITHMS);
        let gradient = gradient.bound(Bound::Derived);
        Pair { forward, gradient: gradient.grad_of(forward.name) }
    }

    /// The bound of both.
    pub(crate) const fn bound(mut self, b: Bound) -> Self {
        self.forward.bound = b;
        self.gradient.bound = b;
        self
    }

    /// Roundings of 1 that the gradient has on top.
    pub(crate) const fn grad_units(mut self, roundings: f64, why: &'static str) -> Self {
        self.gradient = self.gradient.units(roundings, why);
        self
    }

    /// Both rows, with the forward's sampler.
    pub(crate) const fn sample(self, f: fn(&mut Sample)) -> [Kernel; 2] {
        [self.forward.sample(f), self.gradient]
    }
}

/// Why the value of a loss has an absolute error.
pub(crate) const LOGARITHMS: &str =
    "a loss near 0 is the difference of logarithms, or of probabilities and 1";

/// The rows of a loss and of its gradient: name, row of the specification, inputs, arguments, outputs of the gradient, operations, calls. The
/// gradient's name ends in `_backward`, its operations in `_bwd`; `gy` comes before its inputs.
macro_rules! pair {
    ($name:literal, $row:literal, $inputs:literal, $args:literal, $grads:literal, [$($op:literal),+], $run:expr $(,)?) => {
        $crate::cases::Pair::new(
            $crate::cases::k($name, $row, $inputs, $args, "loss", &[$($op),+], $run),
            $crate::cases::k(
                concat!($name, "_backward"),
                $row,
                concat!("gy, ", $inputs),
                $args,
                $grads,
                &[$(concat!($op, "_bwd")),+],
                $run,
            ),
        )
    };
}
use pair;

impl Kernel {
    pub(crate) const fn bound(mut self, b: Bound) -> Self {
        self.bound = b;
        self
    }
    pub(crate) const fn units(mut self, roundings: f64, why: &'static str) -> Self {
        self.units = (roundings, why);
        self
    }
    pub(crate) const fn dtypes(mut self, d: &'static [DType]) -> Self {
        self.dtypes = d;
        self
    }
    /// The results come from a definition in this crate.
    pub(crate) const fn by(mut self, definition: Definition) -> Self {
        self.oracle = Oracle::Definition(definition);
        self
    }
    pub(crate) const fn composite(mut self) -> Self {
        self.composite = true;
        self
    }
    pub(crate) const fn sample(mut self, f: fn(&mut Sample)) -> Self {
        self.sample = Some(f);
        self
    }
    pub(crate) const fn grad_of(mut self, forward: &'static str) -> Self {
        self.forward = Some(forward);
        self
    }

    /// Arguments that have a default.
    pub fn defaults(&self) -> BTreeMap<String, Value> {
        arguments(self.args).into_iter().filter_map(|(n, d)| Some((n.to_string(), d?))).collect()
    }

    /// What does not fit between a case and this row.
    pub fn check(&self, case: &Case) -> Result<(), String> {
        let args = arguments(self.args);
        for name in case.args.keys() {
            if !args.iter().any(|(n, _)| n == name) {
                return Err(format!("argument {name} is unknown"));
            }
        }
        for (name, default) in &args {
            if default.is_none() && !case.args.contains_key(*name) {
                return Err(format!("argument {name} is missing"));
            }
        }
        let inputs = fields(self.inputs);
        for (name, t) in &case.inputs {
            let f =
                inputs.iter().find(|f| f.matches(name)).ok_or_else(|| format!("input {name} is unknown"))?;
            if !f.accepts(t.dtype) {
                return Err(format!("input {name} has dtype {}", t.dtype));
            }
        }
        for f in inputs.iter().filter(|f| !f.optional && !f.list) {
            if case.input(f.name).is_none() && case.error.is_none() {
                return Err(format!("input {} is missing", f.name));
            }
        }
        let outputs = fields(self.outputs);
        for name in case.expected.keys().chain(case.accumulate.keys()) {
            if !outputs.iter().any(|f| f.matches(name)) {
                return Err(format!("output {name} is unknown"));
            }
        }
        match case.strides.keys().find(|n| case.input(n).is_none()) {
            Some(n) => Err(format!("strides of {n}, which is no input")),
            None => Ok(()),
        }
    }
}

/// An input or output of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name without list numbers.
    pub name: &'static str,
    /// `data`, `f32`, `idx`, or dtype names separated by `/`.
    pub kind: &'static str,
    /// May be absent.
    pub optional: bool,
    /// A list name0, name1, ...
    pub list: bool,
}

impl Field {
    /// Whether a tensor name belongs to this field.
    pub fn matches(&self, name: &str) -> bool {
        if !self.list {
            return name == self.name;
        }
        name.strip_prefix(self.name).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    }

    fn accepts(&self, dtype: DType) -> bool {
        match self.kind {
            "data" => true, // targets, ids and gradients of another storage type are listed without a type
            "idx" => dtype.is_index(),
            "f32" => dtype == DType::F32 || dtype == DType::F64,
            "i8" => dtype == DType::U8,
            kinds => kinds.split('/').any(|k| k == dtype.name()),
        }
    }
}

/// Parses the notation of the index: `x`, `[mask:u8]`, `x0, x1, ...:idx`.
pub fn fields(spec: &'static str) -> Vec<Field> {
    let mut out: Vec<Field> = Vec::new();
    for token in spec.split(", ").filter(|t| !t.is_empty() && *t != "-") {
        let optional = token.starts_with('[');
        let token = token.trim_matches(['[', ']']);
        let (name, kind) = token.split_once(':').unwrap_or((token, "data"));
        if name == "..." {
            out.pop();
            if let Some(first) = out.last_mut() {
                first.name = first.name.trim_end_matches('0');
                first.list = true;
                first.kind = kind;
            }
            continue;
        }
        out.push(Field { name, kind, optional, list: false });
    }
    out
}

/// Parses `lr, wd=0.0`: names with their defaults.
pub fn arguments(spec: &'static str) -> Vec<(&'static str, Option<Value>)> {
    spec.split(", ")
        .filter(|t| !t.is_empty() && *t != "-")
        .map(|t| match t.split_once('=') {
            Some((n, d)) => (n, serde_json::from_str(d).ok()),
            None => (t, None),
        })
        .collect()
}

const FAMILIES: &[(Family, &[&[&[Kernel]]])] = &[
    (Family::Core, &[core::ROWS]),
    (Family::Elementwise, elementwise::TABLES),
    (Family::Activation, &[activation::ROWS]),
    (Family::Softmax, &[softmax::ROWS]),
    (Family::Reduce, &[reduce::ROWS]),
    (Family::Shape, shape::TABLES),
    (Family::Index, &[index::ROWS]),
    (Family::Gemm, &[gemm::ROWS]),
    (Family::Quantized, &[quantized::ROWS]),
    (Family::Field, &[field::ROWS]),
    (Family::Fourier, &[fourier::ROWS]),
    (Family::Loss, loss::TABLES),
    (Family::Optimizer, optimizer::TABLES),
    (Family::Random, &[random::ROWS]),
    (Family::Distance, &[distance::ROWS]),
    (Family::Sort, &[sort::ROWS]),
    (Family::Scan, &[scan::ROWS]),
    (Family::Mesh, &[mesh::ROWS]),
    (Family::Graph, graph::TABLES),
    (Family::Rnn, &[rnn::ROWS]),
    (Family::Embedding, &[embedding::ROWS]),
    (Family::LanguageModel, &[language_model::ROWS]),
    (Family::Linalg, &[linalg::ROWS]),
    (Family::Moe, &[moe::ROWS]),
    (Family::StateSpace, &[state_space::ROWS]),
    (Family::Attention, &[attention::ROWS]),
    (Family::Resample, &[resample::ROWS]),
    (Family::Pool, &[pool::ROWS]),
    (Family::Norm, &[norm::ROWS]),
    (Family::Conv, &[conv::ROWS]),
];

/// Every kernel name that this library serves.
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (family, tables) in FAMILIES {
        for row in tables.iter().flat_map(|t| t.iter()).flat_map(|rows| rows.iter()) {
            all.push(Kernel { family: *family, ..*row });
        }
    }
    all
});

/// The row of that name.
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|k| k.name == name)
}

/// Shapes of `a` and `b` broadcast, or `a` where they do not fit (so that the library gets to refuse them).
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    trefoil::broadcast_shapes(a, b).map_or_else(|_| a.to_vec(), |d| d.to_vec())
}

/// Bytes of one element of `dtype` with this value.
pub(crate) fn element(dtype: DType, value: f64) -> Vec<u8> {
    HostTensor::from_f64(dtype, &[1], &[value]).bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation() {
        let f = fields("x, idx0, idx1, ...:idx, [v:f32]");
        assert_eq!(f.len(), 3);
        assert!(f[1].list && f[1].matches("idx12") && !f[1].matches("idx") && f[1].kind == "idx");
        assert!(f[2].optional && f[2].kind == "f32");
        assert_eq!(arguments("lr, wd=0.5, mode=\"none\"")[1].1, Some(Value::from(0.5)));
    }

    #[test]
    fn names_are_unique() {
        for (i, k) in KERNELS.iter().enumerate() {
            assert!(KERNELS[..i].iter().all(|o| o.name != k.name), "{} twice", k.name);
            assert!(
                k.sample.is_some() != k.forward.is_some(),
                "{}: either a sampler or a forward kernel",
                k.name
            );
            let (units, why) = k.units;
            assert!((units > 0.0) != why.is_empty(), "{}: a number with a reason", k.name);
            if let Some(f) = k.forward {
                assert!(find(f).is_some_and(|f| f.sample.is_some()), "{}: forward {f}", k.name);
            }
        }
    }
}
