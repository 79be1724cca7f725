//! Chores of the project: `cargo xtask <command>`.
//!
//! `spec` writes files without which the library does not compile, so this crate does not depend on it; every other command is one of
//! `xtask-checks`, which does.

#[allow(unreachable_pub)]
#[path = "../../src/spec/prototype.rs"]
mod prototype;
mod spec;

use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

/// Chores of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Writes the table of kernels and their argument structs from the prototypes in `kernels/common`.
    Spec(spec::Args),
    /// api, compile-check, expand, lint, ops, record, status: see `cargo xtask <command> --help`.
    #[command(external_subcommand)]
    Check(Vec<String>),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Spec(args) => spec::run(&args),
        Chore::Check(args) => {
            let run = ["run", "--quiet", "--package", "xtask-checks", "--"];
            match Command::new(env!("CARGO")).args(run).args(args).status() {
                Ok(status) => return status.code().map_or(ExitCode::FAILURE, |c| ExitCode::from(c as u8)),
                Err(e) => Err(format!("cargo does not start: {e}")),
            }
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
