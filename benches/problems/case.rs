//! Cases of the JSON format of `trefoil bench`, and the operations that they can ask for.

use serde_json::{Map, Value};
use trefoil::ops::gemm::Precision;
use trefoil::{DType, GpuError};

use crate::{Context, Prepared};

/// Why a case cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A field is missing or does not fit; the text names the case, the field and what is expected.
    #[error("{0}")]
    Invalid(String),
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

type Result<T, E = CaseError> = std::result::Result<T, E>;

/// A JSON object with `id`, `op`, the sizes of the operation, and optionally `dtype`, `tf32` and `tf32x3`.
#[derive(Debug)]
pub struct Case {
    id: String,
    op: String,
    fields: Map<String, Value>,
}

impl Case {
    /// Fails if `value` is not an object with the texts `id` and `op`.
    pub fn new(value: Value) -> std::result::Result<Self, String> {
        let Value::Object(fields) = value else { return Err("expected an object".into()) };
        let text = |key: &str| match fields.get(key).and_then(Value::as_str) {
            Some(s) => Ok(s.to_string()),
            None => Err(format!("expected a text under `{key}`")),
        };
        Ok(Case { id: text("id")?, op: text("op")?, fields })
    }

    /// Name of the case in the results.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Name of the operation.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// The error of a field: what was expected under `key`.
    pub fn unexpected(&self, key: &str, expected: &str) -> CaseError {
        let got = self.fields.get(key).map_or("nothing".into(), Value::to_string);
        CaseError::Invalid(format!("case `{}`: expected {expected} under `{key}`, got {got}", self.id))
    }

    /// A field as it stands.
    pub fn field(&self, key: &str) -> Option<&Value> {
        self.fields.get(key)
    }

    /// A size of at least 1.
    pub fn size(&self, key: &str) -> Result<usize> {
        let n = self.fields.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
        n.map(|n| n as usize).ok_or_else(|| self.unexpected(key, "a whole number above 0"))
    }

    /// Several sizes of at least 1.
    pub(crate) fn sizes<const N: usize>(&self, keys: [&str; N]) -> Result<[usize; N]> {
        let mut sizes = [0; N];
        for (size, key) in sizes.iter_mut().zip(keys) {
            *size = self.size(key)?;
        }
        Ok(sizes)
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.fields.contains_key(key) { self.size(key) } else { Ok(default) }
    }

    /// A whole number of at least 0 (an axis, a padding).
    pub(crate) fn whole(&self, key: &str) -> Result<usize> {
        let n = self.fields.get(key).and_then(Value::as_u64);
        n.map(|n| n as usize).ok_or_else(|| self.unexpected(key, "a whole number"))
    }

    pub(crate) fn whole_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.fields.contains_key(key) { self.whole(key) } else { Ok(default) }
    }

    /// A list of whole numbers.
    pub fn list(&self, key: &str) -> Result<Vec<usize>> {
        let items = self.fields.get(key).and_then(Value::as_array);
        let numbers = items.and_then(|l| l.iter().map(|v| v.as_u64().map(|n| n as usize)).collect());
        numbers.ok_or_else(|| self.unexpected(key, "a list of whole numbers"))
    }

    /// Number of elements: the sum of `sizes`, or `n`.
    pub(crate) fn total(&self) -> Result<usize> {
        if self.fields.contains_key("sizes") { Ok(self.list("sizes")?.iter().sum()) } else { self.size("n") }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.fields.get(key).and_then(Value::as_str).ok_or_else(|| self.unexpected(key, "a text"))
    }

    /// The value that a name stands for.
    pub(crate) fn named<T: Copy>(&self, key: &str, table: &[(&str, T)]) -> Result<T> {
        let name = self.text(key)?;
        table.iter().find(|(n, _)| *n == name).map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = table.iter().map(|&(n, _)| n).collect();
            self.unexpected(key, &format!("one of {}", names.join(", ")))
        })
    }

    /// Whether the field is there and true.
    pub fn flag(&self, key: &str) -> bool {
        self.fields.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The case's dtype, f32 by default.
    pub fn dtype(&self) -> Result<DType> {
        if !self.fields.contains_key("dtype") {
            return Ok(DType::F32);
        }
        let known = DType::from_name(self.text("dtype")?).filter(|d| d.is_float());
        known.ok_or_else(|| self.unexpected("dtype", "f32, f16, bf16 or f64"))
    }

    /// Arithmetic of f32 products: TF32 or three products in TF32 if the case says so.
    pub fn precision(&self) -> Precision {
        match (self.flag("tf32"), self.flag("tf32x3")) {
            (true, _) => Precision::Tf32,
            (_, true) => Precision::Tf32x3,
            _ => Precision::Ieee,
        }
    }
}

/// Prepares one direction of a case.
type Prepare = fn(&Context<'_>, &Case) -> Result<Prepared>;

/// An operation of the case format.
#[derive(Debug)]
pub struct Operation {
    /// Its name under `op`.
    pub name: &'static str,
    /// The forward.
    pub forward: Prepare,
    /// The gradients, where they are timed.
    pub backward: Option<Prepare>,
}

/// An operation without gradients.
pub(crate) const fn forward(name: &'static str, forward: Prepare) -> Operation {
    Operation { name, forward, backward: None }
}

/// An operation and its gradients.
pub(crate) const fn both(name: &'static str, forward: Prepare, backward: Prepare) -> Operation {
    Operation { name, forward, backward: Some(backward) }
}

/// All operations of the case format.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    [
        crate::core::OPERATIONS,
        crate::activation::OPERATIONS,
        crate::elementwise::OPERATIONS,
        crate::reduce::OPERATIONS,
        crate::shape::OPERATIONS,
        crate::softmax::OPERATIONS,
        crate::gemm::OPERATIONS,
        crate::conv::OPERATIONS,
        crate::norm::OPERATIONS,
        crate::pool::OPERATIONS,
        crate::resample::OPERATIONS,
        crate::attention::OPERATIONS,
        crate::embedding::OPERATIONS,
        crate::rnn::OPERATIONS,
        crate::graph::OPERATIONS,
        crate::mesh::OPERATIONS,
        crate::loss::OPERATIONS,
        crate::optimizer::OPERATIONS,
        crate::random::OPERATIONS,
    ]
    .into_iter()
    .flatten()
}

/// The operation of this name.
pub fn operation(name: &str) -> Option<&'static Operation> {
    operations().find(|o| o.name == name)
}
