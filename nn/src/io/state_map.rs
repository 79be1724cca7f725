//! Turning a state dictionary into the one that a model wants: other names, transposed weights, a selection.
//!
//! ```
//! use trefoil_nn::{StateDict, StateMap};
//!
//! # fn f(theirs: &StateDict) -> trefoil_nn::Result<StateDict> {
//! // Weights kept as [in, out] under "model." become those of Dense layers.
//! StateMap::new().strip_prefix("model.").transpose_matching("*.weight").exclude("*.num_batches_tracked").apply(theirs)
//! # }
//! ```

use std::fmt;
use std::sync::Arc;

use crate::core::error::{Result, invalid};
use crate::core::glob::fits;
use crate::core::tensor::Tensor;
use crate::module::StateDict;

type Function = Arc<dyn Fn(&str, Tensor) -> Result<Tensor> + Send + Sync>;

#[derive(Clone)]
enum Rule {
    Rename(String, String),
    Prefix(String, String),
    Transpose(String),
    TransposeOne(String),
    Select(String),
    Exclude(String),
    Transform(String, Function),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Rename(a, b) => write!(f, "rename {a:?} to {b:?}"),
            Rule::Prefix(a, b) => write!(f, "prefix {a:?} to {b:?}"),
            Rule::Transpose(p) | Rule::TransposeOne(p) => write!(f, "transpose {p:?}"),
            Rule::Select(p) => write!(f, "select {p:?}"),
            Rule::Exclude(p) => write!(f, "exclude {p:?}"),
            Rule::Transform(p, _) => write!(f, "transform {p:?}"),
        }
    }
}

/// Rules that are applied to a state dictionary one after the other, each to what the one before it gave. In patterns `*` stands for any
/// text, also none, and `?` for one character.
#[derive(Debug, Clone, Default)]
pub struct StateMap(Vec<Rule>);

impl StateMap {
    /// Everything as it is.
    pub fn new() -> Self {
        StateMap::default()
    }

    fn with(mut self, rule: Rule) -> Self {
        self.0.push(rule);
        self
    }

    /// Renames one tensor; one that is not there is left alone.
    pub fn rename(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.with(Rule::Rename(from.into(), to.into()))
    }

    /// Replaces a prefix.
    pub fn rename_prefix(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.with(Rule::Prefix(from.into(), to.into()))
    }

    /// Removes a prefix where it stands.
    pub fn strip_prefix(self, prefix: impl Into<String>) -> Self {
        self.rename_prefix(prefix, "")
    }

    /// Puts a prefix in front of every name.
    pub fn add_prefix(self, prefix: impl Into<String>) -> Self {
        self.rename_prefix("", prefix)
    }

    /// Transposes one matrix.
    pub fn transpose(self, name: impl Into<String>) -> Self {
        self.with(Rule::TransposeOne(name.into()))
    }

    /// Transposes the matrices whose names fit a pattern. Tensors of other ranks that fit it stay as they are.
    pub fn transpose_matching(self, pattern: impl Into<String>) -> Self {
        self.with(Rule::Transpose(pattern.into()))
    }

    /// Keeps only the tensors whose names fit the pattern.
    pub fn select(self, pattern: impl Into<String>) -> Self {
        self.with(Rule::Select(pattern.into()))
    }

    /// Leaves out the tensors whose names fit the pattern.
    pub fn exclude(self, pattern: impl Into<String>) -> Self {
        self.with(Rule::Exclude(pattern.into()))
    }

    /// Changes the tensors whose names fit a pattern by a function of name and tensor.
    pub fn transform(
        self,
        pattern: impl Into<String>,
        f: impl Fn(&str, Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.with(Rule::Transform(pattern.into(), Arc::new(f)))
    }

    /// The new dictionary. Tensors that no rule changes share memory with the old ones. Errors: two names that become one, a matrix to
    /// transpose that is none, what a function of [`transform`](StateMap::transform) returns.
    pub fn apply(&self, state: &StateDict) -> Result<StateDict> {
        let mut now = state.clone();
        for rule in &self.0 {
            let mut next = StateDict::new();
            for (name, t) in now {
                let (name, t) = match rule {
                    Rule::Rename(from, to) if name == *from => (to.clone(), t),
                    Rule::Prefix(from, to) => match name.strip_prefix(from.as_str()) {
                        Some(rest) => (format!("{to}{rest}"), t),
                        None => (name, t),
                    },
                    Rule::Transpose(p) if t.rank() == 2 && fits(p, &name) => (name, transposed(&t)?),
                    Rule::TransposeOne(one) if name == *one => (name, transposed(&t)?),
                    Rule::Select(p) if !fits(p, &name) => continue,
                    Rule::Exclude(p) if fits(p, &name) => continue,
                    Rule::Transform(p, f) if fits(p, &name) => {
                        let t = f(&name, t)?;
                        (name, t)
                    }
                    _ => (name, t),
                };
                if next.contains_key(&name) {
                    let got = format!("two tensors as `{name}` after {rule:?}");
                    return Err(invalid("StateMap", "names", "one new name for each name", got));
                }
                next.insert(name, t);
            }
            now = next;
        }
        Ok(now)
    }
}

fn transposed(t: &Tensor) -> Result<Tensor> {
    if t.rank() != 2 {
        return Err(invalid("StateMap", "transpose", "a matrix", format!("shape {:?}", t.shape())));
    }
    t.detach().t()?.contiguous()
}
