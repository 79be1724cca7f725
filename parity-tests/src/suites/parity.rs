//! Every kernel on random shapes, dtypes and backends against the CPU in f64.
//!
//! `TREFOIL_PARITY_SHAPES` sets the number of shapes per kernel (default 20; its storage types share them, rounded up), `TREFOIL_PARITY_SEED` the
//! seed (default 1; a failure prints what replays it), `TREFOIL_PARITY_REPORT` a directory for one report per backend.
//!
//! An operation with several variants is run by the one that the device chooses, and once more by each of the others, in a process of its
//! own that pins it, with a third of the shapes (all of them where more than the default are asked for); cases that a variant does not take
//! are skipped there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use crate::cases::KERNELS;
use crate::report::Report;
use crate::runner::Verdict;
use crate::{backends, runner, units};
use libtest_mimic::{Arguments, Failed, Trial};

use super::{absent, note, refused_throughout};
use trefoil::ops::all_ops;

const SHAPES: u64 = 20;

fn number(var: &str, default: u64) -> u64 {
    std::env::var(var).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Runs the kernels that use `op` on one backend with one variant.
fn run_pinned(backend: &str, op: &str, variant: &str) -> Result<(), Failed> {
    let shapes = match number("TREFOIL_PARITY_SHAPES", SHAPES) {
        n @ 0..=SHAPES => n.div_ceil(3).max(6).min(n),
        n => n,
    };
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = std::process::Command::new(exe)
        .env("TREFOIL_VARIANT", format!("{op}:{variant}"))
        .env("TREFOIL_PARITY_BACKENDS", backend)
        .env("TREFOIL_PARITY_OP", op)
        .env("TREFOIL_PARITY_SHAPES", shapes.to_string())
        .env_remove("TREFOIL_PARITY_REPORT")
        .arg("--test-threads=1")
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(Failed::from(format!("{text}{}", String::from_utf8_lossy(&out.stderr))));
    }
    println!(
        "parity: {backend} with {op}:{variant}, {shapes} shapes: {}",
        text.trim_end().rsplit('\n').next().unwrap_or("no output")
    );
    Ok(())
}

/// Runs the random cases.
pub fn run(asked: &[&str]) -> ExitCode {
    if units::answer() {
        return ExitCode::SUCCESS;
    }
    let args = Arguments::from_args();
    let shapes = number("TREFOIL_PARITY_SHAPES", SHAPES) as usize;
    let seed = number("TREFOIL_PARITY_SEED", 1);
    // Set by the runs of single variants.
    let only = std::env::var("TREFOIL_PARITY_OP").ok();
    let pinned = only.is_some();
    let reports: Arc<Mutex<BTreeMap<&'static str, Report>>> = Arc::default();
    let mut trials = Vec::new();
    for backend in backends::all(asked) {
        let name = backend.name;
        let gpu = match &backend.handle {
            Ok(gpu) => gpu.clone(),
            Err(e) => {
                trials.push(absent("parity", &backend, e, &format!("{} kernels", KERNELS.len()), args.list));
                continue;
            }
        };
        reports.lock().expect("no test holds this lock while it fails").insert(name, Report::new(&*gpu));
        if only.is_none() && std::env::var_os("TREFOIL_VARIANT").is_none() {
            for op in all_ops() {
                let others = gpu.explain(op.name).map(|c| c.rejected).unwrap_or_default();
                for (variant, _) in others {
                    let trial = format!("{name}::{}[{variant}]", op.name);
                    trials.push(Trial::test(trial, move || run_pinned(name, op.name, &variant)));
                }
            }
        }
        for kernel in KERNELS.iter().filter(|k| only.as_ref().is_none_or(|o| k.ops.contains(&o.as_str()))) {
            let (gpu, reports) = (gpu.clone(), reports.clone());
            trials.push(Trial::test(format!("{name}::{}", kernel.name), move || {
                let gpu = backends::private(&gpu).map_err(|e| e.to_string())?;
                let (mut failures, mut skips) = (Vec::new(), BTreeMap::new());
                for &dtype in kernel.dtypes {
                    for index in 0..shapes.div_ceil(kernel.dtypes.len()) {
                        let verdict = runner::random(&*gpu, kernel, dtype, index, seed);
                        match &verdict {
                            Verdict::Fail(e) => failures.push(e.clone()),
                            Verdict::Skip(e) => println!("{name}: skipped {e}"),
                            Verdict::Pass => {}
                        }
                        note(&mut skips, kernel.name, &verdict);
                        let mut all = reports.lock().expect("no test holds this lock while it fails");
                        if let Some(r) = all.get_mut(name) {
                            r.add(kernel.name, dtype.name(), &verdict);
                        }
                    }
                }
                // A pinned variant need not take every kernel that uses its operation.
                if !pinned {
                    failures.extend(refused_throughout(&skips));
                }
                if failures.is_empty() { Ok(()) } else { Err(Failed::from(failures.join("\n"))) }
            }));
        }
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        for (name, report) in reports.lock().expect("all tests are over").iter_mut() {
            println!("parity: {name}: {}", report.summary());
            if let Some(dir) = std::env::var_os("TREFOIL_PARITY_REPORT") {
                let path = PathBuf::from(dir).join(format!("parity-{name}.json"));
                if let Err(e) = report.write(&path) {
                    eprintln!("{e}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    conclusion.exit_code()
}
