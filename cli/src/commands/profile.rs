//! `trefoil profile`: where the time of a training step goes.

use std::io::Write;
use std::path::PathBuf;

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::run::RunArgs;

/// Arguments of `profile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil profile examples/digits.json
  trefoil profile examples/digits.json --backend cuda --steps 50 --trace trace.json
  trefoil profile examples/digits.json --graph step.dot             then: dot -Tsvg step.dot -o step.svg
  trefoil profile network.json --data data/digits.csv               a network alone

Trains on one batch, two steps and then --steps more, and prints a table of the kernels and one of the layers, with the times of a step:
by events of the device around every kernel, on the CPU backend by the clock. GB/s count the operands of an operation once, GFLOP/s the
arithmetic of forward operations; where an operation has several kernels, each has the part of its time. The steps are plain calls, not
a recorded graph. Nothing is saved. --trace writes the steps for Perfetto (https://ui.perfetto.dev) or chrome://tracing. --graph trains
until a step is recorded and writes its calls, fused ones as one, and what they read of each other's results (with TREFOIL_FUSION=off as
they were recorded).")]
pub(crate) struct Args {
    #[command(flatten)]
    run_of: RunArgs,
    #[command(flatten)]
    backend: BackendArg,
    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 10)]
    steps: usize,
    /// Write a trace of the steps, as JSON of Chrome and Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the graph that is recorded of a step, in Graphviz's language DOT
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    if a.steps == 0 {
        return Err(CliError::Input("--steps: expected at least 1, got 0".into()));
    }
    let run = a.run_of.open(|config| {
        config.train.run = None;
        Ok(())
    })?;
    let device = a.backend.open()?;
    let sources = run.config.sources(&run.data, &device)?;
    let built = run.build(&device, &sources)?;
    let mut trainer = run.config.trainer(built.layer(), &run.data, &sources, &device)?;
    let profile = trainer.profile(&*sources.train, a.steps)?;
    writeln!(out, "{} ({}), {} steps", device.id(), device.caps().name, a.steps)?;
    writeln!(out, "{profile}")?;
    if let Some(path) = &a.trace {
        profile.write_trace(path)?;
        writeln!(out, "the trace is in {}", path.display())?;
    }
    if let Some(path) = &a.graph {
        let Some(info) = trainer.record(&*sources.train)? else {
            let why = trainer.capture_status().plain.unwrap_or_default();
            return Err(CliError::Input(format!("--graph: the steps are not recorded: {why}")));
        };
        std::fs::write(path, info.dot()).map_err(CliError::file("write", path))?;
        writeln!(out, "the graph ({} calls) is in {}", info.calls.len(), path.display())?;
    }
    Ok(())
}
