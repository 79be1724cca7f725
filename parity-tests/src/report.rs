//! Results of a run as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use trefoil::IGpuBackend;

use crate::cases::find;
use crate::record::Counts;
use crate::runner::Verdict;
use crate::units;

/// What ran on which device, per kernel.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this format: 2.
    pub format: u32,
    /// Version of the library.
    pub version: &'static str,
    /// Day of the run, UTC, `YYYY-MM-DD`.
    pub date: String,
    /// The device.
    pub device: Device,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that were skipped.
    pub skipped: usize,
    /// By kernel name.
    pub kernels: BTreeMap<String, Row>,
}

/// The device of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Device {
    /// `cpu:0`, `cuda:0`, ...
    pub id: String,
    /// `cpu`, `cuda`, `hip` or `opencl`.
    pub backend: String,
    /// The vendor's name.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Driver version.
    pub driver: String,
}

/// One kernel.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    /// Row of the specification; empty for a name that the table does not have.
    pub row: &'static str,
    /// Family name.
    pub family: String,
    /// Methods of the backend that the kernel calls.
    pub ops: &'static [&'static str],
    /// Its cases, and the text that ran.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Report {
    /// An empty report for a device.
    pub fn new(gpu: &dyn IGpuBackend) -> Self {
        let caps = gpu.caps();
        Report {
            format: 2,
            version: env!("CARGO_PKG_VERSION"),
            date: today(),
            device: Device {
                id: caps.id.to_string(),
                backend: caps.id.kind.to_string(),
                name: caps.name.clone(),
                arch: caps.arch.clone(),
                driver: caps.driver_version.clone(),
            },
            passed: 0,
            failed: 0,
            skipped: 0,
            kernels: BTreeMap::new(),
        }
    }

    /// Adds one case.
    pub fn add(&mut self, kernel: &str, dtype: &str, verdict: &Verdict) {
        let row = self.kernels.entry(kernel.into()).or_default();
        if let Some(k) = find(kernel) {
            (row.row, row.family, row.ops) = (k.row, format!("{:?}", k.family).to_lowercase(), k.ops);
        }
        match verdict {
            Verdict::Pass => {
                row.counts.dtypes.insert(dtype.into());
                row.counts.passed += 1;
                self.passed += 1;
            }
            Verdict::Fail(_) => {
                row.counts.failed += 1;
                self.failed += 1;
            }
            Verdict::Skip(_) => {
                row.counts.skipped += 1;
                self.skipped += 1;
            }
        }
    }

    /// Adds the cases that variants passed.
    pub fn add_variants(&mut self, kernel: &str, passed: &BTreeMap<String, usize>) {
        let counts = &mut self.kernels.entry(kernel.into()).or_default().counts;
        passed.iter().for_each(|(name, n)| *counts.variants.entry(name.clone()).or_default() += n);
    }

    /// Writes the report, with the hash of what each kernel ran.
    pub fn write(&mut self, path: &Path) -> Result<(), String> {
        let hashes = units::hashes(&self.device.backend)?;
        for (name, row) in &mut self.kernels {
            row.counts.hash = hashes.get(name).cloned().unwrap_or_default();
        }
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The last line of a run.
    pub fn summary(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The current day, UTC, `YYYY-MM-DD`.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}
