//! The suites that run on every backend, as the main functions of tests.
//!
//! `asked` are the backends that must be there: with any named, the others are left out.

use std::collections::BTreeMap;

use libtest_mimic::{Failed, Trial};

use crate::backends::Candidate;
use crate::runner::Verdict;

pub mod directional;
pub mod golden;
pub mod parity;

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
