//! `trefoil train`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use trefoil_nn::LayerExt;
use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::config::Config;
use trefoil_nn::trainer::{Ended, EpochStats};

use crate::BackendArg;
use crate::error::{CliError, Result};

/// Arguments of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil train examples/digits.json
  trefoil train examples/digits.json --backend cuda --epochs 50 --run runs/long
  trefoil train examples/digits.json --resume

The run folder receives checkpoint.safetensors and metrics.jsonl after every epoch, best.safetensors whenever the monitored loss
improves, and curves.svg. A run that was interrupted and resumed gives the same bytes as one that was not.")]
pub(crate) struct Args {
    /// The configuration
    config: PathBuf,
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
    /// Print only the result
    #[arg(short, long)]
    quiet: bool,
}

fn percent(x: Option<f64>) -> String {
    x.map_or("-".into(), |a| format!("{:.2}%", 100.0 * a))
}

fn line(s: &EpochStats, epochs: u64) -> String {
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

/// Malformed items that are named.
const SHOWN: usize = 10;

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let mut config = Config::load(&a.config)?;
    config.train.run = a.run.clone().or(config.train.run);
    config.train.epochs = a.epochs.unwrap_or(config.train.epochs);
    config.train.seed = a.seed.unwrap_or(config.train.seed);
    config.check()?;
    if a.resume && config.train.run.is_none() {
        return Err(CliError::Input(
            "--resume needs a run folder: set train.run in the configuration or pass --run DIR".into(),
        ));
    }
    let data = config.data.open()?;
    let device = a.backend.open()?;
    let sources = config.sources(&data, &device)?;
    let model = config.model(&device, &sources)?;
    let mut trainer = config.trainer(&model, &data, &sources, &device)?;
    trainer.show_progress(!a.quiet && std::io::stderr().is_terminal());
    if !a.quiet {
        writeln!(
            out,
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
        )?;
    }

    let checkpoint = config.train.run.as_ref().map(|r| r.join("checkpoint.safetensors"));
    if a.resume {
        let found = trainer.resume()?;
        if !a.quiet {
            let what = if found {
                format!("resumed after epoch {}", trainer.epochs_done())
            } else {
                "no checkpoint yet; starting at the beginning".into()
            };
            writeln!(out, "{what}")?;
        }
    } else if let Some(c) = checkpoint.as_ref().filter(|c| c.exists())
        && !a.quiet
    {
        let epoch = Checkpoint::load(c).map_or(0, |c| c.progress.epoch);
        writeln!(out, "starting over; --resume would have continued after epoch {epoch}")?;
    }

    let mut failed = None;
    let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |s| {
        if a.quiet {
            return true;
        }
        let written = writeln!(out, "{}", line(s, config.train.epochs));
        failed = written.err();
        failed.is_none()
    })?;
    if let Some(e) = failed {
        return Err(e.into());
    }
    let skipped = data.skipped();
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
