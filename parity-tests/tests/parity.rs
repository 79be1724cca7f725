//! Every kernel on random shapes, dtypes and backends against the CPU in f64.
//!
//! `TREFOIL_PARITY_SHAPES` sets the number of shapes per kernel and dtype (default 4), `TREFOIL_PARITY_SEED` the seed (default 1; a failure
//! prints what replays it), `TREFOIL_PARITY_REPORT` a directory for one report per backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use libtest_mimic::{Arguments, Failed, Trial};
use parity_tests::cases::KERNELS;
use parity_tests::report::Report;
use parity_tests::runner::Verdict;
use parity_tests::{backends, random_cases};

fn number(var: &str, default: u64) -> u64 {
    std::env::var(var).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let shapes = number("TREFOIL_PARITY_SHAPES", 4) as usize;
    let seed = number("TREFOIL_PARITY_SEED", 1);
    let reports: Arc<Mutex<BTreeMap<&'static str, Report>>> = Arc::default();
    let mut trials = Vec::new();
    for backend in backends::all() {
        let name = backend.name;
        let gpu = match backend.handle {
            Ok(gpu) => gpu,
            Err(e) => {
                let required = backend.required;
                if !args.list {
                    println!(
                        "parity: {name} is absent: {e} ({} kernels {})",
                        KERNELS.len(),
                        if required { "FAIL" } else { "skipped" }
                    );
                }
                let trial = Trial::test(format!("{name}::present"), move || {
                    if required {
                        Err(Failed::from(format!("TREFOIL_REQUIRE names {name}, but: {e}")))
                    } else {
                        Ok(())
                    }
                });
                trials.push(trial.with_ignored_flag(!required));
                continue;
            }
        };
        reports.lock().expect("no test holds this lock while it fails").insert(name, Report::new(&*gpu));
        for kernel in KERNELS.iter() {
            let (gpu, reports) = (gpu.clone(), reports.clone());
            trials.push(Trial::test(format!("{name}::{}", kernel.name), move || {
                let gpu = backends::private(&gpu).map_err(|e| e.to_string())?;
                let mut failures = Vec::new();
                for &dtype in kernel.dtypes {
                    for index in 0..shapes {
                        let verdict = random_cases::check(&*gpu, kernel, dtype, index, seed);
                        match &verdict {
                            Verdict::Fail(e) => failures.push(e.clone()),
                            Verdict::Skip(e) => println!("{name}: skipped {e}"),
                            Verdict::Pass => {}
                        }
                        let mut all = reports.lock().expect("no test holds this lock while it fails");
                        if let Some(r) = all.get_mut(name) {
                            r.add(kernel.name, dtype.name(), &verdict);
                        }
                    }
                }
                if failures.is_empty() { Ok(()) } else { Err(Failed::from(failures.join("\n"))) }
            }));
        }
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        for (name, report) in reports.lock().expect("all tests are over").iter() {
            println!("parity: {name}: {}", report.summary());
            if let Some(dir) = std::env::var_os("TREFOIL_PARITY_REPORT") {
                let path = PathBuf::from(dir).join(format!("parity-{name}.json"));
                let text = serde_json::to_string_pretty(report).expect("a report is plain data");
                if let Err(e) = std::fs::write(&path, text + "\n") {
                    eprintln!("{}: {e}", path.display());
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    conclusion.exit_code()
}
