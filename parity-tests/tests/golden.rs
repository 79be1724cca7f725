//! All golden suites on every backend that is there. Of the samples of PyTorch's operators (`golden/opinfo`) one case in 67 runs, with
//! `TREFOIL_GOLDEN_ALL` all of them.

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parity_tests::cases::PENDING;
use parity_tests::report::Report;
use parity_tests::runner::{self, Verdict};
use parity_tests::suite::{Case, Unreadable};
use parity_tests::{backends, suite};

/// One case in so many of a suite of operator samples runs: a prime, so that all kernels and storage types come up.
const EVERY: usize = 67;

/// The cases of a suite that are to run.
fn cases(path: &Path) -> Result<Vec<Result<Case, Unreadable>>, String> {
    let all = suite::load(path)?;
    let samples = path.parent().is_some_and(|d| d.ends_with("opinfo"));
    if !samples || std::env::var_os("TREFOIL_GOLDEN_ALL").is_some() {
        return Ok(all);
    }
    Ok(all.into_iter().step_by(EVERY).collect())
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut suites: Vec<_> = ["suites", "own", "opinfo"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(dir.join(folder)).expect("golden/ has this folder"))
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    suites.sort();
    let mut trials = Vec::new();
    for backend in backends::all() {
        let gpu = match backend.handle {
            Ok(gpu) => gpu,
            Err(e) => {
                if !args.list {
                    println!(
                        "golden: {} is absent: {e} ({} suites {})",
                        backend.name,
                        suites.len(),
                        if backend.required { "FAIL" } else { "skipped" }
                    );
                }
                let (name, required) = (backend.name, backend.required);
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
        for path in &suites {
            let (path, gpu) = (path.clone(), gpu.clone());
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            let name = format!("{}::{folder}/{stem}", backend.name);
            trials.push(Trial::test(name.clone(), move || {
                let gpu = backends::private(&gpu).map_err(|e| e.to_string())?;
                let mut report = Report::new(&*gpu);
                let (mut failures, mut pending) = (Vec::new(), 0);
                for case in cases(&path)? {
                    match case {
                        Ok(c) if PENDING.contains(&c.kernel.as_str()) => pending += 1,
                        Err(e) if PENDING.contains(&e.kernel.as_str()) => pending += 1,
                        Err(e) => failures.push(e.why),
                        Ok(c) => {
                            let verdict = runner::golden(&*gpu, &c);
                            match &verdict {
                                Verdict::Fail(e) => failures.push(format!("{}: {e}", c.id)),
                                Verdict::Skip(e) => println!("{name}: skipped {}: {e}", c.id),
                                Verdict::Pass => {}
                            }
                            report.add(&c.kernel, c.dtype.name(), &verdict);
                        }
                    }
                }
                println!("{name}: {}, {pending} of families to come", report.summary());
                if failures.is_empty() { Ok(()) } else { Err(Failed::from(failures.join("\n"))) }
            }));
        }
    }
    libtest_mimic::run(&args, trials).exit_code()
}
