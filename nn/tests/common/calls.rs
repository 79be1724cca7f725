//! Calls of operators with PyTorch's values and gradients (tests/golden), in f64 on the CPU and in f32 on every backend.

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;
use trefoil_nn::autograd::backward;
use trefoil_nn::{Device, Result, Tensor};

use super::everywhere::{transfers, values};
use super::{cpu, devices, id};

/// A tensor of the golden file.
#[derive(Deserialize)]
pub(crate) struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<Value>,
}

/// A number, of which those that JSON lacks are strings.
pub(crate) fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

impl Entry {
    fn numbers(&self) -> Vec<f64> {
        self.data.iter().map(number).collect()
    }

    /// The tensor, floats in the given dtype.
    fn on(&self, d: &Device, float: DType) -> Tensor {
        let whole: Vec<i64> = self.data.iter().map(|v| v.as_i64().unwrap_or(0)).collect();
        match self.dtype.as_str() {
            "f64" if float == DType::F64 => Tensor::from_slice(d, &self.numbers(), &self.shape),
            "f64" => {
                let narrow: Vec<f32> = self.numbers().iter().map(|&x| x as f32).collect();
                Tensor::from_slice(d, &narrow, &self.shape)
            }
            "i64" => Tensor::from_slice(d, &whole, &self.shape),
            "i32" => Tensor::from_slice(d, &whole.iter().map(|&x| x as i32).collect::<Vec<_>>(), &self.shape),
            "u8" => Tensor::from_slice(d, &whole.iter().map(|&x| x as u8).collect::<Vec<_>>(), &self.shape),
            other => panic!("dtype {other}"),
        }
        .unwrap()
    }
}

/// Arguments by PyTorch's names.
pub(crate) struct Args(pub(crate) Value);

impl Args {
    pub(crate) fn num(&self, key: &str) -> f64 {
        number(&self.0[key])
    }

    pub(crate) fn int(&self, key: &str) -> isize {
        self.0[key].as_i64().unwrap() as isize
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap() as usize
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or(false)
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub(crate) fn list<T: serde::de::DeserializeOwned>(&self, key: &str) -> Vec<T> {
        serde_json::from_value(self.0[key].clone()).unwrap()
    }

    pub(crate) fn axis(&self) -> isize {
        self.int("dim")
    }

    pub(crate) fn keep(&self) -> bool {
        self.flag("keepdim")
    }
}

pub(crate) type Outputs = Option<Result<Vec<Tensor>>>;

pub(crate) fn one(t: Result<Tensor>) -> Outputs {
    Some(t.map(|t| vec![t]))
}

pub(crate) fn two(t: Result<(Tensor, Tensor)>) -> Outputs {
    Some(t.map(|(a, b)| vec![a, b]))
}

pub(crate) fn many(t: Result<Vec<Tensor>>) -> Outputs {
    Some(t)
}

pub(crate) fn truth(d: &Device, b: Result<bool>) -> Outputs {
    one(b.and_then(|b| Tensor::from_slice(d, &[u8::from(b)], &[])))
}

#[derive(Deserialize)]
struct Case {
    op: String,
    args: Value,
    inputs: Vec<Entry>,
    outputs: Vec<Option<Entry>>,
    dout: Vec<Option<Entry>>,
    din: Vec<Option<Entry>>,
}

/// A family of operators: what one gives for arguments and tensors, if it is of the family.
type Operators = fn(&str, &Args, &[Tensor]) -> Outputs;

/// Calls of a golden file, and what makes them.
pub(crate) struct Golden {
    /// Name of the file in tests/golden.
    pub(crate) file: &'static str,
    /// Least number of its cases.
    pub(crate) least: usize,
    /// What a family of operators gives for a name, arguments and tensors.
    pub(crate) families: &'static [Operators],
    /// Operators that copy between host and device.
    pub(crate) copying: &'static [&'static str],
}

/// What differs, if anything does: NaN and infinities have to be in the same places.
fn differences(got: &Tensor, want: &Entry, tolerance: f64) -> Option<String> {
    if got.shape() != want.shape {
        return Some(format!("shape {:?} instead of {:?}", got.shape(), want.shape));
    }
    if got.dtype().is_float() != (want.dtype == "f64") || (want.dtype == "i64") != (got.dtype() == DType::I64)
    {
        return Some(format!("{} instead of {}", got.dtype(), want.dtype));
    }
    if got.dtype() == DType::I64 {
        let (g, w) = (got.contiguous().unwrap().to_vec::<i64>().unwrap(), &want.data);
        return g.iter().zip(w).any(|(g, w)| Some(*g) != w.as_i64()).then(|| format!("{g:?}, not {w:?}"));
    }
    let (g, w) = (values(got), want.numbers());
    let same =
        |g: f64, w: f64| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
    g.iter().zip(&w).any(|(&g, &w)| !same(g, w)).then(|| format!("{g:?}, not {w:?}"))
}

