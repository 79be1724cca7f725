//! What the committed results say about kernels: `parity-tests/results/*.json`.
//!
//! Two kinds of files lie there: the records of the parity crate (`parity-BACKEND.json`, what each kernel passed last), and reports of `compile-check`
//! (one list of architectures). Which is which is seen from their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parity_tests::record::{Last, Record};
use serde::Deserialize;
use serde_json::Value;

/// A report of `compile-check`.
#[derive(Debug, Deserialize)]
struct Compiled {
    date: String,
    outcomes: Vec<Outcome>,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    dialect: String,
    arch: String,
    known: bool,
    all_units: bool,
    failed: Vec<Failure>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    unit: String,
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    records: Vec<Record>,
    compiled: Vec<Compiled>,
}

/// What is known of one kernel on one backend.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// All its cases passed on a device.
    Verified(String),
    /// All its cases passed, with a text that is not today's.
    Outdated(String),
    /// Cases failed on a device.
    Fails(String),
    /// Its units compile for these architectures.
    Compiles(String),
    /// Nothing.
    Nothing,
}

impl Known {
    /// Text of a table cell.
    pub(crate) fn cell(&self) -> String {
        match self {
            Known::Verified(s) => format!("verified ({s})"),
            Known::Outdated(s) => format!("outdated ({s})"),
            Known::Fails(s) => format!("fails ({s})"),
            Known::Compiles(s) => format!("compiles ({s})"),
            Known::Nothing => "—".into(),
        }
    }

    /// Its column in a table of counts: verified, outdated, compiles only, no result, failing.
    pub(crate) fn column(&self) -> usize {
        match self {
            Known::Verified(_) => 0,
            Known::Outdated(_) => 1,
            Known::Compiles(_) => 2,
            Known::Nothing => 3,
            Known::Fails(_) => 4,
        }
    }
}

impl Evidence {
    /// Reads a folder; one that is not there holds nothing.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let mut evidence = Evidence::default();
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(evidence) };
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "json")) {
            let fail = |e: String| format!("{}: {e}", path.display());
            let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
            evidence.add(&text).map_err(fail)?;
        }
        Ok(evidence)
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if value.get("outcomes").is_some() {
            self.compiled.push(serde_json::from_value(value).map_err(|e| e.to_string())?);
        } else if value.get("kernels").is_some() {
            self.records.push(serde_json::from_value(value).map_err(|e| e.to_string())?);
        } else {
            return Err("neither a record of parity (`kernels`) nor a compile report (`outcomes`)".into());
        }
        Ok(())
    }

    /// What is known of a kernel, by its name in the parity table, on `cpu`, `cuda`, `hip` or `opencl`. `units` are those that it uses, `today` is
    /// the hash of their text.
    pub(crate) fn of(&self, backend: &str, kernel: &str, units: &BTreeSet<String>, today: &str) -> Known {
        let record = self.records.iter().find(|r| r.backend == backend);
        let last =
            record.and_then(|r| r.kernels.get(kernel)).filter(|l| l.counts.passed + l.counts.failed > 0);
        let Some(last) = last else { return self.compiles(backend, units) };
        let (seen, counts) = (format!("{}, {}", device(backend, last), last.date), &last.counts);
        if counts.failed > 0 {
            return Known::Fails(format!(
                "{seen}: {} of {} cases",
                counts.failed,
                counts.failed + counts.passed
            ));
        }
        if counts.hash == today {
            return Known::Verified(seen);
        }
        match self.compiles(backend, units) {
            Known::Nothing => Known::Outdated(last.date.clone()),
            known => known,
        }
    }

    fn compiles(&self, dialect: &str, units: &BTreeSet<String>) -> Known {
        if units.is_empty() {
            return Known::Nothing;
        }
        let mut archs: BTreeMap<&str, &str> = BTreeMap::new();
        for c in &self.compiled {
            for o in c.outcomes.iter().filter(|o| o.dialect == dialect && o.known && o.all_units) {
                if !o.failed.iter().any(|f| units.contains(&f.unit)) {
                    let date = archs.entry(&o.arch).or_default();
                    *date = (*date).max(&c.date);
                }
            }
        }
        let Some(date) = archs.values().max() else { return Known::Nothing };
        // `sm_100` after `sm_90`.
        let mut names: Vec<&str> = archs.keys().copied().collect();
        names.sort_by_key(|n| (n.len(), *n));
        Known::Compiles(format!("{}, {date}", names.join(" ")))
    }

    /// Cases of today's text that a variant (`operation:variant`) passed on a backend. `today` has the hash of each kernel's text there.
    pub(crate) fn cases_by(&self, backend: &str, variant: &str, today: &BTreeMap<&str, String>) -> usize {
        let records = self.records.iter().filter(|r| r.backend == backend);
        let rows =
            records.flat_map(|r| &r.kernels).filter(|(k, l)| today.get(k.as_str()) == Some(&l.counts.hash));
        rows.filter_map(|(_, l)| l.counts.variants.get(variant)).sum()
    }

    /// Devices of a backend, for the foot of the page.
    pub(crate) fn devices(&self) -> BTreeSet<String> {
        let all = self.records.iter().flat_map(|r| r.kernels.values().map(|l| (&r.backend, l)));
        all.map(|(backend, last)| format!("{backend}: {}", device(backend, last))).collect()
    }
}

