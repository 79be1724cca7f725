//! One case of a benchmark file.

use serde_json::{Map, Value};
use trefoil::DType;

use crate::error::{CliError, Result};

/// An object with `id`, `op` and the operation's sizes.
#[derive(Debug)]
pub(crate) struct Case {
    id: String,
    op: String,
    fields: Map<String, Value>,
}

impl Case {
    pub(crate) fn new(v: Value) -> std::result::Result<Self, String> {
        let Value::Object(fields) = v else { return Err("expected an object".into()) };
        let text = |key: &str| match fields.get(key).and_then(Value::as_str) {
            Some(s) => Ok(s.to_string()),
            None => Err(format!("expected a text under `{key}`")),
        };
        Ok(Case { id: text("id")?, op: text("op")?, fields })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn op(&self) -> &str {
        &self.op
    }

    fn fail(&self, key: &str, expected: &str) -> CliError {
        let got = self.fields.get(key).map_or("nothing".into(), Value::to_string);
        CliError::Input(format!("case `{}`: expected {expected} under `{key}`, got {got}", self.id))
    }

    /// A size of at least 1.
    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        let n = self.fields.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
        n.map(|n| n as usize).ok_or_else(|| self.fail(key, "a whole number above 0"))
    }

    /// Whether the case says something under this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.fields.contains_key(key) { self.size(key) } else { Ok(default) }
    }

    /// A whole number of at least 0 (an axis, a padding).
    pub(crate) fn axis(&self, key: &str) -> Result<usize> {
        let n = self.fields.get(key).and_then(Value::as_u64);
        n.map(|n| n as usize).ok_or_else(|| self.fail(key, "a whole number"))
    }

    pub(crate) fn axis_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.fields.contains_key(key) { self.axis(key) } else { Ok(default) }
    }

    /// A list of whole numbers.
    pub(crate) fn list(&self, key: &str) -> Result<Vec<usize>> {
        let items = self.fields.get(key).and_then(Value::as_array);
        let numbers = items.and_then(|l| l.iter().map(|v| v.as_u64().map(|n| n as usize)).collect());
        numbers.ok_or_else(|| self.fail(key, "a list of whole numbers"))
    }

    /// Number of elements: `sizes` added up, or `n`.
    pub(crate) fn total(&self) -> Result<usize> {
        if self.fields.contains_key("sizes") { Ok(self.list("sizes")?.iter().sum()) } else { self.size("n") }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str> {
        self.fields.get(key).and_then(Value::as_str).ok_or_else(|| self.fail(key, "a text"))
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.fields.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The case's dtype, f32 by default.
    pub(crate) fn dtype(&self) -> Result<DType> {
        if !self.fields.contains_key("dtype") {
            return Ok(DType::F32);
        }
        let known = DType::from_name(self.text("dtype")?).filter(|d| d.is_float());
        known.ok_or_else(|| self.fail("dtype", "f32, f16, bf16 or f64"))
    }

    /// A value that is not one of those known.
    pub(crate) fn unknown(&self, key: &str, known: &str) -> CliError {
        self.fail(key, known)
    }
}
