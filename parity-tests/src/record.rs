//! What every kernel passed last on each backend, with the device, the day and the text: `results/parity-BACKEND.json`.
//!
//! Runs write reports ([`crate::report`]) of the kernels that they took; `cargo xtask record` puts these into the records.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report::Device;

/// Version of the format of records.
const FORMAT: u32 = 3;

/// The last results of all kernels on a backend.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// `cpu`, `cuda`, `hip` or `opencl`.
    pub backend: String,
    /// By kernel name.
    pub kernels: BTreeMap<String, Last>,
}

/// The last run of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Day, UTC, `YYYY-MM-DD`.
    pub date: String,
    /// The vendor's name of the device.
    pub device: String,
    /// Its architecture.
    pub arch: String,
    /// Version of its driver.
    pub driver: String,
    /// What came of it.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Cases of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Storage types of those that passed.
    #[serde(default)]
    pub dtypes: BTreeSet<String>,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were skipped.
    pub skipped: usize,
    /// How many passed by variant, `operation:variant`; empty where there is one way to run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, usize>,
    /// Hash of the text that ran (see [`crate::units`]).
    pub hash: String,
}

/// A report of a run, as far as a record has it.
#[derive(Debug, Deserialize)]
pub struct Ran {
    date: String,
    device: Device,
    kernels: BTreeMap<String, Counts>,
}

/// The folder of the committed records.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

impl Ran {
    /// Reads a report.
    pub fn read(path: &Path) -> Result<Self, String> {
        read(path)
    }

    /// The backend that ran.
    pub fn backend(&self) -> &str {
        &self.device.backend
    }
}

impl Record {
    /// A record without kernels.
    pub fn new(backend: &str) -> Self {
        Record { format: FORMAT, backend: backend.into(), kernels: BTreeMap::new() }
    }

    /// The record of a backend in a folder; an error where there is none, or it cannot be read.
    pub fn read(folder: &Path, backend: &str) -> Result<Self, String> {
        let path = Self::path(folder, backend);
        let record: Record = read(&path)?;
        if (record.format, record.backend.as_str()) != (FORMAT, backend) {
            let found = (record.format, record.backend);
            return Err(format!(
                "{}: expected format {FORMAT} of {backend}, found {found:?}",
                path.display()
            ));
        }
        Ok(record)
    }

    /// Where the record of a backend lies in a folder.
    pub fn path(folder: &Path, backend: &str) -> PathBuf {
        folder.join(format!("parity-{backend}.json"))
    }

    /// Takes in the kernels of a report, but for those of which it has a later day, and those of which every case was skipped; how many it took.
    pub fn take(&mut self, ran: &Ran) -> Result<usize, String> {
        if ran.device.backend != self.backend {
            return Err(format!(
                "expected a report of {}, found one of {}",
                self.backend, ran.device.backend
            ));
        }
        let mut taken = 0;
        for (name, counts) in &ran.kernels {
            let later = self.kernels.get(name).is_some_and(|last| last.date > ran.date);
            if later || counts.passed + counts.failed == 0 {
                continue;
            }
            let (date, device) = (ran.date.clone(), ran.device.name.clone());
            let (arch, driver) = (ran.device.arch.clone(), ran.device.driver.clone());
            self.kernels.insert(name.clone(), Last { date, device, arch, driver, counts: counts.clone() });
            taken += 1;
        }
        Ok(taken)
    }

    /// Writes the record to its folder, a line per kernel.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let line = |(name, last): (&String, &Last)| {
            let last = serde_json::to_string(last).map_err(|e| e.to_string())?;
            Ok(format!("\"{name}\": {last}"))
        };
        let lines: Vec<String> = self.kernels.iter().map(line).collect::<Result<_, String>>()?;
        let (format, backend) = (self.format, &self.backend);
        let text = format!(
            "{{\n\"format\": {format},\n\"backend\": \"{backend}\",\n\"kernels\": {{\n{}\n}}\n}}\n",
            lines.join(",\n")
        );
        let path = Self::path(folder, backend);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(backend: &str, date: &str, kernel: &str, passed: usize) -> Ran {
        let text = format!(
            r#"{{"format": 2, "date": "{date}", "device": {{"id": "x", "backend": "{backend}", "name": "Card", "arch": "sm_90", "driver": "1"}},
            "passed": 0, "kernels": {{"{kernel}": {{"row": "", "dtypes": ["f32"], "passed": {passed}, "failed": 0, "skipped": 1,
            "variants": {{"unary:flat": 2}}, "hash": "h"}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn day_of<'a>(record: &'a Record, kernel: &str) -> &'a str {
        &record.kernels[kernel].date
    }

    #[test]
    fn a_record_has_the_last_day_of_each_kernel() {
        let mut record = Record::new("cuda");
        assert_eq!(record.take(&ran("cuda", "2026-01-02", "relu", 2)), Ok(1));
        assert_eq!(record.take(&ran("cuda", "2026-01-03", "tanh", 3)), Ok(1));
        assert_eq!(record.take(&ran("cuda", "2026-01-01", "relu", 9)), Ok(0));
        assert!(
            record
                .take(&ran("hip", "2026-01-04", "relu", 9))
                .is_err_and(|e| e.contains("of cuda, found one of hip"))
        );
        assert_eq!((day_of(&record, "relu"), day_of(&record, "tanh")), ("2026-01-02", "2026-01-03"));
        assert_eq!(record.take(&ran("cuda", "2026-01-04", "relu", 9)), Ok(1));
        assert_eq!(record.kernels["relu"].counts.passed, 9);
        // A device that refuses a kernel says nothing of it.
        assert_eq!(record.take(&ran("cuda", "2026-01-05", "relu", 0)), Ok(0));
        assert_eq!(day_of(&record, "relu"), "2026-01-04");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = std::env::temp_dir().join(format!("trefoil-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut record = Record::new("hip");
        record.take(&ran("hip", "2026-01-02", "relu", 2)).unwrap();
        record.take(&ran("hip", "2026-01-02", "tanh", 2)).unwrap();
        record.write(&folder).unwrap();
        let again = Record::read(&folder, "hip").unwrap();
        assert_eq!(again.kernels, record.kernels);
        // A line per kernel: a change of one is a change of one line.
        let text = std::fs::read_to_string(Record::path(&folder, "hip")).unwrap();
        assert_eq!(text.lines().filter(|l| l.contains("\"date\"")).count(), 2);
        std::fs::write(Record::path(&folder, "cuda"), text).unwrap();
        assert!(Record::read(&folder, "cuda").is_err_and(|e| e.contains("expected format 3 of cuda")));
        assert!(Record::read(&folder, "opencl").is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
