//! Command line of trefoil: devices, training, benchmarks.
#![forbid(unsafe_code)]

mod backend;
mod commands;
mod error;
mod messages;
mod network;
mod run;
mod saved;
mod signals;
#[cfg(feature = "tui")]
mod view;
#[cfg(not(feature = "tui"))]
#[path = "no_view.rs"]
mod view;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, compare, data, devices, eval, explain, export, generate, init, plot, predict, profile, report,
    schema, status, summary, train, tune,
};
use crate::error::{CliError, Result};

/// GPU kernels for deep learning: look at devices, train, measure.
///
/// Backends are chosen at run time: CUDA, HIP and OpenCL through the vendors' libraries, and the CPU. Nothing else needs to be installed.
#[derive(Debug, Parser)]
#[command(
    name = "trefoil",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  trefoil devices                                  what is found on this machine, and why the rest is not
  trefoil train examples/digits.json               train the digits example on the best device
  trefoil train examples/digits.json --resume      continue it after an interruption
  trefoil train examples/digits.json --tui         watch it: curves, progress, throughput
  trefoil init csv data.csv                        write a run to start from, fitted to the data
  trefoil eval runs/digits                         measure what was learned on the test data
  trefoil predict runs/digits new.csv              classes or values of new rows
  trefoil summary examples/digits.json             layers, shapes, parameters, arithmetic
  trefoil compare examples/digits.json --backend opencl   every layer on two devices, forward and backward
  trefoil plot runs/digits                         curves of a run as SVG
  trefoil profile examples/digits.json             kernels and layers of a training step, with their times
  trefoil bench cases.json --backend cuda          time the kernels
  trefoil tune cases.json --backend cuda           measure which implementations are fastest, and take them from now on
  trefoil explain gemm                             which implementation serves an operation

The environment variable TREFOIL_BACKEND sets the default of --backend."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Also print why backends were passed over, and other warnings
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every backend: its devices and what they can do, or the reason why it cannot be used
    Devices,
    /// Train a model described by a JSON file: a training run, a network or a network of Loom
    Train(train::Args),
    /// Write a training run to start from, fitted to data that is there
    Init(init::Args),
    /// Show what a run's data holds: items, shapes, classes, the first items as a picture
    Data(data::Args),
    /// Measure the network of a run folder on test data
    Eval(eval::Args),
    /// Classes or values that the network of a run folder gives for new data
    Predict(predict::Args),
    /// Continue a text by the language model of a run folder
    Generate(generate::Args),
    /// Write what a run has learned as safetensors with PyTorch's names
    Export(export::Args),
    /// Write a run folder's results, curves, network and settings as one HTML file
    Report(report::Args),
    /// Print a JSON Schema of training runs
    Schema(schema::Args),
    /// Show the layers of a network: shapes, parameters, memory, arithmetic
    Summary(summary::Args),
    /// Compare every layer of a network on two devices, forward and backward
    Compare(compare::Args),
    /// Draw the curves of runs as SVG
    Plot(plot::Args),
    /// Show where the time of a training step goes: kernels, layers, forward and backward
    Profile(profile::Args),
    /// Time operations described by a JSON file
    Bench(bench::Args),
    /// Measure which implementations of operations are fastest on a device, and take them from now on
    Tune(tune::Args),
    /// Say which implementation serves an operation, or the operations of a network, and why not the others
    Explain(explain::Args),
    /// Summarize the table of kernels
    Status(status::Args),
}

fn run(cli: &Cli, out: &mut dyn Write) -> Result<()> {
    match &cli.command {
        Command::Devices => devices::run(out),
        Command::Train(a) => train::run(a, out),
        Command::Init(a) => init::run(a, out),
        Command::Data(a) => data::run(a, out),
        Command::Eval(a) => eval::run(a, out),
        Command::Predict(a) => predict::run(a, out),
        Command::Generate(a) => generate::run(a, out),
        Command::Export(a) => export::run(a, out),
        Command::Report(a) => report::run(a, out),
        Command::Schema(a) => schema::run(a, out),
        Command::Summary(a) => summary::run(a, out),
        Command::Compare(a) => compare::run(a, out),
        Command::Plot(a) => plot::run(a, out),
        Command::Profile(a) => profile::run(a, out),
        Command::Bench(a) => bench::run(a, out),
        Command::Tune(a) => tune::run(a, out),
        Command::Explain(a) => explain::run(a, out),
        Command::Status(a) => status::run(a, out),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    messages::install(cli.verbose);
    // Without its lock: `train --tui` has a thread that draws.
    match run(&cli, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has seen enough.
        Err(CliError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            let _ = write!(std::io::stderr(), "{}", e.report());
            e.exit_code().into()
        }
    }
}
