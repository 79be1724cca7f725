//! Kernels whose text is that of the committed record in which all their cases passed: evidence that lets a run on slow devices be short.
//!
//! The record is `parity-tests/results/parity-BACKEND.json`, each kernel with the hash of what was compiled for it (`src/units.rs`): for OpenCL the
//! expanded text of its units, for the CPU all sources of that backend. Only devices that are CPUs ask; a GPU takes all cases in seconds.

use std::collections::{BTreeMap, BTreeSet};

use trefoil::IGpuBackend;

use super::worker;
use crate::record::{self, Record};
use crate::units;

/// Variables with which somebody wants more than a short run.
const ASK_FOR_ALL: [&str; 3] = ["TREFOIL_PARITY_SHAPES", "TREFOIL_PARITY_DTYPES", "TREFOIL_PARITY_REPORT"];

/// Kernels that passed with today's texts, and the first and last day on which they did.
fn unchanged(record: &Record, today: &BTreeMap<String, String>) -> (BTreeSet<String>, String) {
    let (mut names, mut days) = (BTreeSet::new(), BTreeSet::new());
    for (name, last) in &record.kernels {
        let c = &last.counts;
        if c.passed > 0 && c.failed == 0 && !c.hash.is_empty() && today.get(name) == Some(&c.hash) {
            names.insert(name.clone());
            days.insert(last.date.as_str());
        }
    }
    let (first, last) = (days.first().copied().unwrap_or_default(), days.last().copied().unwrap_or_default());
    let when = if first == last { format!("on {first}") } else { format!("from {first} to {last}") };
    (names, when)
}

/// `BACKEND::KERNEL` of what is unchanged.
#[derive(Debug, Default)]
pub(super) struct Unchanged(BTreeSet<String>);

impl Unchanged {
    /// What a worker was told; nothing in the parent.
    pub(super) fn told() -> Self {
        let told = worker::told().unwrap_or_default();
        Unchanged(told.split_whitespace().map(String::from).collect())
    }

    /// What a worker is to be told.
    pub(super) fn tell(&self) -> String {
        self.0.iter().cloned().collect::<Vec<_>>().join(" ")
    }

    /// Whether a kernel's text is unchanged on a backend.
    pub(super) fn has(&self, backend: &str, kernel: &str) -> bool {
        self.0.contains(&format!("{backend}::{kernel}"))
    }

    /// Compares what a device compiles with its backend's record. Without one, or where it cannot be read, everything counts as changed.
    pub(super) fn look_up(&mut self, gpu: &dyn IGpuBackend) {
        let all = ASK_FOR_ALL.iter().any(|name| std::env::var_os(name).is_some());
        if all || worker::serving() || !gpu.caps().is_cpu {
            return;
        }
        let backend = gpu.id().kind.to_string();
        let record = Record::read(&record::folder(), &backend);
        match record.and_then(|r| Ok(unchanged(&r, &units::hashes(&backend)?))) {
            Ok((names, when)) => {
                println!(
                    "skipped on {backend}: most random cases of {} kernels, whose text passed {when}; TREFOIL_PARITY_SHAPES=20 runs all",
                    names.len()
                );
                self.0.extend(names.into_iter().map(|name| format!("{backend}::{name}")));
            }
            Err(e) => println!("{backend}: every kernel counts as changed: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pass_of_the_same_text_counts() {
        let row = |kernel: &str, day: u32, passed: usize, failed: usize, hash: &str| {
            format!(
                r#""{kernel}": {{"date": "2026-01-0{day}", "device": "Card", "arch": "", "driver": "", "passed": {passed}, "failed": {failed},
                "skipped": 0, "hash": "{hash}"}}"#
            )
        };
        let rows = [
            row("same", 1, 2, 0, "a"),
            row("later", 3, 2, 0, "a"),
            row("other", 4, 2, 0, "b"),
            row("failed", 5, 2, 1, "a"),
            row("skipped", 6, 0, 0, "a"),
            row("copied", 7, 2, 0, ""),
            row("gone", 8, 2, 0, "a"),
        ];
        let text = format!(r#"{{"format": 3, "backend": "opencl", "kernels": {{{}}}}}"#, rows.join(","));
        let record: Record = serde_json::from_str(&text).unwrap();
        let today = ["same", "later", "other", "failed", "skipped"].map(|k| (k.to_string(), "a".to_string()));
        let today = today.into_iter().chain([("copied".into(), String::new())]).collect();
        let (names, when) = unchanged(&record, &today);
        assert_eq!(names, ["later", "same"].map(String::from).into());
        assert_eq!(when, "from 2026-01-01 to 2026-01-03");
    }
}
