//! Every kernel on random shapes, dtypes and backends against the CPU in f64.
//!
//! `TREFOIL_PARITY_SHAPES` sets the number of shapes per kernel (default 20; its storage types share them, rounded up), `TREFOIL_PARITY_SEED` the
//! seed (default 1; a failure prints what replays it), `TREFOIL_PARITY_REPORT` a directory for one report per backend, `TREFOIL_PARITY_DTYPES=all` that
//! a CPU behind a driver takes every storage type.
//!
//! Kernels whose text the committed reports have seen pass (`suites/unchanged.rs`) run fewer cases, and one of each variant, unless one of these
//! variables or a name on the command line asks for all.
//!
//! An operation with several variants is run by the one that the device chooses, and again by each other that takes the problem, until that has run
//! two cases of the storage type. A failure names the variant, the report counts the cases of each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use crate::cases::{KERNELS, Kernel};
use crate::report::Report;
use crate::runner::Verdict;
use crate::variants::Passed;
use crate::{backends, runner, units};
use libtest_mimic::Arguments;
use serde::{Deserialize, Serialize};

use super::unchanged::Unchanged;
use super::{Jobs, absent, few_types, in_turn, note, refused_throughout};
use trefoil::{DType, IGpuBackend};

const SHAPES: u64 = 20;
/// Cases of each storage type of a kernel whose text is unchanged: one with aligned operands, one without.
const FEW: usize = 2;
/// Cases of a storage type that a variant runs where another is chosen.
const PINNED: usize = 2;

fn number(var: &str, default: u64) -> u64 {
    std::env::var(var).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// What the cases of one kernel gave on one backend.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    backend: String,
    kernel: String,
    /// Storage type and verdict of each case.
    cases: Vec<(String, Verdict)>,
    /// Cases that each variant passed.
    variants: BTreeMap<String, usize>,
}

impl Outcome {
    /// Failures, and that the device refuses every case.
    fn failures(&self) -> Vec<String> {
        let mut skips = BTreeMap::new();
        self.cases.iter().for_each(|(_, v)| note(&mut skips, &self.kernel, v));
        let failed = self.cases.iter().filter_map(|(_, v)| match v {
            Verdict::Fail(e) => Some(e.clone()),
            _ => None,
        });
        failed.chain(refused_throughout(&skips)).collect()
    }
}

/// How many cases of which storage types a kernel runs.
struct Extent {
    dtypes: Vec<DType>,
    cases_of_each: usize,
    /// Cases of a storage type that each variant shall run beside the chosen one.
    cases_of_variants: usize,
}

impl Extent {
    /// Of a kernel, the `number`-th of the table, whose text has changed since it last passed: all storage types share the shapes. Where they are
    /// [few](few_types), the first and every third of the others run, in turn from kernel to kernel: the types of one text differ in how they load
    /// and store, and neighbours in the table share both.
    fn whole(gpu: &dyn IGpuBackend, kernel: &Kernel, number: usize, shapes: usize) -> Self {
        let cases_of_each = shapes.div_ceil(kernel.dtypes.len());
        let (first, others) = kernel.dtypes.split_at(1);
        if !few_types(gpu) || others.is_empty() {
            return Extent { dtypes: kernel.dtypes.to_vec(), cases_of_each, cases_of_variants: PINNED };
        }
        let others = others.iter().skip(number % others.len().min(3)).step_by(3);
        let dtypes = first.iter().chain(others).copied().collect();
        Extent { dtypes, cases_of_each, cases_of_variants: PINNED }
    }

    /// Of a kernel whose text is that of a report in which it passed: a few cases of each type; of one type, in turn, on a CPU behind a driver.
    fn few(gpu: &dyn IGpuBackend, kernel: &Kernel, number: usize) -> Self {
        let dtypes = match backends::cpu_behind_a_driver(gpu) {
            true => vec![in_turn(kernel, number)],
            false => kernel.dtypes.to_vec(),
        };
        Extent { dtypes, cases_of_each: FEW, cases_of_variants: 1 }
    }
}

