//! Golden suites of layers: reading and comparing. The format is described in `golden/case.py`.
#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use trefoil::DType;
use trefoil_nn::{Device, StateDict, Tensor};

/// Families, a pair of files each.
pub(crate) const FAMILIES: &[&str] = &[
    "core",
    "attention",
    "recurrent",
    "pooling",
    "normalization",
    "transformer",
    "convolutional",
    "upsampling",
    "utility",
    "dense-like",
    "graph",
    "graph-aggregation",
    "local-learning",
    "capsule",
    "specialized",
    "experts",
    "sequence-models",
    "graph-attention",
    "mesh",
    "residual",
    "state-space",
];

/// Data of a tensor on the host.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

/// A tensor of a suite.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Data,
}

impl Stored {
    pub(crate) fn is_float(&self) -> bool {
        matches!(self.data, Data::F32(_))
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(v) => v.iter().map(|&x| x.into()).collect(),
            Data::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Data::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Data::U8(v) => v.iter().map(|&x| x.into()).collect(),
        }
    }

    pub(crate) fn upload(&self, d: &Device) -> Tensor {
        match &self.data {
            Data::F32(v) => Tensor::from_slice(d, v, &self.shape),
            Data::I32(v) => Tensor::from_slice(d, v, &self.shape),
            Data::I64(v) => Tensor::from_slice(d, v, &self.shape),
            Data::U8(v) => Tensor::from_slice(d, v, &self.shape),
        }
        .unwrap()
    }
}

/// One configuration of a layer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) entry: String,
    pub(crate) config: Map<String, Value>,
    pub(crate) training: bool,
    #[serde(default)]
    pub(crate) lazy: bool,
    #[serde(default)]
    pub(crate) args: Map<String, Value>,
    pub(crate) inputs: Vec<String>,
    /// Inputs whose first axis is the batch.
    pub(crate) batch: Vec<String>,
    pub(crate) outputs: usize,
    /// Steps of the layer's own learning rule.
    #[serde(default)]
    pub(crate) learn: usize,
    /// Gradients that are 0 by construction.
    #[serde(default)]
    pub(crate) silent: Vec<String>,
    /// Group, then name.
    #[serde(skip)]
    tensors: BTreeMap<String, BTreeMap<String, Stored>>,
}

impl Case {
    /// The tensors of a group.
    pub(crate) fn group(&self, group: &str) -> impl Iterator<Item = (&String, &Stored)> {
        self.tensors.get(group).into_iter().flatten()
    }

    pub(crate) fn get(&self, group: &str, name: &str) -> Option<&Stored> {
        self.tensors.get(group)?.get(name)
    }

    pub(crate) fn has(&self, input: &str) -> bool {
        self.inputs.iter().any(|n| n == input)
    }

    pub(crate) fn flag(&self, arg: &str) -> bool {
        self.args.get(arg) == Some(&Value::Bool(true))
    }

    /// The state dictionary before the call, on a device.
    pub(crate) fn state(&self, d: &Device) -> StateDict {
        self.group("state").map(|(n, t)| (n.clone(), t.upload(d))).collect()
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|c| read(c.try_into().unwrap())).collect()
}

/// The cases of a family.
pub(crate) fn suite(family: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/layers-{family}.json"));
    let mut cases: Vec<Case> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
    let mut by_case: BTreeMap<String, BTreeMap<String, BTreeMap<String, Stored>>> = BTreeMap::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let raw = view.data();
        let data = match view.dtype() {
            Dtype::F32 => Data::F32(numbers(raw, f32::from_le_bytes)),
            Dtype::I32 => Data::I32(numbers(raw, i32::from_le_bytes)),
            Dtype::I64 => Data::I64(numbers(raw, i64::from_le_bytes)),
            Dtype::U8 => Data::U8(raw.to_vec()),
            other => panic!("{name}: {other:?}"),
        };
        let [case, group, tensor] = name.split('|').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let groups = by_case.entry(case.into()).or_default();
        let stored = Stored { shape: view.shape().to_vec(), data };
        groups.entry(group.into()).or_default().insert(tensor.into(), stored);
    }
    for c in &mut cases {
        c.tensors = by_case.remove(&c.name).unwrap_or_else(|| panic!("{}: no tensors", c.name));
    }
    assert!(by_case.is_empty(), "tensors of no case: {:?}", by_case.keys());
    cases
}

/// All elements of a tensor, as f64.
pub(crate) fn host(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::F32 => t.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        DType::I32 => t.to_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
        DType::I64 => t.to_vec::<i64>().unwrap().into_iter().map(|v| v as f64).collect(),
        DType::U8 => t.to_vec::<u8>().unwrap().into_iter().map(f64::from).collect(),
        other => panic!("{other}"),
    }
}

/// How far a number may be from the expected one. The absolute part grows with the largest number of the tensor: small
/// sums of large terms are as inexact as the large ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tolerance {
    pub(crate) rtol: f64,
    pub(crate) atol: f64,
}

impl Tolerance {
    /// The tolerance of one element.
    pub(crate) fn of(self, all: &[f64], want: f64) -> f64 {
        let largest = all.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        self.atol * largest + self.rtol * want.abs()
    }
}

/// The element that is furthest beyond its tolerance (which may depend on all expected elements, and on its own index),
/// if one is: shapes must agree, integers exactly.
pub(crate) fn differs(got: &Tensor, want: &Stored, allowed: impl Fn(&[f64], usize) -> f64) -> Option<String> {
    if got.shape() != want.shape {
        return Some(format!("shape {:?}, expected {:?}", got.shape(), want.shape));
    }
    if got.dtype().is_float() != want.is_float() {
        let kind = if want.is_float() { "floats" } else { "integers" };
        return Some(format!("dtype {}, expected {kind}", got.dtype()));
    }
    let (got, expected) = (host(got), want.values());
    let excess = |i: usize| {
        let bound = if want.is_float() { allowed(&expected, i) } else { 0.0 };
        let error = (got[i] - expected[i]).abs();
        // NaN is never within.
        if error <= bound { None } else { Some((i, error, bound)) }
    };
    let (i, error, bound) =
        (0..got.len()).filter_map(excess).max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)))?;
    Some(format!(
        "element {i} is {:e}, expected {:e}: off by {error:.1e} of {bound:.1e}",
        got[i], expected[i]
    ))
}
