//! The variants of operations: which ran, and which others take the same problem.

use std::collections::{BTreeMap, BTreeSet};

use trefoil::IGpuBackend;
use trefoil::ops::core::Choice;

/// An operation and one of its variants.
pub type Name = (&'static str, String);

/// Runs `calls` and says which variants served it, and which others would.
pub fn of<T>(gpu: &dyn IGpuBackend, calls: impl FnOnce() -> T) -> (T, Used) {
    let (mut calls, mut result) = (Some(calls), None);
    let made = gpu.explain_calls(&mut || {
        result = calls.take().map(|f| f());
        Ok(())
    });
    (result.expect("explain_calls runs what it is given"), Used::new(&made.unwrap_or_default()))
}

/// The variants of one case.
#[derive(Debug, Default)]
pub struct Used {
    /// Those that ran.
    pub chosen: BTreeSet<Name>,
    /// Those that did not run and take every problem of their operation.
    pub others: BTreeSet<Name>,
}

impl Used {
    /// Those of the others that are variants of these operations, not of what the operations call: that has rows of its own.
    pub fn others_of(&self, ops: &[&str]) -> impl Iterator<Item = &Name> {
        self.others.iter().filter(|(op, _)| ops.contains(op))
    }

    fn new(made: &[Choice]) -> Self {
        let takes = |c: &Choice, v: &str| c.chosen == v || c.alternatives().any(|a| a == v);
        // An operation may be called several times: a pin serves all of the calls, or the case fails halfway.
        let every = |op: &str, v: &str| made.iter().filter(|c| c.op == op).all(|c| takes(c, v));
        let chosen: BTreeSet<Name> = made.iter().map(|c| (c.op, c.chosen.clone())).collect();
        let others = made.iter().flat_map(|c| c.alternatives().map(|v| (c.op, v.to_string())));
        let others = others.filter(|name| !chosen.contains(name) && every(name.0, &name.1)).collect();
        Used { chosen, others }
    }
}

/// How many cases each variant passed.
#[derive(Debug, Default)]
pub struct Passed(BTreeMap<Name, usize>);

impl Passed {
    /// Counts a case for each.
    pub fn add<'a>(&mut self, names: impl IntoIterator<Item = &'a Name>) {
        names.into_iter().for_each(|n| *self.0.entry(n.clone()).or_default() += 1);
    }

    /// Cases that a variant passed.
    pub fn of(&self, name: &Name) -> usize {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// All of them, as `operation:variant`.
    pub fn names(&self) -> impl Iterator<Item = (String, usize)> {
        self.0.iter().map(|((op, variant), n)| (format!("{op}:{variant}"), *n))
    }
}

/// Runs `calls` with a variant pinned.
pub fn pinned<T>(
    gpu: &dyn IGpuBackend,
    (op, variant): &Name,
    calls: impl FnOnce() -> T,
) -> Result<T, String> {
    gpu.pin_variant(op, Some(variant)).map_err(|e| e.to_string())?;
    let result = calls();
    gpu.pin_variant(op, None).map_err(|e| e.to_string())?;
    Ok(result)
}