/// Runs one kernel on one backend.
fn run_kernel(gpu: &dyn IGpuBackend, kernel: &Kernel, extent: &Extent, seed: u64) -> Outcome {
    let (mut cases, mut variants) = (Vec::new(), BTreeMap::new());
    for &dtype in &extent.dtypes {
        let mut passed = Passed::default();
        for index in 0..extent.cases_of_each {
            cases.push((
                dtype.name().into(),
                runner::random(gpu, kernel, dtype, index, seed, extent.cases_of_variants, &mut passed),
            ));
        }
        passed.names().for_each(|(name, n)| *variants.entry(name).or_default() += n);
    }
    Outcome { backend: gpu.id().kind.to_string(), kernel: kernel.name.into(), cases, variants }
}

/// The reports of all backends.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<BTreeMap<String, Report>>>);

impl Reports {
    /// Adds the answer of a test; its failures.
    fn add(&self, answer: &str) -> Result<(), String> {
        let outcome: Outcome = serde_json::from_str(answer).map_err(|e| e.to_string())?;
        let mut all = self.0.lock().map_err(|e| e.to_string())?;
        if let Some(report) = all.get_mut(&outcome.backend) {
            outcome.cases.iter().for_each(|(dtype, v)| report.add(&outcome.kernel, dtype, v));
            report.add_variants(&outcome.kernel, &outcome.variants);
        }
        for (_, verdict) in &outcome.cases {
            if let Verdict::Skip(e) = verdict {
                println!("{}: skipped {e}", outcome.backend);
            }
        }
        let failures = outcome.failures();
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
    }

    /// Prints the summaries and writes the reports where they are asked for.
    fn write(&self) -> Result<(), String> {
        for (name, report) in self.0.lock().map_err(|e| e.to_string())?.iter_mut() {
            println!("parity: {name}: {}", report.summary());
            if let Some(dir) = std::env::var_os("TREFOIL_PARITY_REPORT") {
                report.write(&PathBuf::from(dir).join(format!("parity-{name}.json")))?;
            }
        }
        Ok(())
    }
}

/// Whether `TREFOIL_PARITY_KERNELS` (comma-separated names) has a kernel, or is not set.
fn named(kernel: &str) -> bool {
    std::env::var("TREFOIL_PARITY_KERNELS").map_or(true, |names| names.split(',').any(|n| n.trim() == kernel))
}

/// Runs the random cases.
pub fn run(asked: &[&str]) -> ExitCode {
    if units::answer() {
        return ExitCode::SUCCESS;
    }
    let args = Arguments::from_args();
    let shapes = number("TREFOIL_PARITY_SHAPES", SHAPES) as usize;
    let seed = number("TREFOIL_PARITY_SEED", 1);
    let (reports, mut trials, mut jobs) = (Reports::default(), Vec::new(), Jobs::default());
    let mut unchanged = Unchanged::told();
    for backend in backends::all(asked) {
        let name = backend.name;
        let gpu = match &backend.handle {
            Ok(gpu) => gpu.clone(),
            Err(e) => {
                trials.push(absent("parity", &backend, e, &format!("{} kernels", KERNELS.len()), args.list));
                continue;
            }
        };
        reports.0.lock().expect("no test runs yet").insert(name.into(), Report::new(&*gpu));
        // Who names kernels works on them, and gets all their cases.
        if !args.list && args.filter.is_none() {
            unchanged.look_up(&*gpu);
        }
        for (number, kernel) in KERNELS.iter().enumerate().filter(|(_, k)| named(k.name)) {
            let own = gpu.clone();
            let extent = match unchanged.has(name, kernel.name) {
                true => Extent::few(&*gpu, kernel, number),
                false => Extent::whole(&*gpu, kernel, number, shapes),
            };
            jobs.add(&*gpu, format!("{name}::{}", kernel.name), move || {
                let gpu = backends::private(&own).map_err(|e| e.to_string())?;
                serde_json::to_string(&run_kernel(&*gpu, kernel, &extent, seed)).map_err(|e| e.to_string())
            });
        }
    }
    jobs.told = unchanged.tell();
    let own = reports.clone();
    let conclusion = jobs.run(&args, trials, move |answer| own.add(answer));
    if args.list {
        return conclusion.exit_code();
    }
    match reports.write() {
        Ok(()) => conclusion.exit_code(),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
