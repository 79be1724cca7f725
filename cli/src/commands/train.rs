//! `trefoil train`: trains a model described by a JSON file.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::config::{Config, Sources};
use trefoil_nn::trainer::{Ended, EpochStats, Report, read_metrics};
use trefoil_nn::{Device, Layer, LayerExt, Trainer};

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::run::{Built, Run, RunArgs};
use crate::signals::Signals;
use crate::view::{Plan, View};

/// Arguments of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil train examples/digits.json
  trefoil train examples/digits.json --backend cuda --epochs 50 --run runs/long
  trefoil train examples/digits.json --resume
  trefoil train examples/digits.json --tui                          curves, progress and throughput on the terminal
  trefoil train examples/digits.json --set optimizer.lr=0.01 --set train.batch_size=32
  trefoil train network.json --data data/digits.csv --epochs 20     a network alone
  trefoil train loom.json --data xor.csv --target value --loss mse --out trained.json
  trefoil train loom.json --config run.json                         data, loss, optimizer and settings from a run without `model`

A network alone or of Loom needs data: --data, or `data` in the file of --config. Without `loss`, classes are trained by cross entropy and
values by the squared error. A file of Loom also says the seed and, above 1, the batch size; --out writes what was learned as a bundle.

The run folder receives checkpoint.safetensors and metrics.jsonl after every epoch, best.safetensors whenever the monitored loss
improves, and curves.svg; with the first of them config.json (the run as it was made, with what options changed), mapping.json (what features
and classes mean) and run.json (versions, device), from which eval, predict, generate, export and report work. A run that was interrupted and resumed gives the same bytes as one that was not. One run at a time uses
the folder; an earlier run in it that is not resumed is moved aside, to DIR.1, DIR.2, .., when the first epoch is saved.

Ctrl-C (SIGINT) and SIGTERM finish the step, save the state, say how to resume, and exit with 130 and 143. A second one ends the
process at once; the last checkpoint is intact. In the view of --tui, q goes on in plain output, and Ctrl-C does what it does without.")]
pub(crate) struct Args {
    #[command(flatten)]
    run_of: RunArgs,
    #[command(flatten)]
    backend: BackendArg,
    /// Continue from the run folder's checkpoint (start at the beginning if there is none)
    #[arg(long)]
    resume: bool,
    /// Run folder, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Number of epochs, instead of the configuration's
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Seed, instead of the configuration's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the trained network as a bundle of Loom, where it is a network of Loom
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print only the result
    #[arg(short, long)]
    quiet: bool,
    /// Show curves, progress, throughput and memory on the terminal while it trains
    #[arg(long, conflicts_with = "quiet")]
    tui: bool,
}

fn percent(x: Option<f64>) -> String {
    x.map_or("-".into(), |a| format!("{:.2}%", 100.0 * a))
}

/// An epoch in plain output.
pub(crate) fn line(s: &EpochStats, epochs: u64) -> String {
    let test = s.test_loss.map_or("-".into(), |l| format!("{l:.4}"));
    let metrics: String = s.metrics.iter().map(|(name, v)| format!("  {name} {v:.4}")).collect();
    format!(
        "epoch {:>3}/{epochs}  train loss {:.4} acc {}  test loss {test} acc {}{metrics}  lr {:.2e}  {:.2} s",
        s.epoch,
        s.train_loss,
        percent(s.train_accuracy),
        percent(s.test_accuracy),
        s.lr,
        s.seconds
    )
}

/// The most malformed items that are listed by name.
const SHOWN: usize = 10;

/// Sets what the options say instead of the configuration.
fn change(a: &Args, config: &mut Config) -> Result<()> {
    let train = &mut config.train;
    train.run = a.run.clone().or(train.run.take());
    train.epochs = a.epochs.unwrap_or(train.epochs);
    train.seed = a.seed.unwrap_or(train.seed);
    if a.resume && train.run.is_none() {
        return Err(CliError::Input(
            "--resume needs a run folder: set train.run in the configuration or pass --run DIR".into(),
        ));
    }
    Ok(())
}

/// What is trained, on what, where.
fn title(run: &Run, model: &dyn Layer, device: &Device) -> String {
    let data = &run.data;
    format!(
        "{} ({}): {} parameters, {} training and {} test items{}",
        device.id(),
        device.caps().name,
        model.num_parameters(),
        data.train_items(),
        data.test_items(),
        match (data.classes(), data.encoding()) {
            (0, _) => String::new(),
            (n, Some(_)) => format!(", {n} token ids"),
            (n, None) => format!(", {n} classes"),
        }
    )
}

/// The live view, where it is asked for and the terminal can have it.
fn view(a: &Args, config: &Config, sources: &Sources, title: &str) -> Result<Option<View>> {
    if !a.tui {
        return Ok(None);
    }
    if !cfg!(feature = "tui") {
        return Err(CliError::Input("--tui: this build has no view: build it with `--features tui`".into()));
    }
    let (train, items) = (&config.train, sources.train.items());
    let steps = items.div_ceil(train.batch_size).div_ceil(train.accumulate) as u64;
    let plan = Plan { title: title.into(), epochs: train.epochs, steps, items: items as u64 };
    Ok(View::new(plan))
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.run_of.open(|config| change(a, config))?;
    let Run { config, data, loom, .. } = &run;
    if a.out.is_some() && loom.is_none() {
        return Err(CliError::Input(
            "--out writes a bundle of Loom, but the network is none of Loom (a run folder has what is learned: --run DIR)".into(),
        ));
    }
    let device = a.backend.open()?;
    let sources = config.sources(data, &device)?;
    let built = run.build(&device, &sources)?;
    let model = built.layer();
    let title = title(&run, model, &device);
    let view = view(a, config, &sources, &title)?;
    let mut trainer = config.trainer(model, data, &sources, &device)?;
    if let Some(view) = &view {
        trainer = trainer.callback(view.events(&device));
    }
    trainer.show_progress(!a.quiet && view.is_none() && std::io::stderr().is_terminal());
    if !a.quiet {
        writeln!(out, "{title}")?;
        run.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
    }
    let report = fit(a, config, &sources, &mut trainer, view, out)?;
    print_result(config, &data.skipped(), &report, out)?;
    if let (Some(path), Built::Loom(made)) = (&a.out, &built) {
        let id = made.config().id.as_str();
        made.save(path, if id.is_empty() { "network" } else { id })?;
    }
    Ok(())
}

