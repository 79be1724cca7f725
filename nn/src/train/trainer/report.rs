//! Reports of a run: epochs, their file, their curves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::core::error::{NnError, Result};
use crate::report::plot::{Chart, Series, svg};

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochStats {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// Mean training loss.
    pub train_loss: f64,
    /// Share of right answers on the training data, during the epoch.
    pub train_accuracy: Option<f64>,
    /// Mean test loss after the epoch.
    pub test_loss: Option<f64>,
    /// Share of right answers on the test data after the epoch.
    pub test_accuracy: Option<f64>,
    /// The trainer's metrics on the test data after the epoch, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Euclidean norm of the gradients of the epoch's last step before clipping, where they are clipped by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Duration.
    pub seconds: f64,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All epochs are done.
    Finished,
    /// Early stopping.
    Stalled,
    /// The callback asked for it.
    Interrupted,
    /// [`TrainOptions::stop`](super::TrainOptions::stop) was set. With a run folder the checkpoint holds the last step.
    Stopped,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// All epochs, those before a resumption included.
    pub history: Vec<EpochStats>,
    /// Why it ended.
    pub ended: Ended,
    /// Lowest monitored loss and its epoch.
    pub best: Option<(f64, u64)>,
}

fn line(stats: &EpochStats) -> Result<String> {
    let text = serde_json::to_string(stats).map_err(|e| NnError::config("metrics", e.to_string()))?;
    Ok(text + "\n")
}

/// Epochs as lines of `metrics.jsonl`.
pub(super) fn history_text(history: &[EpochStats]) -> Result<String> {
    history.iter().map(line).collect()
}

/// The epochs in the text of a `metrics.jsonl`, and the numbers (from 1) of lines that are none.
pub(super) fn parse_metrics(text: &[u8]) -> (Vec<EpochStats>, Vec<usize>) {
    let (mut out, mut bad) = (vec![], vec![]);
    for (i, line) in text.split_inclusive(|&b| b == b'\n').enumerate() {
        match serde_json::from_slice(line) {
            Ok(stats) => out.push(stats),
            Err(_) => bad.push(i + 1),
        }
    }
    (out, bad)
}

/// The epochs in a `metrics.jsonl`, without lines that were cut off by a kill. A missing file has none.
pub fn read_metrics(path: &Path) -> Result<Vec<EpochStats>> {
    match std::fs::read(path) {
        Ok(text) => Ok(parse_metrics(&text).0),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(NnError::io("open", path)(e)),
    }
}

/// What a line of a chart shows of an epoch.
type Value<'a> = Box<dyn Fn(&EpochStats) -> Option<f64> + 'a>;

fn series(name: &str, history: &[EpochStats], f: &Value<'_>) -> Option<Series> {
    let points: Vec<_> = history.iter().filter_map(|s| f(s).map(|v| (s.epoch as f64, v))).collect();
    (!points.is_empty()).then(|| Series { name: name.into(), points })
}

fn chart(title: &str, series: Vec<Option<Series>>) -> Option<Chart> {
    let series: Vec<_> = series.into_iter().flatten().collect();
    (!series.is_empty()).then(|| Chart { title: title.into(), x: "epoch".into(), series, log: false })
}

/// Names of the metrics of some epochs.
fn metric_names<'a>(history: impl Iterator<Item = &'a EpochStats>) -> BTreeSet<&'a String> {
    history.flat_map(|s| s.metrics.keys()).collect()
}

/// Loss, accuracy, metrics, gradient norm and learning rate over epochs as SVG.
pub fn curves(history: &[EpochStats]) -> String {
    svg(&charts(history))
}

/// The charts of [`curves`].
pub fn charts(history: &[EpochStats]) -> Vec<Chart> {
    let line = |name: &str, f: Value<'_>| series(name, history, &f);
    let mut charts = vec![
        chart(
            "loss",
            vec![line("train", Box::new(|s| Some(s.train_loss))), line("test", Box::new(|s| s.test_loss))],
        ),
        chart(
            "accuracy",
            vec![line("train", Box::new(|s| s.train_accuracy)), line("test", Box::new(|s| s.test_accuracy))],
        ),
    ];
    for name in metric_names(history.iter()) {
        charts.push(chart(name, vec![line("test", Box::new(|s| s.metrics.get(name).copied()))]));
    }
    charts.push(chart("gradient norm", vec![line("last step", Box::new(|s| s.grad_norm))]));
    charts.push(chart("learning rate", vec![line("rate", Box::new(|s| Some(s.lr)))]));
    charts.into_iter().flatten().collect()
}

/// Several runs, each with a name, as SVG: a chart for each loss, accuracy, metric and for the learning rate, with a line per run.
pub fn overlay(runs: &[(String, Vec<EpochStats>)]) -> String {
    svg(&overlay_charts(runs))
}

/// The charts of [`overlay`].
pub fn overlay_charts(runs: &[(String, Vec<EpochStats>)]) -> Vec<Chart> {
    let mut values: Vec<(String, Value<'_>)> = vec![
        ("training loss".into(), Box::new(|s| Some(s.train_loss))),
        ("test loss".into(), Box::new(|s| s.test_loss)),
        ("training accuracy".into(), Box::new(|s| s.train_accuracy)),
        ("test accuracy".into(), Box::new(|s| s.test_accuracy)),
    ];
    for name in metric_names(runs.iter().flat_map(|(_, h)| h)) {
        values.push((name.clone(), Box::new(move |s| s.metrics.get(name).copied())));
    }
    values.push(("gradient norm".into(), Box::new(|s| s.grad_norm)));
    values.push(("learning rate".into(), Box::new(|s| Some(s.lr))));
    let charts = values
        .iter()
        .filter_map(|(title, f)| chart(title, runs.iter().map(|(name, h)| series(name, h, f)).collect()));
    charts.collect()
}
