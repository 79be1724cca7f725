//! What is fuzzed.

use crate::input::Input;

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was taken, and the result is right.
    Accepted,
    /// A typed error refused it.
    Rejected,
    /// It was taken and the result is wrong, or it was refused without reason.
    Wrong(String),
}

impl Verdict {
    /// Accepted or rejected, as a result says; the error itself is of no interest here.
    pub(crate) fn of<T, E>(result: Result<T, E>) -> Self {
        if result.is_ok() { Verdict::Accepted } else { Verdict::Rejected }
    }
}

/// Runs one input. It panics where the code under test does.
pub(crate) type Run = Box<dyn FnMut(&Input) -> Verdict>;

/// Where inputs come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Generate {
    /// At most this many random bytes, of which the target makes its calls.
    Random { most: usize },
    /// Changes of the seeds.
    Mutations,
}

/// One target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// What it holds against what.
    pub(crate) about: &'static str,
    pub(crate) generate: Generate,
    /// Sets it up. Errors: a device or folder that it needs is absent.
    pub(crate) open: fn() -> Result<Run, String>,
}

mod cache;
mod chain;
mod data;
mod devices;
mod launch;
mod layout;
mod loom;
mod model;
mod network;
mod program;
mod run;
mod scratch;
mod state;

/// All targets.
pub(crate) const TARGETS: &[Target] = &[
    layout::TARGET,
    program::TARGET,
    launch::TARGET,
    cache::TARGET,
    data::TARGET,
    state::TARGET,
    network::TARGET,
    run::TARGET,
    loom::TARGET,
];

/// The target of that name. Errors: an unknown one.
pub(crate) fn find(name: &str) -> Result<&'static Target, String> {
    let known = || TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    TARGETS
        .iter()
        .find(|t| t.name == name)
        .ok_or_else(|| format!("unknown target `{name}`; known are all, list, {}", known()))
}
