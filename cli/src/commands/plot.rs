//! `trefoil plot`: curves of runs as SVG.

use std::io::Write;
use std::path::{Path, PathBuf};

use trefoil_nn::plot::svg;
use trefoil_nn::trainer::{charts, overlay_charts, read_metrics};

use crate::error::{CliError, Result};

/// Arguments of `plot`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil plot runs/digits                         loss, accuracy, metrics, gradient norm, learning rate, into runs/digits/plot.svg
  trefoil plot runs/a runs/b --out both.svg        a chart per quantity with one line per run
  trefoil plot runs/digits --log                   losses on a logarithmic axis

A run folder is what `trefoil train` writes; its metrics.jsonl has a line per epoch.")]
pub(crate) struct Args {
    /// Run folders (or metrics.jsonl files); several are drawn over each other
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The SVG file [default: plot.svg in the run folder, for several runs in the current one]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Losses and gradient norms on logarithmic axes
    #[arg(long)]
    log: bool,
}

/// The last part of a path, as it stands in a legend.
fn name(run: &Path) -> String {
    let named = run.canonicalize().unwrap_or_else(|_| run.to_path_buf());
    named.file_name().unwrap_or(named.as_os_str()).to_string_lossy().into_owned()
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let mut all = vec![];
    for run in &a.runs {
        let (folder, file) = match run.is_dir() {
            true => (run.as_path(), run.join("metrics.jsonl")),
            false => (run.parent().unwrap_or(Path::new("")), run.clone()),
        };
        let history = read_metrics(&file)?;
        if history.is_empty() {
            let path = file.display();
            return Err(CliError::Input(format!("{path} has no epochs; is this the folder of a run?")));
        }
        all.push((folder.to_path_buf(), history));
    }
    let (mut drawn, default) = match all.as_slice() {
        [(folder, history)] => (charts(history), folder.join("plot.svg")),
        _ => {
            let named: Vec<_> = all.iter().map(|(folder, h)| (name(folder), h.clone())).collect();
            (overlay_charts(&named), PathBuf::from("plot.svg"))
        }
    };
    for chart in drawn.iter_mut().filter(|c| a.log && (c.title.contains("loss") || c.title.contains("norm")))
    {
        chart.log = true;
    }
    let path = a.out.clone().unwrap_or(default);
    std::fs::write(&path, svg(&drawn)).map_err(CliError::file("write", &path))?;
    for (folder, history) in &all {
        let last = history.last().map_or(0, |s| s.epoch);
        writeln!(out, "{}: {last} epochs", folder.display())?;
    }
    writeln!(out, "curves are in {}", path.display())?;
    Ok(())
}
