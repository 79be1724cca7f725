//! `data.sampler`: which items an epoch serves.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::kind::{Row, kind, names, row};
use crate::core::error::{NnError, Result};
use crate::core::options::{COUNT, join, read};
use crate::train::data::Sampler;

type Make = Arc<dyn Fn(usize, Option<&[i64]>) -> Result<Sampler> + Send + Sync>;

/// Which items an epoch of training serves, chosen by its `type` (see [`SamplerConfig::names`]). By default each once.
#[derive(Clone)]
pub struct SamplerConfig {
    name: &'static str,
    make: Make,
}

impl fmt::Debug for SamplerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SamplerConfig({})", self.name)
    }
}

/// Weights under which all classes are equally likely.
fn balanced(labels: &[i64]) -> Vec<f64> {
    let mut counts = std::collections::BTreeMap::new();
    labels.iter().for_each(|l| *counts.entry(l).or_insert(0.0) += 1.0);
    labels.iter().map(|l| 1.0 / counts.get(l).copied().unwrap_or(1.0)).collect()
}

pub(super) static SAMPLERS: &[Row<Make>] = &[
    row!("all" {} |_path| Arc::new(|_: usize, _: Option<&[i64]>| Ok(Sampler::All)) as Make),
    row!("uniform" { draws: usize, COUNT; } |_path| {
        Arc::new(move |_: usize, _: Option<&[i64]>| Ok(Sampler::Uniform { draws })) as Make
    }),
    row!("weighted" { weights: Value = "balanced"; draws: Option<usize> = null, COUNT; } |path| {
        let at = join(path, "weights");
        let list: Option<Vec<f64>> = match weights {
            Value::String(s) if s == "balanced" => None,
            Value::Array(_) => Some(read(&at, weights)?),
            v => {
                let what = format!("expected \"balanced\" or a weight per item, got {v}");
                return Err(NnError::config(at, what));
            }
        };
        Arc::new(move |n: usize, labels: Option<&[i64]>| {
            let weights = match (&list, labels) {
                (Some(list), _) if list.len() != n => {
                    let what = format!("expected {n} weights, one per training item, got {}", list.len());
                    return Err(NnError::config(at.clone(), what));
                }
                (Some(list), _) => list.clone(),
                (None, Some(labels)) => balanced(labels),
                (None, None) => {
                    let what = "expected a list of weights, got \"balanced\" for data without one class per item";
                    return Err(NnError::config(at.clone(), what));
                }
            };
            Ok(Sampler::Weighted { weights, draws: draws.unwrap_or(n) })
        }) as Make
    }),
    row!("distributed" { rank: usize; world: usize, COUNT; drop_last: bool = false; } |path| {
        if rank >= world {
            let what = format!("expected a rank below world = {world}, got {rank}");
            return Err(NnError::config(join(path, "rank"), what));
        }
        Arc::new(move |_: usize, _: Option<&[i64]>| Ok(Sampler::Distributed { rank, world, drop_last })) as Make
    }),
];

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig { name: "all", make: Arc::new(|_, _| Ok(Sampler::All)) }
    }
}

impl SamplerConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let (name, make) = kind(path, "a sampler", json, SAMPLERS)?;
        Ok(SamplerConfig { name, make })
    }

    /// Names of all samplers.
    pub fn names() -> Vec<&'static str> {
        names(SAMPLERS)
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The sampler of `n` items with these classes.
    pub(super) fn build(&self, n: usize, labels: Option<&[i64]>) -> Result<Sampler> {
        (self.make)(n, labels)
    }
}
