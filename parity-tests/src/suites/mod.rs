//! The suites that run on every backend, as the main functions of tests.
//!
//! `asked` are the backends that must be there: with any named, the others are left out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use trefoil::{DType, IGpuBackend};

use crate::backends::{self, Candidate};
use crate::cases::Kernel;
use crate::runner::Verdict;

pub mod directional;
pub mod golden;
pub mod parity;
mod unchanged;
mod worker;

/// Whether a device takes some of a kernel's storage types for all: a CPU behind a driver, where each is another compilation and most of the time goes
/// there, unless `TREFOIL_PARITY_DTYPES=all` asks for all of them.
fn few_types(gpu: &dyn IGpuBackend) -> bool {
    let all = std::env::var("TREFOIL_PARITY_DTYPES").is_ok_and(|v| v == "all");
    backends::cpu_behind_a_driver(gpu) && !all
}

/// The storage type that stands for all of a kernel, the `number`-th of the table: neighbours there share a text, and take turns.
fn in_turn(kernel: &Kernel, number: usize) -> DType {
    kernel.dtypes[number % kernel.dtypes.len()]
}

/// A test: its answer as JSON, or why it failed.
type Job = Box<dyn Fn() -> Result<String, String> + Send + Sync>;

/// The tests of a suite by name.
#[derive(Default)]
struct Jobs {
    /// Each with whether it runs in a process of its own.
    all: BTreeMap<String, (bool, Job)>,
    /// What those processes are told.
    told: String,
}

impl Jobs {
    fn add(
        &mut self,
        gpu: &dyn IGpuBackend,
        name: String,
        job: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) {
        self.all.insert(name, (worker::wanted(gpu), Box::new(job)));
    }

    /// Runs the tests that the command line asks for, after `others`; `answered` gets what they answer. Prints which took longest.
    fn run(
        self,
        args: &Arguments,
        others: Vec<Trial>,
        answered: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Conclusion {
        if worker::serving() {
            worker::serve(|name| match self.all.get(name) {
                Some((_, job)) => job(),
                None => Err(format!("no test {name}")),
            });
            std::process::exit(0);
        }
        let (shared, times) = (Arc::new((worker::Workers::new(self.told), answered)), Times::default());
        let trial = |(name, (apart, job)): (String, (bool, Job))| {
            let (shared, times) = (shared.clone(), times.clone());
            Trial::test(name.clone(), move || {
                let began = Instant::now();
                let answer = if apart { shared.0.run(&name) } else { job() };
                times.add(&name, began);
                answer.and_then(|a| (shared.1)(&a)).map_err(Failed::from)
            })
        };
        let trials = others.into_iter().chain(self.all.into_iter().map(trial)).collect();
        let conclusion = libtest_mimic::run(args, trials);
        times.print();
        conclusion
    }
}

/// Seconds that each test took.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<(f64, String)>>>);

impl Times {
    fn add(&self, name: &str, began: Instant) {
        if let Ok(mut all) = self.0.lock() {
            all.push((began.elapsed().as_secs_f64(), name.into()));
        }
    }

    /// Prints the ten longest above two seconds: where a suite that has become slow can be made cheaper.
    fn print(&self) {
        let Ok(mut all) = self.0.lock() else { return };
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (seconds, name) in all.iter().take_while(|(s, _)| *s > 2.0).take(10) {
            println!("time: {seconds:6.1} s {name}");
        }
    }
}

/// The test that stands for an absent backend: a failure where it is required.
fn absent(suite: &str, backend: &Candidate, why: &str, what: &str, listing: bool) -> Trial {
    let (name, required) = (backend.name, backend.required);
    if !listing {
        println!("{suite}: {name} is absent: {why} ({what} {})", if required { "FAIL" } else { "skipped" });
    }
    let why = format!("{name} is required, but: {why}");
    let trial =
        Trial::test(
            format!("{name}::present"),
            move || if required { Err(Failed::from(why)) } else { Ok(()) },
        );
    trial.with_ignored_flag(!required)
}

/// Cases of a kernel that ran, and why one did not.
type Skips = BTreeMap<String, (usize, Option<String>)>;

fn note(skips: &mut Skips, kernel: &str, verdict: &Verdict) {
    let (ran, why) = skips.entry(kernel.into()).or_default();
    match verdict {
        Verdict::Skip(e) => *why = Some(e.clone()),
        _ => *ran += 1,
    }
}

/// Kernels of which no case ran: that the device supports none of them is a failure, with the last reason.
fn refused_throughout(skips: &Skips) -> Vec<String> {
    let all = skips.iter().filter(|(_, (ran, _))| *ran == 0);
    all.filter_map(|(k, (_, why))| Some(format!("{k}: every case was refused: {}", why.as_ref()?))).collect()
}