/// Name of a device as a reader knows it.
fn device(backend: &str, last: &Last) -> String {
    match backend {
        // HIP's functions forwarded to CUDA: the driver code and the dialect ran, AMD hardware did not.
        "hip" if last.arch.starts_with("sm_") => format!("{} through hip-on-cuda", last.device),
        // PoCL names the processor only.
        "opencl" if last.arch.contains("PoCL") || last.device.starts_with("pthread") => "PoCL".into(),
        _ => last.device.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(texts: &[&str]) -> Evidence {
        let mut e = Evidence::default();
        texts.iter().for_each(|t| e.add(t).unwrap());
        e
    }

    fn parity(backend: &str, arch: &str, passed: usize, failed: usize) -> String {
        format!(
            r#"{{"format": 3, "backend": "{backend}", "kernels": {{"relu": {{"date": "2026-01-0{passed}", "device": "Card", "arch": "{arch}",
            "driver": "", "passed": {passed}, "failed": {failed}, "skipped": 0, "hash": "now"}}}}}}"#
        )
    }

    #[test]
    fn a_cell_says_what_was_seen_where_and_when() {
        let units = BTreeSet::from(["a.c@f32".to_string()]);
        let compiled = |failed: &str| {
            format!(
                r#"{{"date": "2026-02-02", "outcomes": [
                {{"dialect": "cuda", "arch": "sm_100", "known": true, "all_units": true, "failed": []}},
                {{"dialect": "cuda", "arch": "sm_90", "known": true, "all_units": true, "failed": [{failed}]}},
                {{"dialect": "cuda", "arch": "sm_80", "known": true, "all_units": false, "failed": []}},
                {{"dialect": "hip", "arch": "gfx90a", "known": false, "all_units": true, "failed": []}}]}}"#
            )
        };
        let e = evidence(&[&compiled(""), &parity("cuda", "sm_90", 3, 0), &parity("hip", "sm_90", 2, 0)]);
        assert_eq!(e.of("cuda", "relu", &units, "now").cell(), "verified (Card, 2026-01-03)");
        assert_eq!(e.of("hip", "relu", &units, "then").cell(), "outdated (2026-01-02)");
        assert_eq!(e.of("cuda", "relu", &units, "then").cell(), "compiles (sm_90 sm_100, 2026-02-02)");
        assert_eq!(
            e.of("hip", "relu", &units, "now").cell(),
            "verified (Card through hip-on-cuda, 2026-01-02)"
        );
        assert_eq!(e.of("cuda", "tanh", &units, "now").cell(), "compiles (sm_90 sm_100, 2026-02-02)");
        assert_eq!(e.of("hip", "tanh", &units, "now"), Known::Nothing);
        assert_eq!(e.of("opencl", "tanh", &units, "now").cell(), "—");
        assert_eq!(e.of("cuda", "tanh", &BTreeSet::new(), "now"), Known::Nothing);

        let e = evidence(&[&compiled(r#"{"unit": "a.c@f32", "log": ""}"#), &parity("cpu", "x86_64", 2, 1)]);
        assert_eq!(e.of("cuda", "tanh", &units, "now").cell(), "compiles (sm_100, 2026-02-02)");
        assert_eq!(e.of("cpu", "relu", &units, "now").cell(), "fails (Card, 2026-01-02: 1 of 3 cases)");
        assert!(Evidence::default().add("{}").is_err());
    }
}
