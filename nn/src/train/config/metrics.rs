//! `metrics`: what is measured on the test data.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::kind::{Row, kind, names, row};
use super::loss::rows;
use crate::core::error::{NnError, Result};
use crate::core::options::{COUNT, join};
use crate::core::tensor::{Device, Tensor};
use crate::train::metrics::*;

/// What metrics are made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) device: &'a Device,
    /// Classes of the data.
    pub(super) classes: usize,
    /// Test items.
    pub(super) items: usize,
}

type Make = Arc<dyn Fn(Site<'_>) -> Result<Box<dyn Metric>> + Send + Sync>;

/// A metric, chosen by its `type` (see [`MetricConfig::names`]).
#[derive(Clone)]
pub struct MetricConfig {
    name: &'static str,
    make: Make,
}

impl fmt::Debug for MetricConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetricConfig({})", self.name)
    }
}

fn make<M: Metric + 'static>(f: impl Fn(Site<'_>) -> Result<M> + Send + Sync + 'static) -> Make {
    Arc::new(move |site| Ok(Box::new(f(site)?)))
}

fn read_average(path: &str, v: &Value) -> Result<Average> {
    match (v.as_str(), v.as_u64()) {
        (Some("macro"), _) => Ok(Average::Macro),
        (Some("micro"), _) => Ok(Average::Micro),
        (Some("weighted"), _) => Ok(Average::Weighted),
        (_, Some(class)) => Ok(Average::Class(class as usize)),
        _ => Err(NnError::config(
            join(path, "average"),
            format!("expected \"macro\", \"micro\", \"weighted\" or a class id, got {v}"),
        )),
    }
}

/// A row of a score of classes.
macro_rules! score {
    ($name:literal $score:ident) => {
        row!($name { average: Value = "macro"; classes: Option<usize> = null, COUNT; } |path| {
            let average = read_average(path, &average)?;
            make(move |s| Classification::new(s.device, classes.unwrap_or(s.classes), Score::$score, average))
        })
    };
}

pub(super) static METRICS: &[Row<Make>] = &[
    row!("accuracy" {} |_path| make(|s| Accuracy::new(s.device))),
    row!("top_k" { k: usize = 5, COUNT; } |_path| make(move |s| TopK::new(s.device, k))),
    score!("precision" Precision),
    score!("recall" Recall),
    score!("f1" F1),
    row!("auc" {} |_path| make(|s| Auc::new(s.device, s.items))),
    row!("perplexity" { ignore_index: i64 = -100; } |_path| {
        make(move |s| Ok(Perplexity::new(s.device)?.ignore_index(ignore_index)))
    }),
    row!("mae" {} |_path| make(|s| MeanAbsoluteError::new(s.device))),
    row!("rmse" {} |_path| make(|s| RootMeanSquaredError::new(s.device))),
    row!("r2" {} |_path| make(|s| R2Score::new(s.device))),
];

impl MetricConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let (name, make) = kind(path, "a metric", json, METRICS)?;
        Ok(MetricConfig { name, make })
    }

    /// Names of all metrics.
    pub fn names() -> Vec<&'static str> {
        names(METRICS)
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `last`: classes lie on the last axis of the output.
    pub(super) fn build(&self, site: Site<'_>, last: bool) -> Result<Box<dyn Metric>> {
        let metric = (self.make)(site)?;
        Ok(if last { Box::new(Rows(metric)) } else { metric })
    }
}

/// A metric of rows, for outputs `[.., C]` and targets `[..]`.
#[derive(Debug)]
struct Rows(Box<dyn Metric>);

impl Metric for Rows {
    fn name(&self) -> String {
        self.0.name()
    }
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let (x, y) = rows(output, target)?;
        self.0.update(&x, &y)
    }
    fn read(&self) -> Result<f64> {
        self.0.read()
    }
    fn reset(&mut self) -> Result<()> {
        self.0.reset()
    }
}
