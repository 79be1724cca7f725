//! `trefoil eval`: measures the network of a run on its test data or on other data.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::config::TargetKind;
use trefoil_nn::metrics::{ConfusionMatrix, Metric};
use trefoil_nn::plot::confusion_matrix;
use trefoil_nn::{Layer, LayerExt};

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::saved::{SavedArgs, weights_name, with_test};

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil eval runs/digits                          loss, accuracy and metrics on the run's test data
  trefoil eval runs/digits --data new.csv           on another file of the same columns
  trefoil eval runs/digits --confusion confusion.svg   which classes are taken for which, as a picture

The run's own metrics are measured too. A run without test data is measured on its training data, which the first line says. Paths in the run
are relative to the folder in which it was trained.")]
pub(crate) struct Args {
    #[command(flatten)]
    saved: SavedArgs,
    #[command(flatten)]
    backend: BackendArg,
    /// Data to measure on, instead of the run's test data: a file, or JSON as under `data.test`
    #[arg(long, value_name = "FILE|JSON")]
    data: Option<String>,
    /// Draw the confusion matrix into this SVG file
    #[arg(long, value_name = "FILE")]
    confusion: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.saved.open()?;
    let mut config = match &a.data {
        Some(text) => with_test(&run.config, text)?,
        None => run.config.clone(),
    };
    // Nothing is written, and what was learned is what the file holds.
    (config.train.run, config.train.ema) = (None, None);
    let device = a.backend.open()?;
    let data = config.data.open_mapped(Some(&run.mapping))?;
    let sources = config.sources(&data, &device)?;
    let model = config.model(&device, &sources)?;
    run.restore(&model, a.saved.weights())?;
    let (of, source) = match sources.test.as_deref() {
        Some(test) => ("test", test),
        None => ("training", &*sources.train),
    };
    let (scores, metrics) = config.trainer(&model, &data, &sources, &device)?.evaluate_metrics(source)?;
    if a.json {
        let all = json!({ "run": run.folder, "weights": weights_name(&run, a.saved.weights()), "device": device.id().to_string(),
            "data": of, "items": source.items(), "loss": scores.loss, "accuracy": scores.accuracy, "metrics": metrics });
        writeln!(out, "{all:#}")?;
    } else {
        let (file, n) = (weights_name(&run, a.saved.weights()), source.items());
        writeln!(out, "{} ({file}) on {}: {n} {of} items", run.folder.display(), device.id())?;
        writeln!(out, "loss {:.6}", scores.loss)?;
        if let Some(accuracy) = scores.accuracy {
            writeln!(out, "accuracy {accuracy:.4}")?;
        }
        metrics.iter().try_for_each(|(name, v)| writeln!(out, "{name} {v:.6}"))?;
    }
    let Some(path) = &a.confusion else { return Ok(()) };
    if data.target() != TargetKind::Class {
        return Err(CliError::Input(
            "--confusion: expected a run whose targets are classes, got one of values".into(),
        ));
    }
    model.eval();
    let mut counts: Option<ConfusionMatrix> = None;
    for batch in source.epoch(None, config.train.batch_size)? {
        let b = batch?;
        let y = no_grad(|| model.forward(&b.x))?;
        let &[_, classes] = y.shape() else {
            let text = format!("--confusion: expected outputs [items, classes], got {:?}", y.shape());
            return Err(CliError::Input(text));
        };
        let matrix = match &mut counts {
            Some(matrix) => matrix,
            None => counts.insert(ConfusionMatrix::new(&device, classes)?),
        };
        matrix.update(&y, &b.y)?;
    }
    let Some(matrix) = counts else { return Ok(()) };
    let svg = confusion_matrix(&matrix.counts()?.rows(), &|i| run.mapping.class_name(i));
    std::fs::write(path, svg).map_err(CliError::file("write", path))?;
    writeln!(out, "the confusion matrix is in {}", path.display())?;
    Ok(())
}