/// The same elements in memory of another order, or with gaps between them; gradients go to `t`.
fn scattered(t: &Tensor) -> Tensor {
    let view = match t.rank() {
        0 => Ok(t.clone()),
        1 => Tensor::stack(1, &[t, t]).and_then(|pairs| pairs.select(1, 0)),
        _ => t.t().and_then(|t| t.contiguous()?.t()),
    };
    view.unwrap()
}

/// Runs a case, of views where they are asked for, and says what differs from PyTorch.
fn wrong(golden: &Golden, c: &Case, d: &Device, float: DType, views: bool) -> Option<String> {
    let tolerance = if float == DType::F64 { 1e-9 } else { 2e-5 };
    let differentiable = c.dout.iter().any(Option::is_some);
    let place = |e: &Entry| {
        let t = e.on(d, float);
        if differentiable && t.dtype().is_float() { t.with_grad() } else { t }
    };
    let inputs: Vec<Tensor> = c.inputs.iter().map(place).collect();
    let args = Args(c.args.clone());
    let operands: Vec<Tensor> = inputs.iter().map(|t| if views { scattered(t) } else { t.clone() }).collect();
    let run = || {
        let before = transfers(d);
        let result = golden.families.iter().find_map(|f| f(&c.op, &args, &operands));
        (result, transfers(d) != before)
    };
    let (mut result, mut moved) = run();
    // The first use of a vendor's library checks its results.
    if moved {
        (result, moved) = run();
    }
    let outputs = match result {
        Some(Ok(outputs)) => outputs,
        Some(Err(e)) => return Some(e.to_string()),
        None => return Some("the test does not know this operator".into()),
    };
    if moved && !golden.copying.contains(&c.op.as_str()) {
        return Some("copies between host and device".into());
    }
    if outputs.len() != c.outputs.len() {
        return Some(format!("{} outputs instead of {}", outputs.len(), c.outputs.len()));
    }
    for (i, (got, want)) in outputs.iter().zip(&c.outputs).enumerate() {
        if let Some(what) = want.as_ref().and_then(|w| differences(got, w, tolerance)) {
            return Some(format!("output {i}: {what}"));
        }
    }
    let upstream: Vec<Option<Tensor>> = c.dout.iter().map(|e| e.as_ref().map(|e| e.on(d, float))).collect();
    let roots = outputs.iter().zip(&upstream).filter(|(_, g)| g.is_some()).map(|(y, g)| (y, g.as_ref()));
    let roots: Vec<_> = roots.collect();
    if differentiable && let Err(e) = backward(&roots, false) {
        return Some(format!("backward: {e}"));
    }
    c.din.iter().zip(&inputs).enumerate().find_map(|(i, (want, x))| {
        let want = want.as_ref()?;
        let Some(got) = x.grad() else {
            let zero = want.numbers().iter().all(|&x| x == 0.0);
            return (!zero).then(|| format!("input {i} has no gradient"));
        };
        Some(format!("gradient {i}: {}", differences(&got, want, tolerance)?))
    })
}

impl Golden {
    /// Compares every case, of views where they are asked for, with the file.
    pub(crate) fn check(&self, d: &Device, float: DType, views: bool) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.file);
        let all: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(all.len() >= self.least, "only {} cases", all.len());
        let failed: Vec<String> = all
            .iter()
            .enumerate()
            .filter_map(|(i, c)| {
                Some(format!("case {i}, {} {}: {}", c.op, c.args, wrong(self, c, d, float, views)?))
            })
            .collect();
        assert!(failed.is_empty(), "{} in {float} on {}:\n{}", failed.len(), id(d), failed.join("\n"));
    }

    /// Compares in f64 on the CPU, and in f32 on every backend, of views too.
    pub(crate) fn check_everywhere(&self) {
        self.check(&cpu(), DType::F64, false);
        for d in devices() {
            self.check(&d, DType::F32, false);
            self.check(&d, DType::F32, true);
        }
    }
}
