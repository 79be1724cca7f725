//! Results written straight from the definition, in f64 or bit by bit, for kernels that the CPU backend in f64 cannot stand for: what they give
//! depends on the storage type itself (casts, codes, neighbours), on integers alone, or on random words.
//!
//! Nothing here calls the library. Each result comes with the error that f32 arithmetic may have in it, worked out where it is computed.

use std::collections::BTreeMap;

use serde_json::Value;
use trefoil::DType;

use crate::cases::Kernel;
use crate::compare::ulp;
use crate::suite::{Case, HostTensor};

mod elementwise;
mod integer;
mod optimizer;
mod quantized;
mod random;

pub(crate) use self::elementwise::{bits, cast, logic, nan_to_num, nextafter};
pub(crate) use self::integer::{degree, one_hot, reduce_mask};
pub(crate) use self::optimizer::{adam_bf16, adam_codes, grad_factor, loss_scale, unscale};
pub(crate) use self::quantized::{
    dequantize, fp8, quantize_fp8, quantize_int4, quantize_int8, quantized, w8a8,
};
pub(crate) use self::random::{
    bernoulli, bias_dropout, bias_dropout_backward, categorical, dropout, dropout_backward, exponential,
    gumbel, integers, normal, permutation, uniform, words,
};

/// One rounding of f32, relative.
pub(crate) const U: f64 = 1.0 / 16_777_216.0;

/// The results of a case by definition.
pub type Definition = fn(&Question<'_>) -> Result<Vec<Answer>, String>;

/// An output by definition.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Name of the output.
    pub name: String,
    /// Its values: f64, or integers.
    pub value: HostTensor,
    /// How far each element may be from the value; `None` where the value, rounded to the storage type, is the only result.
    pub allowed: Option<Vec<f64>>,
}

impl Answer {
    /// Exactly these values, rounded to the storage type.
    pub(crate) fn exact(name: &str, shape: &[usize], values: &[f64]) -> Self {
        Answer { name: name.into(), value: HostTensor::from_f64(DType::F64, shape, values), allowed: None }
    }

    /// Exactly these integers.
    pub(crate) fn integers(name: &str, dtype: DType, shape: &[usize], values: &[i64]) -> Self {
        Answer { name: name.into(), value: HostTensor::from_i64(dtype, shape, values), allowed: None }
    }

    /// Values that f32 arithmetic gives with an absolute error of at most `errors`, then rounded once to `dtype`.
    pub(crate) fn rounded(
        name: &str,
        dtype: DType,
        shape: &[usize],
        values: &[f64],
        errors: Vec<f64>,
    ) -> Self {
        let mut answer = Answer::exact(name, shape, values);
        let store = |(v, e): (&f64, f64)| e + 0.5 * ulp(dtype, v.abs() + e);
        answer.allowed = Some(values.iter().zip(errors).map(store).collect());
        answer
    }

    /// Values with an absolute error of at most `errors` altogether.
    pub(crate) fn within(name: &str, shape: &[usize], values: &[f64], errors: Vec<f64>) -> Self {
        let mut answer = Answer::exact(name, shape, values);
        answer.allowed = Some(errors);
        answer
    }
}

/// A case, to be answered from the definition.
#[derive(Debug)]
pub struct Question<'a> {
    case: &'a Case,
    defaults: BTreeMap<String, Value>,
}

