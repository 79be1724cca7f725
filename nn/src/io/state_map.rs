//! Turning a state dictionary into the one that a model wants: other names, transposed weights, joined and split projections, a selection.
//!
//! ```
//! use trefoil_nn::{StateDict, StateMap};
//!
//! # fn f(theirs: &StateDict) -> trefoil_nn::Result<StateDict> {
//! // Weights kept as [in, out] under "model." become those of Dense layers.
//! StateMap::new().strip_prefix("model.").transpose_matching("*.weight").exclude("*.num_batches_tracked").apply(theirs)
//! # }
//! # fn g(theirs: &StateDict) -> trefoil_nn::Result<StateDict> {
//! // Projections of Hugging Face's BERT become those of MultiHeadAttention.
//! let qkv = ["query", "key", "value"].map(|n| format!("layer.*.attention.self.{n}.weight"));
//! StateMap::new().join(qkv, "layer.*.self_attn.in_proj_weight").apply(theirs)
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::core::error::{Result, invalid};
use crate::core::glob::{captures, filled, fits};
use crate::core::tensor::Tensor;
use crate::module::StateDict;

type Function = Arc<dyn Fn(&str, Tensor) -> Result<Tensor> + Send + Sync>;

#[derive(Clone)]
enum Rule {
    Rename(String, String),
    Prefix(String, String),
    RenameMatching(String, String),
    Join(Vec<String>, String),
    Split(String, Vec<(String, usize)>),
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
            Rule::RenameMatching(a, b) => write!(f, "rename {a:?} to {b:?}"),
            Rule::Join(a, b) => write!(f, "join {a:?} to {b:?}"),
            Rule::Split(a, b) => write!(f, "split {a:?} to {b:?}"),
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

    /// Renames the tensors whose names fit a pattern to another pattern with as many `*`, which stand for the same texts in order:
    /// `h.*.ln_1.*` to `blocks.*.norm1.*`.
    pub fn rename_matching(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.with(Rule::RenameMatching(from.into(), to.into()))
    }

    /// Joins tensors along their first axis in this order: those whose names fit the patterns with the same texts for `*`, which then stand
    /// in the new name. Where one is there, all must be.
    pub fn join(self, from: impl IntoIterator<Item = impl Into<String>>, to: impl Into<String>) -> Self {
        self.with(Rule::Join(from.into_iter().map(Into::into).collect(), to.into()))
    }

