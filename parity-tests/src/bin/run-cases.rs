//! Runs golden suites against one backend.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use parity_tests::report::Report;
use parity_tests::runner::Verdict;
use parity_tests::{backends, runner, suite, units};

/// Runs golden suites against one backend.
#[derive(Parser)]
struct Args {
    /// cpu, cuda, hip or opencl, each with an optional :N.
    #[arg(long)]
    backend: String,
    /// Only cases whose id contains this text.
    #[arg(long)]
    filter: Option<String>,
    /// Writes the results per kernel as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
    /// SUITE.json, with SUITE.safetensors next to it.
    #[arg(required = true)]
    suites: Vec<PathBuf>,
}

fn main() -> ExitCode {
    if units::answer() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    let gpu = backends::open(&args.backend).map_err(|e| e.to_string())?;
    let mut report = Report::new(&*gpu);
    let wanted = |id: &str| args.filter.as_ref().is_none_or(|f| id.contains(f.as_str()));
    for path in &args.suites {
        for case in suite::load(path)? {
            let (id, kernel, dtype, verdict) = match case {
                Ok(c) if !wanted(&c.id) => continue,
                Ok(c) => {
                    let v = runner::golden(&*gpu, &c);
                    (c.id, c.kernel, c.dtype.name(), v)
                }
                Err(e) if !wanted(&e.why) => continue,
                Err(e) => (String::new(), e.kernel, "", Verdict::Fail(e.why)),
            };
            match &verdict {
                Verdict::Pass => {}
                Verdict::Fail(e) => println!("FAIL {kernel} {id}: {e}"),
                Verdict::Skip(e) => println!("skip {kernel} {id}: {e}"),
            }
            report.add(&kernel, dtype, &verdict);
        }
    }
    if let Some(path) = &args.report {
        report.write(path)?;
    }
    println!("{}", report.summary());
    Ok(report.failed == 0)
}