/// An input: its sizes and its elements in row-major order.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl<'a> Question<'a> {
    /// The case of a row.
    pub fn new(kernel: &Kernel, case: &'a Case) -> Self {
        Question { case, defaults: kernel.defaults() }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.case.dtype
    }

    fn arg(&self, name: &str) -> Result<&Value, String> {
        let given = self.case.args.get(name).or_else(|| self.defaults.get(name));
        given.ok_or_else(|| format!("argument {name} is missing"))
    }

    pub(crate) fn f(&self, name: &str) -> Result<f64, String> {
        self.arg(name)?.as_f64().ok_or_else(|| format!("argument {name} is no number"))
    }

    /// A number; `None` for null.
    pub(crate) fn opt_f(&self, name: &str) -> Result<Option<f64>, String> {
        let v = self.arg(name)?;
        if v.is_null() { Ok(None) } else { self.f(name).map(Some) }
    }

    pub(crate) fn u(&self, name: &str) -> Result<u64, String> {
        self.arg(name)?.as_u64().ok_or_else(|| format!("argument {name} is no whole number"))
    }

    pub(crate) fn i(&self, name: &str) -> Result<i64, String> {
        self.arg(name)?.as_i64().ok_or_else(|| format!("argument {name} is no integer"))
    }

    pub(crate) fn b(&self, name: &str) -> Result<bool, String> {
        self.arg(name)?.as_bool().ok_or_else(|| format!("argument {name} is no flag"))
    }

    pub(crate) fn s(&self, name: &str) -> Result<&str, String> {
        self.arg(name)?.as_str().ok_or_else(|| format!("argument {name} is no text"))
    }

    pub(crate) fn dims(&self, name: &str) -> Result<Vec<usize>, String> {
        let list = self.arg(name)?.as_array().ok_or_else(|| format!("argument {name} is no list"))?;
        list.iter().map(|v| v.as_u64().map(|n| n as usize).ok_or_else(|| format!("{name}: {v}"))).collect()
    }

    /// Axes of a tensor of this rank; negative ones count from the end.
    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        let list = match self.arg(name)? {
            Value::Array(a) => a.iter().filter_map(Value::as_i64).collect(),
            v => v.as_i64().into_iter().collect::<Vec<_>>(),
        };
        Ok(list.into_iter().map(|a| if a < 0 { (a + rank as i64) as usize } else { a as usize }).collect())
    }

    /// An input that the case may not have.
    pub(crate) fn opt(&self, name: &str) -> Option<Input> {
        let t = self.case.input(name)?;
        let all = t.to_f64();
        let Some(view) = self.case.strides.get(name) else {
            return Some(Input { dtype: t.dtype, shape: t.shape.clone(), values: all });
        };
        let at = |i: usize| {
            let mut rest = i;
            let steps = view.shape.iter().zip(&view.strides).rev();
            view.offset
                + steps.fold(0, |sum, (&n, &step)| {
                    let k = rest % n;
                    rest /= n;
                    sum + k * step
                })
        };
        let count = view.shape.iter().product();
        Some(Input {
            dtype: t.dtype,
            shape: view.shape.clone(),
            values: (0..count).map(|i| all[at(i)]).collect(),
        })
    }

    pub(crate) fn x(&self, name: &str) -> Result<Input, String> {
        self.opt(name).ok_or_else(|| format!("input {name} is missing"))
    }

    /// The inputs `name0`, `name1`, ...
    pub(crate) fn list(&self, name: &str) -> Vec<Input> {
        (0..).map_while(|i| self.opt(&format!("{name}{i}"))).collect()
    }
}

/// The result of a function of two inputs that broadcast against each other.
pub(crate) fn broadcast(
    a: &Input,
    b: &Input,
    f: impl Fn(f64, f64) -> f64,
) -> Result<(Vec<usize>, Vec<f64>), String> {
    let rank = a.shape.len().max(b.shape.len());
    let size = |t: &Input, axis: usize| (axis + t.shape.len()).checked_sub(rank).map_or(1, |i| t.shape[i]);
    let shape: Vec<usize> = (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (1, n) | (n, 1) => Ok(n),
            (n, m) if n == m => Ok(n),
            (n, m) => Err(format!("sizes {n} and {m} do not broadcast")),
        })
        .collect::<Result<_, _>>()?;
    let place = |t: &Input, i: usize| {
        let (mut rest, mut step, mut at) = (i, 1, 0);
        for axis in (0..rank).rev() {
            let n = size(t, axis);
            if n > 1 {
                at += rest % shape[axis] * step;
            }
            (rest, step) = (rest / shape[axis], step * n);
        }
        at
    };
    let count: usize = shape.iter().product();
    let y = (0..count).map(|i| f(a.values[place(a, i)], b.values[place(b, i)])).collect();
    Ok((shape, y))
}
