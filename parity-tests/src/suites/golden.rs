//! All golden suites on every backend that is there. Of the samples of PyTorch's operators (`golden/opinfo`) one case in 67 runs, with
//! `TREFOIL_GOLDEN_ALL` all of them. On a CPU behind a driver a kernel's cases run in its first storage type and the one that its random cases
//! take there, with `TREFOIL_PARITY_DTYPES=all` in all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use crate::cases::KERNELS;
use crate::report::Report;
use crate::runner::{self, Verdict};
use crate::suite::{Case, Unreadable};
use crate::{backends, suite};
use libtest_mimic::Arguments;
use trefoil::{DType, IGpuBackend};

use super::{Jobs, absent, few_types, in_turn, note, refused_throughout};

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

/// What a CPU behind a driver leaves out of these cases, as numbers of theirs: other storage types than a kernel's first and [`in_turn`], unless no case
/// has one of these. Each is another compilation, and the types of one text differ in how they load and store.
fn left_out(cases: &[Result<Case, Unreadable>]) -> BTreeSet<usize> {
    let mut by_kernel = BTreeMap::<&str, Vec<(usize, DType)>>::new();
    for (i, case) in cases.iter().enumerate().filter_map(|(i, c)| Some((i, c.as_ref().ok()?))) {
        by_kernel.entry(&case.kernel).or_default().push((i, case.dtype));
    }
    let mut out = BTreeSet::new();
    for (number, kernel) in KERNELS.iter().enumerate() {
        let own = by_kernel.remove(kernel.name).unwrap_or_default();
        let kept =
            |(_, dtype): &(usize, DType)| *dtype == kernel.dtypes[0] || *dtype == in_turn(kernel, number);
        if own.iter().any(kept) {
            out.extend(own.iter().filter(|c| !kept(c)).map(|c| c.0));
        }
    }
    out
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
    let (mut failures, mut skips) = (Vec::new(), BTreeMap::new());
    let cases = cases(path)?;
    let left_out = if few_types(gpu) { left_out(&cases) } else { BTreeSet::new() };
    if !left_out.is_empty() {
        println!(
            "skipped {} of {} cases of {name}: storage types in turn; TREFOIL_PARITY_DTYPES=all runs all",
            left_out.len(),
            cases.len()
        );
    }
    for (_, case) in cases.into_iter().enumerate().filter(|(i, _)| !left_out.contains(i)) {
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
    println!("{name}: {}", report.summary());
    failures.extend(refused_throughout(&skips));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
