//! All golden suites on every backend that is there. Of the samples of PyTorch's operators (`golden/opinfo`) one case in 67 runs, with
//! `TREFOIL_GOLDEN_ALL` all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use crate::cases::PENDING;
use crate::report::Report;
use crate::runner::{self, Verdict};
use crate::suite::{Case, Unreadable};
use crate::{backends, suite};
use libtest_mimic::Arguments;
use trefoil::IGpuBackend;

use super::{Jobs, absent, note, refused_throughout};

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

/// Runs the golden suites.
pub fn run(asked: &[&str]) -> ExitCode {
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
    let (mut trials, mut jobs) = (Vec::new(), Jobs::default());
    for backend in backends::all(asked) {
        let gpu = match &backend.handle {
            Ok(gpu) => gpu.clone(),
            Err(e) => {
                trials.push(absent("golden", &backend, e, &format!("{} suites", suites.len()), args.list));
                continue;
            }
        };
        for path in &suites {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            let name = format!("{}::{folder}/{stem}", backend.name);
            let (path, own) = (path.clone(), gpu.clone());
            jobs.add(&*gpu, name.clone(), move || {
                let gpu = backends::private(&own).map_err(|e| e.to_string())?;
                run_suite(&*gpu, &name, &path).map(|()| String::new())
            });
        }
    }
    jobs.run(&args, trials, |_| Ok(())).exit_code()
}

/// Runs a suite on one backend.
fn run_suite(gpu: &dyn IGpuBackend, name: &str, path: &Path) -> Result<(), String> {
    let mut report = Report::new(gpu);
    let (mut failures, mut pending, mut skips) = (Vec::new(), 0, BTreeMap::new());
    for case in cases(path)? {
        let kernel = case.as_ref().map_or_else(|e| &e.kernel, |c| &c.kernel);
        if PENDING.contains(&kernel.as_str()) {
            pending += 1;
            continue;
        }
        match case {
            Err(e) => failures.push(e.why),
            Ok(c) => {
                let verdict = runner::golden(gpu, &c);
                match &verdict {
                    Verdict::Fail(e) => failures.push(format!("{}: {e}", c.id)),
                    Verdict::Skip(e) => println!("{name}: skipped {}: {e}", c.id),
                    Verdict::Pass => {}
                }
                note(&mut skips, &c.kernel, &verdict);
                report.add(&c.kernel, c.dtype.name(), &verdict);
            }
        }
    }
    println!("{name}: {}, {pending} of families to come", report.summary());
    failures.extend(refused_throughout(&skips));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
