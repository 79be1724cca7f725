//! `fuzz`: random inputs for everything in trefoil that takes a file, a configuration, a view, a program or an argument list.
//!
//! `fuzz TARGET --seconds 60` runs one target, `fuzz all` each of them; `fuzz list` names them. Inputs follow from the seed and their number
//! alone. They run in a child process with 5 GB of address space; the parent counts panics, wrong results, ends of the process (an abort, a
//! signal, memory) and inputs that take more than five seconds, keeps each such input in `target/fuzz`, and goes on with the next one.
//! `fuzz TARGET --input FILE` runs a kept input again.

mod input;
mod json;
mod parent;
mod rng;
mod targets;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs targets on random inputs; fails if one of them panics, ends the process, takes too long or gives a wrong result.
#[derive(Debug, Clone, Parser)]
#[command(name = "fuzz")]
struct Args {
    /// A target, `all`, or `list`
    target: String,
    /// Run each target for this long
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// Run this many inputs of each target instead
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    count: Option<u64>,
    /// Another seed gives other inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Targets that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Run this file alone
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "seconds"])]
    input: Option<PathBuf>,
    /// Run inputs from this number on in this process, as the parent asks for
    #[arg(long, hide = true)]
    worker: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.target == "list" {
        for t in targets::TARGETS {
            println!("{:<10} {}", t.name, t.about);
        }
        return ExitCode::SUCCESS;
    }
    let done = match args.worker {
        Some(from) => targets::find(&args.target).and_then(|t| worker::run(t, &args, from)),
        None => parent::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
