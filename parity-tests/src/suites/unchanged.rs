//! Kernels whose text is that of a committed report in which all their cases passed: evidence that lets a run on slow devices be short.
//!
//! The reports are `parity-tests/results/parity-BACKEND*.json` (of all kernels, and of those that changed later), each kernel with the hash of what was
//! compiled for it (`src/units.rs`): for OpenCL the expanded text of its units, for the CPU all sources of that backend. Only devices that are CPUs ask;
//! a GPU takes all cases in seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use trefoil::IGpuBackend;

use super::worker;
use crate::units;

/// Variables with which somebody wants more than a short run.
const ASK_FOR_ALL: [&str; 3] = ["TREFOIL_PARITY_SHAPES", "TREFOIL_PARITY_DTYPES", "TREFOIL_PARITY_REPORT"];

/// A committed report, as far as it is needed.
#[derive(Debug, Deserialize)]
struct Report {
    date: String,
    kernels: BTreeMap<String, Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    passed: usize,
    failed: usize,
    hash: String,
}

impl Report {
    /// Kernels that passed with these texts.
    fn unchanged(&self, today: &BTreeMap<String, String>) -> BTreeSet<String> {
        let same = |(name, row): &(&String, &Row)| {
            row.passed > 0 && row.failed == 0 && !row.hash.is_empty() && today.get(*name) == Some(&row.hash)
        };
        self.kernels.iter().filter(same).map(|(name, _)| name.clone()).collect()
    }
}

/// The committed reports of a backend; an error where there is none, or one cannot be read.
fn reports(backend: &str) -> Result<Vec<Report>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.retain(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("parity-{backend}")) && name.ends_with(".json")
    });
    if paths.is_empty() {
        return Err(format!("{}: no report", folder.display()));
    }
    paths.iter().map(|p| read(p)).collect()
}

fn read(path: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Kernels that passed with today's texts in one report or another, and the first and last day on which they did.
fn unchanged(reports: &[Report], today: &BTreeMap<String, String>) -> (BTreeSet<String>, String) {
    let days: BTreeSet<&str> = reports.iter().map(|r| r.date.as_str()).collect();
    let (first, last) = (days.first().copied().unwrap_or_default(), days.last().copied().unwrap_or_default());
    let when = if first == last { format!("on {first}") } else { format!("from {first} to {last}") };
    (reports.iter().flat_map(|r| r.unchanged(today)).collect(), when)
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

    /// Compares what a device compiles with its backend's report. Without a report, or where it cannot be read, everything counts as changed.
    pub(super) fn look_up(&mut self, gpu: &dyn IGpuBackend) {
        let all = ASK_FOR_ALL.iter().any(|name| std::env::var_os(name).is_some());
        if all || worker::serving() || !gpu.caps().is_cpu {
            return;
        }
        let backend = gpu.id().kind.to_string();
        match reports(&backend).and_then(|all| Ok(unchanged(&all, &units::hashes(&backend)?))) {
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
        let report: Report = serde_json::from_str(
            r#"{"date": "2026-01-31", "device": {}, "kernels": {
                "same": {"passed": 2, "failed": 0, "hash": "a"}, "other": {"passed": 2, "failed": 0, "hash": "b"},
                "failed": {"passed": 2, "failed": 1, "hash": "a"}, "skipped": {"passed": 0, "failed": 0, "hash": "a"},
                "copied": {"passed": 2, "failed": 0, "hash": ""}, "gone": {"passed": 2, "failed": 0, "hash": "a"}}}"#,
        )
        .unwrap();
        let today = ["same", "other", "failed", "skipped"].map(|k| (k.to_string(), "a".to_string()));
        let today = today.into_iter().chain([("copied".into(), String::new())]).collect();
        assert_eq!(report.unchanged(&today), BTreeSet::from(["same".to_string()]));
    }

    #[test]
    fn reports_of_several_days_count_together() {
        let report = |date: &str, kernel: &str| -> Report {
            let row = format!(r#""{kernel}": {{"passed": 2, "failed": 0, "hash": "{kernel}"}}"#);
            serde_json::from_str(&format!(r#"{{"date": "{date}", "kernels": {{{row}}}}}"#)).unwrap()
        };
        let today = ["relu", "gelu", "tanh"].map(|k| (k.to_string(), k.to_string())).into();
        let (names, when) = unchanged(&[report("2026-01-31", "relu"), report("2026-01-02", "gelu")], &today);
        assert_eq!(names, ["relu", "gelu"].map(String::from).into());
        assert_eq!(when, "from 2026-01-02 to 2026-01-31");
    }
}
