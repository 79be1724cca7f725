//! What a checkpoint holds besides tensors: progress and checksums, in an entry of the file's metadata.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trefoil::DType;

use crate::core::error::{NOTICE, NnError, Result};
use crate::core::host_tensor::HostTensor;

/// Key of the metadata entry. There is only this one, because the format does not define the order of several.
pub(crate) const KEY: &str = "trefoil";
/// Since version 2 there are checksums.
pub(crate) const VERSION: u32 = 2;

/// What a checkpoint holds besides tensors. Numbers that must return exactly are kept as bits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Version of this format.
    pub version: u32,
    /// Epochs done.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Items per batch.
    pub batch_size: u64,
    /// Positions of the model's random number generators.
    pub counters: BTreeMap<String, u64>,
    /// Further state of the run, such as `plateau.best`, as bits of f64 or counts.
    pub state: BTreeMap<String, u64>,
    /// What defines the training, such as its schedule; a run that resumes must have the same.
    pub settings: BTreeMap<String, Value>,
}

/// The error of a checkpoint that cannot be read or written.
pub(crate) fn bad(path: &Path, what: impl Into<String>) -> NnError {
    NnError::Checkpoint { path: path.into(), what: what.into(), source: None }
}

fn sum(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The checksum of a tensor, fed with its elements in order.
#[derive(Debug)]
pub(crate) struct TensorSum(blake3::Hasher);

impl TensorSum {
    pub(crate) fn new(dtype: DType, shape: &[usize]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{dtype} {shape:?}\n").as_bytes());
        TensorSum(hasher)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digest(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// The text of the metadata entry: progress and checksums of tensors, a line of JSON each, and the checksum of these lines.
pub(crate) struct Record {
    pub(crate) progress: Progress,
    /// By name; `None` in files of version 1.
    pub(crate) sums: Option<BTreeMap<String, String>>,
}

impl Record {
    pub(crate) fn write(&self) -> serde_json::Result<String> {
        let text = [serde_json::to_string(&self.progress)?, serde_json::to_string(&self.sums)?].join("\n");
        let sum = sum(text.as_bytes());
        Ok([text, sum].join("\n"))
    }

    /// `None` for a file of another program. Errors: [`NnError::Checkpoint`] if the entry is damaged, or of a later version.
    pub(crate) fn read(path: &Path, metadata: &BTreeMap<String, String>) -> Result<Option<Record>> {
        let intact = |text: &str| text.rsplit_once('\n').is_some_and(|(lines, s)| sum(lines.as_bytes()) == s);
        let Some(text) = metadata.get(KEY) else {
            // A flipped bit of the key would otherwise make it a file of another program.
            return match metadata.iter().find(|(_, text)| intact(text)) {
                Some((key, _)) => {
                    Err(bad(path, format!("damaged: its metadata stands under the key `{key}`")))
                }
                None => Ok(None),
            };
        };
        let json = |e: serde_json::Error| bad(path, format!("damaged metadata: {e}"));
        let record = match text.rsplit_once('\n') {
            Some(_) if !intact(text) => {
                return Err(bad(path, "damaged metadata: its checksum is another one"));
            }
            Some((lines, _)) => {
                let (progress, sums) = lines.split_once('\n').unwrap_or((lines, ""));
                let sums = serde_json::from_str(sums).map_err(json)?;
                Record { progress: serde_json::from_str(progress).map_err(json)?, sums: Some(sums) }
            }
            None => Record { progress: serde_json::from_str(text).map_err(json)?, sums: None },
        };
        let version = record.progress.version;
        if version > VERSION {
            let what = format!("format version {version}, this build reads up to {VERSION}");
            return Err(bad(path, what));
        }
        if record.sums.is_none() {
            if version == VERSION {
                return Err(bad(path, "damaged metadata: the checksums are missing"));
            }
            log::warn!(
                target: NOTICE,
                "{} was written by an earlier version, without checksums: damage would not be noticed",
                path.display()
            );
        }
        Ok(Some(record))
    }

    /// The checksum that a tensor must have; `None` in files without checksums. Errors: a tensor that was not saved.
    pub(crate) fn sum_of(&self, path: &Path, name: &str) -> Result<Option<&str>> {
        let Some(sums) = &self.sums else { return Ok(None) };
        match sums.get(name) {
            Some(sum) => Ok(Some(sum)),
            None => Err(bad(path, format!("damaged: tensor `{name}` has no checksum"))),
        }
    }

    pub(crate) fn check_names(&self, path: &Path, tensors: &BTreeMap<String, HostTensor>) -> Result<()> {
        let lost = self.sums.iter().flat_map(BTreeMap::keys).find(|name| !tensors.contains_key(*name));
        match lost {
            Some(name) => Err(bad(path, format!("damaged: tensor `{name}` is missing"))),
            None => Ok(()),
        }
    }
}

/// Error of a tensor whose bytes are not those that were saved.
pub(crate) fn damaged_tensor(path: &Path, name: &str) -> NnError {
    bad(path, format!("tensor `{name}` is damaged: its checksum is another one"))
}
