//! Variants that were chosen by measurement.

use std::fmt;

/// What decided for a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ChosenBy {
    /// It is the first that applies and is worth taking.
    #[default]
    Rule,
    /// It is pinned.
    Pin,
    /// It was fastest when it was measured ([`tune_calls`](super::InteropOps::tune_calls)).
    Measurement,
}

impl fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChosenBy::Rule => "by rule",
            ChosenBy::Pin => "pinned",
            ChosenBy::Measurement => "measured",
        })
    }
}

io_struct! {
    /// A choice that was measured.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Tuned {
        /// The operation.
        pub op: &'static str,
        /// The problem in words; equal problems get the same choice.
        pub problem: String,
        /// The variant that is taken from now on.
        pub chosen: String,
        /// The variant that the static rules prefer.
        pub preferred: String,
        /// The variants that ran, the preferred one first, with the nanoseconds of the launches that serve this problem, as often as the calls have
        /// it.
        pub times: Vec<(String, u64)>,
        /// Whether it was written to the disk cache, so that later processes know it.
        pub kept: bool = false,
    }
}

impl Tuned {
    /// Nanoseconds with a variant, if it ran.
    pub fn ns(&self, variant: &str) -> Option<u64> {
        self.times.iter().find(|(name, _)| name == variant).map(|(_, ns)| *ns)
    }

    /// Time with the preferred variant over the time with the chosen one: 1 where they are the same.
    pub fn gain(&self) -> f64 {
        match (self.ns(&self.preferred), self.ns(&self.chosen)) {
            (Some(preferred), Some(chosen)) if chosen > 0 => preferred as f64 / chosen as f64,
            _ => 1.0,
        }
    }
}