    /// Splits the tensors whose names fit a pattern along their first axis, in proportion to the shares: heads of queries, keys and values,
    /// for example. The inverse of [`join`](StateMap::join). The parts are views.
    pub fn split(
        self,
        from: impl Into<String>,
        to: impl IntoIterator<Item = (impl Into<String>, usize)>,
    ) -> Self {
        self.with(Rule::Split(
            from.into(),
            to.into_iter().map(|(name, share)| (name.into(), share)).collect(),
        ))
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

    /// The new dictionary. Tensors that no rule changes share memory with the old ones. Errors: two names that become one, patterns of a
    /// rule with different numbers of `*`, a matrix to transpose that is none, tensors to join of which one is missing or that do not fit
    /// together, a first axis that the shares do not divide, what a function of [`transform`](StateMap::transform) returns.
    pub fn apply(&self, state: &StateDict) -> Result<StateDict> {
        self.0.iter().try_fold(state.clone(), |now, rule| match rule {
            Rule::Join(from, to) => join(now, from, to, rule),
            _ => {
                let mut next = StateDict::new();
                for (name, t) in now {
                    for (name, t) in rule.each(name, t)? {
                        insert(&mut next, name, t, rule)?;
                    }
                }
                Ok(next)
            }
        })
    }
}

impl Rule {
    /// What becomes of one tensor.
    fn each(&self, name: String, t: Tensor) -> Result<Vec<(String, Tensor)>> {
        let one = match self {
            Rule::Rename(from, to) if name == *from => (to.clone(), t),
            Rule::Prefix(from, to) => match name.strip_prefix(from.as_str()) {
                Some(rest) => (format!("{to}{rest}"), t),
                None => (name, t),
            },
            Rule::RenameMatching(from, to) => (renamed(from, to, &name)?.unwrap_or(name), t),
            Rule::Transpose(p) if t.rank() == 2 && fits(p, &name) => (name, transposed(&t)?),
            Rule::TransposeOne(one) if name == *one => (name, transposed(&t)?),
            Rule::Select(p) if !fits(p, &name) => return Ok(vec![]),
            Rule::Exclude(p) if fits(p, &name) => return Ok(vec![]),
            Rule::Transform(p, f) if fits(p, &name) => {
                let t = f(&name, t)?;
                (name, t)
            }
            Rule::Split(from, to) if fits(from, &name) => return split(from, to, &name, &t),
            _ => (name, t),
        };
        Ok(vec![one])
    }
}

fn insert(state: &mut StateDict, name: String, t: Tensor, rule: &Rule) -> Result<()> {
    if state.contains_key(&name) {
        let got = format!("two tensors as `{name}` after {rule:?}");
        return Err(invalid("StateMap", "names", "one new name for each name", got));
    }
    state.insert(name, t);
    Ok(())
}

/// The new name of one that fits `from`.
fn renamed(from: &str, to: &str, name: &str) -> Result<Option<String>> {
    let Some(texts) = captures(from, name) else { return Ok(None) };
    let stars = || invalid("StateMap", "names", format!("as many * as in `{from}`"), format!("`{to}`"));
    filled(to, &texts).map(Some).ok_or_else(stars)
}

fn split(from: &str, to: &[(String, usize)], name: &str, t: &Tensor) -> Result<Vec<(String, Tensor)>> {
    let total = to.iter().fold(0usize, |n, (_, share)| n.saturating_add(*share));
    let rows = t.shape().first().copied().unwrap_or(0);
    if total == 0 || rows == 0 || !rows.is_multiple_of(total) {
        let want = format!("a first axis that {total} shares divide");
        return Err(invalid("StateMap", "split", want, format!("`{name}` of shape {:?}", t.shape())));
    }
    let sizes: Vec<usize> = to.iter().map(|(_, share)| rows / total * share).collect();
    let parts = t.detach().split(0, &sizes)?;
    let part = |((to, _), part): (&(String, usize), Tensor)| {
        Ok((renamed(from, to, name)?.unwrap_or_else(|| to.clone()), part))
    };
    to.iter().zip(parts).map(part).collect()
}

fn join(state: StateDict, from: &[String], to: &str, rule: &Rule) -> Result<StateDict> {
    let mut next = StateDict::new();
    // By the new name: what was found of the parts, each with its own name.
    let mut found: BTreeMap<String, Vec<Option<Tensor>>> = BTreeMap::new();
    for (name, t) in state {
        let at = from.iter().position(|p| fits(p, &name));
        let new = at.map(|i| renamed(&from[i], to, &name)).transpose()?.flatten();
        let (Some(i), Some(new)) = (at, new) else {
            insert(&mut next, name, t, rule)?;
            continue;
        };
        let parts = found.entry(new).or_insert_with(|| vec![None; from.len()]);
        if parts[i].replace(t.detach()).is_some() {
            let got = format!("two for one part, `{name}` among them, in {rule:?}");
            return Err(invalid("StateMap", "join", "one tensor for each part", got));
        }
    }
    for (new, parts) in found {
        let there: Vec<&Tensor> = parts.iter().flatten().collect();
        if there.len() < from.len() {
            let got = format!("{} of {} parts of `{new}`", there.len(), from.len());
            return Err(invalid("StateMap", "join", format!("all of {from:?}"), got));
        }
        insert(&mut next, new, Tensor::concat(0, &there)?, rule)?;
    }
    Ok(next)
}

fn transposed(t: &Tensor) -> Result<Tensor> {
    if t.rank() != 2 {
        return Err(invalid("StateMap", "transpose", "a matrix", format!("shape {:?}", t.shape())));
    }
    t.detach().t()?.contiguous()
}
