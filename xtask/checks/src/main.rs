//! The chores of `cargo xtask` that need the library.

mod api;
mod compile_check;
mod compiled;
mod evidence;
mod expand;
mod lint;
mod nvrtc;
mod operations;
mod record;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the project that need the library.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes docs/api/trefoil.txt, the public interface of the library, one line per item.
    Api(api::Args),
    /// Compiles every kernel unit with NVRTC and hiprtc for several architectures; no GPU is needed.
    CompileCheck(compile_check::Args),
    /// Compiles for one architecture and reports line by line; `compile-check` starts it.
    #[command(hide = true)]
    CompileWorker(compile_check::WorkerArgs),
    /// Prints the exact text of a kernel unit in a dialect, as the compiler gets it.
    Expand(expand::Args),
    /// Checks every kernel unit with a C99 compiler.
    Lint(lint::Args),
    /// Writes docs/OPERATIONS.md, the index of operations, from the traits and tables.
    Ops(operations::Args),
    /// Puts reports of parity runs into the records under parity-tests/results.
    Record(record::Args),
    /// Writes KERNEL_STATUS.md from the tables and the committed results.
    Status(status::Args),
}

fn main() -> ExitCode {
    if let Some(code) = api::as_compiler() {
        return code;
    }
    let done = match Cli::parse().command {
        Command::Api(args) => api::run(&args),
        Command::CompileCheck(args) => compile_check::run(&args),
        Command::CompileWorker(args) => compile_check::work(&args),
        Command::Expand(args) => expand::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Ops(args) => operations::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Status(args) => status::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
