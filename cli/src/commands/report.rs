//! `trefoil report`: a run as one HTML file.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use trefoil_nn::plot::{escape, svg};
use trefoil_nn::summary::summary;
use trefoil_nn::trainer::{EpochStats, charts, read_metrics};
use trefoil_nn::{Device, LayerExt, Tensor};

use crate::error::{CliError, Result};
use crate::saved::SavedArgs;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil report runs/digits                     runs/digits/report.html
  trefoil report runs/digits --out digits.html

The file needs nothing beside itself: results, curves, the network as a picture (where the run's data can be read), the run as JSON, versions and
device.")]
pub(crate) struct Args {
    #[command(flatten)]
    saved: SavedArgs,
    /// The file [default: report.html in the run folder]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const STYLE: &str = "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}table{border-collapse:collapse}\
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
pre{background:#f4f7fa;padding:1em;overflow:auto}svg{max-width:100%;height:auto}";

fn number(x: Option<f64>) -> String {
    x.map_or("-".into(), |x| format!("{x:.5}"))
}

/// The epochs as a table: all of them where they are few, otherwise the first, the last and some between.
fn epochs(history: &[EpochStats]) -> String {
    let step = history.len().div_ceil(25).max(1);
    let mut rows = String::new();
    for (i, s) in history.iter().enumerate() {
        if i % step == 0 || i + 1 == history.len() {
            let metrics: String = s.metrics.values().map(|v| format!("<td>{v:.5}</td>")).collect();
            rows += &format!(
                "<tr><td>{}</td><td>{:.5}</td><td>{}</td><td>{}</td><td>{}</td>{metrics}<td>{:.2e}</td><td>{:.2}</td></tr>\n",
                s.epoch,
                s.train_loss,
                number(s.train_accuracy),
                number(s.test_loss),
                number(s.test_accuracy),
                s.lr,
                s.seconds
            );
        }
    }
    let names = history
        .last()
        .map(|s| s.metrics.keys().map(|n| format!("<th>{}</th>", escape(n))).collect::<String>());
    format!(
        "<table><tr><th>epoch</th><th>training loss</th><th>accuracy</th><th>test loss</th><th>accuracy</th>{}<th>learning rate</th><th>seconds</th></tr>\n{rows}</table>\n",
        names.unwrap_or_default()
    )
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.saved.open()?;
    let history = read_metrics(&run.folder.join("metrics.jsonl"))?;
    // The picture needs the shape of an item alone: nothing is computed.
    let picture = || -> trefoil_nn::Result<String> {
        let data = run.data()?;
        let cpu: Device = Arc::new(trefoil::CpuBackend::new());
        let sources = run.config.sources(&data, &cpu)?;
        let model = run.config.model(&cpu, &sources)?;
        model.eval();
        let x: Tensor = sources.first(run.config.train.seed, 1)?.x;
        Ok(summary(&model, &[x])?.picture())
    };
    let network = picture().unwrap_or_else(|e| format!("<p>No picture: {}</p>", escape(&e.to_string())));
    let name = run.folder.canonicalize().unwrap_or_else(|_| run.folder.clone());
    let name = name.file_name().unwrap_or(run.folder.as_os_str()).to_string_lossy().into_owned();
    let best = history.iter().min_by(|a, b| {
        let loss = |s: &EpochStats| s.test_loss.unwrap_or(s.train_loss);
        loss(a).total_cmp(&loss(b))
    });
    let best = best.map_or("<p>No epoch has ended yet.</p>".into(), |s| {
        let accuracy = s.test_accuracy.map_or(String::new(), |x| format!(", accuracy {x:.4}"));
        format!(
            "<p>Best epoch {} of {}: loss {:.5}{accuracy}.</p>",
            s.epoch,
            history.len(),
            s.test_loss.unwrap_or(s.train_loss)
        )
    });
    let i = &run.info;
    let made = format!(
        "<p>{} parameters, trained by trefoil-nn {} on {} ({}, {}), {}.</p>",
        i.parameters,
        escape(&i.trefoil_nn),
        escape(&i.device),
        escape(&i.device_name),
        escape(&i.driver),
        escape(&i.host)
    );
    let html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n{best}\n{made}\n\
         <h2>Curves</h2>\n{1}\n<h2>Epochs</h2>\n{2}\n<h2>Network</h2>\n{network}\n<h2>Run</h2>\n<pre>{3}</pre>\n</body></html>\n",
        escape(&name),
        svg(&charts(&history)),
        epochs(&history),
        escape(&format!("{:#}", run.config.to_json()))
    );
    let path = a.out.clone().unwrap_or_else(|| run.folder.join("report.html"));
    std::fs::write(&path, html).map_err(CliError::file("write", &path))?;
    writeln!(out, "the report is in {}", path.display())?;
    Ok(())
}