/// Trains until the end, or until a signal comes.
fn fit(
    a: &Args,
    config: &Config,
    sources: &Sources,
    trainer: &mut Trainer<'_>,
    mut view: Option<View>,
    out: &mut dyn Write,
) -> Result<Report> {
    let stop = trainer.stop_flag();
    resume(a, config, trainer, out)?;
    let signals = Signals::install(stop.clone())
        .map_err(CliError::file("install", Path::new("handlers of signals")))?;
    if let Some(view) = &mut view {
        let past = config.train.run.as_ref().filter(|_| trainer.epochs_done() > 0);
        let past = past.map(|run| read_metrics(&run.join("metrics.jsonl"))).transpose()?;
        view.open(past.unwrap_or_default(), stop);
    }
    let mut failed = None;
    let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |s| {
        let written = match &view {
            Some(view) => view.flush(out),
            None if a.quiet => Ok(()),
            None => writeln!(out, "{}", line(s, config.train.epochs)),
        };
        failed = written.err();
        failed.is_none()
    })?;
    drop(view);
    if let Some(e) = failed {
        return Err(e.into());
    }
    if report.ended == Ended::Stopped {
        let text = stopped(config, trainer);
        return Err(CliError::Stopped { text, code: signals.exit_code() });
    }
    Ok(report)
}

/// Resumes, or says what is not resumed.
fn resume(a: &Args, config: &Config, trainer: &mut Trainer<'_>, out: &mut dyn Write) -> Result<()> {
    let Some(run) = &config.train.run else { return Ok(()) };
    let checkpoint = run.join("checkpoint.safetensors");
    let what = if a.resume {
        match (trainer.resume()?, trainer.batches_done()) {
            (false, _) => "no checkpoint yet; starting at the beginning".into(),
            (true, 0) => format!("resumed after epoch {}", trainer.epochs_done()),
            (true, n) => format!("resumed in epoch {}, after batch {n}", trainer.epochs_done() + 1),
        }
    } else if checkpoint.exists() {
        let what = match Checkpoint::load(&checkpoint) {
            Ok(c) => format!("--resume would have continued after epoch {}", c.progress.epoch),
            Err(e) => format!("--resume would have failed: {e}"),
        };
        format!("starting over; {what}. The old run is moved aside when the first epoch is saved")
    } else {
        return Ok(());
    };
    if !a.quiet {
        writeln!(out, "{what}")?;
    }
    Ok(())
}

/// What a run that a signal ended has left, and how to go on.
fn stopped(config: &Config, trainer: &Trainer<'_>) -> String {
    let steps = trainer.optimizer().steps();
    let epoch = trainer.epochs_done() + 1;
    let at = format!("stopped in epoch {epoch} of {}, after step {steps}", config.train.epochs);
    match &config.train.run {
        _ if steps == 0 => format!("{at}; there was nothing to save yet"),
        None => format!("{at}; nothing was saved, because there is no run folder (train.run or --run DIR)"),
        Some(run) => format!("{at}; the state is saved in {}. To go on: {}", run.display(), resume_command()),
    }
}

/// The command of this process, with `--resume`.
fn resume_command() -> String {
    let mut words: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    if !words.iter().any(|w| w == "--resume") {
        words.push("--resume".into());
    }
    let plain = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_alphanumeric() || "-_./:=,+".contains(c));
    let quote = |w: &String| if plain(w) { w.clone() } else { format!("'{}'", w.replace('\'', "'\\''")) };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// What a run that no signal ended has reached, and where its files are.
fn print_result(config: &Config, skipped: &[String], report: &Report, out: &mut dyn Write) -> Result<()> {
    if !skipped.is_empty() {
        writeln!(out, "{} malformed items were left out:", skipped.len())?;
        skipped.iter().take(SHOWN).try_for_each(|s| writeln!(out, "    {s}"))?;
        if skipped.len() > SHOWN {
            writeln!(out, "    ...")?;
        }
    }
    if report.ended == Ended::Stalled {
        writeln!(out, "stopped early: the monitored loss no longer falls")?;
    }
    if let Some(last) = report.history.last() {
        match (last.test_accuracy, last.test_loss) {
            (Some(a), _) => writeln!(out, "test accuracy {a:.4} after epoch {}", last.epoch)?,
            (None, Some(l)) => writeln!(out, "test loss {l:.6} after epoch {}", last.epoch)?,
            _ => writeln!(out, "training loss {:.6} after epoch {}", last.train_loss, last.epoch)?,
        }
    }
    if let Some(run) = &config.train.run {
        writeln!(out, "results are in {}", run.display())?;
    }
    Ok(())
}
