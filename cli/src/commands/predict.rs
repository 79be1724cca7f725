//! `trefoil predict`: what the network of a run says of new data.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use trefoil_nn::autograd::no_grad;
use trefoil_nn::config::{Config, DataMapping, TargetKind};
use trefoil_nn::{DType, Layer, Tensor};

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::saved::SavedArgs;

/// Arguments of `predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil predict runs/digits new.csv                    class and probability of each row
  trefoil predict runs/digits new.csv --scores --out predictions.csv   the probability of every class too

DATA is a file of the run's kind (npy, npz, idx), or a table of any format for a run on one; a table needs the columns of features alone, by the names or in the order that the training
data had, and is read with the categories, means and classes of the run. The output is CSV: a line per item, in the file's order.")]
pub(crate) struct Args {
    #[command(flatten)]
    saved: SavedArgs,
    /// The data
    #[arg(value_name = "DATA")]
    data: PathBuf,
    #[command(flatten)]
    backend: BackendArg,
    /// File of the predictions [default: the standard output]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write a column per class, of probabilities (of the network's outputs, where the loss does not take logits)
    #[arg(long)]
    scores: bool,
}

/// What outputs are, by the loss: logits and log-probabilities become probabilities.
fn probabilities(config: &Config, y: &Tensor) -> trefoil_nn::Result<Tensor> {
    match config.loss.as_ref().map_or("cross_entropy", |l| l.name()) {
        "cross_entropy" | "multiclass_focal" => y.softmax(-1),
        _ => Ok(y.clone()),
    }
}

/// A cell of CSV.
fn cell(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

/// Writes the lines of a batch, and before the first the names of the columns.
fn write_batch(a: &Args, mapping: &DataMapping, y: &Tensor, header: bool, out: &mut dyn Write) -> Result<()> {
    let width = y.shape().get(1..).map_or(1, |s| s.iter().product::<usize>()).max(1);
    let values = y.to_dtype(DType::F32)?.to_vec::<f32>()?;
    let classes = mapping.target == Some(TargetKind::Class) && y.rank() == 2;
    if header {
        let names: Vec<String> = match classes {
            true => {
                let all = (0..if a.scores { width } else { 0 }).map(|i| cell(&mapping.class_name(i)));
                ["class".to_string(), "score".into()].into_iter().chain(all).collect()
            }
            false => (0..width).map(|i| format!("value{i}")).collect(),
        };
        writeln!(out, "{}", names.join(","))?;
    }
    for row in values.chunks_exact(width) {
        let mut cells = vec![];
        if classes {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            let (class, score) = best.map_or((0, f32::NAN), |(i, s)| (i, *s));
            cells.extend([cell(&mapping.class_name(class)), score.to_string()]);
        }
        if !classes || a.scores {
            cells.extend(row.iter().map(f32::to_string));
        }
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.saved.open()?;
    let device = a.backend.open()?;
    let data = run.config.data.inference(&a.data, &run.mapping)?;
    let sources = run.config.sources(&data, &device)?;
    let model = run.config.model(&device, &sources)?;
    run.restore(&model, a.saved.weights())?;
    let mut file = match &a.out {
        Some(path) => Some(BufWriter::new(File::create(path).map_err(CliError::file("write", path))?)),
        None => None,
    };
    let mut items = 0;
    let source = sources.test.as_deref().unwrap_or(&*sources.train);
    for batch in source.epoch(None, run.config.train.batch_size)? {
        let y = no_grad(|| probabilities(&run.config, &model.forward(&batch?.x)?))?;
        let to: &mut dyn Write = match &mut file {
            Some(f) => f,
            None => out,
        };
        write_batch(a, &run.mapping, &y, items == 0, to)?;
        items += y.shape().first().copied().unwrap_or(0);
    }
    if let (Some(mut f), Some(path)) = (file, &a.out) {
        f.flush().map_err(CliError::file("write", path))?;
        writeln!(out, "{items} predictions are in {}", path.display())?;
    }
    data.skipped().iter().for_each(|s| log::error!("left out: {s}"));
    Ok(())
}
